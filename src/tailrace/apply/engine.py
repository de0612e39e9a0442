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
from operator import and_, or_

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from tailrace.core.change import Op
from tailrace.core.nested import element_of, entry_of, fields_of, holds_map
from tailrace.core.table import Column, Table, widens

POSITION, OP, OFFSET, UNCHANGED, PROBLEM = "_cdc_position", "_cdc_op", "_cdc_offset", "_cdc_unchanged", "_cdc_problem"
EVENTS, OLD_KEY, TOPIC, PARTITION = "_cdc_events", "_cdc_old_key", "_cdc_topic", "_cdc_partition"
ASIDE = "_cdc_aside"
"""In rows that rejected changes ride along with: where such a change stood and why it is rejected, else NULL."""
RESERVED = (OP, POSITION, "_cdc_changed_at", TOPIC, PARTITION, OFFSET, UNCHANGED, PROBLEM, OLD_KEY)


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
            value = conform(column(target.name), source.type, target.type)
            if not widens(source.type, target.type):
                lost = misfits(column(target.name), source.type, target.type)
                problem = F.coalesce(problem, F.when(lost, f'bad-value: column "{target.name}" is no {target.type}'))
            shaped.append(value.alias(target.name))
    unchanged = F.array_union(column(UNCHANGED), F.array(*kept)) if kept else column(UNCHANGED)
    old_key = F.when(
        column(OLD_KEY).isNotNull(),
        F.struct(*(_old_key(key, have.get(key), want.column(key).type) for key in want.keys)),
    )
    ours = {UNCHANGED: unchanged, PROBLEM: problem, OLD_KEY: old_key if want.keys else F.lit(None)}
    return rows.select(*(ours.get(name, column(name)).alias(name) for name in RESERVED), *shaped)


def conform(value: Expression, source: str, target: str) -> Expression:
    """Give a value of type `source` the type `target`, which holds it: a field that it lacks is NULL."""
    fields, wanted = fields_of(source), fields_of(target)
    if source == target:
        return value
    if fields is not None and wanted is not None:
        parts = (
            conform(value[name], fields[name], kind) if name in fields else F.lit(None).cast(kind)
            for name, kind in wanted.items()
        )
        return F.when(value.isNotNull(), F.struct(*(part.alias(n) for part, n in zip(parts, wanted, strict=True))))
    element, wanted_element = element_of(source), element_of(target)
    if element is not None and wanted_element is not None:
        return F.transform(value, lambda item: conform(item, element, wanted_element))
    entry, wanted_entry = entry_of(source), entry_of(target)
    if entry is not None and wanted_entry is not None:
        return F.transform_values(value, lambda _, item: conform(item, entry[1], wanted_entry[1]))
    if (source, target) == ("date", "timestamp"):
        # A cast would go by the time zone of whoever's session this is.
        return F.timestamp_seconds(F.unix_date(value).cast("bigint") * 86_400)
    return value.try_cast(target)


def _old_key(name: str, source: Column | None, kind: str) -> Expression:
    value = column(OLD_KEY)[name]
    return (conform(value, source.type, kind) if source else value.cast(kind)).alias(name)


def misfits(value: Expression, source: str, target: str) -> Expression:
    """Say whether `value` has a part, be it inside a struct, that the type `target` cannot hold."""
    fields, wanted = fields_of(source), fields_of(target)
    if source == target or widens(source, target):
        return F.lit(False)
    if fields is not None and wanted is not None:
        parts = [misfits(value[name], kind, wanted[name]) for name, kind in fields.items() if name in wanted]
        return F.coalesce(reduce(or_, parts, F.lit(False)), F.lit(False))
    element, wanted_element = element_of(source), element_of(target)
    if element is not None and wanted_element is not None:
        return F.coalesce(F.exists(value, lambda item: misfits(item, element, wanted_element)), F.lit(False))
    entry, wanted_entry = entry_of(source), entry_of(target)
    if entry is not None and wanted_entry is not None:
        inside = F.exists(F.map_values(value), lambda item: misfits(item, entry[1], wanted_entry[1]))
        return F.coalesce(inside, F.lit(False))
    cast = value.try_cast(target)
    return value.isNotNull() & (cast.isNull() | (cast.cast(source) != value))


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
    partial = (column(OP) == Op.CREATE.value) & leaves_out(names) & ~included
    return rows.withColumn(PROBLEM, F.coalesce(column(PROBLEM), F.when(partial, without_row())))


def judge_partials(
    changes: DataFrame,
    alive: DataFrame | None,
    table: Table,
    required: Sequence[str],
    order: Expression,
    *,
    deletes_stay: bool = False,
) -> DataFrame:
    """Reject a change that leaves out some of the columns `required` of a row that is not there.

    A row is there if its key is among those `alive` in the target and no change before has deleted it, or
    if a change before it, since the last delete, carried all of them. With `deletes_stay`, a deleted row is
    still there, and a delete makes one that was not.
    """
    keys = [column(key) for key in table.keys]
    if alive is None:
        changes = changes.withColumn("_cdc_alive", F.lit(False))
    else:
        there = alive.select(*keys, F.lit(True).alias("_cdc_alive"))
        changes = changes.join(there, list(table.keys), "left").fillna(False, ["_cdc_alive"])
    deleted = column(OP) == Op.DELETE.value
    here = Window.unboundedPreceding, Window.currentRow
    ends = F.lit(False) if deletes_stay else deleted
    lives = F.sum(ends.cast("int")).over(Window.partitionBy(*keys).orderBy(order).rowsBetween(*here))
    changes = changes.withColumn("_cdc_life", lives)
    makes = (deleted | ~leaves_out(required)) if deletes_stay else (~deleted & ~leaves_out(required))
    based = F.max(makes).over(Window.partitionBy(*keys, "_cdc_life").orderBy(order).rowsBetween(*here))
    orphan = ~deleted & ~based & ~(F.col("_cdc_alive") & (F.col("_cdc_life") == 0))
    problem = F.coalesce(column(PROBLEM), F.when(orphan, without_row()))
    return changes.withColumn(PROBLEM, problem).drop("_cdc_alive", "_cdc_life")


def leaves_out(required: Sequence[str]) -> Expression:
    """Say of a change whether it leaves out one of the columns `required`."""
    return F.size(F.array_intersect(column(UNCHANGED), F.array(*map(F.lit, required)).cast("array<string>"))) > 0


def without_row() -> Expression:
    """Return the reason to reject a change that leaves out columns of a row that is not there."""
    return F.concat(F.lit("unchanged-without-row: no value for "), F.array_join(column(UNCHANGED), ", "))


def of_these(known: DataFrame, changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Keep of `known` what it says of the keys of `changes`, which are few: what else is known is not shuffled."""
    return known.join(F.broadcast(changes.select(*map(column, keys))), list(keys), "left_semi")


def newer(changes: DataFrame, known: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Keep the changes that are newer than what the target knows of their key."""
    joined = _beside(changes, known, keys)
    return joined.where(F.col("_cdc_seen").isNull() | (column(POSITION) > F.col("_cdc_seen"))).drop("_cdc_seen")


def newer_or_tied(
    changes: DataFrame, known: DataFrame, rows: DataFrame, table: Table, order: Expression, soft: str
) -> DataFrame:
    """Like `newer`, and an upsert at the very position that is known of its key counts as newer.

    A delete there does not, and stands before an upsert at the same position, which then has no effect either. Nor has
    one that the target has already, which its current `rows` tell: it came again.
    """
    keys = [column(key) for key in table.keys]
    names = [name for name in table.names() if name not in table.keys]
    held = F.struct(POSITION, *(column(name).alias(f"v{n}") for n, name in enumerate(names))).alias("_cdc_held")
    joined = _beside(changes, known, table.keys).join(rows.select(*keys, held), list(table.keys), "left")
    level = column(POSITION) == F.col("_cdc_seen")
    same = reduce(and_, (_same(name, n, table, soft) for n, name in enumerate(names)), F.lit(True))
    echo = (column(OP) == Op.DELETE.value) | ((F.col("_cdc_held")[POSITION] == F.col("_cdc_seen")) & same)
    # Of several at that position one would win, so it alone decides.
    beaten = F.max_by(F.coalesce(echo, F.lit(False)), F.when(level, order)).over(Window.partitionBy(*keys))
    joined = joined.withColumn("_cdc_beaten", beaten)
    news = column(POSITION) > F.col("_cdc_seen")
    return joined.where(F.col("_cdc_seen").isNull() | news | (level & ~F.col("_cdc_beaten"))).drop(
        "_cdc_seen", "_cdc_held", "_cdc_beaten"
    )


def _beside(changes: DataFrame, known: DataFrame, keys: Sequence[str]) -> DataFrame:
    seen = known.select(*(column(key) for key in keys), column(POSITION).alias("_cdc_seen"))
    return changes.join(seen, list(keys), "left")


def _same(name: str, n: int, table: Table, soft: str) -> Expression:
    """Say whether a change leaves the column `name` of its row as it is; one that marks deleted rows, unmarked."""
    kind, held = table.column(name).type, F.col("_cdc_held")[f"v{n}"]
    if name == soft:
        return ~held if kind == "boolean" else held.isNull()
    same = comparable(column(name), kind).eqNullSafe(comparable(held, kind))
    return F.array_contains(column(UNCHANGED), name) | same


def one_per_position(changes: DataFrame, keys: Sequence[str], order: Expression) -> DataFrame:
    """Keep of the changes of one key at one position the last in `order`: the others never stood."""
    tied = Window.partitionBy(*map(column, keys), POSITION).orderBy(order.desc())
    return changes.withColumn("_cdc_place", F.row_number().over(tied)).where("_cdc_place = 1").drop("_cdc_place")


def in_log_order() -> Expression:
    """Order changes of one key by position, and equal ones, which are redeliveries, as the log has them."""
    return F.struct(column(POSITION), column(OFFSET))


def by_content(table: Table, required: Sequence[str] | None = None) -> Expression:
    """Order changes of one key by position, of equal ones a delete last, else a whole row, else the greatest.

    So the newest never depends on the order in which Spark happens to read. Without `required`, no change leaves
    columns out; one that leaves out some of them is not whole.
    """
    rank = [(column(OP) == Op.DELETE.value).alias("d")]
    if required is None:
        values = [comparable(column(c.name), c.type) for c in table.columns]
    else:
        rank.append((~leaves_out(required)).alias("w"))
        values = [given(c) for c in table.columns]
    return F.struct(column(POSITION), *rank, *(value.alias(f"v{n}") for n, value in enumerate(values)))


def given(c: Column) -> Expression:
    """Return the value of a column as it counts in a tie: one that is left out is less than NULL, whatever it holds."""
    said = ~F.array_contains(column(UNCHANGED), c.name)
    return F.struct(said.alias("said"), F.when(said, comparable(column(c.name), c.type)).alias("value"))


def comparable(value: Expression, kind: str) -> Expression:
    """Return `value` in a form that can be compared; a map has none of its own, for its entries have no order."""
    if not holds_map(kind):
        return value
    if kind == "variant":
        return F.to_json(value)
    if (fields := fields_of(kind)) is not None:
        parts = (comparable(value[name], part).alias(f"f{n}") for n, (name, part) in enumerate(fields.items()))
        return F.when(value.isNotNull(), F.struct(*parts))
    if (element := element_of(kind)) is not None:
        return F.transform(value, lambda item: comparable(item, element))
    held = (entry_of(kind) or ("", ""))[1]
    entries = F.transform_values(value, lambda _, item: comparable(item, held)) if holds_map(held) else value
    return F.sort_array(F.map_entries(entries))


def soften(changes: DataFrame, table: Table, flag: str, at: Expression) -> DataFrame:
    """Turn deletes into updates that leave every column as it is but set `flag`; other changes clear it."""
    deleted = column(OP) == Op.DELETE.value
    kind = table.column(flag).type
    on, off = (F.lit(True), F.lit(False)) if kind == "boolean" else (at.cast(kind), F.lit(None).cast(kind))
    others = F.array(*(F.lit(name) for name in table.names() if name not in (*table.keys, flag)))
    changed = {
        flag: F.when(deleted, on).otherwise(off),
        UNCHANGED: F.when(deleted, others.cast("array<string>")).otherwise(F.array_remove(column(UNCHANGED), flag)),
        OP: F.when(deleted, F.lit(Op.UPDATE.value)).otherwise(column(OP)),
    }
    return changes.select(*(changed.get(name, column(name)).alias(name) for name in changes.columns))


def soften_truncated(rows: DataFrame, table: Table, flag: str, floor: str) -> DataFrame:
    """Mark the rows of a batch that a truncate at `floor` came after; they were deleted by it."""
    ended = column(POSITION) <= floor
    kind = table.column(flag).type
    value = F.lit(True) if kind == "boolean" else F.coalesce(column(flag), F.current_timestamp().cast(kind))
    marked = {flag: F.when(ended, value).otherwise(column(flag)), POSITION: F.greatest(column(POSITION), F.lit(floor))}
    return rows.select(*(marked.get(name, column(name)).alias(name) for name in rows.columns))


def with_aside(changes: DataFrame) -> DataFrame:
    """Let the rejected ones among `changes` ride along, each as a row of its own, so that none is looked for later."""
    place = F.struct(column(TOPIC), column(PARTITION), column(OFFSET), column(POSITION), column(PROBLEM))
    return changes.withColumn(ASIDE, F.when(column(PROBLEM).isNotNull(), place))


def reconcile(changes: DataFrame, table: Table, order: Expression, *, partial: bool) -> DataFrame:
    """Turn accepted changes of one table into the rows of a `Batch`: one per key, the newest in `order`."""
    return newest_with_unchanged(changes, table, order) if partial else newest_per_key(changes, table, order)


def as_events(changes: DataFrame, table: Table, also: Sequence[str] = ()) -> DataFrame:
    """Turn accepted changes into the rows of an append table, one per change, with the reserved columns `also`."""
    kept = ("_cdc_changed_at", "_cdc_topic", "_cdc_partition", OFFSET)
    return changes.select(
        F.lit(table.name).alias("_cdc_table"),
        column(OP),
        column(POSITION),
        column(kept[0]),
        F.current_timestamp().alias("_cdc_ingested_at"),
        *(column(name) for name in (*kept[1:], *also)),
        *(column(name) for name in table.names()),
        *_riding(changes),
    )


def newest_per_key(changes: DataFrame, table: Table, order: Expression) -> DataFrame:
    """Keep the newest change of each key, and count what it stands for."""
    values = [name for name in table.names() if name not in table.keys]
    whole = F.struct(column(POSITION), column(OP), column(UNCHANGED), *(column(name) for name in values))
    newest = changes.groupBy(*_apart(changes, table)).agg(
        F.max_by(whole, order).alias("_cdc_newest"), F.count(F.lit(1)).alias(EVENTS)
    )
    found = {name: F.col("_cdc_newest")[name] for name in values}
    return newest.select(*_result(table, found, F.col("_cdc_newest")), *_riding(changes))


def newest_with_unchanged(changes: DataFrame, table: Table, order: Expression) -> DataFrame:
    """Like `newest_per_key`, where a column that the newest change leaves out may stand in an older one.

    What stands before a delete of the key is not taken, and then the target's row is not kept either.
    """
    values = [name for name in table.names() if name not in table.keys]
    whole = F.struct(column(POSITION), column(OP), column(UNCHANGED))
    deleted = column(OP) == Op.DELETE.value
    given = {n: ~F.array_contains(column(UNCHANGED), name) & ~deleted for n, name in enumerate(values)}
    newest = changes.groupBy(*_apart(changes, table)).agg(
        F.max_by(whole, order).alias("_cdc_newest"),
        F.count(F.lit(1)).alias(EVENTS),
        F.max(F.when(deleted, order)).alias("_cdc_died"),
        *(
            F.max_by(F.struct(order.alias("at"), column(name).alias("value")), F.when(given[n], order)).alias(
                f"_cdc_given_{n}"
            )
            for n, name in enumerate(values)
        ),
    )
    died = F.col("_cdc_died").isNotNull()
    found = {
        n: F.col(f"_cdc_given_{n}").isNotNull() & (~died | (F.col(f"_cdc_given_{n}")["at"] > F.col("_cdc_died")))
        for n in given
    }
    missing = F.array_compact(F.array(*(F.when(~found[n], F.lit(value)) for n, value in enumerate(values))))
    left = F.array_intersect(F.col("_cdc_newest")[UNCHANGED], missing)
    kept = F.when(died, F.array().cast("array<string>")).otherwise(left)
    return newest.select(
        *_result(
            table,
            {name: F.when(found[n], F.col(f"_cdc_given_{n}")["value"]) for n, name in enumerate(values)},
            F.col("_cdc_newest").withField(UNCHANGED, kept),
        ),
        *_riding(changes),
    )


def _apart(changes: DataFrame, table: Table) -> list[Expression]:
    """Return what tells one row of a batch from another; a rejected change that rides along meets no other."""
    return [*(column(key) for key in table.keys), *_riding(changes)]


def _riding(changes: DataFrame) -> list[Expression]:
    return [F.col(ASIDE)] if ASIDE in changes.columns else []


def _result(table: Table, values: dict[str, Expression], newest: Expression) -> list[Expression]:
    deleted = newest[OP] == Op.DELETE.value
    return [
        *(column(name) if name in table.keys else values[name].alias(name) for name in table.names()),
        newest[POSITION].alias(POSITION),
        F.when(deleted, Op.DELETE.value).otherwise(Op.UPDATE.value).alias(OP),
        newest[UNCHANGED].alias(UNCHANGED),
        column(EVENTS),
    ]
