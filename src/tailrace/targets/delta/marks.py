"""The mark of a Delta table: how it is written into a commit, and how it is read back from the log.

A stamp that was read is remembered with the version it was read at; only commits that came since are
looked at, and those of others (`OPTIMIZE`, a property) are passed over. See ADR 2.

Delta never forgets a transaction, also if the table is taken back to before it. So every rollback begins a *turn*,
whose transactions have names of their own; the stamp says which turn the table is in. See ADR 20.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace.apply.target import Mark, is_log, mark_from_json, replays_of
from tailrace.core.errors import Halt
from tailrace.targets.delta.log import Commit, DeltaLog, Snapshot
from tailrace.targets.delta.place import KEPT, Owner
from tailrace.targets.delta.tombstones import NOTHING, Committed, Grave

_FORMAT, _FORMAT_OF_TURNS = 1, 2

Rebuild = Callable[[str, int, Committed], Mark]
"""Makes the mark of a log and offset from the rows, when the commit that carried it is gone."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What was committed since the last rollback, by its name; `base` is what was committed where that led to."""

    name: str = ""
    base: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the metadata of a commit says: the mark, what was buried last, and the turn."""

    mark: Mark | None = None
    grave: Grave | None = None
    turn: Turn = Turn()


@dataclass(frozen=True, slots=True)
class _Seen:
    version: int
    stamp: Stamp


class Marks:
    """The marks that one owner leaves in the log of its table."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._seen: _Seen | None = None

    def stamp(self, mark: Mark, attempt: str, grave: Grave | None) -> str:
        """Return the metadata of the commit that sets `mark`; no two attempts have the same."""
        return self.text(Stamp(mark, grave, self._stamp.turn), attempt)

    def text(self, stamp: Stamp, attempt: str) -> str:
        """Return `stamp` as metadata of a commit."""
        mark, turn = stamp.mark and stamp.mark.to_json(), stamp.turn
        owner = [self._owner.pipeline, self._owner.target, self._owner.table]
        told: dict[str, object] = {"tailrace": _FORMAT_OF_TURNS if turn.name else _FORMAT, "owner": owner, "mark": mark}
        told["attempt"] = attempt
        if stamp.grave:
            told["grave"] = list(stamp.grave)
        if turn.name:
            told["turn"] = {"name": turn.name, "base": dict(turn.base)}
        return json.dumps(told)

    @property
    def grave(self) -> Grave | None:
        """Return the newest commit that buried anything, as of the mark that was read last."""
        return self._stamp.grave

    def app_id(self, sequence: str) -> str:
        """Return the name under which commits of `sequence` are numbered in the present turn."""
        return self._owner.app_id(sequence, self._stamp.turn.name)

    @property
    def _stamp(self) -> Stamp:
        return self._seen.stamp if self._seen else Stamp()

    def read(self, log: DeltaLog, snapshot: Snapshot, rebuild: Rebuild) -> Mark | None:
        """Return the mark that the rows of `snapshot` include, whichever change log brought them."""
        seen = self._seen
        if seen is not None and seen.version == snapshot.version:
            return seen.stamp.mark
        known = seen if seen is not None and seen.version < snapshot.version else None
        found = self._search(log, snapshot, known.version + 1 if known else 0, rebuild)
        if known and found and found.turn.name != known.stamp.turn.name:
            # Whoever asks has gone on from the mark that it was told, and would leave out what lies between.
            raise Halt(
                "table-restored",
                f'table "{self._owner.table}" was taken back to an earlier version',
                "Start the target again: it goes on from that version.",
            )
        self._seen = _Seen(snapshot.version, found or (known.stamp if known else Stamp(grave=NOTHING)))
        return self._seen.stamp.mark

    def stamp_at(self, log: DeltaLog, snapshot: Snapshot) -> Stamp | None:
        """Return the stamp that the rows of `snapshot` have; `None` if the log no longer tells."""

        def lost(*_: object) -> Mark:
            raise LookupError

        try:
            return self._search(log, snapshot, 0, lost) or Stamp(grave=NOTHING)
        except LookupError:
            return None

    def carried(self, commit: Commit) -> Stamp | None:
        """Return the stamp of `commit` itself."""
        return self._unstamp(commit.metadata)

    def kept(self, snapshot: Snapshot) -> Stamp | None:
        """Return the stamp that is written down in the table."""
        return self._unstamp(snapshot.properties().get(KEPT, ""))

    def remember(self, commit: Commit, mark: Mark, grave: Grave | None) -> None:
        """Take note of our own commit, so that it need not be read back."""
        self._seen = _Seen(commit.version, Stamp(mark, grave, self._stamp.turn))

    def forget(self) -> None:
        """Read the log afresh the next time: the table is a new one, or was taken back by us."""
        self._seen = None

    def landed(self, log: DeltaLog, after: Snapshot, stamp: str) -> Commit | None:
        """Return the commit that came after `after` with `stamp`; `None` if it is not in the log."""
        now = log.snapshot()
        if now is None:
            return None
        ours = [commit for commit in log.commits(now.version, after.version + 1) if commit.metadata == stamp]
        # A compaction that Delta does behind our commit carries the same stamp; the first one is ours.
        return ours[-1] if ours else None

    def committed(self, snapshot: Snapshot, stamp: Stamp | None = None) -> Committed:
        """Return how far the table has committed, by sequence, the latest first, and what was buried last."""
        stamp = stamp or self._stamp
        offsets = self._numbers(snapshot, stamp.turn)
        return Committed({**offsets, **_rest(stamp.turn, offsets)}, stamp.mark.log if stamp.mark else "", stamp.grave)

    def _numbers(self, snapshot: Snapshot, turn: Turn) -> dict[str, int]:
        logs = ((self._owner.log_of(app_id, turn.name), offset) for app_id, offset in snapshot.transactions())
        return {log: offset for log, offset in logs if log}

    def _search(self, log: DeltaLog, snapshot: Snapshot, oldest: int, rebuild: Rebuild) -> Stamp | None:
        last = snapshot.version + 1
        for commit in log.commits(snapshot.version, oldest):
            last = commit.version
            if found := self._unstamp(commit.metadata):
                return found
            if commit.operation == "RESTORE":
                raise Halt(
                    "table-restored",
                    f'table "{self._owner.table}" was restored to an earlier version, by commit {commit.version}',
                    "Its rows no longer include what its mark says. Take it back with cdc lakehouse rollback, to that "
                    "version or an earlier one, or drop the table, so that it is built again.",
                )
        if last == oldest:
            return None
        # Delta drops old commits from its log (after 30 days), but never our transactions.
        kept = self.kept(snapshot) or Stamp()
        offsets = self._numbers(snapshot, kept.turn)
        newest = next((entry for entry in offsets.items() if is_log(entry[0])), None)
        if newest is None or _includes(kept.mark, newest, offsets):
            return kept if kept.turn.name or kept.mark else None
        bare = Stamp(None, None, kept.turn)
        return Stamp(rebuild(*newest, self.committed(snapshot, bare)), None, kept.turn)

    def _unstamp(self, metadata: str) -> Stamp | None:
        if not metadata.startswith('{"tailrace":'):
            return None
        stored = json.loads(metadata)
        if stored["tailrace"] > _FORMAT_OF_TURNS:
            raise Halt(
                "mark-too-new",
                f'the mark of table "{self._owner.table}" has format {stored["tailrace"]}, newer than '
                f"{_FORMAT_OF_TURNS}",
                "A newer Tailrace wrote it. Run that one.",
            )
        turn = Turn(**stored["turn"]) if "turn" in stored else Turn()
        mark = mark_from_json(stored["mark"]) if stored["mark"] else None
        return Stamp(mark, _grave(stored["grave"]) if "grave" in stored else None, turn)


def _grave(stored: Sequence[Any]) -> Grave:
    log, number, attempt, *since = stored
    # Before ADR 31 it was not told: everything below counted.
    return Grave(log, number, attempt, since[0] if since else number - 1)


def _rest(turn: Turn, offsets: Mapping[str, int]) -> dict[str, int]:
    return {log: offset for log, offset in turn.base.items() if log not in offsets}


def _includes(mark: Mark | None, newest: tuple[str, int], offsets: Mapping[str, int]) -> bool:
    """Say whether nothing was committed after `mark`."""
    log, offset = newest
    replays, _ = replays_of(log, 0)
    return (
        mark is not None and mark.log == log and int(mark.offset) >= offset and mark.replays >= offsets.get(replays, 0)
    )
