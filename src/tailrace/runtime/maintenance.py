"""Maintenance of a lakehouse target: when it is time, and what comes of it.

It is done by the target's own drain between two slices, so it never meets an apply. When it was last done is kept with
the pipeline, so that runs with `--once` do it too, in their turn. It must not stop a target: what fails is told, and
tried again the next time.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tailrace.apply.target import Target
from tailrace.apply.versions import Upkeep, Versioned
from tailrace.control import state
from tailrace.core.errors import Halt, TailraceError
from tailrace.runtime.report import Reporter

COMPACT, EXPIRE = "compact", "expire"
_EVENTS = {COMPACT: "maintenance.compacted", EXPIRE: "maintenance.snapshots_expired"}


class Settings(Protocol):
    """The keys under `maintenance` of a sink."""

    @property
    def enabled(self) -> bool: ...
    @property
    def expire_snapshots_interval_seconds(self) -> float: ...
    @property
    def expire_snapshots_older_than_seconds(self) -> float: ...
    @property
    def compaction_interval_seconds(self) -> float: ...
    @property
    def compaction_file_threshold(self) -> int: ...
    @property
    def compaction_max_rows_per_batch(self) -> int: ...


def compact(target: Versioned, table: str, settings: Settings, files: int | None = None) -> Mapping[str, int]:
    """Compact one table as `settings` say, where at least `files` lie together if that is given."""
    threshold = settings.compaction_file_threshold if files is None else files
    return target.compact(table, Upkeep(threshold, settings.compaction_max_rows_per_batch))


def expire(target: Versioned, table: str, older_than_seconds: float) -> Mapping[str, int]:
    """Expire what one table was before so many seconds."""
    age = datetime.timedelta(seconds=older_than_seconds)
    return target.expire(table, datetime.datetime.now(datetime.UTC) - age)


@dataclass
class NowAndThen:
    """Does `work` when it is called and `seconds` have passed since it was made, or since it last did it."""

    seconds: float
    work: Callable[[], None]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._done_at = self.clock()

    def __call__(self) -> None:
        """Do it if it is time; what fails waits for the next time too."""
        if self.clock() - self._done_at >= self.seconds:
            self._done_at = self.clock()
            self.work()


@dataclass(frozen=True, slots=True)
class Maintenance:
    """The maintenance of one target of a run."""

    target: Callable[[], Target]
    tables: Callable[[], Iterable[str]]
    settings: Settings
    path: Path
    """Where it is kept when each of its parts was last done."""
    report: Reporter
    clock: Callable[[], float] = time.time

    def __call__(self) -> None:
        """Do what it is time for; the first time, only begin to count."""
        try:
            known, now = self._known(), self.clock()
            done = {name: known.get(name, now) for name in (COMPACT, EXPIRE)}
            due = [name for name, seconds in self._intervals().items() if now - done[name] >= seconds]
            for action in due:
                self._each(action)
            if due or done != known:
                state.save(self.path, {**done, **dict.fromkeys(due, self.clock())})
        except TailraceError as error:
            self._failed(None, "maintenance", error)

    def _intervals(self) -> dict[str, float]:
        return {
            COMPACT: self.settings.compaction_interval_seconds,
            EXPIRE: self.settings.expire_snapshots_interval_seconds,
        }

    def _known(self) -> dict[str, float]:
        try:
            stored = state.load(self.path) or {}
        except Halt:
            # As good as none: nothing depends on it.
            stored = {}
        return {name: float(value) for name, value in stored.items() if isinstance(value, int | float)}

    def _each(self, action: str) -> None:
        target = self.target()
        if not isinstance(target, Versioned):
            return
        for table in sorted(self.tables()):
            try:
                # A table that has no rows yet is not made either.
                if target.have(table) is None:
                    continue
                older = self.settings.expire_snapshots_older_than_seconds
                done = compact(target, table, self.settings) if action == COMPACT else expire(target, table, older)
            except TailraceError as error:
                self._failed(table, action, error)
            else:
                if any(done.values()):
                    self.report.event(_EVENTS[action], target=target.name, table=table, **done)

    def _failed(self, table: str | None, action: str, error: TailraceError) -> None:
        fields = {"table": table, "action": action, "code": error.code, "message": str(error)}
        self.report.event("maintenance.failed", target=self.target().name, **fields)
