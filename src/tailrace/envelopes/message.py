"""A message of somebody else's log, looked into: which table, which change, at which position.

A format's `peek` makes one row per message with these columns, which say all that must be known of a
slice before its tables are folded; `open_rows` then gives the rows of one table their types.

    topic partition offset   where the message lies
    table                    the qualified name of the table
    schema                   identifies the schema that the message brings along; empty if it brings none
    op position changed_at   the change
    row                      the image as JSON text: the row as it became, for a delete as it was
    old_key                  the key that the row had before, as JSON text, where a create is half of a change of key
    before                   of an update, the row as it was, as JSON text; empty where `row` has it as well
    partial                  the image may say of a column that its value was not sent
    keyless                  the message has no key of its own that names columns
    fate                     NULL for a change, empty for what means nothing by design, else why it is rejected
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.core.change import Op
from tailrace.core.position import Phase
from tailrace.core.table import Column, Table
from tailrace.envelopes._values import can_fail, decode, quoted, raw_type, unreadable

COLUMNS = (
    "topic",
    "partition",
    "offset",
    "table",
    "schema",
    "op",
    "position",
    "changed_at",
    "row",
    "old_key",
    "before",
    "partial",
    "keyless",
    "fate",
)
NO_SCHEMA = "bad-schema: its schema describes no row"
NO_ROW = "malformed: not a row of this table"
PLACEHOLDER = "__debezium_unavailable_value"
"""What Debezium writes for a value that the database did not send, unless it was told another word."""

FILTERED = ""
"""The fate of a message that means nothing by design."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One message of a table, to learn its schema from."""

    topic: str
    key: bytes | None
    value: bytes | None


class Format(Protocol):
    """A message format."""

    @property
    def by_offset(self) -> bool:
        """Say whether changes are ordered by nothing but their place in a partition."""
        ...

    def peek(self, rows: DataFrame, epoch: int, max_bytes: int) -> DataFrame:
        """Look into the messages of a log; see the module for the columns that come out."""
        ...

    def learn(self, peeked: DataFrame) -> bool:
        """Ask for what is needed to look into messages that could not be; say whether to look again."""
        ...

    def remember(self, table: Table, schema: str) -> None:
        """Take note that rows of `table` may be written with `schema`, learned in this process or before."""
        ...

    def schema(self, table: str, sample: Sample) -> Table | None:
        """Return the schema that a message of `table` brings along; `None` if it brings none."""
        ...

    def keys(self, sample: Sample) -> tuple[str, ...]:
        """Return the columns that identify a row, as far as a message says so."""
        ...

    def open_rows(self, rows: DataFrame, table: Table, epoch: int, max_bytes: int) -> DataFrame:
        """Open peeked rows of one table, written with one schema, into its columns and ours."""
        ...


def open_json(rows: DataFrame, table: Table, placeholder: str) -> DataFrame:
    """Open peeked rows whose image is JSON text."""
    fields = ", ".join(f"{quoted(column.name)}: {raw_type(column)}" for column in table.columns)
    image = F.from_json("row", f"struct<{fields}, _cdc_corrupt: string>", {"columnNameOfCorruptRecord": "_cdc_corrupt"})
    parsed = rows.select(*(F.col(name) for name in COLUMNS if name != "row"), image.alias("m"))
    raw = {column.name: F.col(f"m.{quoted(column.name)}") for column in table.columns}
    values = {column.name: decode(column.encoding, column.type)(raw[column.name]) for column in table.columns}
    unsent = {c.name: found for c in table.columns if (found := _unsent(raw[c.name], c, placeholder)) is not None}
    problem = F.when(F.col("m._cdc_corrupt").isNotNull(), _misfit(table))
    for column in table.columns:
        if can_fail(column.encoding):
            failed = unreadable(column, raw[column.name], values[column.name], table.keys, F.col("op"))
            if column.name in unsent:
                failed &= ~unsent[column.name]
            problem = problem.when(failed, f'bad-value: column "{column.name}" is not a {column.type}')
    before = _read("before", table, table.names())
    return opened(parsed, values, unsent, problem, F.coalesce(old_key(table), before))


def _misfit(table: Table) -> Expression:
    """Say of a row that could not be read as a whole which of its values is none of its column.

    Of a deleted row only the key counts: what else it held must not keep it in the target.
    """
    texts = ", ".join(f"{quoted(name)}: string" for name in table.names())
    there = F.json_object_keys(F.to_json(F.from_json("m._cdc_corrupt", f"struct<{texts}>")))
    lost = F.array_except(there, F.json_object_keys(F.to_json("m")))
    deleted = (F.col("op") == Op.DELETE.value) & F.lit(bool(table.keys))
    name = F.get(F.when(deleted, F.array_intersect(lost, F.array(*map(F.lit, table.keys)))).otherwise(lost), F.lit(0))
    kinds = F.create_map(*(F.lit(text) for c in table.columns for text in (c.name, c.type)))
    named = F.concat(F.lit('bad-value: column "'), name, F.lit('" is not a '), kinds[name])
    return F.coalesce(named, F.when(~deleted, NO_ROW))


def opened(
    rows: DataFrame,
    values: Mapping[str, Expression],
    unsent: Mapping[str, Expression],
    problem: Expression,
    old_key: Expression,
) -> DataFrame:
    """Select what an opened row has: our columns, and those of the table in `values`."""
    nothing = F.array().cast("array<string>")
    left_out = F.array_compact(F.array(*(F.when(found, F.lit(name)) for name, found in unsent.items())))
    return rows.select(
        F.col("op").alias("_cdc_op"),
        F.col("position").alias("_cdc_position"),
        F.col("changed_at").alias("_cdc_changed_at"),
        F.col("topic").alias("_cdc_topic"),
        F.col("partition").alias("_cdc_partition"),
        F.col("offset").alias("_cdc_offset"),
        (F.when(F.col("partial"), left_out).otherwise(nothing) if unsent else nothing).alias("_cdc_unchanged"),
        problem.alias("_cdc_problem"),
        old_key.alias("_cdc_old_key"),
        *(
            (F.when(~(F.col("partial") & unsent[name]), value) if name in unsent else value).alias(name)
            for name, value in values.items()
        ),
    )


def no_row(table: Table) -> Expression:
    """Return a row that is not there, in the types of `table`."""
    return F.lit(None).cast(f"struct<{', '.join(f'{quoted(c.name)}: {c.type}' for c in table.columns)}>")


def old_key(table: Table) -> Expression:
    """Return the old key as a struct of every column: which of them the target goes by is not known here."""
    return _read("old_key", table, table.keys) if table.keys else no_row(table)


def _read(text: str, table: Table, names: Collection[str]) -> Expression:
    """Return the columns `names` of the image in the column `text`, in a struct of every column."""
    fields = ", ".join(f"{quoted(name)}: {raw_type(table.column(name))}" for name in names)
    image = F.from_json(text, f"struct<{fields}>")
    values = (
        (decode(c.encoding, c.type)(image[c.name]) if c.name in names else F.lit(None).cast(c.type)).alias(c.name)
        for c in table.columns
    )
    return F.when(F.col(text).isNotNull(), F.struct(*values))


def _unsent(raw: Expression, column: Column, placeholder: str) -> Expression | None:
    """Say of a value whether it stands for one that was not sent; `None` for a type that never does."""
    kind, coded = raw_type(column), _base64(placeholder)
    found: Expression | None = None
    if kind == "string":
        # Without a schema, bytes are text like any other.
        found = raw.isin(placeholder, coded, unsent_hstore(placeholder))
    elif kind == "map<string,string>":
        found = F.map_keys(raw) == F.array(F.lit(placeholder))
    elif kind == "array<string>":
        found = raw.isin(*(F.array(F.lit(text)) for text in (placeholder, coded, unsent_uuid(placeholder))))
    elif kind in ("array<int>", "array<bigint>"):
        found = raw == F.array(*map(F.lit, placeholder.encode())).cast(kind)
    return found if found is None else F.coalesce(found, F.lit(False))


def may_be_partial(text: Expression, placeholder: str) -> Expression:
    """Say of an image whether it may hold the placeholder, in one of the forms that it has in JSON."""
    numbers = ",".join(map(str, placeholder.encode()))
    found = text.contains(placeholder) | text.contains(_base64(placeholder)) | text.contains(numbers)
    return F.coalesce(found | text.contains(unsent_uuid(placeholder)), F.lit(False))


def unsent_uuid(placeholder: str) -> str:
    """Return the one element of an array of UUIDs that was not sent: Java makes it of the placeholder's bytes."""
    digest = bytearray(hashlib.md5(placeholder.encode(), usedforsecurity=False).digest())
    digest[6], digest[8] = digest[6] & 0x0F | 0x30, digest[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(digest)))


def unsent_hstore(placeholder: str) -> str:
    """Return the text of an hstore that was not sent: the placeholder is its key and its value."""
    return json.dumps({placeholder: placeholder}, separators=(",", ":"), ensure_ascii=False)


def _base64(placeholder: str) -> str:
    return base64.b64encode(placeholder.encode()).decode()


def at(epoch: int, phase: Phase | Expression, place: Expression) -> Expression:
    """Return a position; see `core.position`. `place` has a fixed width."""
    middle = F.lit(str(phase.value)) if isinstance(phase, Phase) else phase
    return F.concat(F.lit(f"{epoch:04x}."), middle, F.lit("."), place)


def fixed(number: Expression, digits: int = 16) -> Expression:
    """Return a number as hexadecimal text of `digits` digits."""
    return F.lpad(F.lower(F.hex(number.cast("bigint"))), digits, "0")


def unfit(max_bytes: int) -> Expression:
    """Say of a message whether it cannot be looked into; it is asked first, so that its bytes need not be carried."""
    size = F.octet_length("value")
    return (
        F.when(size.isNull(), FILTERED)
        .when(size > max_bytes, F.concat(F.lit("too-large: "), size, F.lit(" bytes")))
        .when(~F.is_valid_utf8(F.col("value").cast("string")), "malformed: the message is not valid UTF-8")
    )


def fate(corrupt: Expression, special: Expression, known_ops: Expression) -> Expression:
    """Say what becomes of a message as far as every format agrees; `special` comes before the change itself."""
    return (
        F.when(F.col("unfit").isNotNull(), F.col("unfit"))
        .when(corrupt, "malformed: not a message of this format")
        .when(special.isNotNull(), special)
        .when(~known_ops, F.concat(F.lit("unknown-op: "), quotable(F.col("op"))))
        .when(F.col("table").isNull(), "unknown-table: the message does not say which table it belongs to")
        .when(F.col("position").isNull(), "missing-position: the message has no place in its source's order")
        .when(
            (F.col("op") == Op.DELETE.value) & F.col("row").isNull(),
            "missing-key: a delete without a row and without a key",
        )
        .when((F.col("op") != Op.TRUNCATE.value) & F.col("row").isNull(), "missing-image: the message has no row")
    )


def quotable(text: Expression) -> Expression:
    """Return the beginning of what a message says, which is of any length, for a reason to name it."""
    return F.substring(text, 1, 100)


def header(name: str) -> Expression:
    """Return the first header of a message that is called `name`."""
    # Not with a lambda, which Spark does not compile: it would run the whole step row by row.
    return F.get(F.col("headers.value"), (F.array_position(F.col("headers.key"), name) - 1).cast("int"))


def text_within(max_bytes: int) -> Expression:
    """Return the message as text, NULL if it is too long to be looked into."""
    return F.when(F.octet_length("value") <= max_bytes, F.col("value").cast("string"))


def key_text(key: Expression) -> Expression:
    """Return a key as JSON text, without the schema block that Connect may put before it."""
    text = key.cast("string")
    # A column of the key may be called like one of the two.
    wrapped = F.array_sort(F.json_object_keys(text)) == F.array(F.lit("payload"), F.lit("schema"))
    return F.when(wrapped, F.get_json_object(text, "$.payload")).otherwise(text)


def keyless(key: Expression) -> Expression:
    """Say whether a key names no columns: it is not there, or is no object."""
    return ~F.coalesce(F.ltrim(key.cast("string")).startswith("{"), F.lit(False))


def keys_in(key: bytes | None) -> tuple[str, ...]:
    """Return the fields of a key in JSON, in their order; none if it is not an object."""
    try:
        found: Any = json.loads(key) if key else None
    except ValueError:
        return ()
    if isinstance(found, dict) and set(found) == {"schema", "payload"}:
        found = found["payload"]
    return tuple(found) if isinstance(found, dict) else ()
