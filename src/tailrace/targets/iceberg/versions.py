"""What an Iceberg table was, and how it goes back there or is tidied up; for its only writer, between two batches.

A rollback is one change of metadata: readers see the earlier snapshot, with the columns that it had. Its stamp is the
mark from then on, and names what counts beside the table. What is expired is chosen by us, one snapshot at a time: what
leads from a snapshot that stays to the stamp of its rows stays too, and so does what that stamp names. See ADR 20.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from pyspark.sql import DataFrame, Row, SparkSession

from tailrace.apply.target import Mark
from tailrace.apply.versions import Upkeep, Version, unknown_version, unmarked
from tailrace.core.failpoint import failpoint
from tailrace.spark.effort import suit
from tailrace.targets._merge import literal, quote
from tailrace.targets.iceberg.beside import Beside
from tailrace.targets.iceberg.catalog import Place
from tailrace.targets.iceberg.marks import LATEST, PENDING, STAMP, Owner, carried, latest, marked, read_stamp
from tailrace.targets.iceberg.metadata import Metadata, Snapshot
from tailrace.targets.iceberg.outcome import doing

_LONG_AGO = "TIMESTAMP '1970-01-01 00:00:01'"
"""Expiry by age takes nothing then, and only the snapshots that are named go."""


class IcebergVersions:
    """The snapshots of one table of ours that readers have seen."""

    def __init__(
        self,
        session: SparkSession,
        rows: Callable[[int | None], DataFrame],
        place: Place,
        owner: Owner,
        find: Callable[[], Metadata | None],
        existing: Callable[[], Metadata],
        beside: Beside,
    ) -> None:
        self._session = session
        self._rows = rows
        self._place = place
        self._owner = owner
        self._find = find
        self._existing = existing
        self._beside = beside

    def every(self, most: int) -> list[Version]:
        """Return the latest snapshots, the latest first."""
        with self._doing("reading the snapshots"):
            found = self._find()
            if found is None:
                return []
            seen, now = found.published(), found.current()
            ours = sorted((s for s in found.snapshots() if s.id in seen), key=lambda s: s.sequence, reverse=True)
            stamped = ((snapshot, carried(snapshot, self._owner.table)) for snapshot in ours[:most])
            return [
                Version(
                    s.id, _time(s.at), s.operation, stamp.mark if stamp else None, now is not None and s.id == now.id
                )
                for s, stamp in stamped
            ]

    def at(self, moment: datetime.datetime) -> int | None:
        """Return the snapshot of a moment: whoever goes back makes none, so it is what readers were led to."""
        with self._doing("reading the snapshots"):
            found = self._find()
            led = found.led() if found else []
            return next((snapshot for time, snapshot in reversed(led) if _time(time) <= moment), None)

    def rows(self, version: int | None) -> DataFrame:
        """Return the rows as stored, of now or of a snapshot."""
        with self._doing("reading a snapshot"):
            if version is not None:
                self._at(self._existing(), version)
            return self._rows(version)

    def mark(self, version: int) -> Mark | None:
        """Return what the rows of a snapshot include."""
        with self._doing("reading the mark of a snapshot"):
            found = self._existing()
            carrier = self._led(found, self._at(found, version))
            stamp = carried(carrier, self._owner.table) if carrier else None
            return stamp.mark if stamp else None

    def take_back(self, version: int) -> None:
        """Let readers see an earlier snapshot; its stamp is the table's."""
        found = self._existing()
        to = self._at(found, version)
        carrier = self._led(found, to)
        properties = latest(carrier, carrier.summary[STAMP]) if carrier else {}
        # A fill that was begun belongs to columns that the table does not have then.
        found.take_back(to, properties, (LATEST, PENDING))
        failpoint("C48")

    def compact(self, upkeep: Upkeep) -> dict[str, int]:
        """Join small files of the table, and of what lies beside it, those of a partition together."""
        with self._doing("compacting"):
            tables = [(self._place, self._existing())]
            tables += [(place, found) for place, found, _ in filter(None, [self._beside.needed(set())])]
            done = [self._compact(place, found, upkeep) for place, found in tables]
            return {name: sum(one[name] for one in done) for name in ("files_removed", "files_added")}

    def expire(self, before: datetime.datetime) -> dict[str, int]:
        """Let go of snapshots from before `before`, with the files that only they need."""
        with self._doing("expiring snapshots"):
            found, oldest = self._existing(), int(before.timestamp() * 1000)
            seen = found.published()
            young = [s for s in found.snapshots() if s.at >= oldest]
            stay = {s.id for s in young} | found.referenced()
            for snapshot in (None, *(s for s in young if s.id in seen)):
                stay |= {s.id for s in marked(found, snapshot)}
            named = self._named(found, stay)
            counts = [self._expire(self._place, found, stay)]
            if needed := self._beside.needed(named):
                place, beside, keep = needed
                keep |= {s.id for s in beside.snapshots() if s.at >= oldest} | beside.referenced()
                counts.append(self._expire(place, beside, keep))
            return {name: sum(one[name] for one in counts) for name in ("snapshots_removed", "files_removed")}

    def _named(self, found: Metadata, stay: set[int]) -> set[int]:
        stamps = [carried(s, self._owner.table) for s in found.snapshots() if s.id in stay]
        stamps.append(read_stamp(found, self._owner.table))
        return {stamp.beside for stamp in stamps if stamp and stamp.beside is not None}

    def _compact(self, place: Place, found: Metadata, upkeep: Upkeep) -> dict[str, int]:
        now = found.current()
        figures = (
            {key: int(now.summary.get(f"total-{key}", 0)) for key in _FIGURES} if now else dict.fromkeys(_FIGURES, 0)
        )
        if figures["data-files"] < max(upkeep.files, 2):
            return {"files_removed": 0, "files_added": 0}
        size = max(figures["files-size"] * upkeep.rows // max(figures["records"], 1), 1)
        options = {
            "min-input-files": upkeep.files,
            "max-file-group-size-bytes": size,
            "partial-progress.enabled": "true",
        }
        listed = ", ".join(f"{literal(key)}, {literal(str(value))}" for key, value in options.items())
        suit(self._session, figures["records"])
        try:
            done = self._call("rewrite_data_files", place, f"options => map({listed})")
        finally:
            suit(self._session, 0)
        return {"files_removed": done["rewritten_data_files_count"], "files_added": done["added_data_files_count"]}

    def _expire(self, place: Place, found: Metadata, stay: Iterable[int]) -> dict[str, int]:
        gone = sorted({s.id for s in found.snapshots()} - set(stay))
        if not gone:
            return {"snapshots_removed": 0, "files_removed": 0}
        done = self._call(
            "expire_snapshots", place, f"older_than => {_LONG_AGO}, snapshot_ids => array({', '.join(map(str, gone))})"
        )
        files = sum(value for name, value in done.asDict().items() if name.endswith("files_count") and value)
        return {"snapshots_removed": len(gone), "files_removed": files}

    def _call(self, procedure: str, place: Place, arguments: str) -> Row:
        # With its catalog: a namespace may have the name of one, and would be taken for it.
        table = literal(place.sql)
        called = f"CALL {quote(place.catalog)}.system.{procedure}(table => {table}, {arguments})"
        return self._session.sql(called).collect()[0]

    def _at(self, found: Metadata, version: int) -> Snapshot:
        snapshot = found.snapshot(version)
        if snapshot is None or version not in found.published():
            raise unknown_version(self._owner.table, version)
        return snapshot

    def _led(self, found: Metadata, to: Snapshot) -> Snapshot | None:
        """Return the snapshot whose stamp the rows of `to` have; `None` if we never wrote any of them."""
        led = marked(found, to)
        if STAMP in led[-1].summary:
            return led[-1]
        if led[-1].parent is not None:
            raise unmarked(self._owner.table, to.id)
        return None

    def _doing(self, what: str) -> AbstractContextManager[None]:
        return doing(what, self._owner.table)


_FIGURES = ("data-files", "files-size", "records")


def _time(milliseconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
