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
import secrets
from contextlib import AbstractContextManager, suppress
from typing import Literal

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tailrace.apply.ranges import Ranges, inside
from tailrace.apply.target import NOWHERE, Applied, Batch, Mark, replays_of
from tailrace.apply.view import shared_view
from tailrace.core.errors import Halt, Retryable
from tailrace.core.failpoint import failpoint
from tailrace.core.table import Fit, Table
from tailrace.spark.effort import FEW, suit
from tailrace.targets._columns import columns_of
from tailrace.targets._merge import OP, POSITION, Merge, MergeRecords, quote
from tailrace.targets._rows import Measured, measure, merge_source
from tailrace.targets.delta import shape
from tailrace.targets.delta.log import Commit, DeltaLog, Snapshot
from tailrace.targets.delta.marks import Marks
from tailrace.targets.delta.outcome import LIBRARY_ERRORS, doing, translate
from tailrace.targets.delta.place import NOTES, Owner, Place
from tailrace.targets.delta.tombstones import Committed, Grave, Tombstones
from tailrace.targets.delta.versions import METADATA, DeltaVersions

Mode = Literal["scd1", "scd2", "append"]

DELETION_VECTORS_FROM = 16 * 1024 * 1024
"""Size in bytes from which a table gets deletion vectors: below it, rewriting the files a batch touches is
quicker than the extra work of marking rows in them. The figures are in docs/explanation/delta.md."""

COPIED_MANY = 100_000
"""A table of fewer bytes gets them too, once its last batch has written so many rows again that it did not change."""

_DELETION_VECTORS = "delta.enableDeletionVectors"

_SETTINGS = {
    # Spark's own choice counts nanoseconds: other readers take a time before 1677 or after 2262 for another one.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Names and values come from outside: "${...}" in them is text.
    "spark.sql.variable.substitute": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    # Replanning between stages doubles the jobs of a small MERGE.
    "spark.sql.adaptive.enabled": "false",
    # The rows of a batch are materialised already.
    "spark.databricks.delta.merge.materializeSource": "none",
}
_FILES = 256
_SMALLEST_FILE, _LARGEST_FILE = 8 * 1024 * 1024, 128 * 1024 * 1024
"""A table is joined into about `_FILES` files within these sizes in bytes. A MERGE goes through every row of a file
that it touches, so small files keep the cost of a batch near what it changes; many of them make the log long. The
figures are in docs/explanation/delta.md."""
_TXN_APP = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"


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
        suit(self._session, 0)
        self._tombstones = Tombstones(self._session, graves)
        self._marks = Marks(owner)
        self.versions = DeltaVersions(self._session, base, place, owner, self._marks, self._tombstones)
        self._told: tuple[Mark | None] | None = None

    def mark(self) -> Mark | None:
        """Return what the rows include, also when an earlier change log brought them.

        A batch is made for the mark that was told last: if the table has another one by then, it is refused.
        """
        with self._doing("reading the mark"):
            found = self._open()
            mark = self._read_mark(*found) if found else None
            self._told = (mark,)
            return mark

    def have(self) -> Table | None:
        """Return the shape of the stored table."""
        with self._doing("reading the schema"):
            found = self._open()
            return shape.table_of(found[1], self._owner.table) if found else None

    def notes(self) -> dict[str, str]:
        """Return what was to be remembered with the table when it was created."""
        with self._doing("reading the notes"):
            found = self._open()
            return dict(json.loads(found[1].properties().get(NOTES, "{}"))) if found else {}

    def known(self, near: Ranges = NOWHERE) -> DataFrame:
        """Return position and liveness of each key within `near`, deleted ones included: one row per key."""
        with self._doing("reading the known keys"):
            snapshot, committed = self._committed()
            keys = shape.table_of(snapshot, self._owner.table).keys
            columns = [F.col(quote(key)) for key in keys]
            rows = self._near(near).select(*columns, POSITION, F.lit(True).alias("_cdc_alive"))
            if self._mode == "append":
                return rows.limit(0)
            graves = self._tombstones.of_keys(keys, committed, near)
            if graves is None:
                return rows
            every = rows.unionByName(graves.withColumn("_cdc_alive", F.lit(False)))
            newest = F.max(F.struct(POSITION, "_cdc_alive")).alias("_cdc_newest")
            told = [f"_cdc_newest.{name}" for name in (POSITION, "_cdc_alive")]
            return every.groupBy(*columns).agg(newest).select(*columns, *told)

    def current(self, near: Ranges = NOWHERE) -> DataFrame:
        """Return the rows with keys within `near` as they are stored."""
        with self._doing("reading the rows"):
            return self._near(near)

    def records(self, near: Ranges = NOWHERE) -> tuple[DataFrame, DataFrame | None]:
        """Return the records with keys within `near`, and what is hidden beside them."""
        with self._doing("reading the records"):
            return self._near(near), self._tombstones.events(self._committed()[1], near)

    def evolve(self, change: Fit) -> None:
        """Create or alter the table; a step that was done already is not done again."""
        failpoint("C20")
        with self._doing("changing the table"):
            found = self._open()
            if found is None:
                notes = dict(change.notes)
                ours = self._owner.properties(change.table.keys) | ({NOTES: json.dumps(notes)} if notes else {})
                self._marks.forget()
                columns = columns_of(change.table, self._mode, notes.get("sequence", "string"))
                shape.create(self._session, self._place, change.table, columns, ours)
            else:
                snapshot = self._finish_fill(*found)
                # It may be refused, and then nothing is to be added.
                self._widen(change)
                shape.add(self._session, self._place, snapshot, change.add, fill=self._mode == "scd1")
        failpoint("C21")

    def apply(self, batch: Batch) -> Applied:
        """Write the rows and the mark in one commit, unless the table includes them already."""
        with self._doing("preparing a batch"):
            ticket = self._tombstones.ticket() if batch.after and self._mode != "append" else None
            log, snapshot = self._existing()
            snapshot = self._finish_fill(log, snapshot)
            mark = self._read_mark(log, snapshot)
            if batch.after and mark and mark != batch.after:
                raise self._conflict()
            if mark and mark.includes(batch.mark):
                return Applied()
            if self._told and self._told != (mark,):
                raise self._conflict()
            failpoint("C19")
            attempt, grave = secrets.token_hex(8), self._marks.grave
            if self._mode == "append":
                measured = None
            else:
                measured = measure(batch)
                snapshot = self._choose_deletion_vectors(log, snapshot)
                gone = measured.deletes if self._mode == "scd1" else 0
                buried = self._tombstones.bury(batch, lambda: self._marks.committed(snapshot), gone, attempt, ticket)
                # A replay is numbered apart from the log, and what counts of the log stays as it is.
                if buried and not batch.replay:
                    since = int(mark.offset) if mark and mark.log == batch.mark.log else -1
                    grave = Grave(batch.mark.log, int(batch.mark.offset), attempt, since)
            commit = self._commit(log, snapshot, batch, measured, self._marks.stamp(batch.mark, attempt, grave))
            # The rows are committed; should this fail, the next batch does it.
            with suppress(*LIBRARY_ERRORS):
                before = self._marks.committed
                self._tombstones.settle(lambda: before(snapshot).and_then(batch.step, batch.mark.log, grave))
        self._marks.remember(commit, batch.mark, grave)
        self._told = (batch.mark,)
        failpoint("C25")
        return _applied(commit)

    def collect_tombstones(self, before: datetime.date) -> None:
        """Drop tombstones of days before `before`."""
        if self._mode != "append":
            with self._doing("collecting tombstones"):
                self._tombstones.collect(before)

    def _commit(self, log: DeltaLog, before: Snapshot, batch: Batch, measured: Measured | None, stamp: str) -> Commit:
        failpoint("C22")
        try:
            with shared_view(batch.rows) as view:
                if measured is None or not before.files() or (self._mode == "scd2" and not measured.rows):
                    self._append(log, self._session.table(view), before, batch, stamp)
                else:
                    self._merge(view, before, batch, measured, stamp)
        except LIBRARY_ERRORS as error:
            # The outcome is unknown until the log has been asked: the commit may have landed all the same.
            landed = self._marks.landed(log, before, stamp)
            if landed is None:
                raise translate(error, f'applying a batch to table "{self._owner.table}"') from error
            return landed
        failpoint("C23")
        landed = self._marks.landed(log, before, stamp)
        if landed is None and self._moved(log, before, batch.mark.log):
            raise self._conflict()
        if landed is None:
            raise Halt(
                "commit-not-seen",
                f'table "{self._owner.table}" did not take the batch up to offset {batch.mark.offset} '
                f'of log "{batch.mark.log}"',
                "Delta skips an offset that it has committed before under the same log. Was the change log emptied "
                "and filled again, or the table restored? Give the log a new root, or write to a new target table.",
            )
        return landed

    def _moved(self, log: DeltaLog, before: Snapshot, change_log: str) -> bool:
        """Say whether somebody else has committed from `change_log` since `before`."""
        now = log.snapshot()
        then = self._marks.committed(before).offsets.get(change_log, -1)
        return now is not None and self._marks.committed(now).offsets.get(change_log, -1) > then

    def _conflict(self) -> Retryable:
        return Retryable(
            "write-conflict",
            f'another writer committed to table "{self._place.path or self._place.sql}" in the meantime',
            "Nothing was written. Apply the batch again, one call at a time.",
        )

    def _append(self, log: DeltaLog, rows: DataFrame, before: Snapshot, batch: Batch, stamp: str) -> None:
        if self._mode != "append":
            rows = rows.where(F.col(OP) != "d")
        stored = [
            F.col(quote(f.name)) if f.name in rows.columns else F.lit(None).cast(f.dataType).alias(f.name)
            for f in before.schema()
        ]
        sequence, number = batch.step
        log.append(rows.select(*stored), before, (self._marks.app_id(sequence), number), stamp)

    def _merge(self, view: str, before: Snapshot, batch: Batch, measured: Measured, stamp: str) -> None:
        statement = self._statement(merge_source(view, measured), before, batch, measured)
        # A MERGE also goes through the rows of the files that it touches; of a large table that may be many.
        suit(self._session, max(measured.rows, FEW + 1) if _is_large(before) else measured.rows)
        conf = self._session.conf
        size = min(max(before.bytes() // _FILES, _SMALLEST_FILE), _LARGEST_FILE)
        conf.set("spark.databricks.delta.autoCompact.maxFileSize", str(size))
        conf.set("spark.databricks.delta.autoCompact.minFileSize", str(size // 2))
        sequence, number = batch.step
        conf.set(_TXN_APP, self._marks.app_id(sequence))
        conf.set(_TXN_VERSION, str(number))
        conf.set(METADATA, stamp)
        try:
            self._session.sql(statement)
        finally:
            # Left in place they would mark the next ALTER or tombstone as this batch.
            for name in (_TXN_APP, _TXN_VERSION, METADATA):
                conf.unset(name)

    def _statement(self, source: str, before: Snapshot, batch: Batch, measured: Measured) -> str:
        into, keys, ranges, names = self._place.sql, batch.table.keys, measured.ranges, before.schema().names
        if self._mode == "scd2":
            return MergeRecords(into, source, names, keys, ranges).sql()
        columns = [name for name in names if name != POSITION]
        carried = frozenset(batch.rows.columns)
        flag = _marked(batch.soft, before) if batch.soft else None
        merge = Merge(into, source, columns, carried, keys, batch.partial, batch.truncate, ranges, batch.ties, flag)
        return merge.sql()

    def _committed(self) -> tuple[Snapshot, Committed]:
        """Return the newest version, and what counts of the tombstones there, which its own mark says."""
        log, snapshot = self._existing()
        self._read_mark(log, snapshot)
        return snapshot, self._marks.committed(snapshot)

    def _near(self, near: Ranges) -> DataFrame:
        rows = self._place.read(self._base)
        return rows.where(inside(near)) if near else rows

    def _read_mark(self, log: DeltaLog, snapshot: Snapshot) -> Mark | None:
        def rebuild(change_log: str, offset: int, committed: Committed) -> Mark:
            rows, graves = self._near(NOWHERE), None
            if self._mode == "append":
                rows = rows.limit(0)
            else:
                graves = self._tombstones.events(committed, NOWHERE)
            seen = rows.select(POSITION) if graves is None else rows.select(POSITION).union(graves.select(POSITION))
            high = seen.agg(F.max(POSITION)).collect()[0][0] or ""
            floor, (replays, _) = self._tombstones.floor(committed), replays_of(change_log, 0)
            return Mark(change_log, offset, max(high, floor), floor, replays=committed.offsets.get(replays, 0))

        return self._marks.read(log, snapshot, rebuild)

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
            # What lies beside the table goes first: a crash between the two is then seen, and mended, by the table.
            self._tombstones.widen(change.widen)
            shape.widen(self._session, self._place, snapshot, change.widen)
        except AnalysisException as error:
            raise shape.unsupported(change.widen, self._owner.table) from error

    def _choose_deletion_vectors(self, log: DeltaLog, snapshot: Snapshot) -> Snapshot:
        if _is_large(snapshot):
            return snapshot
        copied = (commit.metrics.get("numTargetRowsCopied", 0) for commit in log.commits(snapshot.version))
        if snapshot.bytes() < DELETION_VECTORS_FROM and next(copied, 0) < COPIED_MANY:
            return snapshot
        # Each batch then adds small files beside the marked ones, so Delta must join them from time to time.
        chosen = {_DELETION_VECTORS: "true", "delta.autoOptimize.autoCompact": "true"}
        shape.set_properties(self._session, self._place, chosen)
        return log.snapshot() or snapshot

    def _doing(self, what: str) -> AbstractContextManager[None]:
        return doing(what, self._owner.table)


def _is_large(snapshot: Snapshot) -> bool:
    """Say whether the table was found to be one of which a batch should touch as little as it can."""
    return snapshot.properties().get(_DELETION_VECTORS) == "true"


def _marked(flag: str, before: Snapshot) -> tuple[str, str]:
    """Return the column that marks deleted rows and its value in SQL; one that has a time already keeps it."""
    if before.schema()[flag].dataType.typeName() == "boolean":
        return flag, "true"
    return flag, f"coalesce(t.{quote(flag)}, current_timestamp())"


def _applied(commit: Commit) -> Applied:
    metrics = commit.metrics
    if commit.operation == "MERGE":
        return Applied(
            metrics.get("numTargetRowsInserted", 0),
            metrics.get("numTargetRowsUpdated", 0),
            metrics.get("numTargetRowsDeleted", 0),
        )
    return Applied(inserted=metrics.get("numOutputRows", 0))
