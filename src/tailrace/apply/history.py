"""Mode scd2: what a key was, when. New events and what is stored of their keys in, changed records out.

A key's history is a set of events, at most one per position: upserts and deletes. The visible records are
a function of that set alone, so neither the order of arrival nor the batching can matter:

    run       consecutive upserts whose tracked columns are equal
    record    the last event of a run, from the run's first sequence to the sequence of the event after it

What is not visible, earlier events of a run and deletes, is hidden beside the table. A visible record
also stands for events of its own: one where it starts and, unless another record starts there, a delete
where it ends. So the table alone is a whole history, and hidden rows that were forgotten only make a late
event less exact. See ADR 7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Window, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from tailrace.apply.engine import (
    OFFSET,
    OP,
    POSITION,
    PROBLEM,
    UNCHANGED,
    column,
    comparable,
    given,
    leaves_out,
    without_row,
)
from tailrace.apply.order import sortable
from tailrace.core.change import Op
from tailrace.core.table import END, SEQUENCE, START, Table
from tailrace.spark.frame import frame

_RANK, _STORED, _KEPT, _WAS, _DELETE, _COUNT = (
    "_cdc_rank",
    "_cdc_stored",
    "_cdc_kept",
    "_cdc_was",
    "_cdc_delete",
    "_cdc_count",
)
_HAD, _HIDDEN_AT, _SHOWN, _KNOWN, _BASED = "_cdc_had", "_cdc_hidden_at", "_cdc_shown", "_cdc_known", "_cdc_based"
HIDE, LATE, NEWS, WHY = "_cdc_hide", "_cdc_late", "_cdc_news", "_cdc_why"

# Who stands at a position: a delete before an upsert, and what was said before what a record implies.
_DELETED, _UPSERTED, _STARTED, _ENDED = 3, 2, 1, 0


@dataclass(frozen=True, slots=True)
class Tracking:
    """How the history of a table is told: which columns begin a new record, and of what type a sequence is."""

    columns: tuple[str, ...]
    sequence: DataType


def rebuild(
    news: DataFrame,
    stored: tuple[DataFrame, DataFrame | None] | None,
    table: Table,
    tracking: Tracking,
    required: Sequence[str],
    few: Callable[[DataFrame], DataFrame] = F.broadcast,
) -> DataFrame:
    """Return one row per event of the keys in `news`, with what it means for the table and what lies beside it.

    `stored` is the table's visible and hidden rows, at least of these keys. In the result `_cdc_op` is `u`
    for a record to write, `d` for one to remove and NULL for no change; `_hide` marks what is to be hidden,
    `_why` says why an event is rejected. `_news` counts the new events that a row stands for, `_late` those
    of them that the target had already. `few` says how keys of the batch are joined to what is stored.
    """
    lines = _new(news, table, tracking)
    if stored is not None:
        lines = lines.unionByName(_stored(news, *stored, table, tracking, few))
    line = _one_per_position(lines, table, required)
    order = Window.partitionBy(*map(column, table.keys)).orderBy(POSITION)
    line = line.withColumn("_cdc_life", F.sum(F.col(_DELETE).cast("int")).over(_up_to_here(order)))
    life = Window.partitionBy(*map(column, table.keys), "_cdc_life").orderBy(POSITION)
    line = _judged(line, life, required)
    told = _told(_filled(line.where(_BASED), life, table), order, table, tracking)
    # What was accepted and lost its base to a late delete is hidden, to show again when there is one.
    untold = {
        OP: F.when(F.col(_WAS).isNotNull(), Op.DELETE.value),
        HIDE: F.col(WHY).isNull() & ~F.col(_KEPT),
        START: F.col(SEQUENCE),
        END: F.col(SEQUENCE),
    }
    baseless = line.where(~F.col(_BASED))
    return told.unionByName(baseless.select(*(untold.get(n, column(n)).alias(n) for n in told.columns)))


def truncates(events: DataFrame, stored: tuple[DataFrame, DataFrame | None] | None, anew: str = "") -> DataFrame:
    """Return sequence and position of every truncate in `events` and among what is hidden, and of one at `anew`."""
    found = _truncates_in(events.where(column(PROBLEM).isNull()))
    if anew:
        # It need not be remembered: who finds something below it says so again.
        found = found.unionByName(frame(events.sparkSession, [(anew, anew)], f"{SEQUENCE} string, {POSITION} string"))
    if stored is not None and stored[1] is not None:
        found = found.unionByName(_truncates_in(stored[1]))
    return found.distinct()


def truncated(
    news: DataFrame,
    ends: DataFrame,
    stored: tuple[DataFrame, DataFrame | None] | None,
    table: Table,
    tracking: Tracking,
) -> DataFrame:
    """Add to `news` a delete at each of `ends` for every key that had begun by then."""
    keys = [column(key) for key in table.keys]
    ends = F.broadcast(ends.select(F.col(SEQUENCE).alias("_cdc_at"), F.col(POSITION).alias("_cdc_end")))
    begun = news.groupBy(*keys).agg(F.min(POSITION).alias("_cdc_from"))
    hit = begun.crossJoin(ends).where(F.col("_cdc_from") <= F.col("_cdc_end")).select(*keys, "_cdc_at", "_cdc_end")
    if stored is not None:
        starts, stops = (sortable(F.col(name), tracking.sequence) for name in (START, END))
        spans = (starts <= F.col("_cdc_end")) & (stops.isNull() | (stops > F.col("_cdc_end")))
        hit = hit.unionByName(stored[0].crossJoin(ends).where(spans).select(*keys, "_cdc_at", "_cdc_end")).distinct()
    made = {SEQUENCE: F.col("_cdc_at"), POSITION: F.col("_cdc_end"), OP: F.lit(Op.DELETE.value), _COUNT: F.lit(0)}
    made |= {UNCHANGED: F.array().cast("array<string>")}
    wanted = [*table.names(), SEQUENCE, POSITION, OP, UNCHANGED]
    nulls = {c.name: F.lit(None).cast(c.type) for c in table.columns if c.name not in table.keys}
    deletes = hit.select(*((made | nulls).get(name, column(name)).alias(name) for name in [*wanted, _COUNT]))
    return news.select(*map(column, wanted), F.lit(1).alias(_COUNT)).unionByName(deletes)


def to_hide(line: DataFrame, table: Table) -> DataFrame:
    """Return what of `line` is to be hidden, as it is stored."""
    op = F.when(F.col(_DELETE), Op.DELETE.value).otherwise(Op.UPDATE.value)
    stored = [*map(column, table.names()), F.col(SEQUENCE), F.col(POSITION), op.alias(OP), F.col(UNCHANGED)]
    return line.where(HIDE).select(*stored)


def repeated(events: DataFrame, stored: tuple[DataFrame, DataFrame | None] | None) -> int:
    """Return how many truncates in `events` are remembered already."""
    if stored is None or stored[1] is None:
        return 0
    came = _truncates_in(events.where(column(PROBLEM).isNull()))
    return came.join(_truncates_in(stored[1]).select(POSITION), POSITION, "left_semi").count()


def remembered(events: DataFrame, stored: tuple[DataFrame, DataFrame | None] | None, table: Table) -> DataFrame:
    """Return the new truncates in `events` as they are stored: rows without a key."""
    nulls = (F.lit(None).cast(c.type).alias(c.name) for c in table.columns)
    none = F.array().cast("array<string>").alias(UNCHANGED)
    found = _truncates_in(events.where(column(PROBLEM).isNull())).distinct()
    if stored is not None and stored[1] is not None:
        found = found.join(_truncates_in(stored[1]).select(POSITION), POSITION, "left_anti")
    return found.select(*nulls, SEQUENCE, POSITION, F.lit(Op.TRUNCATE.value).alias(OP), none)


def _truncates_in(rows: DataFrame) -> DataFrame:
    sequence = SEQUENCE if SEQUENCE in rows.columns else POSITION
    return rows.where(column(OP) == Op.TRUNCATE.value).select(F.col(sequence).alias(SEQUENCE), POSITION)


def _new(news: DataFrame, table: Table, tracking: Tracking) -> DataFrame:
    counted = F.col(_COUNT) if _COUNT in news.columns else F.lit(1)
    return _lines(news, table, tracking, counted.alias(_COUNT), F.lit(0).cast("bigint"), stored=False)


def _lines(
    rows: DataFrame, table: Table, tracking: Tracking, count: Expression, hidden_at: Expression, *, stored: bool
) -> DataFrame:
    deleted = column(OP) == Op.DELETE.value
    never = F.lit(None).cast(tracking.sequence)
    return rows.select(
        *map(column, table.names()),
        SEQUENCE,
        POSITION,
        UNCHANGED,
        deleted.alias(_DELETE),
        F.when(deleted, _DELETED).otherwise(_UPSERTED).alias(_RANK),
        F.lit(stored).alias(_STORED),
        F.lit(stored).alias(_KEPT),
        F.lit(False).alias(_SHOWN),
        F.when(F.lit(False), _record(table, never, never)).alias(_WAS),
        F.when(F.lit(stored), _values(table)).alias(_HAD),
        hidden_at.alias(_HIDDEN_AT),
        count,
    )


def _stored(
    news: DataFrame,
    visible: DataFrame,
    hidden: DataFrame | None,
    table: Table,
    tracking: Tracking,
    few: Callable[[DataFrame], DataFrame],
) -> DataFrame:
    """Return what is stored of the keys of `news` from the record on that their first event falls into."""
    keys = [column(key) for key in table.keys]
    first = news.groupBy(*keys).agg(F.min(POSITION).alias("_cdc_from"))
    ends = sortable(F.col(END), tracking.sequence)
    near = visible.join(few(first), list(table.keys)).where(ends.isNull() | (ends >= F.col("_cdc_from")))
    near = near.withColumn("_cdc_starts", sortable(F.col(START), tracking.sequence)).localCheckpoint()
    lines = _events_of(near, table, tracking)
    if hidden is None:
        return lines
    starts = near.groupBy(*keys).agg(F.min("_cdc_starts").alias("_cdc_start"))
    cut = first.join(starts, list(table.keys), "left").select(
        *keys, F.least("_cdc_from", "_cdc_start").alias("_cdc_cut")
    )
    kept = hidden.join(few(cut), list(table.keys)).where(F.col(POSITION) >= F.col("_cdc_cut"))
    return lines.unionByName(_lines(kept, table, tracking, F.lit(0).alias(_COUNT), F.col(OFFSET), stored=True))


def _events_of(near: DataFrame, table: Table, tracking: Tracking) -> DataFrame:
    """Take visible records apart into the events that they stand for."""
    was = _record(table, F.col(START), F.col(END))
    nothing = F.when(F.lit(False), was)
    ends = sortable(F.col(END), tracking.sequence)
    none = F.array().cast("array<string>")
    shown = {_UPSERTED: F.col("_cdc_starts") == F.col(POSITION), _STARTED: F.lit(True), _ENDED: F.lit(False)}

    def event(sequence: Expression, position: Expression, unchanged: Expression, rank: int) -> Expression:
        return F.struct(
            sequence.alias(SEQUENCE),
            position.alias(POSITION),
            unchanged.alias(UNCHANGED),
            F.lit(rank == _ENDED).alias(_DELETE),
            F.lit(rank).alias(_RANK),
            shown[rank].alias(_SHOWN),
            (was if rank == _UPSERTED else nothing).alias(_WAS),
        )

    events = F.array(
        event(F.col(SEQUENCE), F.col(POSITION), F.col(UNCHANGED), _UPSERTED),
        F.when(F.col("_cdc_starts") < F.col(POSITION), event(F.col(START), F.col("_cdc_starts"), none, _STARTED)),
        F.when(ends.isNotNull(), event(F.col(END), ends, none, _ENDED)),
    )
    apart = near.select(*map(column, table.names()), F.explode(F.array_compact(events)).alias("_cdc_event"))
    return apart.select(
        *map(column, table.names()),
        "_cdc_event.*",
        F.lit(True).alias(_STORED),
        F.lit(False).alias(_KEPT),
        F.when(F.lit(False), _values(table)).alias(_HAD),
        F.lit(0).cast("bigint").alias(_HIDDEN_AT),
        F.lit(0).alias(_COUNT),
    )


def _one_per_position(lines: DataFrame, table: Table, required: Sequence[str]) -> DataFrame:
    """Keep one event per key and position; of equal ones the one that shows, else the one that lies hidden.

    `_shown` says whether a record that shows starts there, `_known` whether an upsert there was accepted before.
    """
    place = Window.partitionBy(*map(column, table.keys), POSITION)
    best = [
        F.desc(_RANK),
        F.asc(leaves_out(required)),
        *(F.desc(given(c)) for c in table.columns if c.name not in table.keys),
        F.desc(F.col(_WAS).isNotNull()),
        F.desc(_KEPT),
        F.desc(_HIDDEN_AT),
        F.desc(_STORED),
    ]
    first = place.orderBy(*best)
    whole = first.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    counted = lines.select(
        "*",
        F.row_number().over(first).alias("_cdc_number"),
        F.sum(_COUNT).over(place).alias(NEWS),
        F.first(_STORED).over(whole).alias("_cdc_first_stored"),
        F.first(_WAS, ignorenulls=True).over(whole).alias("_cdc_was_here"),
        F.max(_SHOWN).over(place).alias("_cdc_shown_here"),
        F.max(F.col(_STORED) & ~F.col(_DELETE)).over(place).alias(_KNOWN),
    )
    late = F.when(F.col("_cdc_first_stored"), F.col(NEWS)).otherwise(F.lit(0)).alias(LATE)
    here = {_WAS: F.col("_cdc_was_here"), _SHOWN: F.col("_cdc_shown_here")}
    dropped = ("_cdc_number", "_cdc_first_stored", "_cdc_was_here", "_cdc_shown_here", _COUNT, _HIDDEN_AT)
    kept = [here.get(name, column(name)).alias(name) for name in counted.columns if name not in dropped]
    return counted.where("_cdc_number = 1").select(*kept, late)


def _judged(line: DataFrame, life: WindowSpec, required: Sequence[str]) -> DataFrame:
    """Say of an event whether it can be told, and why it is rejected: it leaves out columns, with nothing before it."""
    # What is stored was filled when it came; where a record that shows begins this line, nothing is read before it.
    settled = F.col(_STORED) & F.col(_SHOWN) & (F.row_number().over(life) == 1)
    line = line.withColumn("_cdc_settled", settled)
    if not required:
        return line.select("*", F.lit(True).alias(_BASED), F.lit(None).cast("string").alias(WHY))
    whole = ~F.col(_DELETE) & (F.col("_cdc_settled") | ~leaves_out(required))
    line = line.withColumn(_BASED, F.col(_DELETE) | F.max(whole).over(_up_to_here(life)))
    return line.withColumn(WHY, F.when(~F.col(_BASED) & ~F.col(_KNOWN), without_row()))


def _filled(line: DataFrame, life: WindowSpec, table: Table) -> DataFrame:
    """Give columns that an event leaves out the value of the event before it."""
    values = {}
    for c in table.columns:
        if c.name not in table.keys:
            told = F.when(
                ~F.col(_DELETE) & (F.col("_cdc_settled") | ~F.array_contains(column(UNCHANGED), c.name)),
                F.struct(column(c.name).alias("v")),
            )
            values[c.name] = F.last(told, ignorenulls=True).over(_up_to_here(life))["v"]
    return line.select(*(values.get(name, column(name)).alias(name) for name in line.columns))


def _told(line: DataFrame, order: WindowSpec, table: Table, tracking: Tracking) -> DataFrame:
    """Find the runs, and say which records are to be written, removed or hidden."""
    tracked = [
        comparable(column(name), table.column(name).type).alias(f"t{n}") for n, name in enumerate(tracking.columns)
    ]
    values = F.struct(*tracked, F.col(_DELETE).alias("d"))
    line = line.withColumn("_cdc_tracked", values).withColumn("_cdc_before", F.lag("_cdc_tracked").over(order))
    begins = ~F.col(_DELETE) & ~F.col("_cdc_tracked").eqNullSafe(F.col("_cdc_before"))
    line = line.withColumn("_cdc_begins", begins)
    start = F.last(F.when(F.col("_cdc_begins"), F.col(SEQUENCE)), ignorenulls=True).over(_up_to_here(order))
    after = F.lead(F.col("_cdc_begins") | F.col(_DELETE)).over(order)
    line = line.select(
        "*",
        start.alias(START),
        F.lead(SEQUENCE).over(order).alias(END),
        (~F.col(_DELETE) & F.coalesce(after, F.lit(True))).alias("_cdc_visible"),
    )
    now = _record(table, F.col(START), F.col(END))
    same = F.col(_WAS).isNotNull() & F.col(_WAS).eqNullSafe(now)
    op = F.when(F.col("_cdc_visible") & ~same, Op.UPDATE.value).when(
        ~F.col("_cdc_visible") & F.col(_WAS).isNotNull(), Op.DELETE.value
    )
    return line.select(
        *map(column, table.names()),
        START,
        END,
        SEQUENCE,
        POSITION,
        UNCHANGED,
        op.alias(OP),
        _DELETE,
        # An event that lies hidden with values it was filled with is hidden anew when those have changed.
        (~F.col("_cdc_visible") & ~(F.col(_KEPT) & F.col(_HAD).eqNullSafe(_values(table)))).alias(HIDE),
        NEWS,
        LATE,
        WHY,
    )


def _values(table: Table) -> Expression:
    values = [c for c in table.columns if c.name not in table.keys]
    return F.struct(
        column(UNCHANGED).alias("unchanged"),
        *(comparable(column(c.name), c.type).alias(f"v{n}") for n, c in enumerate(values)),
    )


def _record(table: Table, start: Expression, end: Expression) -> Expression:
    values = (comparable(column(c.name), c.type).alias(f"v{n}") for n, c in enumerate(table.columns))
    return F.struct(start.alias("start"), end.alias("end"), column(UNCHANGED).alias("unchanged"), *values)


def _up_to_here(window: WindowSpec) -> WindowSpec:
    return window.rowsBetween(Window.unboundedPreceding, Window.currentRow)
