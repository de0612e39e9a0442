"""One table of one slice, from log rows to a commit: the middle of a drain, step by step.

Every step but the last reads; a crash before the commit leaves nothing, and after it the mark says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from operator import or_
from typing import Protocol

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from tailrace.apply import engine
from tailrace.apply.engine import OFFSET, PARTITION, PROBLEM, TOPIC, column
from tailrace.apply.flow import Flow, Tally
from tailrace.apply.history import Tracking
from tailrace.apply.moved import carry_over, keys_met, split
from tailrace.apply.target import Applied, Mark, Sending, Target
from tailrace.control.rejects import Aside, Rejected
from tailrace.core import offsets
from tailrace.core.errors import Halt
from tailrace.core.failpoint import failpoint
from tailrace.core.offsets import Offsets
from tailrace.core.position import Phase, position
from tailrace.core.table import END, Column, Evolution, Fit, Table, fit
from tailrace.envelopes import rows as landed_rows
from tailrace.log.shape import Envelope
from tailrace.log.slice import Slice
from tailrace.runtime.report import Reporter
from tailrace.runtime.rules import Choice, Rules
from tailrace.runtime.whole import Whole, twins
from tailrace.spark.effort import suit


class Schemas(Protocol):
    """What a fold needs to know of the log beyond the slice."""

    name: str
    epoch: int
    ordered: bool
    replaces: bool
    """A life of the log does not say that what an earlier one brought is gone, and it is."""

    @property
    def envelope(self) -> Envelope:
        """How the messages of the log are opened."""
        ...

    def schema(self, fingerprint: str) -> Table:
        """Return the table schema that rows with `fingerprint` were written with."""
        ...

    def awaited(self, topic: str) -> frozenset[str] | None:
        """Return the columns that the table of `topic` has had from its beginning, and no type until they have a value.

        `None` for a table whose schema says all of its columns.
        """
        ...


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the events of one table: `read` is the sum of the four after it."""

    table: str
    read: int
    applied: int = 0
    superseded: int = 0
    filtered: int = 0
    rejected: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0


def by_table(counts: Iterable[Counts]) -> list[Counts]:
    """Return one for each table, with what all of its `counts` say together, in the order in which they come."""
    found: dict[str, Counts] = {}
    for new in counts:
        old = found.get(new.table)
        sums = {name: n + getattr(old, name) for name, n in asdict(new).items() if isinstance(n, int)} if old else {}
        found[new.table] = replace(new, **sums)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Again:
    """That events were put aside before, and are applied once more."""

    at: int
    """Where the target is: of what lies up to there, nothing but dead letters can be missing."""
    told: Callable[[Mark], None]
    """Is told the new mark right before the commit."""


class Fold:
    """Folds slices of one log into the tables of one target."""

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        log: Schemas,
        target: Target,
        rules: Rules,
        rejects: Aside,
        report: Reporter,
    ) -> None:
        self._spark = spark
        self._sessions: dict[str, SparkSession] = {}
        self._log = log
        self.target = target
        self._rules = replace(rules, keyed=isinstance(target, Sending))
        self._rejects = rejects
        self._report = report
        self._warned: set[str] = set()
        self._marks: dict[str, Mark] = {}
        self._made: set[str] = set()

    def renew(self, target: Target) -> None:
        """Go on with `target`, opened anew, in another Spark: the one that there was went away."""
        self.target = target
        self._sessions.clear()

    def marks(self) -> dict[str, Mark]:
        """Return the marks of the tables that were looked at, as last seen."""
        return dict(self._marks)

    def make(self, choice: Choice, table: Table) -> None:
        """Make the table for `table` of the source if the target has none; it is asked once."""
        if choice.table not in self._made:
            if self.target.have(choice.table) is None:
                fitted, _ = self._fit(None, [table], choice, None)
                self.target.evolve(choice.table, fitted)
            self._made.add(choice.table)

    def table(self, piece: Slice, topic: str, choice: Choice, again: Again | None = None) -> Counts:
        """Apply what `piece` has of `topic` to its table; doing it again changes nothing.

        Different tables may be folded at the same time: each has a session of its own.

        With `again`, the mark is no reason to leave events out, and it goes no further than the target has come.
        """
        read = piece.rows_of(topic)
        spark = self._session(topic)
        suit(spark, read)
        have = self.target.have(choice.table)
        mark = self._mark(choice.table, partitioned=isinstance(piece.upto, Offsets))
        if again is None and offsets.covers(mark.offset, piece.upto):
            return Counts(choice.table, read, superseded=read)
        schemas = self._schemas(piece, topic, have)
        if not schemas:
            # No row is there to be changed; an event that was to be kept is not, and is not called applied.
            kept = self._rules.mode == "append"
            return Counts(choice.table, read, applied=0 if kept else read, filtered=read if kept else 0)
        newest, envelope = list(schemas.values())[-1], self._log.envelope
        if not any(piece.fingerprints(topic)):
            # Deletes and truncates tell no column but the key: one that was asked for may come yet.
            choice = replace(choice, columns=tuple(name for name in choice.columns if name in newest.names()))
        choice = replace(choice, columns=(*choice.columns, *twins(envelope, newest, choice.columns)))
        fitted, shape = self._fit(have, list(schemas.values()), choice, self._log.awaited(topic))
        named = newest.names()
        asked = {*choice.track_history, *twins(envelope, newest, choice.track_history)}
        tracked = tuple(name for name in shape.names() if name in (asked or set(shape.names()) - set(shape.keys)))
        partial = piece.has(topic, landed_rows.PARTIAL) and self._rules.mode != "append"
        life = self._anew(mark) if have is not None else ""
        old = F.lit(False) if again else included(piece, mark)
        events = opened = self._open(spark, piece, topic, schemas, shape)
        moves = Observation() if self._may_move(piece, topic, schemas, shape) else None
        if moves is not None:
            events = split(events, shape, moves)
        if piece.has(topic, landed_rows.MOVED) and partial:
            events = carry_over(events, self._alive(choice.table) if have and not life else None, shape)
        if partial:
            events = engine.judge_creates(events, named, old)
        failpoint("C18")
        flow = Flow(
            self.target,
            self._rules.mode,
            fitted,
            shape,
            have is not None,
            mark,
            engine.in_log_order(),
            lambda rejected: self._reject(spark, piece, rejected),
            # What is newer than all that the table has cannot be late, whatever the log promises.
            ordered=(self._log.ordered and not again) or piece.newer_than(topic, mark.high),
            partial=partial,
            required=tuple(name for name in named if name in shape.names()) if partial else (),
            several=len(schemas) > 1,
            truncates=piece.has(topic, landed_rows.TRUNCATE),
            anew=life or self._floor(piece, topic),
            included=old,
            kept=piece.kept,
            met=(opened if moves is None else keys_met(opened, shape)) if piece.kept else None,
            soft=self._rules.soft,
            deleted_at=F.coalesce(column("_cdc_changed_at"), F.current_timestamp()),
            tracking=Tracking(tracked, StringType()) if self._rules.mode == "scd2" else None,
            replay=again is not None,
            told=lambda tally, rejected, taken: piece.expect(
                int(mark.offset), (tally.rejected, tally.superseded), rejected, taken
            ),
        )

        outcome = flow.apply(events, lambda high, floor: next_mark(mark, piece, again, high, floor))
        if outcome.mark is not None:
            self._marks[choice.table] = outcome.mark
        if have is not None and (fitted.add or fitted.widen):
            changes = [f"added {c.name}" for c in fitted.add] + [f"widened {c.name}" for c in fitted.widen]
            self._report.evolved(self.target.name, choice.table, changes)
        return _counts(choice.table, read + (moves.get["moved"] if moves else 0), outcome.tally, outcome.done)

    def _may_move(self, piece: Slice, topic: str, schemas: Mapping[str, Table], shape: Table) -> bool:
        """Say whether an update may have changed the key of its row, and the target's rows have keys.

        In a log that we write, the engine has made two changes of such an update by the key that it knows.
        """
        rows = self._rules.mode != "append" and not isinstance(self.target, Sending)
        split_already = self._log.ordered and all(schema.keys == shape.keys for schema in schemas.values())
        return rows and piece.has(topic, landed_rows.BEFORE) and not split_already

    def settle(self, upto: int) -> None:
        """Take note that every table has the log up to `upto`; doing it again does nothing."""

    def _session(self, topic: str) -> SparkSession:
        if topic not in self._sessions:
            session = self._spark().newSession()
            # Replanning between stages doubles the jobs of a small slice.
            session.conf.set("spark.sql.adaptive.enabled", "false")
            self._sessions[topic] = session
        return self._sessions[topic]

    def _mark(self, table: str, *, partitioned: bool) -> Mark:
        """Return the mark in terms of this log: a table of an earlier life has nothing of this one."""
        mark, seen = self.target.mark(table), self._marks.get(table)
        if seen and (mark is None or (mark.log == seen.log and offsets.lacks(mark.offset, seen.offset))):
            # We have gone on from `seen`, and would leave out what lies between.
            raise Halt(
                "table-restored",
                f'table "{table}" of target "{self.target.name}" was dropped or taken back while the target ran',
                "Nothing more was written to it. Start the target again: it goes on from what the table has.",
            )
        if mark is None:
            return Mark(self._log.name, -1)
        if mark.log == self._log.name:
            self._marks[table] = mark
            whole = mark.offset == -1 or offsets.by_partition(mark.offset)
            if self._rules.mode == "append" and partitioned and not whole:
                raise Halt(
                    "mark-lost",
                    f'the mark of table "{table}" in target "{self.target.name}" no longer says what it includes',
                    "The commit that carried it is too old, and events might be appended twice. Write to a new table.",
                )
            return mark
        if mark.high >= f"{self._log.epoch:04x}":
            raise Halt(
                "foreign-target",
                f'table "{table}" of target "{self.target.name}" was written from another change log',
                "Its rows are not older than this log's, so they cannot be replaced safely. Restore control.root "
                "of the pipeline that wrote it, or write to another place.",
            )
        return Mark(self._log.name, -1, mark.high, mark.floor)

    def _anew(self, mark: Mark) -> str:
        """Return where rows of an earlier life end, if the log, unlike ours, has no truncate there; else empty."""
        begins = position(self._log.epoch, Phase.RESET, 0)
        rows = self._rules.mode != "append" and not isinstance(self.target, Sending)
        earlier = "" < mark.high < begins and mark.floor < begins
        return begins if self._log.replaces and rows and earlier else ""

    def _floor(self, piece: Slice, topic: str) -> str:
        """Return where rows of `piece` end that a truncate removed which came before there was a table to keep it."""
        rows = self._rules.mode != "append" and not isinstance(self.target, Sending)
        return piece.contents.floors.get(topic, "") if rows else ""

    def _schemas(self, piece: Slice, topic: str, have: Table | None) -> dict[str, Table]:
        """Return the schemas of the events by fingerprint, oldest first; none if there is no table to speak of."""
        found = {name: self._log.schema(name) for name in piece.fingerprints(topic) if name}
        if isinstance(self._log.envelope, Whole):
            if not found and have is None and not self._keeps_deletes():
                return {}
            own = _own(have, self._rules)
            return {"": self._log.envelope.fitting(list(found.values()), own, self._rules.evolution)}
        if "" not in piece.fingerprints(topic):
            return found
        # Who keeps no table is told of a truncate all the same; it has no image, and Spark no struct without fields.
        nothing = Table(topic, (Column("none", "string"),), ()) if isinstance(self.target, Sending) else None
        bare = next(iter(found.values()), _own(have, self._rules) or nothing)
        return {} if bare is None else {"": bare, **found}

    def _keeps_deletes(self) -> bool:
        """Say whether deletes and truncates are worth a table of their own, which has the key and grows later."""
        grows = isinstance(self.target, Sending) or self._rules.evolution is Evolution.ALTER
        return self._rules.mode == "append" and grows

    def _fit(
        self, have: Table | None, schemas: Sequence[Table], choice: Choice, awaited: frozenset[str] | None
    ) -> tuple[Fit, Table]:
        want = _marked(choice.of(engine.merged(schemas), self._rules, whole=awaited is None), schemas)
        # Of a table whose columns are learned, what was asked for by its name is no evolution either.
        expected = frozenset[str]() if awaited is None else awaited.union(choice.columns)
        notes = self._rules.notes(choice.track_history)
        if have is not None:
            self._refuse_drift(choice.table, notes)
        fitted = fit(have, want, self._rules.evolution, expected=expected)
        fitted = replace(fitted, notes=tuple(notes.items()) if have is None else ())
        for text in fitted.skipped:
            if text not in self._warned:
                self._warned.add(text)
                self._report.warning(f'table "{choice.table}" in target "{self.target.name}": {text}')
        # A record tells every column of its table, also one that the source has dropped.
        carried = set(fitted.table.names() if self._rules.mode == "scd2" else want.names())
        columns = tuple(c for c in fitted.table.columns if c.name in carried)
        return fitted, Table(choice.table, columns, want.keys)

    def _refuse_drift(self, table: str, wanted: Mapping[str, str]) -> None:
        found = self.target.notes(table)
        for name, text in wanted.items():
            if found and found.get(name, "") != text:
                code, setting = _SETTINGS[name]
                raise Halt(
                    code,
                    f'table "{table}" of target "{self.target.name}" was made with {setting} '
                    f"{found.get(name) or 'none'}, and the pipeline says {text or 'none'}",
                    "A table keeps what it was made with. Put the setting back, or write to another place.",
                )

    def _alive(self, table: str) -> DataFrame:
        rows = self.target.current(table)
        return rows.where(F.col(END).isNull()) if self._rules.mode == "scd2" else rows

    def _open(
        self, spark: SparkSession, piece: Slice, topic: str, schemas: Mapping[str, Table], shape: Table
    ) -> DataFrame:
        opened = []
        for fingerprint, schema in schemas.items():
            written = piece.rows(spark, topic, fingerprint if len(schemas) > 1 else None)
            messages = self._log.envelope.open_rows(written, schema, self._log.epoch, self._rules.max_event_bytes)
            opened.append((engine.judge(messages, shape.keys), schema))
        flag = self._rules.soft
        events = engine.align(opened, Table(shape.name, tuple(c for c in shape.columns if c.name != flag), shape.keys))
        return events.withColumn(flag, F.lit(None).cast(shape.column(flag).type)) if flag else events

    def aside(self, piece: Slice) -> list[Counts]:
        """Put aside what changes no table, and count it with the one that its topic is of, else with the topic."""
        counts = []
        for topic, found in sorted(piece.contents.aside.items()):
            if found.rejected and (unreadable := piece.unreadable(self._spark(), topic)) is not None:
                self._reject(self._spark(), piece, unreadable)
            read = found.filtered + found.rejected
            counts.append(Counts(found.table or topic, read, filtered=found.filtered, rejected=found.rejected))
        return counts

    def _reject(self, spark: SparkSession, piece: Slice, rejected: DataFrame) -> None:
        # Bounded: one message more than the limit is enough to halt, and none may hide behind another's rows.
        found = rejected.select(TOPIC, PARTITION, OFFSET, PROBLEM).dropDuplicates([TOPIC, PARTITION, OFFSET])
        reasons = {(row[0], row[1], row[2]): row[3] for row in found.limit(self._rejects.limit + 1).toLocalIterator()}
        self._rejects.put(
            self.target.name,
            self._log.name,
            (
                Rejected(*place, r["key"], r["value"], reasons[place], tuple(map(tuple, r["headers"] or ())))
                for r in piece.messages(spark, reasons.keys())
                if (place := (r["topic"], r["partition"], r["offset"])) in reasons
            ),
        )


def _own(have: Table | None, rules: Rules) -> Table | None:
    """Return the target's table without the column that only marks deleted rows."""
    return have and Table(have.name, tuple(c for c in have.columns if c.name != rules.soft), have.keys)


def _marked(want: Table, schemas: Sequence[Table]) -> Table:
    """Say of the columns of `want` which are JSON: those that every writer calls so, and no key, which is compared."""
    said = [column for schema in schemas for column in schema.columns]
    other = {column.name for column in said if not column.json} | set(want.keys)
    json = {column.name for column in said} - other
    return replace(want, columns=tuple(replace(c, json=c.name in json) for c in want.columns))


_SETTINGS = {
    "scd": ("scd-type-changed", "mode"),
    "soft": ("soft-delete-changed", "soft_delete_column"),
    "tracked": ("tracking-changed", "track_history"),
}


def mark_upto(before: Mark, upto: int, high: str, floor: str) -> Mark:
    """Return the mark of a table that includes what it did `before` and the log up to `upto`."""
    return replace(before, offset=offsets.together(before.offset, upto), high=high, floor=floor)


def next_mark(before: Mark, piece: Slice, again: Again | None, high: str, floor: str) -> Mark:
    """Return the mark of the commit of `piece`; what comes `again` brings no more of the log, and is told its mark."""
    if again is None:
        return mark_upto(before, piece.upto, high, floor)
    new = mark_upto(before, again.at, high, floor)
    new = replace(new, replays=max(new.replays, int(new.offset)) + 1)
    again.told(new)
    return new


def included(piece: Slice, mark: Mark) -> Expression:
    """Say of a row whether the table includes it already; of a slice that begins behind the mark, none is.

    Spark writes a number into the code that it compiles, so a comparison with the mark in every slice
    would have it compile every slice anew.
    """
    if not isinstance(piece.upto, Offsets):
        return column(OFFSET) <= mark.offset if mark.offset > piece.after else F.lit(False)
    after = offsets.by_partition(piece.after)
    ahead = {name: n for name, n in offsets.by_partition(mark.offset).items() if n > after.get(name, -1)}
    name = F.concat_ws(":", column(TOPIC), column(PARTITION))
    return reduce(or_, ((name == part) & (column(OFFSET) <= n) for part, n in ahead.items()), F.lit(False))


def _counts(table: str, read: int, tally: Tally, done: Applied) -> Counts:
    return Counts(
        table,
        read,
        applied=tally.applied,
        superseded=tally.superseded,
        rejected=tally.rejected,
        inserted=done.inserted,
        updated=done.updated,
        deleted=done.deleted,
    )
