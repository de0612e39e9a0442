"""What a Delta table was, and how it goes back there or is tidied up; for its only writer, between two batches.

A rollback is one commit: Delta's RESTORE, whose metadata carries the stamp of the version that it leads to, in a new
turn. Tombstones that were buried since do not count from that commit on, and are removed behind it. See ADR 20.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import islice

from pyspark.sql import DataFrame, SparkSession

from tailrace.apply.versions import Upkeep, Version, gone, unknown_version, unmarked
from tailrace.core.errors import Halt
from tailrace.core.failpoint import failpoint
from tailrace.spark.effort import suit
from tailrace.targets.delta import shape
from tailrace.targets.delta.log import DeltaLog, Snapshot
from tailrace.targets.delta.marks import Marks, Stamp, Turn
from tailrace.targets.delta.outcome import LIBRARY_ERRORS, causes_of, doing, translate
from tailrace.targets.delta.place import KEPT, Owner, Place
from tailrace.targets.delta.tombstones import Tombstones

METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_OPTIMIZE = "spark.databricks.delta.optimize."
_VACUUM = {
    # The only writer asks, so no file that is not committed yet can be younger than what it asks for.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false",
}
_MISSED = "Not all files from version"
"""What Delta says if files of the version to restore were removed."""
_LOGGED = {"spark.databricks.delta.vacuum.logging.enabled": "true"}


class DeltaVersions:
    """The versions of one table of ours."""

    def __init__(
        self,
        session: SparkSession,
        base: SparkSession,
        place: Place,
        owner: Owner,
        marks: Marks,
        tombstones: Tombstones,
    ) -> None:
        self._session = session
        self._base = base
        self._place = place
        self._owner = owner
        self._marks = marks
        self._tombstones = tombstones

    def every(self, most: int) -> list[Version]:
        """Return the latest versions, the latest first."""
        with self._doing("reading the versions"):
            found = self._place.owned(self._session, self._owner)
            if found is None:
                return []
            log, snapshot = found
            commits = islice(log.commits(snapshot.version), most)
            stamped = ((commit, self._marks.carried(commit)) for commit in commits)
            return [
                Version(
                    c.version, _time(c.at), c.operation, stamp.mark if stamp else None, c.version == snapshot.version
                )
                for c, stamp in stamped
            ]

    def at(self, moment: datetime.datetime) -> int | None:
        """Return the version of a moment; going back is a commit too, so the latest until then is the one."""
        with self._doing("reading the versions"):
            found = self._place.owned(self._session, self._owner)
            commits = found[0].commits(found[1].version) if found else ()
            return next((commit.version for commit in commits if _time(commit.at) <= moment), None)

    def rows(self, version: int | None) -> DataFrame:
        """Return the rows as stored, of now or of `version`."""
        with self._doing("reading a version"):
            log, _ = self._opened()
            if version is None:
                return self._place.read(self._base)
            self._at(log, version)
            return self._place.read_at(self._base, version)

    def stamp(self, version: int) -> Stamp:
        """Return what the rows of `version` include."""
        with self._doing("reading the mark of a version"):
            log, _ = self._opened()
            return self._stamp(log, self._at(log, version))

    def take_back(self, version: int) -> None:
        """Make the table what it was at `version`, in one commit that says so."""
        with self._doing("taking back the rows"):
            log, now = self._opened()
            if version == now.version:
                return
            then = self._at(log, version)
            stamp = self._stamp(log, then)
            committed = self._marks.committed(then, stamp)
            back = replace(stamp, turn=Turn(secrets.token_hex(8), committed.offsets))
            self._restore(log, now, version, self._marks.text(back, secrets.token_hex(8)))
            failpoint("C48")
            self._marks.forget()
            self._keep(back)
            self._tombstones.clear(committed)

    def compact(self, upkeep: Upkeep) -> dict[str, int]:
        """Join small files of the table, and of what lies beside it."""
        with self._doing("compacting"):
            self._opened()
            done = [self._compact(place, upkeep) for place in (self._place, self._tombstones.place()) if place]
            return {name: sum(one[name] for one in done) for name in ("files_removed", "files_added")}

    def expire(self, before: datetime.datetime) -> dict[str, int]:
        """Remove files that no version from `before` on needs; the log itself is Delta's to shorten."""
        with self._doing("expiring versions"):
            log, now = self._opened()
            stamp = self._marks.stamp_at(log, now)
            if stamp is not None and stamp.mark and self._marks.kept(now) != stamp:
                self._keep(stamp)
            removed = [self._vacuum(place, before) for place in (self._place, self._tombstones.place()) if place]
            return {"files_removed": sum(removed)}

    def _restore(self, log: DeltaLog, before: Snapshot, version: int, text: str) -> None:
        try:
            with _set(self._session, {METADATA: text}):
                self._session.sql(f"RESTORE TABLE {self._place.sql} TO VERSION AS OF {version}").collect()
        except LIBRARY_ERRORS as error:
            # The outcome is unknown until the log has been asked.
            if self._marks.landed(log, before, text) is None:
                if any(_MISSED in said for _, said in causes_of(error)):
                    raise gone(self._owner.table, version) from error
                raise translate(error, f'taking back the rows of table "{self._owner.table}"') from error
        if self._marks.landed(log, before, text) is None:
            raise Halt(
                "commit-not-seen",
                f'table "{self._owner.table}" did not go back to version {version}',
                "Delta reported no error, and nothing was changed. Try again.",
            )

    def _keep(self, stamp: Stamp) -> None:
        """Write the stamp down in the table itself: Delta forgets commits, after 30 days."""
        text = self._marks.text(stamp, secrets.token_hex(8))
        with _set(self._session, {METADATA: text}):
            shape.set_properties(self._session, self._place, {KEPT: text})

    def _compact(self, place: Place, upkeep: Upkeep) -> dict[str, int]:
        none = {"files_removed": 0, "files_added": 0}
        log = place.log(self._session)
        snapshot = log.snapshot() if log else None
        if snapshot is None or snapshot.files() < max(upkeep.files, 2):
            return none
        rows = max(place.read(self._session).count(), 1)
        size = max(snapshot.bytes() * upkeep.rows // rows, 1)
        suit(self._session, rows)
        try:
            with _set(self._session, {f"{_OPTIMIZE}batchSize": str(size)}):
                metrics = self._session.sql(f"OPTIMIZE {place.sql}").collect()[0]["metrics"]
        finally:
            suit(self._session, 0)
        return {"files_removed": metrics["numFilesRemoved"], "files_added": metrics["numFilesAdded"]}

    def _vacuum(self, place: Place, before: datetime.datetime) -> int:
        age = max((datetime.datetime.now(datetime.UTC) - before).total_seconds() / 3600, 0.0)
        retain = f"RETAIN {age:.6f} HOURS"
        with _set(self._session, _VACUUM):
            if not self._session.sql(f"VACUUM {place.sql} {retain} DRY RUN").limit(1).collect():
                return 0
            with _set(self._session, _LOGGED):
                self._session.sql(f"VACUUM {place.sql} {retain}").collect()
        log = place.log(self._session)
        now = log.snapshot() if log else None
        if log is None or now is None:
            return 0
        ended = (commit for commit in log.commits(now.version) if commit.operation == "VACUUM END")
        return next((commit.metrics.get("numDeletedFiles", 0) for commit in ended), 0)

    def _opened(self) -> tuple[DeltaLog, Snapshot]:
        found = self._place.owned(self._session, self._owner)
        if found is None:
            raise Halt(
                "table-missing",
                f'table "{self._owner.table}" is not in target "{self._owner.target}"',
                "Nothing was applied to it yet, or it was removed.",
            )
        return found

    def _at(self, log: DeltaLog, version: int) -> Snapshot:
        found = log.at(version) if version >= 0 else None
        if found is None:
            raise unknown_version(self._owner.table, version)
        return found

    def _stamp(self, log: DeltaLog, then: Snapshot) -> Stamp:
        found = self._marks.stamp_at(log, then)
        if found is None:
            raise unmarked(self._owner.table, then.version)
        return found

    def _doing(self, what: str) -> AbstractContextManager[None]:
        return doing(what, self._owner.table)


@contextmanager
def _set(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        # Left in place they would speak of the next statement too.
        for name in settings:
            session.conf.unset(name)


def _time(milliseconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
