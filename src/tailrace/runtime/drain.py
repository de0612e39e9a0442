"""The second loop: fold the change log into one target, slice by slice.

The target's own marks decide what is new, so a crash anywhere repeats at most one slice, and repeating
a slice changes nothing. Progress is saved last; it only saves reading again.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, runtime_checkable

from tailrace.apply.target import Mark
from tailrace.control.progress import Progress
from tailrace.core import offsets
from tailrace.core.errors import Halt
from tailrace.core.failpoint import failpoint
from tailrace.core.table import Table
from tailrace.log.slice import Slice
from tailrace.runtime.ahead import Ahead
from tailrace.runtime.fold import Again, Counts, Fold, by_table
from tailrace.runtime.report import Reporter
from tailrace.runtime.rules import Choice


class ChangeLog(Protocol):
    """The end of a change log that is read."""

    name: str
    reads_ahead: bool
    """Reading a slice is work of its own, so the next one is worth reading while another is applied."""

    def require_rest(self, place: int) -> None:
        """Halt if anything behind `place` is gone."""
        ...

    def slice(self, after: int, max_rows: int, upto: int | None = None) -> Slice | None:
        """Return the next rows after offset `after`, about `max_rows`; `None` if there are none."""
        ...

    def wait(self, seconds: float) -> None:
        """Return when the log has grown, or after `seconds`."""
        ...


@runtime_checkable
class Pumped(Protocol):
    """A change log that we fill: one sequence, which knows the tables of its source also where they have no rows."""

    def begins(self) -> int:
        """Return the offset before the first that is still there; -1 if nothing has expired."""
        ...

    def empty(self) -> Mapping[str, Table]:
        """Return, by topic, the tables that the snapshot found without rows."""
        ...


@runtime_checkable
class Single(Protocol):
    """A change log of one topic: the mark of its table says how far all of it was applied."""

    only_topic: str


Result = TypeVar("Result")


class Attempt(Protocol):
    """Does a step, and repeats it while its error says that it may work next time."""

    def __call__(self, step: Callable[[], Result]) -> Result: ...


@dataclass(frozen=True, slots=True)
class Pace:
    """How a drain cuts and waits."""

    max_rows: int
    interval_seconds: float
    threads: int = 2

    def halved(self) -> Pace:
        """Return a pace of half as many rows at a time."""
        return replace(self, max_rows=max(self.max_rows // 2, 1))


@dataclass(frozen=True, slots=True)
class Drain:
    """What it takes to keep one target current."""

    target: str
    log: ChangeLog
    fold: Fold
    tables: Mapping[str, Choice]
    """By topic."""
    progress: Progress
    pace: Pace
    report: Reporter
    passed: Callable[[], None] = lambda: None
    """Told after each slice that the progress of the target has moved."""
    grow: Callable[[Sequence[str]], None] | None = None
    """Makes room for topics that are not in `tables` yet; without it, such a topic halts."""
    maintain: Callable[[], None] = lambda: None
    """Tidies the target up if it is time; asked between slices, so that it never meets an apply."""
    begin: Callable[[], None] = lambda: None
    """Holds what the target has against the log, where the target could not be asked before the run began."""
    renew: Callable[[], None] = lambda: None
    """Opens anew what went away with Spark."""

    def at(self) -> int:
        """Return the offset up to which every table is known to be current.

        A table that was dropped, taken back or restored from a backup is behind what was noted of it: the target is
        the truth, so the log is read again from what that table has, and the marks of the other tables skip what they
        have. When the progress was lost, the log is read from its beginning; where that has expired, from what every
        table has. What is missing even then halts (`log-gap`, `resync-required`).

        Where there is one table only, what its mark includes is not read again: it may be gone since the commit, though
        a crash kept the progress from being saved.
        """
        place = self._noted()
        if not isinstance(self.log, Single) or self.log.only_topic not in self.tables:
            return place
        has = self._included(self.tables[self.log.only_topic].table)
        if has > place:
            self.progress.save(self.target, self.log.name, has, {})
        return max(place, has)

    def _noted(self) -> int:
        at, noted = self.progress.load(self.target, self.log.name), self.progress.noted(self.target, self.log.name)
        tables = sorted({choice.table for choice in self.tables.values()})
        if at == -1:
            whole = not isinstance(self.log, Pumped) or self.log.begins() == -1
            # A table without a mark may be one that was made anew just now: what it lacks is not known to be nothing.
            return -1 if whole else min((int(self._included(table)) for table in tables), default=-1)
        found = {table: self._included(table) for table in tables if table in noted}
        behind = [place for table, place in found.items() if offsets.lacks(place, noted[table])]
        if not behind:
            return at
        place = offsets.least([at, *behind])
        self.log.require_rest(place)
        # From here on the log must keep what these tables lack.
        for table, has in found.items():
            if offsets.lacks(has, noted[table]):
                self.progress.lower(self.target, self.log.name, place, table, self.fold.target.mark(table))
        return place

    def _included(self, table: str) -> int:
        mark = self.fold.target.mark(table)
        return mark.offset if mark is not None and mark.log == self.log.name else -1

    def make_tables(self) -> None:
        """Make the tables that have no rows yet: who asks for one is to find it empty, and not missing."""
        if isinstance(self.log, Pumped):
            for topic, table in self.log.empty().items():
                if topic in self.tables:
                    self.fold.make(self.tables[topic], table)

    def next_slice(self, after: int, upto: int | None = None) -> Slice | None:
        """Return what comes after offset `after`, as far as one slice goes."""
        return self.log.slice(after, self.pace.max_rows, upto)

    def apply(self, piece: Slice) -> list[Counts]:
        """Apply every table of `piece`, then save how far the target is.

        Tables are applied side by side, each in a session of its own. If one fails, the others keep
        what they committed: their marks are ahead of the progress, and the repeat skips them.
        """
        started = time.monotonic()
        self.make_room(piece)
        with ThreadPoolExecutor(self.pace.threads, thread_name_prefix=f"drain-{self.target}") as pool:
            counts = list(pool.map(lambda topic: self._apply_table(piece, topic), piece.topics()))
        applied = time.monotonic()
        counts = by_table([*counts, *self.fold.aside(piece)])
        self.fold.settle(piece.upto)
        self.progress.save(self.target, self.log.name, piece.upto, self.fold.marks())
        failpoint("C27")
        self.passed()
        ended = time.monotonic()
        self.report.stage(self.target, "apply", applied - started)
        self.report.stage(self.target, "save", ended - applied)
        self.report.slice(self.target, piece.upto, counts, ended - started)
        return counts

    def make_room(self, piece: Slice) -> None:
        """Let topics of `piece` that are new have tables: all at once, as two of them may share a name."""
        new = [topic for topic in piece.topics() if topic not in self.tables]
        if self.grow and new:
            self.grow(new)

    def replay(self, piece: Slice, topic: str, replayed: Callable[[Mark], None]) -> Counts:
        """Apply what `piece` has of `topic`, which had been put aside; see `Fold.table`."""
        return self._apply_table(piece, topic, Again(self.at(), replayed))

    def _apply_table(self, piece: Slice, topic: str, again: Again | None = None) -> Counts:
        choice = self.tables.get(topic)
        if choice is None:
            raise Halt(
                "unknown-topic",
                f'the change log has events of "{topic}", which the pipeline does not name',
                "Add the table to source.tables again, or run cdc run <file> --resync.",
            )
        counts = self.fold.table(piece, topic, choice, again)
        if counts.read != counts.applied + counts.superseded + counts.filtered + counts.rejected:
            raise Halt(
                "miscounted", f"the events of a slice do not add up: {counts}", "This is a defect: please report it."
            )
        return counts


def drain(
    work: Drain,
    stop: threading.Event,
    attempt: Attempt,
    upto: int | None = None,
    max_slices: int | None = None,
) -> Iterator[tuple[Slice, list[Counts]]]:
    """Apply slices until there is nothing left up to `upto`, or, without `upto`, until stopped.

    `attempt` runs one step of it and repeats it while its error says that it may work next time.
    """
    at = attempt(work.at)
    slices = 0
    with Ahead(lambda after: work.next_slice(after, upto)) as ahead:
        while not stop.is_set() and slices != max_slices:
            work.maintain()
            attempt(work.make_tables)
            asked = time.monotonic()
            piece = attempt(functools.partial(ahead.after, at))
            if piece is not None:
                work.report.stage(work.target, "read", time.monotonic() - asked)
                at = piece.upto
                slices += 1
                if work.log.reads_ahead and slices != max_slices:
                    ahead.begin(at)
                try:
                    yield piece, attempt(functools.partial(work.apply, piece))
                finally:
                    piece.release()
            elif upto is not None:
                attempt(functools.partial(work.fold.settle, at))
                break
            else:
                work.log.wait(work.pace.interval_seconds)
