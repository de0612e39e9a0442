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

_FORMAT = 1

Rebuild = Callable[[str, int], Mark]
"""Makes the mark of a log and offset from the rows, when the commit that carried it is gone."""


@dataclass(frozen=True, slots=True)
class _Seen:
    version: int
    mark: Mark | None


class Marks:
    """The marks that one owner leaves in the log of its table."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._seen: _Seen | None = None

    def stamp(self, mark: Mark) -> str:
        """Return the metadata of the commit that sets `mark`."""
        owner = [self._owner.pipeline, self._owner.target, self._owner.table]
        return json.dumps({"tailrace": _FORMAT, "owner": owner, "mark": mark.to_json()})

    def read(self, log: DeltaLog, snapshot: Snapshot, rebuild: Rebuild) -> Mark | None:
        """Return the mark that the rows of `snapshot` include, whichever change log brought them."""
        seen = self._seen
        if seen is None or seen.version > snapshot.version:
            mark = self._search(log, snapshot, 0, rebuild)
        elif seen.version < snapshot.version:
            mark = self._search(log, snapshot, seen.version + 1, rebuild) or seen.mark
        else:
            return seen.mark
        self._seen = _Seen(snapshot.version, mark)
        return mark

    def remember(self, commit: Commit, mark: Mark) -> None:
        """Take note of our own commit, so that it need not be read back."""
        self._seen = _Seen(commit.version, mark)

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

    def committed(self, snapshot: Snapshot) -> dict[str, int]:
        """Return how far the table has committed, by change log, the latest first; replays are apart."""
        logs = ((self._owner.log_of(app_id), offset) for app_id, offset in snapshot.transactions())
        return {log: offset for log, offset in logs if log}

    def _search(self, log: DeltaLog, snapshot: Snapshot, oldest: int, rebuild: Rebuild) -> Mark | None:
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
        if last == oldest:
            return None
        # Delta drops old commits from its log (after 30 days), but never our transactions.
        newest = next((entry for entry in self.committed(snapshot).items() if is_log(entry[0])), None)
        return rebuild(*newest) if newest else None

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
        return mark_from_json(stored["mark"])
