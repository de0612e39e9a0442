"""One Iceberg table of ours: what it includes, and how a batch becomes one commit of rows and mark.

The statement of a batch is staged: its snapshot holds rows and stamp, and no reader sees it. It is then published in
one step that fails unless the table still is what the mark was read from. So of two writers with the same events one
commits and the other conflicts, in every mode. See ADR 13.

    prepare (finish a fill)  ->  stage what is buried  ->  stage rows and stamp  ->  publish  ->  publish what is buried
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Literal

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tailrace.apply.ranges import Ranges, inside
from tailrace.apply.target import ANYONE, NOWHERE, Applied, Batch, Mark
from tailrace.apply.view import shared_view
from tailrace.core.errors import Halt, Retryable
from tailrace.core.failpoint import failpoint
from tailrace.core.table import Fit, Table
from tailrace.spark.effort import FEW, suit
from tailrace.targets._columns import columns_of
from tailrace.targets._merge import OP, POSITION, Merge, MergeRecords, quote
from tailrace.targets._rows import Measured, measure, merge_source
from tailrace.targets.iceberg import shape
from tailrace.targets.iceberg.beside import Beside
from tailrace.targets.iceberg.catalog import Catalog, Place
from tailrace.targets.iceberg.marks import KEYS, NOTES, OWNER, STAMP, Owner, Stamp, latest, read_stamp, restored
from tailrace.targets.iceberg.metadata import Metadata, Snapshot
from tailrace.targets.iceberg.outcome import LIBRARY_ERRORS, doing, translate
from tailrace.targets.iceberg.staging import ENABLED, stage
from tailrace.targets.iceberg.versions import IcebergVersions

Mode = Literal["scd1", "scd2", "append"]

_SETTINGS = {
    # Names and values come from outside: "${...}" in them is text.
    "spark.sql.variable.substitute": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    # Replanning between stages doubles the jobs of a small MERGE.
    "spark.sql.adaptive.enabled": "false",
}
_PROPERTIES = {
    **ENABLED,
    "write.merge.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
    # The only UPDATE changes every row: marking them all as deleted would help nobody.
    "write.update.mode": "copy-on-write",
    # A batch writes two files of metadata, and nobody needs those of long ago.
    "write.metadata.delete-after-commit.enabled": "true",
}


@dataclass(frozen=True, slots=True)
class Making:
    """How a table is made that is not there yet."""

    format_version: int = 3
    partition_by: Sequence[str] = ()
    allowed: bool = True

    def properties(self) -> dict[str, str]:
        """Return the properties that every table of ours has."""
        return {**_PROPERTIES, "format-version": str(self.format_version)}


@dataclass(frozen=True, slots=True)
class Sight:
    """What a caller was last told of the mark; a batch is made for that one and for no other."""

    mark: Mark | None = None
    told: bool = False


class IcebergTable:
    """A table that one source table is kept current in; used by one thread at a time."""

    def __init__(
        self,
        base: SparkSession,
        reader: SparkSession,
        settings: Mapping[str, str],
        place: Place,
        owner: Owner,
        mode: Mode,
        making: Making,
    ) -> None:
        self._place = place
        self._owner = owner
        self._mode = mode
        self._making = making
        self._reader = reader
        self._session = base.newSession()
        for name, value in {**_SETTINGS, **_catalogs_of(base)}.items():
            self._session.conf.set(name, value)
        suit(self._session, 0)
        with self._doing("opening the catalog"):
            self._catalog = Catalog(self._session, place.catalog, settings)
            self._readable = Catalog(self._reader, place.catalog, settings)
        self._beside = Beside(self._session, self._catalog, place.beside(), making.properties())
        self._sight = Sight()
        self.versions = IcebergVersions(
            self._session, self._rows, place, owner, self._open, self._existing, self._beside
        )

    def mark(self) -> Mark | None:
        """Return what the rows include, also when an earlier change log brought them."""
        with self._doing("reading the mark"):
            found = self._open()
            stamp = read_stamp(found, self._owner.table) if found else None
            self._look(stamp.mark if stamp else None)
            return self._sight.mark

    def have(self) -> Table | None:
        """Return the shape of the stored table."""
        with self._doing("reading the schema"):
            found = self._open()
            return shape.table_of(found, self._owner.table) if found else None

    def notes(self) -> dict[str, str]:
        """Return what was to be remembered with the table when it was created."""
        with self._doing("reading the notes"):
            found = self._open()
            return dict(json.loads(found.properties().get(NOTES, "{}"))) if found else {}

    def known(self, near: Ranges = NOWHERE) -> DataFrame:
        """Return position and liveness of each key within `near`, deleted ones included: one row per key."""
        with self._doing("reading the known keys"):
            found = self._existing()
            keys = shape.table_of(found, self._owner.table).keys
            columns = [F.col(quote(key)) for key in keys]
            rows = self._near(found, near).select(*columns, POSITION, F.lit(True).alias("_cdc_alive"))
            if self._mode == "append":
                return rows.limit(0)
            graves = self._beside.of_keys(keys, self._named(found), near)
            if graves is None:
                return rows
            every = rows.unionByName(graves.withColumn("_cdc_alive", F.lit(False)))
            newest = F.max(F.struct(POSITION, "_cdc_alive")).alias("_cdc_newest")
            told = [f"_cdc_newest.{name}" for name in (POSITION, "_cdc_alive")]
            return every.groupBy(*columns).agg(newest).select(*columns, *told)

    def current(self, near: Ranges = NOWHERE) -> DataFrame:
        """Return the rows with keys within `near` as they are stored."""
        with self._doing("reading the rows"):
            return self._near(self._existing(), near)

    def records(self, near: Ranges = NOWHERE) -> tuple[DataFrame, DataFrame | None]:
        """Return the records with keys within `near`, and what is hidden beside them."""
        with self._doing("reading the records"):
            found = self._existing()
            return self._near(found, near), self._beside.events(self._named(found), near)

    def evolve(self, change: Fit) -> None:
        """Create or alter the table; a step that was done already is not done again."""
        failpoint("C20")
        with self._doing("changing the table"):
            found = self._open()
            if found is None:
                self._create(change)
            else:
                found = self._finished(found)
                if change.widen:
                    # It may be refused, and then nothing is to be added.
                    self._widen(change)
                    found = self._existing()
                shape.add(self._session, self._place, found, change.add, fill=self._mode == "scd1")
        failpoint("C21")

    def apply(self, batch: Batch) -> Applied:
        """Write the rows and the mark in one commit, unless the table includes them already."""
        with self._doing("preparing a batch"):
            found = self._finished(self._existing())
            stamp = read_stamp(found, self._owner.table)
            mark = stamp.mark if stamp else None
            if batch.after and mark and mark != batch.after:
                raise self._conflict()
            if mark and mark.includes(batch.mark):
                return Applied()
            if self._sight.told and self._sight.mark != mark:
                raise self._conflict()
            failpoint("C19")
            measured = None if self._mode == "append" else measure(batch)
            named = stamp.beside if stamp else None
            if measured is not None:
                named = self._beside.bury(batch, named, measured.deletes if self._mode == "scd1" else 0)
            done = self._commit(found, batch, measured, Stamp(batch.mark, named))
            self._sight = Sight(batch.mark, told=True)
            failpoint("C23")
            if named is not None and (stamp is None or named != stamp.beside):
                # The rows are committed; should this fail, the next batch does it.
                with suppress(*LIBRARY_ERRORS):
                    self._beside.publish(named)
        failpoint("C25")
        return done

    def collect_tombstones(self, before: datetime.date) -> None:
        """Drop tombstones of days before `before`."""
        if self._mode != "append":
            with self._doing("collecting tombstones"):
                found = self._open()
                if found is not None:
                    self._beside.collect(self._named(found), before)

    def _commit(self, before: Metadata, batch: Batch, measured: Measured | None, stamp: Stamp) -> Applied:
        name, text = uuid.uuid4().hex, stamp.text()
        current = before.current()
        if measured is not None and not measured.rows and not batch.truncate:
            before.stage_nothing(name, {STAMP: text})
        else:
            with shared_view(batch.rows) as view, stage(self._session, name, {STAMP: text}):
                if measured is None or current is None or current.summary.get("total-data-files") == "0":
                    self._append(self._session.table(view), before)
                else:
                    self._merge(view, before, batch, measured, int(current.summary.get("total-files-size", 0)))
        failpoint("C22")
        return _applied(self._publish(name, current, text))

    def _publish(self, name: str, before: Snapshot | None, text: str) -> Snapshot:
        """Let readers see what was staged under `name`, if the table is still at `before`."""
        now = self._existing()
        current, staged = now.current(), now.staged(name)
        if staged is None:
            raise Halt(
                "commit-not-seen",
                f'table "{self._owner.table}" did not take the batch',
                "Iceberg staged nothing for it. Was the table made anew, or its property write.wap.enabled removed?",
            )
        at = before and before.id
        # When the answer to the staging was lost, Iceberg, which tries again by itself, takes what it finds for the end
        # of a rollback: then readers see it already, and only the table must still name it.
        if staged.parent != at or (current and current.id) not in (at, staged.id):
            raise self._conflict()
        try:
            now.publish(staged.id, latest(staged, text))
        except LIBRARY_ERRORS as error:
            # The outcome is unknown until the table has been asked: it may have been published all the same.
            if not any(snapshot.id == staged.id for snapshot in self._existing().ancestors()):
                raise translate(error, f'applying a batch to table "{self._owner.table}"') from error
        return staged

    def _append(self, rows: DataFrame, before: Metadata) -> None:
        if self._mode != "append":
            rows = rows.where(F.col(OP) != "d")
        shape.padded(rows, before).writeTo(self._place.sql).append()

    def _merge(self, view: str, before: Metadata, batch: Batch, measured: Measured, size: int) -> None:
        source, names = merge_source(view, measured), before.schema().names
        into, keys, ranges = self._place.sql, batch.table.keys, measured.ranges
        # A MERGE also goes through the rows of the files that it touches; of a large table that may be many.
        suit(self._session, measured.rows if size < _LARGE else max(measured.rows, FEW + 1))
        if self._mode == "scd2":
            self._session.sql(MergeRecords(into, source, names, keys, ranges).sql())
            return
        columns = [name for name in names if name != POSITION]
        carried = frozenset(batch.rows.columns)
        flag = _marked(batch.soft, before) if batch.soft else None
        merge = Merge(into, source, columns, carried, keys, batch.partial, batch.truncate, ranges, batch.ties, flag)
        self._session.sql(merge.sql())

    def _create(self, change: Fit) -> None:
        if not self._making.allowed:
            raise self._missing("auto_create_table is false, so it is not made.")
        notes = dict(change.notes)
        ours = {KEYS: json.dumps(list(change.table.keys)), OWNER: self._owner.text()}
        ours |= {NOTES: json.dumps(notes)} if notes else {}
        columns = columns_of(change.table, self._mode, notes.get("sequence", "string"))
        properties = {**self._making.properties(), **ours}
        if shape.create(self._session, self._place, columns, properties, self._making.partition_by):
            self._beside.drop()
        self._existing()

    def take_back(self, version: int) -> None:
        """Make the table what it was at a snapshot; whoever asks for the mark then is told that one."""
        with self._doing("taking back the rows"):
            self.versions.take_back(version)
            self._sight = Sight()

    def _rows(self, version: int | None) -> DataFrame:
        self._readable.forget(self._place)
        reader = self._reader.read if version is None else self._reader.read.option("versionAsOf", str(version))
        return reader.table(self._place.sql)

    def _near(self, found: Metadata, near: Ranges) -> DataFrame:
        rows = self._rows(None)
        told = shape.types_of(found.properties())
        for name, stored in rows.dtypes:
            if (kind := shape.told_type(name, stored, told)) != stored:
                rows = rows.withColumn(name, F.col(quote(name)).cast(kind))
        return rows.where(inside(near)) if near else rows

    def _named(self, found: Metadata) -> int | None:
        stamp = read_stamp(found, self._owner.table)
        return stamp.beside if stamp else None

    def _look(self, mark: Mark | None) -> None:
        before = self._sight.mark
        if before is not None and (mark is None or (mark.log == before.log and not mark.includes(before))):
            # Whoever asks has gone on from `before` and would leave out what lies between.
            raise restored(self._owner.table)
        self._sight = Sight(mark, told=True)

    def _open(self) -> Metadata | None:
        found = self._catalog.load(self._place)
        if found is None:
            return None
        held = found.properties().get(OWNER)
        if held is None:
            raise self._foreign("is an Iceberg table that Tailrace did not create")
        if self._owner.pipeline != ANYONE and held != self._owner.text():
            raise self._foreign(f"belongs to pipeline, target and table {held}")
        return found

    def _existing(self) -> Metadata:
        found = self._open()
        if found is None:
            raise self._missing("It was there or was to be created first. If it was removed, start the target again.")
        return found

    def _finished(self, found: Metadata) -> Metadata:
        return self._existing() if shape.finish(self._session, self._place, found) else found

    def _widen(self, change: Fit) -> None:
        try:
            # What lies beside the table goes first: a crash between the two is then seen, and mended, by the table.
            self._beside.widen(change.widen)
            shape.widen(self._session, self._catalog, self._place, change.widen)
        except AnalysisException as error:
            raise shape.unsupported(change.widen, self._owner.table) from error

    def _conflict(self) -> Retryable:
        return Retryable(
            "write-conflict",
            f'another writer committed to table "{self._place.shown}" in the meantime',
            "Nothing was written. Apply the batch again, one call at a time.",
        )

    def _missing(self, hint: str) -> Halt:
        text = f'table "{self._owner.table}" is not in target "{self._owner.target}"'
        return Halt("table-missing", text, hint)

    def _foreign(self, what: str) -> Halt:
        return Halt(
            "foreign-table",
            f'the place "{self._place.shown}" {what}',
            "Nothing was written to it. Give the target another namespace, or the table another name under tables.",
        )

    def _doing(self, what: str) -> AbstractContextManager[None]:
        return doing(what, self._owner.table)


_LARGE = 32 * 1024 * 1024
"""Size in bytes from which the statement of a batch is worth compiling, however few rows the batch has."""


def _catalogs_of(session: SparkSession) -> dict[str, str]:
    """Return what the user has told `session` of catalogs: a new session has only what the process began with."""
    return {name: value for name, value in session.conf.getAll.items() if name.startswith("spark.sql.catalog.")}


def _marked(flag: str, before: Metadata) -> tuple[str, str]:
    """Return the column that marks deleted rows and its value in SQL; one that has a time already keeps it."""
    if before.schema()[flag].dataType.typeName() == "boolean":
        return flag, "true"
    return flag, f"coalesce(t.{quote(flag)}, current_timestamp())"


def _applied(staged: Snapshot) -> Applied:
    prefix = "spark.merge-into.num-target-rows-"
    figures = [int(staged.summary.get(f"{prefix}{name}", 0)) for name in ("inserted", "updated", "deleted")]
    if f"{prefix}inserted" in staged.summary:
        return Applied(*figures)
    return Applied(inserted=int(staged.summary.get("added-records", 0)))
