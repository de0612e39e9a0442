"""The apply engine: log rows of one table in, the rows of a `Batch` out, as pure DataFrame steps.

    open      messages become typed columns                 (envelopes)
    judge     rows that can never be applied get a reason
    align     columns of several writers' schemas, and the target's types, become one shape
    reconcile the newest change per key, with what older ones add to it

No step writes or touches a target. The order is the only right one: a row must have its types before
it can be judged, is judged as its writer wrote it, and must be judged before it may win over another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.core.change import Op
from tailrace.core.table import Column, Table, widens

POSITION, OP, OFFSET, UNCHANGED, PROBLEM = "_cdc_position", "_cdc_op", "_cdc_offset", "_cdc_unchanged", "_cdc_problem"
EVENTS, OLD_KEY = "_cdc_events", "_cdc_old_key"
RESERVED = (OP, POSITION, "_cdc_changed_at", "_cdc_topic", "_cdc_partition", OFFSET, UNCHANGED, PROBLEM, OLD_KEY)


def column(name: str) -> Expression:
    """Return the column called exactly `name`, whatever characters it has."""
    return F.col("`" + name.replace("`", "``") + "`")


def merged(schemas: Sequence[Table]) -> Table:
    """Return the table that rows of all `schemas`, oldest first, go into.

    The newest schema leads; columns that only older ones have are kept, because their events carry
    them. A column has the widest of its types, or the newest where none is wider.
    """
    newest = schemas[-1]
    columns = {c.name: c for c in newest.columns}
    for older in reversed(schemas[:-1]):
        for old in older.columns:
            now = columns.setdefault(old.name, Column(old.name, old.type, encoding=old.encoding))
            if now.type != old.type and widens(now.type, old.type):
                columns[old.name] = Column(now.name, old.type, now.nullable, now.encoding, now.default)
    return Table(newest.name, tuple(columns.values()), newest.keys)


def align(opened: Sequence[tuple[DataFrame, Table]], want: Table) -> DataFrame:
    """Give rows of several schemas, oldest first, the columns of `want`.

    A row written before a column existed has the column's default, as the source's own rows do. A row
    written after a column was dropped says nothing of it: the target keeps what it has.
    """
    newest = set(opened[-1][1].names())
    return reduce(DataFrame.unionByName, [_shape(rows, schema, want, newest) for rows, schema in opened])


def _shape(rows: DataFrame, schema: Table, want: Table, newest: set[str]) -> DataFrame:
    have = {c.name: c for c in schema.columns}
    problem, shaped, kept = column(PROBLEM), [], []
    for target in want.columns:
        source = have.get(target.name)
        if source is None:
            shaped.append(F.lit(target.default).cast(target.type).alias(target.name))
            if target.name not in newest:
                kept.append(F.lit(target.name))
        elif source.type == target.type:
            shaped.append(column(target.name))
        else:
            value = column(target.name).try_cast(target.type)
            if not widens(source.type, target.type):
                lost = column(target.name).isNotNull() & (
                    value.isNull() | (value.cast(source.type) != column(target.name))
                )
                problem = F.coalesce(problem, F.when(lost, f'bad-value: column "{target.name}" is no {target.type}'))
            shaped.append(value.alias(target.name))
    unchanged = F.array_union(column(UNCHANGED), F.array(*kept)) if kept else column(UNCHANGED)
    old_key = F.when(
        column(OLD_KEY).isNotNull(),
        F.struct(*(column(OLD_KEY)[key].cast(want.column(key).type).alias(key) for key in want.keys)),
    )
    ours = {UNCHANGED: unchanged, PROBLEM: problem, OLD_KEY: old_key if want.keys else F.lit(None)}
    return rows.select(*(ours.get(name, column(name)).alias(name) for name in RESERVED), *shaped)


def judge(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Complete `_cdc_problem`: why a change can never be applied, or NULL when it can."""
    problem = column(PROBLEM)
    for key in keys:
        missing = (column(OP) != Op.TRUNCATE.value) & column(key).isNull()
        problem = F.coalesce(problem, F.when(missing, f'missing-key: key column "{key}" is null'))
    return rows.withColumn(PROBLEM, problem)


def judge_creates(rows: DataFrame, names: Sequence[str], included: Expression) -> DataFrame:
    """Reject a create that leaves out one of the columns `names`: it has no older row to take it from.

    What the target has `included` already was judged when it was applied; its old row is gone now.
    """
    left_out = F.array_intersect(column(UNCHANGED), F.array(*map(F.lit, names)))
    partial = (column(OP) == Op.CREATE.value) & (F.size(left_out) > 0) & ~included
    return rows.withColumn(PROBLEM, F.coalesce(column(PROBLEM), F.when(partial, without_row())))


def without_row() -> Expression:
    """Return the reason to reject a change that leaves out columns of a row that is not there."""
    return F.concat(F.lit("unchanged-without-row: no value for "), F.array_join(column(UNCHANGED), ", "))


def newer(changes: DataFrame, known: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Keep the changes that are newer than what the target knows of their key."""
    seen = known.select(*(column(key) for key in keys), column(POSITION).alias("_seen"))
    joined = changes.join(seen, list(keys), "left")
    return joined.where(F.col("_seen").isNull() | (column(POSITION) > F.col("_seen"))).drop("_seen")


def reconcile(changes: DataFrame, table: Table, *, partial: bool) -> DataFrame:
    """Turn accepted changes of one table into the rows of a `Batch`: one per key."""
    return newest_with_unchanged(changes, table) if partial else newest_per_key(changes, table)


def as_events(changes: DataFrame, table: Table) -> DataFrame:
    """Turn accepted changes into the rows of an append table: one per change."""
    kept = ("_cdc_changed_at", "_cdc_topic", "_cdc_partition", OFFSET)
    return changes.select(
        F.lit(table.name).alias("_cdc_table"),
        column(OP),
        column(POSITION),
        column(kept[0]),
        F.current_timestamp().alias("_cdc_ingested_at"),
        *(column(name) for name in kept[1:]),
        *(column(name) for name in table.names()),
    )


def newest_per_key(changes: DataFrame, table: Table) -> DataFrame:
    """Keep the change with the greatest position of each key, and count what it stands for.

    Equal positions of one key are a redelivery; the log's own order breaks the tie, so that the
    winner never depends on the order in which Spark happens to read.
    """
    values = [name for name in table.names() if name not in table.keys]
    order = F.struct(column(POSITION), column(OFFSET))
    whole = F.struct(column(POSITION), column(OP), column(UNCHANGED), *(column(name) for name in values))
    newest = changes.groupBy(*(column(key) for key in table.keys)).agg(
        F.max_by(whole, order).alias("_newest"), F.count(F.lit(1)).alias(EVENTS)
    )
    return newest.select(*_result(table, {name: F.col("_newest")[name] for name in values}, F.col("_newest")))


def newest_with_unchanged(changes: DataFrame, table: Table) -> DataFrame:
    """Like `newest_per_key`, where a column that the newest change leaves out may stand in an older one.

    A create carries every column, so the newest value given is never from before the row was deleted.
    """
    values = [name for name in table.names() if name not in table.keys]
    order = F.struct(column(POSITION), column(OFFSET))
    whole = F.struct(column(POSITION), column(OP), column(UNCHANGED))
    given = {n: ~F.array_contains(column(UNCHANGED), name) for n, name in enumerate(values)}
    newest = changes.groupBy(*(column(key) for key in table.keys)).agg(
        F.max_by(whole, order).alias("_newest"),
        F.count(F.lit(1)).alias(EVENTS),
        *(
            F.max_by(F.struct(column(name).alias("value")), F.when(given[n], order)).alias(f"_given_{n}")
            for n, name in enumerate(values)
        ),
    )
    left = F.filter(
        F.col("_newest")[UNCHANGED],
        lambda name: F.array_contains(
            F.array(*(F.when(F.col(f"_given_{n}").isNull(), F.lit(value)) for n, value in enumerate(values))), name
        ),
    )
    return newest.select(
        *_result(
            table,
            {name: F.col(f"_given_{n}")["value"] for n, name in enumerate(values)},
            F.col("_newest").withField(UNCHANGED, left),
        )
    )


def _result(table: Table, values: dict[str, Expression], newest: Expression) -> list[Expression]:
    deleted = newest[OP] == Op.DELETE.value
    return [
        *(column(name) if name in table.keys else values[name].alias(name) for name in table.names()),
        newest[POSITION].alias(POSITION),
        F.when(deleted, Op.DELETE.value).otherwise(Op.UPDATE.value).alias(OP),
        newest[UNCHANGED].alias(UNCHANGED),
        column(EVENTS),
    ]
