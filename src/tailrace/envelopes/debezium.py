"""Debezium's message as columns: JSON without the Connect schema block, typed by the table's schema.

`open_rows` turns log rows of one table, written with one schema, into

    _cdc_op  _cdc_position  _cdc_changed_at  _cdc_offset  _cdc_unchanged  _cdc_problem  _cdc_old_key

and the table's columns, with column expressions only. `_cdc_problem` says why a message could not be
read, or is NULL. `_cdc_old_key` is the key that the row had before, where a create is half of a change
of key.

The place of a Postgres change is its LSN; if another transaction committed behind that LSN and before the
change did, it is the LSN of that commit, then its own. So places follow the order of commits, and in a
transaction that of its changes (ADR 33). Two changes of one row never share a place; rows of one bulk insert
may, but differ in key. Snapshot rows lie below every change of their epoch (see core.position).
`envelopes.binlog` opens the same messages with places of another kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.core.change import Op
from tailrace.core.position import Phase
from tailrace.core.table import Table
from tailrace.envelopes._values import can_fail, decode, quoted, raw_type, unreadable

_LOST = '" has a value that no column can hold'
"""Said of what the capture could not put into the message, such as an array of two dimensions."""


@dataclass(frozen=True)
class Order:
    """Where a message names its place in the source's order."""

    field: str
    fields: str
    """What is read of `source` for it, as a struct has it."""
    text: Callable[[Expression], Expression]
    """Makes text of `source` that sorts as the places do; NULL if it has no place."""


def _in_log(source: Expression) -> Expression:
    parts = F.concat_ws(".", *(F.lpad(F.lower(F.hex(source[name])), 16, "0") for name in ("behind", "lsn")))
    return F.when(source["lsn"].isNotNull(), parts)


_LSN = Order(field="lsn", fields="lsn bigint, behind bigint", text=_in_log)


def open_rows(rows: DataFrame, table: Table, epoch: int, max_bytes: int) -> DataFrame:
    """Open the messages of one table; see the module for the columns that come out."""
    return open_ordered(rows, table, epoch, max_bytes, _LSN)


def open_ordered(rows: DataFrame, table: Table, epoch: int, max_bytes: int, order: Order) -> DataFrame:
    """Open the messages of one table, whose places `order` finds."""
    image = ", ".join(f"{quoted(column.name)}: {raw_type(column)}" for column in table.columns)
    key = ", ".join(f"{quoted(name)}: {raw_type(table.column(name))}" for name in table.keys)
    schema = (
        f"op string, before struct<{image}>, after struct<{image}>, unchanged array<string>, lost array<string>, "
        f"old_key struct<{key}>, source struct<{order.fields}, ts_ms: bigint, snapshot: string>, "
        "_corrupt string"
    )
    options = {"columnNameOfCorruptRecord": "_corrupt"}
    message = F.when(F.octet_length("value") <= max_bytes, F.from_json(F.col("value").cast("string"), schema, options))
    parsed = rows.select("topic", "partition", "offset", F.octet_length("value").alias("_bytes"), message.alias("m"))
    op = F.col("m.op")
    raw = {
        column.name: F.when(op == Op.DELETE.value, F.col(f"m.before.{quoted(column.name)}")).otherwise(
            F.col(f"m.after.{quoted(column.name)}")
        )
        for column in table.columns
    }
    images = parsed.select("*", *(raw[name].alias(f"raw.{n}") for n, name in enumerate(raw)))
    values = {
        column.name: decode(column.encoding, column.type)(F.col(f"`raw.{n}`")) for n, column in enumerate(table.columns)
    }
    return images.select(
        op.alias("_cdc_op"),
        _position(op, epoch, order).alias("_cdc_position"),
        F.timestamp_millis("m.source.ts_ms").alias("_cdc_changed_at"),
        F.col("topic").alias("_cdc_topic"),
        F.col("partition").alias("_cdc_partition"),
        F.col("offset").alias("_cdc_offset"),
        F.coalesce(F.col("m.unchanged"), F.array().cast("array<string>")).alias("_cdc_unchanged"),
        _problem(table, values, max_bytes, order).alias("_cdc_problem"),
        _old_key(table, op).alias("_cdc_old_key"),
        *(values[name].alias(name) for name in values),
    )


def _old_key(table: Table, op: Expression) -> Expression:
    """Return the key that a row had before, as a struct of every column: the target may go by another key."""

    def read(image: str, names: Sequence[str]) -> Expression:
        values = {
            c.name: decode(c.encoding, c.type)(F.col(f"m.{image}.{quoted(c.name)}"))
            if c.name in names
            else F.lit(None).cast(c.type)
            for c in table.columns
        }
        return F.struct(*(value.alias(name) for name, value in values.items()))

    before = F.when((op == Op.UPDATE.value) & F.col("m.before").isNotNull(), read("before", table.names()))
    if not table.keys:
        return before
    return F.when(F.col("m.old_key").isNotNull(), read("old_key", table.keys)).otherwise(before)


def _position(op: Expression, epoch: int, order: Order) -> Expression:
    snapshot = F.coalesce(F.col("m.source.snapshot"), F.lit("false")) != "false"
    phase = (
        F.when((op == Op.TRUNCATE.value) & snapshot, Phase.RESET.value)
        .when(op == Op.READ.value, Phase.SNAPSHOT.value)
        .otherwise(Phase.CHANGE.value)
    )
    return F.concat(F.lit(f"{epoch:04x}."), phase.cast("string"), F.lit("."), _place(order))


def _place(order: Order) -> Expression:
    return order.text(F.col("m.source"))


def _problem(table: Table, values: dict[str, Expression], max_bytes: int, order: Order) -> Expression:
    """Why this message cannot be read: the first reason found, or NULL."""
    image = F.when(F.col("m.op") == Op.DELETE.value, F.col("m.before").isNull()).otherwise(F.col("m.after").isNull())
    problem = (
        F.when(F.col("_bytes") > max_bytes, F.concat(F.lit("too-large: "), F.col("_bytes"), F.lit(" bytes")))
        .when(F.col("_bytes").isNull(), "no-value: the message is empty")
        .when(F.col("m._corrupt").isNotNull() | F.col("m.op").isNull(), "malformed: not a message of this table")
        .when(~F.col("m.op").isin([op.value for op in Op]), F.concat(F.lit("unknown-op: "), F.col("m.op")))
        .when(_place(order).isNull(), f"missing-position: the message has no source.{order.field}")
        .when((F.col("m.op") != Op.TRUNCATE.value) & image, "missing-image: the message has no row")
        .when(F.size("m.lost") > 0, F.concat(F.lit('bad-value: column "'), F.col("m.lost")[0], F.lit(_LOST)))
    )
    for n, column in enumerate(table.columns):
        if can_fail(column.encoding):
            failed = unreadable(column, F.col(f"`raw.{n}`"), values[column.name], table.keys, F.col("m.op"))
            problem = problem.when(failed, f'bad-value: column "{column.name}" is not a {column.type}')
    return problem
