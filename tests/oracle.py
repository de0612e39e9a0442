"""What the tables of SCD type 1 and type 2 must hold, said as plainly as possible and without Spark.

Nothing here is shared with the product, so nothing here can share its mistakes. `Scd1` applies one batch after
another to a dictionary; `Scd2` keeps every event it ever accepted and tells the whole history of a key anew.

At one sequence one event of a key counts: a delete, else a complete row, else a partial image, of several the greatest
as it was sent. NULL is the smallest value, and a column a partial image leaves out is smaller still. Columns it leaves
out, and NULLs under `ignore_nulls`, are then taken from the row as it stands just before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Key = tuple[Any, ...]
Row = dict[str, Any]
Sequence = Any


@dataclass(frozen=True)
class Event:
    """One change. An upsert names every column, in one order; those in `unchanged` carry no meaning (say NULL)."""

    key: Key
    sequence: Sequence
    values: Row
    delete: bool = False
    truncate: bool = False
    unchanged: frozenset[str] = frozenset()


def ties(events: Iterable[Event]) -> list[list[Event]]:
    """The events in order of sequence, those of one key and sequence together."""
    groups: dict[tuple[Sequence, Key], list[Event]] = {}
    for event in events:
        groups.setdefault((event.sequence, event.key), []).append(event)
    return [groups[place] for place in sorted(groups, key=lambda place: place[0])]


def winner(tied: list[Event], row: Row | None) -> Event | None:
    """The one that counts, or None when all are partial images and there is no row to complete them from."""
    deletes = [event for event in tied if event.delete]
    complete = [event for event in tied if not event.unchanged]
    partial = tied if row is not None else []
    return max(deletes or complete or partial, key=_rank, default=None)


def _rank(event: Event) -> tuple[tuple[bool, bool, Any], ...]:
    return tuple((name not in event.unchanged, value is not None, value) for name, value in event.values.items())


def filled(event: Event, row: Row | None, *, ignore_nulls: bool) -> Row:
    """The whole row `event` makes of `row`."""
    kept = set(event.unchanged)
    if ignore_nulls and row is not None:
        kept |= {name for name, value in event.values.items() if value is None}
    return {name: row[name] if row is not None and name in kept else value for name, value in event.values.items()}


class Scd1:
    """The newest row of each key. An equal sequence wins for an upsert that comes in a later batch, not for a delete."""

    def __init__(self, *, ignore_nulls: bool = False) -> None:
        self._ignore_nulls = ignore_nulls
        self._rows: dict[Key, tuple[Sequence, Row]] = {}
        self._deleted: dict[Key, Sequence] = {}
        self._truncated: Sequence | None = None

    def apply(self, batch: list[Event]) -> int:
        """Apply one batch; return how many of its events were rejected.

        Everything at or below a truncate is gone whenever it comes, so truncates may go first.
        """
        for event in batch:
            if event.truncate:
                self._truncated = _later(self._truncated, event.sequence)
        self._rows = {key: held for key, held in self._rows.items() if self._outlives_truncate(held[0])}
        alive = [event for event in batch if not event.truncate and self._outlives_truncate(event.sequence)]
        return sum(self._step(tied) for tied in ties(alive))

    def rows(self) -> dict[Key, Row]:
        return {key: row for key, (_, row) in self._rows.items()}

    def _outlives_truncate(self, sequence: Sequence) -> bool:
        return self._truncated is None or sequence > self._truncated

    def _step(self, tied: list[Event]) -> int:
        key, sequence = tied[0].key, tied[0].sequence
        held_at, row = self._rows.get(key, (None, None))
        event = winner(tied, row)
        if event is not None and event.delete:
            self._deleted[key] = _later(self._deleted.get(key), sequence)
            if row is not None and sequence > held_at:
                del self._rows[key]
            return 0
        superseded = row is not None and sequence < held_at
        if superseded or (key in self._deleted and sequence < self._deleted[key]):
            return 0
        if event is None:
            return len(tied)
        self._rows[key] = (sequence, filled(event, row, ignore_nulls=self._ignore_nulls))
        return 0


def _later(one: Sequence | None, other: Sequence) -> Sequence:
    return other if one is None else max(one, other)


class Soft:
    """Like `Scd1`, where deleted rows stay: `marked` says so, and what is older than the mark does nothing."""

    def __init__(self) -> None:
        self._rows: dict[Key, tuple[Sequence, Row, bool]] = {}
        self._truncated: Sequence | None = None

    def apply(self, batch: list[Event]) -> int:
        """Apply one batch; return how many of its events were rejected.

        A truncate leaves the values alone, so it may go last.
        """
        rejected = sum(self._step(tied) for tied in ties(event for event in batch if not event.truncate))
        for event in batch:
            if event.truncate:
                self._truncated = _later(self._truncated, event.sequence)
        if (at := self._truncated) is not None:
            ended = {key: (at, held[1], True) for key, held in self._rows.items() if held[0] <= at}
            self._rows |= ended
        return rejected

    def rows(self) -> dict[Key, Row]:
        return {key: row | {"marked": marked} for key, (_, row, marked) in self._rows.items()}

    def _step(self, tied: list[Event]) -> int:
        key, sequence = tied[0].key, tied[0].sequence
        held_at, row, _ = self._rows.get(key, (None, None, False))
        event = winner(tied, row)
        if row is not None and (sequence < held_at or (sequence == held_at and event is not None and event.delete)):
            return 0
        if event is None:
            return len(tied)
        kept = row if row is not None and event.delete else filled(event, row, ignore_nulls=False)
        self._rows[key] = (sequence, kept, event.delete)
        return 0


class Scd2:
    """Every record of each key, with the sequences it starts and ends at.

    A partial image is rejected, and forgotten, if its life (what follows a delete) holds no complete event at or
    before it, unless one at its very sequence was accepted before. Should a delete that comes late cut off one accepted
    earlier, it is out of sight until a complete event comes.
    """

    def __init__(self, tracked: list[str] | None = None, *, ignore_nulls: bool = False) -> None:
        self._tracked = tracked
        self._ignore_nulls = ignore_nulls
        self._events: dict[Key, list[Event]] = {}
        self._truncates: set[Sequence] = set()

    def apply(self, batch: list[Event]) -> int:
        """Take in one batch; return how many of its events were rejected.

        A truncate is a delete of every key, whenever that comes.
        """
        self._truncates |= {event.sequence for event in batch if event.truncate}
        came: dict[Key, list[Event]] = {}
        for event in batch:
            if not event.truncate:
                came.setdefault(event.key, []).append(event)
        rejected = 0
        for key, events in came.items():
            known = self._events.setdefault(key, [])
            taken = {sequence for sequence, _ in self._told([*known, *events])} | {event.sequence for event in known}
            accepted = [event for event in events if event.sequence in taken]
            known.extend(accepted)
            rejected += len(events) - len(accepted)
        return rejected

    def rows(self) -> list[tuple[Key, Row, Sequence, Sequence | None]]:
        return [(key, *record) for key, events in self._events.items() for record in self._records(events)]

    def _told(self, events: list[Event]) -> Iterator[tuple[Sequence, Row | None]]:
        """The row after each sequence, None after a delete; nothing is told of a partial image in an empty life."""
        row: Row | None = None
        ends = [Event(events[0].key, sequence, {}, delete=True) for sequence in self._truncates] if events else []
        for tied in ties([*events, *ends]):
            event = winner(tied, row)
            if event is None:
                continue
            row = None if event.delete else filled(event, row, ignore_nulls=self._ignore_nulls)
            yield event.sequence, row

    def _records(self, events: list[Event]) -> Iterator[tuple[Row, Sequence, Sequence | None]]:
        start = None
        for (sequence, row), (next_sequence, next_row) in pairwise([*self._told(events), (None, None)]):
            if row is None:
                continue
            start = sequence if start is None else start
            if next_row is None or self._watched(row) != self._watched(next_row):
                yield row, start, next_sequence
                start = None

    def _watched(self, row: Row) -> Row:
        return {name: row[name] for name in (row if self._tracked is None else self._tracked)}
