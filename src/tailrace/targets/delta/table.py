"""One Delta table of ours: what it includes, and how a batch becomes one commit of rows and mark.

The mark stands twice in the commit: as Delta's own transaction (application id and version), by which
Delta refuses to apply an offset again, and as JSON in the commit's metadata, by which we read it back.
Delta skips a version that it has seen *silently*; so the mark is checked before, and after the commit
our metadata must be in the log, or the run halts. See ADR 2.

    prepare (finish a fill, deletion vectors)  ->  tombstones  ->  rows and mark  ->  seen in the log
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tailrace.apply.target import Applied, Batch, Mark
from tailrace.core.errors import Halt, TailraceError
from tailrace.core.failpoint import failpoint
from tailrace.core.table import Fit, Table
from tailrace.targets._merge import OP, POSITION, Bound, Merge, quote
from tailrace.targets.delta import shape
from tailrace.targets.delta.log import Commit, DeltaLog, Snapshot
from tailrace.targets.delta.outcome import LIBRARY_ERRORS, translate
from tailrace.targets.delta.place import Owner, Place
from tailrace.targets.delta.tombstones import Committed, Tombstones

Mode = Literal["scd1", "append"]

DELETION_VECTORS_FROM = 256 * 1024 * 1024
"""Size in bytes from which a table gets deletion vectors; see docs/explanation/delta.md for the figures."""

_FORMAT = 1
_LONGEST_BOUND = 256
_BROADCAST_ROWS = 250_000
_ORDERED = ("tinyint", "smallint", "int", "bigint", "string", "date", "decimal")
_SETTINGS = {
    # Names and values come from outside: "${...}" in them is text.
    "spark.sql.variable.substitute": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    # Replanning between stages doubles the jobs of a small MERGE.
    "spark.sql.adaptive.enabled": "false",
    # The rows of a batch are materialised already.
    "spark.databricks.delta.merge.materializeSource": "none",
}
_TXN_APP = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the table held at a version of its log."""

    version: int
    mark: Mark | None


@dataclass(frozen=True, slots=True)
class _Measured:
    """A batch in figures: how many rows, how many of them deletes, and between which keys."""

    rows: int
    deletes: int
    ranges: dict[str, tuple[Bound, Bound]]


class DeltaTable:
    """A table that one source table is kept current in; used by one thread at a time."""

    def __init__(self, base: SparkSession, place: Place, graves: Place, owner: Owner, mode: Mode) -> None:
        self._base = base
        self._place = place
        self._owner = owner
        self._mode = mode
        self._session = base.newSession()
        for name, value in _SETTINGS.items():
            self._session.conf.set(name, value)
        self._tombstones = Tombstones(self._session, graves)
        self._seen: _Seen | None = None

    def mark(self) -> Mark | None:
        """Return what the rows include, also when an earlier change log brought them."""
        with self._doing("reading the mark"):
            found = self._open()
            return self._mark(*found) if found else None

    def have(self) -> Table | None:
        """Return the shape of the stored table."""
        with self._doing("reading the schema"):
            found = self._open()
            return shape.table_of(found[1], self._owner.table) if found else None

    def known(self) -> DataFrame:
        """Return position and liveness of each key, deleted ones included: one row per key."""
        with self._doing("reading the known keys"):
            _, snapshot = self._existing()
            keys = shape.table_of(snapshot, self._owner.table).keys
            columns = [F.col(quote(key)) for key in keys]
            rows = self._place.read(self._base).select(*columns, POSITION, F.lit(True).alias("_cdc_alive"))
            if self._mode == "append":
                return rows.limit(0)
            graves = self._tombstones.of_keys(keys, self._committed(snapshot))
            if graves is None:
                return rows
            every = rows.unionByName(graves.withColumn("_cdc_alive", F.lit(False)))
            newest = F.max(F.struct(POSITION, "_cdc_alive")).alias("newest")
            return every.groupBy(*columns).agg(newest).select(*columns, f"newest.{POSITION}", "newest._cdc_alive")

    def current(self) -> DataFrame:
        """Return the rows as they are stored."""
        with self._doing("reading the rows"):
            return self._place.read(self._base)

    def evolve(self, change: Fit) -> None:
        """Create or alter the table; a step that was done already is not done again."""
        failpoint("C20")
        with self._doing("changing the table"):
            found = self._open()
            if found is None:
                ours = self._owner.properties(change.table.keys)
                shape.create(self._session, self._place, change.table, ours, events=self._mode == "append")
            else:
                snapshot = self._finish_fill(*found)
                shape.add(self._session, self._place, snapshot, change.add, fill=self._mode == "scd1")
                self._widen(change)
        failpoint("C21")

    def apply(self, batch: Batch) -> Applied:
        """Write the rows and the mark in one commit, unless the table includes them already."""
        with self._doing("preparing a batch"):
            log, snapshot = self._existing()
            snapshot = self._finish_fill(log, snapshot)
            mark = self._mark(log, snapshot)
            if mark and mark.log == batch.mark.log and mark.offset >= batch.mark.offset:
                return Applied()
            failpoint("C19")
            if self._mode == "append":
                commit = self._commit(log, snapshot, batch, None)
            else:
                measured = _measure(batch)
                snapshot = self._choose_deletion_vectors(log, snapshot)
                self._tombstones.bury(batch, lambda: self._committed(snapshot), measured.deletes)
                commit = self._commit(log, snapshot, batch, measured)
        self._seen = _Seen(commit.version, batch.mark)
        failpoint("C25")
        return _applied(commit)

    def collect_tombstones(self, before: datetime.date) -> None:
        """Drop tombstones of days before `before`."""
        if self._mode == "scd1":
            with self._doing("collecting tombstones"):
                self._tombstones.collect(before)

    def _commit(self, log: DeltaLog, before: Snapshot, batch: Batch, measured: _Measured | None) -> Commit:
        stamp = self._stamp(batch.mark)
        failpoint("C22")
        try:
            with _shared_view(batch.rows) as view:
                if measured is None or not before.files():
                    self._append(self._session.table(view), before, batch, stamp)
                else:
                    self._merge(view, before, batch, measured, stamp)
        except LIBRARY_ERRORS as error:
            # The outcome is unknown until the log has been asked: the commit may have landed all the same.
            landed = self._landed(log, before, stamp)
            if landed is None:
                self._tombstones.forget()
                raise translate(error, f'applying a batch to table "{self._owner.table}"') from error
            return landed
        failpoint("C23")
        landed = self._landed(log, before, stamp)
        if landed is None:
            raise Halt(
                "commit-not-seen",
                f'table "{self._owner.table}" did not take the batch up to offset {batch.mark.offset} '
                f'of log "{batch.mark.log}"',
                "Delta skips an offset that it has committed before under the same log. Was the change log emptied "
                "and filled again, or the table restored? Give the log a new root, or write to a new target table.",
            )
        return landed

    def _append(self, rows: DataFrame, before: Snapshot, batch: Batch, stamp: str) -> None:
        if self._mode == "scd1":
            rows = rows.where(F.col(OP) != "d")
        stored = [F.col(quote(name)) for name in before.schema().names if name in rows.columns]
        txn = {"txnAppId": self._owner.app_id(batch.mark.log), "txnVersion": str(batch.mark.offset)}
        self._place.append(rows.select(*stored), userMetadata=stamp, **txn)

    def _merge(self, view: str, before: Snapshot, batch: Batch, measured: _Measured, stamp: str) -> None:
        columns = [name for name in before.schema().names if name != POSITION]
        carried = frozenset(batch.rows.columns)
        keys = batch.table.keys
        source = _broadcast(view) if measured.rows <= _BROADCAST_ROWS else view
        statement = Merge(
            self._place.sql, source, columns, carried, keys, batch.partial, batch.truncate, measured.ranges
        )
        conf = self._session.conf
        conf.set(_TXN_APP, self._owner.app_id(batch.mark.log))
        conf.set(_TXN_VERSION, str(batch.mark.offset))
        conf.set(_METADATA, stamp)
        try:
            self._session.sql(statement.sql())
        finally:
            # Left in place they would mark the next ALTER or tombstone as this batch.
            for name in (_TXN_APP, _TXN_VERSION, _METADATA):
                conf.unset(name)

    def _landed(self, log: DeltaLog, before: Snapshot, stamp: str) -> Commit | None:
        now = log.snapshot()
        if now is None:
            return None
        commits = log.commits(now.version, before.version + 1)
        return next((commit for commit in commits if commit.metadata == stamp), None)

    def _mark(self, log: DeltaLog, snapshot: Snapshot) -> Mark | None:
        seen = self._seen
        if seen is None or seen.version != snapshot.version:
            oldest = seen.version + 1 if seen and seen.version < snapshot.version else 0
            found = self._read_mark(log, snapshot, oldest)
            mark = found if found or not seen or not oldest else seen.mark
            self._seen = seen = _Seen(snapshot.version, mark)
        return seen.mark

    def _read_mark(self, log: DeltaLog, snapshot: Snapshot, oldest: int) -> Mark | None:
        last = snapshot.version + 1
        for commit in log.commits(snapshot.version, oldest):
            last = commit.version
            if commit.operation == "RESTORE":
                raise Halt(
                    "table-restored",
                    f'table "{self._owner.table}" was restored to an earlier version, by commit {commit.version}',
                    "Its rows no longer include what its mark says. Drop the table, so that it is built again.",
                )
            if mark := self._unstamp(commit.metadata):
                return mark
        return self._rebuilt_mark(snapshot) if last > oldest else None

    def _rebuilt_mark(self, snapshot: Snapshot) -> Mark | None:
        # Delta drops old commits from its log (30 days) but never our transaction, nor the tombstones.
        for app_id, offset in snapshot.transactions():
            if log := self._owner.log_of(app_id):
                high = self.known().agg(F.max(POSITION)).collect()[0][0] or ""
                floor = self._tombstones.floor(self._committed(snapshot))
                return Mark(log, offset, max(high, floor), floor)
        return None

    def _stamp(self, mark: Mark) -> str:
        owner = [self._owner.pipeline, self._owner.target, self._owner.table]
        body = {"log": mark.log, "offset": mark.offset, "high": mark.high, "floor": mark.floor}
        return json.dumps({"tailrace": _FORMAT, "owner": owner, "mark": body})

    def _unstamp(self, metadata: str) -> Mark | None:
        if not metadata.startswith('{"tailrace":'):
            return None
        stored = json.loads(metadata)
        if stored["tailrace"] > _FORMAT:
            raise Halt(
                "mark-too-new",
                f'the mark of table "{self._owner.table}" has format {stored["tailrace"]}, newer than {_FORMAT}',
                "A newer Tailrace wrote it. Run that one.",
            )
        return Mark(**stored["mark"])

    def _committed(self, snapshot: Snapshot) -> Committed:
        logs = ((self._owner.log_of(app_id), offset) for app_id, offset in snapshot.transactions())
        return {log: offset for log, offset in logs if log}

    def _open(self) -> tuple[DeltaLog, Snapshot] | None:
        return self._place.owned(self._session, self._owner)

    def _existing(self) -> tuple[DeltaLog, Snapshot]:
        found = self._open()
        if found is None:
            raise Halt(
                "table-missing",
                f'table "{self._owner.table}" is not in target "{self._owner.target}"',
                "It was there or was to be created first. If it was removed, start the target again.",
            )
        return found

    def _finish_fill(self, log: DeltaLog, snapshot: Snapshot) -> Snapshot:
        if shape.finish(self._session, self._place, snapshot):
            return log.snapshot() or snapshot
        return snapshot

    def _widen(self, change: Fit) -> None:
        _, snapshot = self._existing()
        try:
            shape.widen(self._session, self._place, snapshot, change.widen)
            self._tombstones.widen(change.widen)
        except AnalysisException as error:
            raise shape.unsupported(change.widen, self._owner.table) from error

    def _choose_deletion_vectors(self, log: DeltaLog, snapshot: Snapshot) -> Snapshot:
        on = "delta.enableDeletionVectors"
        if snapshot.properties().get(on) == "true" or snapshot.bytes() < DELETION_VECTORS_FROM:
            return snapshot
        shape.set_properties(self._session, self._place, {on: "true"})
        return log.snapshot() or snapshot

    @contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        try:
            yield
        except TailraceError:
            raise
        except LIBRARY_ERRORS as error:
            raise translate(error, f'{what} of table "{self._owner.table}"') from error


@contextmanager
def _shared_view(rows: DataFrame) -> Iterator[str]:
    # Only a global view can be named in a session other than the one that made the rows.
    name = f"tailrace_{uuid.uuid4().hex}"
    rows.createGlobalTempView(name)
    try:
        yield f"global_temp.{name}"
    finally:
        rows.sparkSession.catalog.dropGlobalTempView(name)


def _broadcast(view: str) -> str:
    # The first pass of a MERGE looks for files with matching keys and needs nothing else of the source:
    # sent to every task, it spares a shuffle of the whole table.
    return f"(SELECT /*+ BROADCAST({view}) */ * FROM {view})"


def _measure(batch: Batch) -> _Measured:
    ordered = [key for key in batch.table.keys if batch.table.column(key).type.split("(")[0] in _ORDERED]
    bounds = [bound(quote(key)) for key in ordered for bound in (F.min, F.max)]
    found = batch.rows.agg(F.count(F.lit(1)), F.count(F.when(F.col(OP) == "d", 1)), *bounds).collect()[0]
    rows, deletes, *values = found
    ranges = {}
    for key, low, high in zip(ordered, values[::2], values[1::2], strict=True):
        if rows and not (isinstance(high, str) and max(len(low), len(high)) > _LONGEST_BOUND):
            ranges[key] = (low, high)
    return _Measured(rows, deletes, ranges)


def _applied(commit: Commit) -> Applied:
    metrics = commit.metrics
    if commit.operation == "MERGE":
        return Applied(
            metrics.get("numTargetRowsInserted", 0),
            metrics.get("numTargetRowsUpdated", 0),
            metrics.get("numTargetRowsDeleted", 0),
        )
    return Applied(inserted=metrics.get("numOutputRows", 0))
