"""The mark of a Delta table: how it is written into a commit, and how it is read back from the log.

A mark that was read is remembered with the version it was read at; only commits that came since are
looked at, and those of others (`OPTIMIZE`, a property) are passed over. See ADR 2.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from tailrace.apply.target import Mark, is_log, mark_from_json
from tailrace.core.errors import Halt
from tailrace.targets.delta.log import Commit, DeltaLog, Snapshot
from tailrace.targets.delta.place import Owner
from tailrace.targets.delta.tombstones import Committed, Grave

_FORMAT = 1

Rebuild = Callable[[str, int], Mark]
"""Makes the mark of a log and offset from the rows, when the commit that carried it is gone."""


@dataclass(frozen=True, slots=True)
class _Seen:
    version: int
    mark: Mark | None
    grave: Grave | None = None


class Marks:
    """The marks that one owner leaves in the log of its table."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._seen: _Seen | None = None

    def stamp(self, mark: Mark, attempt: str, grave: Grave | None) -> str:
        """Return the metadata of the commit that sets `mark`; no two attempts have the same."""
        owner = [self._owner.pipeline, self._owner.target, self._owner.table]
        told = {"tailrace": _FORMAT, "owner": owner, "mark": mark.to_json(), "attempt": attempt}
        return json.dumps({**told, "grave": list(grave)} if grave else told)

    @property
    def grave(self) -> Grave | None:
        """Return the newest commit that buried anything, as of the mark that was read last."""
        return self._seen.grave if self._seen else None

    def read(self, log: DeltaLog, snapshot: Snapshot, rebuild: Rebuild) -> Mark | None:
        """Return the mark that the rows of `snapshot` include, whichever change log brought them."""
        seen = self._seen
        if seen is not None and seen.version == snapshot.version:
            return seen.mark
        known = seen if seen is not None and seen.version < snapshot.version else None
        found = self._search(log, snapshot, known.version + 1 if known else 0, rebuild)
        mark, grave = found or ((known.mark, known.grave) if known else (None, None))
        self._seen = _Seen(snapshot.version, mark, grave)
        return mark

    def remember(self, commit: Commit, mark: Mark, grave: Grave | None) -> None:
        """Take note of our own commit, so that it need not be read back."""
        self._seen = _Seen(commit.version, mark, grave)

    def forget(self) -> None:
        """Read the log afresh the next time: the table is a new one."""
        self._seen = None

    def landed(self, log: DeltaLog, after: Snapshot, stamp: str) -> Commit | None:
        """Return the commit that came after `after` with `stamp`; `None` if it is not in the log."""
        now = log.snapshot()
        if now is None:
            return None
        ours = [commit for commit in log.commits(now.version, after.version + 1) if commit.metadata == stamp]
        # A compaction that Delta does behind our commit carries the same stamp; the first one is ours.
        return ours[-1] if ours else None

    def committed(self, snapshot: Snapshot) -> Committed:
        """Return how far the table has committed, by sequence, the latest first, and what was buried last."""
        logs = ((self._owner.log_of(app_id), offset) for app_id, offset in snapshot.transactions())
        mark = self._seen.mark if self._seen else None
        return Committed({log: offset for log, offset in logs if log}, mark.log if mark else "", self.grave)

    def _search(
        self, log: DeltaLog, snapshot: Snapshot, oldest: int, rebuild: Rebuild
    ) -> tuple[Mark, Grave | None] | None:
        last = snapshot.version + 1
        for commit in log.commits(snapshot.version, oldest):
            last = commit.version
            if commit.operation == "RESTORE":
                raise Halt(
                    "table-restored",
                    f'table "{self._owner.table}" was restored to an earlier version, by commit {commit.version}',
                    "Its rows no longer include what its mark says. Drop the table, so that it is built again.",
                )
            if found := self._unstamp(commit.metadata):
                return found
        if last == oldest:
            return None
        # Delta drops old commits from its log (after 30 days), but never our transactions.
        newest = next((entry for entry in self.committed(snapshot).offsets.items() if is_log(entry[0])), None)
        return (rebuild(*newest), None) if newest else None

    def _unstamp(self, metadata: str) -> tuple[Mark, Grave | None] | None:
        if not metadata.startswith('{"tailrace":'):
            return None
        stored = json.loads(metadata)
        if stored["tailrace"] > _FORMAT:
            raise Halt(
                "mark-too-new",
                f'the mark of table "{self._owner.table}" has format {stored["tailrace"]}, newer than {_FORMAT}',
                "A newer Tailrace wrote it. Run that one.",
            )
        log, offset, attempt = stored.get("grave") or ("", -1, "")
        return mark_from_json(stored["mark"]), (log, offset, attempt) if attempt else None
