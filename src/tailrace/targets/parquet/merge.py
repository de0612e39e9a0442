"""A batch into the rows of one bucket, as whole columns of Arrow: nothing here reads or writes.

    rows    the user's columns, `_cdc_position`, `_cdc_hash`
    graves  key columns, `_cdc_position`, `_cdc_hash`, `_cdc_day`: rows that were deleted
    batch   the columns that it carries, `_cdc_position`, `_cdc_hash`, `_cdc_op`, `_cdc_kept.<n>`

Rows of batch and bucket are matched by their keys; the values themselves are only taken by their places, so that they
may have any type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.apply.target import Applied

POSITION, HASH, OP, DAY = "_cdc_position", "_cdc_hash", "_cdc_op", "_cdc_day"


def kept(number: int) -> str:
    """Return the name of the column that says whether a row of the batch leaves the value of a column as it is."""
    return f"_cdc_kept.{number}"


@dataclass(frozen=True)
class Rules:
    """What is the same for every bucket of a batch."""

    keys: tuple[str, ...]
    today: str
    truncate: str = ""
    soft: str = ""
    now: pa.Scalar | None = None
    """What a truncate writes into the column `soft`."""
    partial: tuple[str, ...] = ()
    ties: bool = False


@dataclass(frozen=True)
class Merged:
    """What a bucket holds after a batch, and what that changed."""

    rows: pa.Table
    graves: pa.Table
    done: Applied = field(default_factory=Applied)


def merge(rows: pa.Table, graves: pa.Table, batch: pa.Table, rules: Rules) -> Merged:
    """Fold `batch`, one row per key, into `rows` and `graves`: nothing replaces what is newer, deleted or not."""
    hard = rules.truncate if not rules.soft else ""
    before = rows.num_rows
    replaced = _same(rows.filter(pc.less_equal(rows[POSITION], hard)), _upserts(batch), rules.keys) if hard else 0
    if hard:
        rows = rows.filter(pc.greater(rows[POSITION], hard))
        graves = graves.filter(pc.greater(graves[POSITION], hard))
    gone = before - rows.num_rows - replaced
    batch = _not_buried(batch, graves, rules)
    ours, theirs = _matched(rows, batch, rules.keys)
    stored, given = rows.take(ours), batch.take(theirs)
    newer = pc.greater(given[POSITION], stored[POSITION])
    deleted = pc.equal(given[OP], "d")
    wins = (
        pc.or_(newer, pc.and_(pc.equal(given[POSITION], stored[POSITION]), pc.invert(deleted))) if rules.ties else newer
    )
    removed, updated = pc.and_(newer, deleted), pc.and_(wins, pc.invert(deleted))
    changed = _updated(stored.filter(updated), given.filter(updated), rows.schema, rules)
    touched = pc.or_(removed, updated)
    left = _without(rows, ours.filter(touched))
    new = _without(batch, theirs)
    inserted = _shaped(_upserts(new), rows.schema)
    result = pa.concat_tables([left, changed, inserted])
    buried = pa.concat_tables([new.filter(pc.equal(new[OP], "d")), given.filter(removed)])
    marked = 0
    if rules.truncate and rules.soft:
        result, marked = _mark_truncated(result, batch, rules)
    speaks, _ = _matched(graves, batch, rules.keys)
    graves = pa.concat_tables([_without(graves, speaks), _graves(buried, graves.schema, rules.today)])
    done = Applied(inserted.num_rows - replaced, changed.num_rows + replaced + marked, gone + _count(removed))
    return Merged(result, graves, done)


def _upserts(batch: pa.Table) -> pa.Table:
    return batch.filter(pc.not_equal(batch[OP], "d"))


def _count(mask: pa.ChunkedArray) -> int:
    return pc.sum(mask).as_py() or 0


def _matched(left: pa.Table, right: pa.Table, keys: Sequence[str]) -> tuple[pa.Array, pa.Array]:
    """Return the places of the rows that have equal keys, in the one and in the other."""
    names = [f"k{n}" for n in range(len(keys))]
    one = left.select(keys).rename_columns(names).append_column("left", _places(left))
    two = right.select(keys).rename_columns(names).append_column("right", _places(right))
    found = one.join(two, names, join_type="inner")
    return found["left"].combine_chunks(), found["right"].combine_chunks()


def _places(table: pa.Table) -> pa.Array:
    return pa.array(range(table.num_rows), pa.int64())


def _same(left: pa.Table, right: pa.Table, keys: Sequence[str]) -> int:
    return len(_matched(left, right, keys)[0])


def _without(table: pa.Table, places: pa.Array) -> pa.Table:
    return table if not len(places) else table.filter(pc.invert(pc.is_in(_places(table), value_set=places)))


def _not_buried(batch: pa.Table, graves: pa.Table, rules: Rules) -> pa.Table:
    ours, theirs = _matched(graves, batch, rules.keys)
    buried, given = graves.take(ours)[POSITION], batch.take(theirs)
    level = pc.equal(buried, given[POSITION])
    if rules.ties:
        level = pc.and_(level, pc.equal(given[OP], "d"))
    return _without(batch, theirs.filter(pc.or_(pc.greater(buried, given[POSITION]), level)))


def _updated(stored: pa.Table, given: pa.Table, schema: pa.Schema, rules: Rules) -> pa.Table:
    columns = []
    for column in schema:
        if column.name not in given.column_names:
            columns.append(stored[column.name])
            continue
        value = given[column.name].cast(column.type)
        if column.name in rules.partial:
            left_out = given[kept(rules.partial.index(column.name))]
            value = _choose(left_out, stored[column.name], value)
        columns.append(value)
    return pa.table(columns, schema=schema)


def _choose(mask: pa.ChunkedArray, yes: pa.ChunkedArray, no: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return `yes` where `mask` holds, else `no`, of any type."""
    both = pa.chunked_array([*yes.chunks, *no.chunks], yes.type)
    count = len(yes)
    places = pc.if_else(mask, pa.array(range(count), pa.int64()), pa.array(range(count, 2 * count), pa.int64()))
    return both.take(places)


def _shaped(batch: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        batch[column.name].cast(column.type)
        if column.name in batch.column_names
        else pa.nulls(batch.num_rows, column.type)
        for column in schema
    ]
    return pa.table(columns, schema=schema)


def _graves(deleted: pa.Table, schema: pa.Schema, today: str) -> pa.Table:
    day = pa.array([today] * deleted.num_rows, pa.string())
    columns = [day if column.name == DAY else deleted[column.name].cast(column.type) for column in schema]
    return pa.table(columns, schema=schema)


def _mark_truncated(rows: pa.Table, batch: pa.Table, rules: Rules) -> tuple[pa.Table, int]:
    """Mark the rows that a truncate would delete and no row of the batch speaks of."""
    old = rows.filter(pc.less_equal(rows[POSITION], rules.truncate))
    spoken, _ = _matched(old, _upserts(batch), rules.keys)
    old = _without(old, spoken)
    if not old.num_rows:
        return rows, 0
    ended, _ = _matched(rows, old, rules.keys)
    rest = _without(rows, ended)
    place, kind = rows.schema.get_field_index(rules.soft), rows.schema.field(rules.soft).type
    value = pa.array([rules.now.as_py() if rules.now is not None else None] * old.num_rows, kind)
    flag = value if pa.types.is_boolean(kind) else pc.coalesce(old[rules.soft], value)
    old = old.set_column(place, rows.schema.field(place), flag)
    at = rows.schema.get_field_index(POSITION)
    old = old.set_column(at, rows.schema.field(at), pa.array([rules.truncate] * old.num_rows, pa.string()))
    return pa.concat_tables([rest, old]), old.num_rows
