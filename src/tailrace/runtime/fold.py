"""One table of one slice, from log rows to a commit: the middle of a drain, step by step.

Every step but the last reads; a crash before the commit leaves nothing, and after it the mark says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tailrace.apply import engine
from tailrace.apply.engine import OFFSET, PROBLEM, column
from tailrace.apply.flow import Flow, Tally
from tailrace.apply.moved import carry_over
from tailrace.apply.target import Applied, Mark, Target
from tailrace.control.rejects import Rejected, Rejects
from tailrace.core.errors import Halt
from tailrace.core.failpoint import failpoint
from tailrace.core.table import Evolution, Fit, Table, fit
from tailrace.envelopes import debezium
from tailrace.envelopes import rows as landed_rows
from tailrace.log.slice import Slice
from tailrace.runtime.report import Reporter


class Schemas(Protocol):
    """What a fold needs to know of the log beyond the slice."""

    name: str
    epoch: int
    ordered: bool

    def schema(self, fingerprint: str) -> Table:
        """Return the table schema that rows with `fingerprint` were written with."""
        ...


@dataclass(frozen=True, slots=True)
class Choice:
    """What the pipeline says of one table in one target."""

    table: str
    primary_key: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def of(self, table: Table, *, append: bool) -> Table:
        """Return what is wanted of the source's `table`; halt if it cannot be kept by key."""
        keys = () if append else self.primary_key or table.keys
        missing = [name for name in (*keys, *self.columns) if name not in table.names()]
        if missing:
            raise Halt(
                "unknown-column",
                f'table "{table.name}" has no column "{missing[0]}"',
                "Mend primary_key and columns of this table in the pipeline file.",
            )
        if not keys and not append:
            raise Halt(
                "no-key",
                f'table "{table.name}" has no primary key, so its rows cannot be told apart',
                "Give it a primary key, name one with primary_key under tables, or use mode: append.",
            )
        chosen = {*keys, *self.columns} if self.columns else set(table.names())
        return Table(table.name, tuple(c for c in table.columns if c.name in chosen), tuple(keys))


@dataclass(frozen=True, slots=True)
class Rules:
    """How changes go into one target: what its configuration says."""

    mode: str
    evolution: Evolution
    max_event_bytes: int


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


class Fold:
    """Folds slices of one log into the tables of one target."""

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        log: Schemas,
        target: Target,
        rules: Rules,
        rejects: Rejects,
        report: Reporter,
    ) -> None:
        self._spark = spark
        self._sessions: dict[str, SparkSession] = {}
        self._log = log
        self.target = target
        self._rules = rules
        self._rejects = rejects
        self._report = report
        self._warned: set[str] = set()
        self._marks: dict[str, Mark] = {}

    def marks(self) -> dict[str, Mark]:
        """Return the marks of the tables that were looked at, as last seen."""
        return dict(self._marks)

    def table(self, piece: Slice, topic: str, choice: Choice) -> Counts:
        """Apply what `piece` has of `topic` to its table; doing it again changes nothing.

        Different tables may be folded at the same time: each has a session of its own.
        """
        spark = self._session(topic)
        have = self.target.have(choice.table)
        mark = self._mark(choice.table)
        read = piece.rows_of(topic)
        if mark.offset >= piece.upto:
            return Counts(choice.table, read, superseded=read)
        schemas = self._schemas(piece, topic, have)
        if not schemas:
            return Counts(choice.table, read, applied=read)
        fitted, shape = self._fit(have, list(schemas.values()), choice)
        named = list(schemas.values())[-1].names()
        partial = piece.has(topic, landed_rows.PARTIAL) and self._rules.mode != "append"
        events = self._open(spark, piece, topic, schemas, shape)
        if piece.has(topic, landed_rows.MOVED) and partial:
            events = carry_over(events, self.target.current(choice.table) if have else None, shape)
        if partial:
            events = engine.judge_creates(events, named, _included(piece, mark))
        failpoint("C18")
        flow = Flow(
            self.target,
            self._rules.mode,
            fitted,
            shape,
            have is not None,
            mark,
            engine.in_log_order(),
            lambda rejected: self._reject(spark, piece, topic, rejected),
            ordered=self._log.ordered,
            partial=partial,
            required=tuple(name for name in named if name in shape.names()) if partial else (),
            several=len(schemas) > 1,
            truncates=piece.has(topic, landed_rows.TRUNCATE),
            included=_included(piece, mark),
        )
        outcome = flow.apply(events, lambda high, floor: Mark(self._log.name, piece.upto, high, floor))
        if outcome.mark:
            self._marks[choice.table] = outcome.mark
        return _counts(choice.table, read, outcome.tally, outcome.done)

    def _session(self, topic: str) -> SparkSession:
        if topic not in self._sessions:
            session = self._spark().newSession()
            # Replanning between stages doubles the jobs of a small slice.
            session.conf.set("spark.sql.adaptive.enabled", "false")
            self._sessions[topic] = session
        return self._sessions[topic]

    def _mark(self, table: str) -> Mark:
        """Return the mark in terms of this log: a table of an earlier life has nothing of this one."""
        mark = self.target.mark(table)
        if mark is None:
            return Mark(self._log.name, -1)
        if mark.log == self._log.name:
            self._marks[table] = mark
            return mark
        if mark.high >= f"{self._log.epoch:04x}":
            raise Halt(
                "foreign-target",
                f'table "{table}" of target "{self.target.name}" was written from another change log',
                "Its rows are not older than this log's, so they cannot be replaced safely. Restore control.root "
                "of the pipeline that wrote it, or write to another place.",
            )
        return Mark(self._log.name, -1, mark.high, mark.floor)

    def _schemas(self, piece: Slice, topic: str, have: Table | None) -> dict[str, Table]:
        """Return the schemas of the events by fingerprint, oldest first; none if there is no table to speak of."""
        found = {name: self._log.schema(name) for name in piece.fingerprints(topic) if name}
        if "" not in piece.fingerprints(topic):
            return found
        bare = next(iter(found.values()), have)
        return {} if bare is None else {"": bare, **found}

    def _fit(self, have: Table | None, schemas: Sequence[Table], choice: Choice) -> tuple[Fit, Table]:
        want = choice.of(engine.merged(schemas), append=self._rules.mode == "append")
        fitted = fit(have, want, self._rules.evolution)
        for text in fitted.skipped:
            if text not in self._warned:
                self._warned.add(text)
                self._report.warning(f'table "{choice.table}" in target "{self.target.name}": {text}')
        carried = set(want.names())
        columns = tuple(c for c in fitted.table.columns if c.name in carried)
        return fitted, Table(choice.table, columns, want.keys)

    def _open(
        self, spark: SparkSession, piece: Slice, topic: str, schemas: Mapping[str, Table], shape: Table
    ) -> DataFrame:
        rows = piece.read(spark).where(F.col("topic") == topic)
        header = F.filter("headers", lambda h: h["key"] == landed_rows.SCHEMA_HEADER)
        written_with = F.coalesce(F.try_element_at(header, F.lit(1))["value"].cast("string"), F.lit(""))
        opened = []
        for fingerprint, schema in schemas.items():
            written = rows.where(written_with == fingerprint) if len(schemas) > 1 else rows
            messages = debezium.open_rows(written, schema, self._log.epoch, self._rules.max_event_bytes)
            opened.append((engine.judge(messages, shape.keys), schema))
        return engine.align(opened, shape)

    def _reject(self, spark: SparkSession, piece: Slice, topic: str, rejected: DataFrame) -> None:
        # Bounded: one more than the limit is enough to halt.
        reasons = {
            row[0]: row[1] for row in rejected.select(OFFSET, PROBLEM).limit(self._rejects.limit + 1).toLocalIterator()
        }
        raw = piece.read(spark).where((F.col("topic") == topic) & F.col("offset").isin(list(reasons)))
        events = raw.select("topic", "partition", "offset", "key", "value").toLocalIterator()
        self._rejects.put(
            self.target.name,
            self._log.name,
            (
                Rejected(r["topic"], r["partition"], r["offset"], r["key"], r["value"], reasons[r["offset"]])
                for r in events
            ),
        )


def _included(piece: Slice, mark: Mark) -> Expression:
    """Say of a row whether the table includes it already; of a slice that begins behind the mark, none is.

    Spark writes a number into the code that it compiles, so a comparison with the mark in every slice
    would have it compile every slice anew.
    """
    return column(OFFSET) <= mark.offset if mark.offset > piece.after else F.lit(False)


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
