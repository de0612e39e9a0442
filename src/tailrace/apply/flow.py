"""The changes of one table into one target: counted, ordered, reconciled, applied in one commit.

A drain and `tailrace.apply_changes` both end here. Everything but the last step reads; a crash before the
commit leaves nothing, and after it the mark says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from tailrace.apply import engine, history
from tailrace.apply.engine import ASIDE, EVENTS, OFFSET, OP, PARTITION, POSITION, PROBLEM, TOPIC, UNCHANGED, column
from tailrace.apply.history import HIDE, LATE, NEWS, WHY, Tracking
from tailrace.apply.ranges import Ranges, bounds, ranges
from tailrace.apply.target import Applied, Batch, Historic, Mark, Refusal, Sending, Target
from tailrace.core.change import Op
from tailrace.core.table import SEQUENCE, Fit, Table
from tailrace.spark.frame import frame
from tailrace.spark.kinds import kind_of

FEW = 250_000
"""Up to so many rows a batch is sent to every task, which spares a shuffle of what is stored."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The events of one table in one slice, as counted while they were read."""

    counted: int
    rejected: int
    stale: int
    cut: int
    high: str | None
    taken: int = 0

    @property
    def applied(self) -> int:
        """Return how many events were folded in; a truncate, and what it removed, counts."""
        return self.taken + self.cut

    @property
    def superseded(self) -> int:
        """Return how many events the target had already, or knew better."""
        return self.counted - self.rejected - self.applied

    def reject(self, events: int) -> Tally:
        """Move `events` from the taken to the rejected."""
        return replace(self, taken=self.taken - events, rejected=self.rejected + events)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the events, what that did to the rows, and the mark, if there was anything to commit."""

    tally: Tally
    done: Applied = field(default_factory=Applied)
    mark: Mark | None = None


@dataclass(frozen=True)
class Flow:
    """How changes go into one table of one target: what is the same for every row of a batch."""

    target: Target
    mode: str
    fitted: Fit
    shape: Table
    """The columns that the changes carry, in the target's types."""
    exists: bool
    before: Mark
    """What the table includes; nothing of it is applied again."""
    order: Expression
    """The order of changes of one key; its first part is their position."""
    reject: Callable[[DataFrame], None]
    """Keeps rejected events, each with its reason in `_cdc_problem`; called before anything is committed."""
    ordered: bool = False
    """Changes of one key come in their order, so none is older than what the target has."""
    partial: bool = False
    required: tuple[str, ...] = ()
    """Columns that a row must have a value for: a change that leaves one out needs a row to keep it from."""
    several: bool = False
    """The changes were written with several schemas, so a column may be left out by any of them."""
    truncates: bool = False
    anew: str = ""
    """The position at which the table starts anew, as if a truncate stood there; empty if it goes on."""
    included: Expression = field(default_factory=lambda: F.lit(False))
    """Says of a change whether the table includes it already."""
    kept: bool = False
    """The changes are materialised already: reading them again does not read their source."""
    met: DataFrame | None = None
    """The keys that changes speak of, with their positions, where asking for these is less than keeping those."""
    alone: bool = False
    """The target must not have changed since `before` was read: no slice is repeated, so another has written."""
    ties: bool = False
    soft: str = ""
    """The column that marks deleted rows, which then stay; empty if they go."""
    deleted_at: Expression = field(default_factory=F.current_timestamp)
    tracking: Tracking | None = None
    replay: bool = False
    """The events had been put aside, and come again."""
    told: Callable[[Tally, DataFrame, DataFrame], None] = lambda *_: None
    """Is told before anything is committed what is counted: the events that are rejected, and those that are taken,
    by position, with how many they are."""

    def apply(self, events: DataFrame, mark: Callable[[str, str], Mark]) -> Outcome:
        """Apply judged `events`; `mark` makes the mark of the commit from the new high and floor."""
        kept_first = not self.kept and (self.truncates or not (self.ordered or self._looks()))
        once = not (self.kept or kept_first or self._looks())
        if kept_first:
            events = events.localCheckpoint()
        floor = max(self.before.floor, self._truncated_at(events) if self.truncates else "", self.anew)
        seen = Observation()
        observed, kept = self._observed(events, floor, seen)
        if self.tracking is not None:
            return self._apply_history(events, observed.where(kept | _rejected()), seen, floor, self.tracking, mark)
        changes, judged = observed.where(kept), None
        if once:
            # They are read here and nowhere else, so what is rejected must come through with the rest.
            changes = engine.with_aside(observed.where(kept | _rejected()))
        elif self.met is not None and self._looks() and not self._judges():
            changes = self._counting(changes, *self._late_keys(self.met))
        elif self._looks():
            # What the target has near these keys can be asked for only when they were gone through.
            events = observed.localCheckpoint()
            near = self._ranges(seen)
            changes = self._counting(events.where(kept), events.where(self._late()), seen.get["late"], near)
            if self._judges():
                judged = self._judged(changes, near, floor)
                changes = judged.where(column(PROBLEM).isNull())
        chosen = changes.where(~_rejected())
        changes, taken = self._taken(changes)
        rows = self._rows(changes, floor).localCheckpoint()
        rejected = events.where(_rejected())
        if once:
            rejected = rows.where(F.col(ASIDE).isNotNull()).select(f"{ASIDE}.*")
            rows = rows.where(F.col(ASIDE).isNull()).drop(ASIDE)
        tally = _tally(seen, taken.get["taken"] if taken else None)
        if tally.rejected:
            self.reject(rejected)
        if judged is not None and (lost := judged.where(_rejected()).count()):
            self.reject(judged.where(_rejected()))
            tally = replace(tally, rejected=tally.rejected + lost)
        self.told(tally, rejected, chosen.select(POSITION, F.lit(1).alias(EVENTS)))
        self.target.evolve(self.shape.name, self.fitted)
        if not tally.applied:
            return Outcome(tally)
        new = mark(max(self.before.high, tally.high or ""), floor)
        truncate = floor if floor > self.before.floor else ""
        values = frozenset(self.shape.names()) - set(self.shape.keys)

        def aside(refused: Sequence[Refusal]) -> None:
            self.reject(_as_rejects(rows, refused))

        left_out = values if self.partial or self.soft or self.several else frozenset[str]()
        batch = Batch(
            self.shape,
            rows,
            new,
            truncate,
            left_out,
            self.soft,
            self.ties,
            self._after(),
            reject=aside,
            replay=self.replay,
        )
        done = self.target.apply(batch)
        return Outcome(tally.reject(done.rejected), done, new)

    def _apply_history(
        self,
        events: DataFrame,
        changes: DataFrame,
        seen: Observation,
        floor: str,
        tracking: Tracking,
        mark: Callable[[str, str], Mark],
    ) -> Outcome:
        table = self.fitted.table
        came = _padded(changes, table).localCheckpoint()
        rejected, news = came.where(_rejected()), came.where(~_rejected())
        tally = _tally(seen, 0)
        if tally.rejected:
            self.reject(rejected)
        if not self.truncates:
            # There is none to be found in them, and they are not to be read again for it.
            events = came
        stored = self._records(None if tally.cut or self.anew else self._ranges(seen))
        if tally.cut and (again := history.repeated(events, stored)):
            tally = replace(tally, cut=tally.cut - again, stale=tally.stale + again)
        if floor:
            ends = history.truncates(events, stored, self.anew)
            news = history.truncated(news, ends, stored, table, tracking).localCheckpoint()
        few = F.broadcast if tally.counted <= FEW else _as_it_is
        line = history.rebuild(news, stored, table, tracking, self.required, few)
        told = Observation()
        counts = [
            F.sum(NEWS).alias("news"),
            F.sum(LATE).alias("late"),
            F.sum(F.when(F.col(WHY).isNotNull(), F.col(NEWS))).alias("lost"),
        ]
        line = line.observe(
            told, *counts, F.count_if(HIDE).alias("hidden"), F.count(OP).alias("rows")
        ).localCheckpoint()
        figures = told.get
        tally = replace(tally, taken=(figures["news"] or 0) - (figures["late"] or 0))
        if figures["lost"]:
            lost = line.where(F.col(WHY).isNotNull()).select(*map(column, table.keys), POSITION, WHY)
            why = came.where(~_rejected()).join(lost, [*table.keys, POSITION]).withColumn(PROBLEM, F.col(WHY))
            self.reject(why)
            tally = tally.reject(figures["lost"])
        told_of = line.where(F.col(WHY).isNull() & (F.col(NEWS) > 0))
        self.told(tally, rejected, told_of.select(POSITION, (F.col(NEWS) - F.col(LATE)).alias(EVENTS)))
        self.target.evolve(self.shape.name, self.fitted)
        hidden = history.to_hide(line, table) if figures["hidden"] else None
        if tally.cut:
            ended = history.remembered(events, stored, table)
            hidden = hidden.unionByName(ended) if hidden else ended
        elif not figures["rows"] and not figures["hidden"]:
            return Outcome(tally)
        new = mark(max(self.before.high, tally.high or ""), floor)
        rows = line.where(column(OP).isNotNull())
        batch = Batch(table, rows, new, hidden=hidden, after=self._after(), replay=self.replay)
        return Outcome(tally, self.target.apply(batch), new)

    def _after(self) -> Mark | None:
        return self.before if self.alone else None

    def _records(self, near: Ranges | None) -> tuple[DataFrame, DataFrame | None] | None:
        if not self.exists:
            return None
        if not isinstance(self.target, Historic):
            raise TypeError(f"target {self.target.name} keeps no history")
        visible, hidden = self.target.records(self.shape.name, near or {})
        return _fitted(visible, self.fitted.table), hidden and _fitted(hidden, self.fitted.table)

    def _ranges(self, seen: Observation) -> Ranges:
        found = seen.get
        return ranges(self.shape, [found[f"bound_{n}"] for n in range(len(bounds(self.shape)))])

    def _truncated_at(self, events: DataFrame) -> str:
        truncates = events.where((column(OP) == Op.TRUNCATE.value) & column(PROBLEM).isNull())
        row = truncates.agg(F.max(column(POSITION))).first()
        return (row[0] if row else None) or ""

    def _looks(self) -> bool:
        """Say whether current rows of the target decide which changes count."""
        return self.mode == "scd1" and ((not self.ordered and self.exists) or self._judges())

    def _observed(self, events: DataFrame, floor: str, seen: Observation) -> tuple[DataFrame, Expression]:
        """Return `events` to be counted as they are gone through, and which of them may change a row."""
        good = column(PROBLEM).isNull()
        truncate = column(OP) == Op.TRUNCATE.value
        if self.mode == "scd1":
            # Where rows stay, one that comes after the truncate which ended it is marked by it all the same.
            ended = _at_or_below(self.before.floor)
            stale = good & (self.included | (truncate & ended if self.soft else ended))
            gone = truncate if self.soft else truncate | _at_or_below(floor)
        else:
            stale = good & self.included
            gone = F.lit(False) if self.mode == "append" else truncate
        more = []
        if self._looks() or self.tracking is not None:
            more = [bound.alias(f"bound_{n}") for n, bound in enumerate(bounds(self.shape))]
            more.append(F.count_if(good & self._late()).alias("late"))
        counted = events.observe(
            seen,
            F.count(F.lit(1)).alias("counted"),
            F.count_if(~good).alias("rejected"),
            F.count_if(stale).alias("stale"),
            F.count_if(good & ~stale & gone).alias("cut"),
            F.max(F.when(good, column(POSITION))).alias("high"),
            *more,
        )
        return counted, good & ~gone & ~stale

    def _taken(self, changes: DataFrame) -> tuple[DataFrame, Observation | None]:
        """Have the changes counted that are left, where the target had a say in which these are."""
        if not self._looks():
            return changes, None
        taken = Observation()
        return changes.observe(taken, F.count_if(~_rejected()).alias("taken")), taken

    def _late(self) -> Expression:
        """Say of a change whether the target may know better: what is newer than all that it has, it cannot."""
        return _at_or_below(self.before.high)

    def _rows(self, changes: DataFrame, floor: str) -> DataFrame:
        if self.mode == "append":
            return engine.as_events(changes, self.shape, (UNCHANGED,) if isinstance(self.target, Sending) else ())
        partial = self.partial or bool(self.soft)
        if self.ties and partial:
            changes = engine.one_per_position(changes, self.shape.keys, self.order)
        if self.soft:
            changes = engine.soften(changes, self.shape, self.soft, self.deleted_at)
        rows = engine.reconcile(changes, self.shape, self.order, partial=partial)
        return engine.soften_truncated(rows, self.shape, self.soft, floor) if self.soft and floor else rows

    def _late_keys(self, met: DataFrame) -> tuple[DataFrame, int, Ranges]:
        """Return the keys of changes that may be late, how many they are, and between which they lie."""
        told, aggregates = Observation(), [bound.alias(f"bound_{n}") for n, bound in enumerate(bounds(self.shape))]
        keys = met.where(self._late()).select(*map(column, self.shape.keys))
        keys = keys.observe(told, F.count(F.lit(1)).alias("late"), *aggregates).localCheckpoint()
        return keys, told.get["late"], self._ranges(told)

    def _counting(self, changes: DataFrame, asked: DataFrame, late: int, near: Ranges) -> DataFrame:
        """Return the changes that count beside what the target has of the keys that are `asked`: those of late ones."""
        if self.ordered or not self.exists or not late:
            return changes
        known, keys, few = self.target.known(self.shape.name, near), self.shape.keys, late <= FEW
        known = engine.of_these(known, asked, keys) if few else known
        if self.ties:
            rows = _fitted(self.target.current(self.shape.name, near), self.fitted.table)
            rows = engine.of_these(rows, asked, keys) if few else rows
            return engine.newer_or_tied(changes, known, rows, self.shape, self.order, self.soft)
        return engine.newer(changes, F.broadcast(known) if few else known, keys)

    def _judges(self) -> bool:
        """Say whether changes leave out what only a row of the target can have."""
        return self.partial and bool(self.required)

    def _judged(self, changes: DataFrame, near: Ranges, floor: str) -> DataFrame:
        """Say which changes leave out what they must not, materialised."""
        alive = None
        if self.exists:
            rows = self.target.current(self.shape.name, near)
            # Rows that a truncate only marks are still there.
            alive = rows.where(column(POSITION) > floor) if floor and not self.soft else rows
        judged = engine.judge_partials(
            changes, alive, self.shape, self.required, self.order, deletes_stay=bool(self.soft)
        )
        return judged.localCheckpoint()


def _tally(seen: Observation, taken: int | None) -> Tally:
    """Return what was counted; where nothing else had a say, all is taken that is left of it."""
    found: dict[str, Any] = seen.get
    counted, rejected, stale, cut = (found[name] for name in ("counted", "rejected", "stale", "cut"))
    left = counted - rejected - stale - cut
    return Tally(counted, rejected, stale, cut, found["high"], left if taken is None else taken)


def _as_rejects(beside: DataFrame, refused: Sequence[Refusal]) -> DataFrame:
    found = [(event.topic, event.partition, event.offset, event.reason) for event in refused]
    columns = f"{TOPIC} string, {PARTITION} int, {OFFSET} bigint, {PROBLEM} string"
    return frame(beside.sparkSession, found, columns)


def _rejected() -> Expression:
    return column(PROBLEM).isNotNull()


def _at_or_below(floor: str) -> Expression:
    return column(POSITION) <= floor if floor else F.lit(False)


def _padded(changes: DataFrame, table: Table) -> DataFrame:
    sequence = changes if SEQUENCE in changes.columns else changes.withColumn(SEQUENCE, column(POSITION))
    return _fitted(sequence, table)


def _fitted(rows: DataFrame, table: Table) -> DataFrame:
    """Give stored rows the columns and types that the table is about to have."""
    have = {field.name: kind_of(field.dataType) for field in rows.schema}
    columns = {
        c.name: engine.conform(column(c.name), have[c.name], c.type) if c.name in have else F.lit(None).cast(c.type)
        for c in table.columns
    }
    ours = [column(name) for name in rows.columns if name not in columns]
    return rows.select(*(value.alias(name) for name, value in columns.items()), *ours)


def _as_it_is(rows: DataFrame) -> DataFrame:
    return rows
