"""Applying dead letters again, through the same steps as any other event.

    note what the commit will settle  ->  commit rows and mark  ->  take the letters off the list  ->  drop the note

The mark of a table counts replays, in the commit that has their rows. So after a crash the note tells which
letters the table includes if its mark has come that far; if it has not, they are simply replayed again. An
event that still cannot be applied stays on the list.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from tailrace.apply.target import Mark
from tailrace.control import state
from tailrace.control.rejects import Aside, Kept, Letter, Rejected
from tailrace.core.failpoint import failpoint
from tailrace.core.table import file_name
from tailrace.log.slice import Slice
from tailrace.runtime.drain import Drain
from tailrace.runtime.fold import Counts, by_table

AT_ONCE = 500
"""How many letters are applied at a time."""

Place = tuple[str, int, int]


@dataclass
class StillBad:
    """Notes which events are rejected again; they are on the list already, so nothing is kept."""

    limit: int = 2 * AT_ONCE
    places: set[Place] = field(default_factory=set)
    told: Callable[[], None] = lambda: None
    """Called after each `put`, before the target goes on."""

    def put(self, target: str, log: str, rejected: Iterable[Rejected]) -> None:
        """Take note of `rejected`."""
        self.places |= {(event.topic, event.partition, event.offset) for event in rejected}
        self.told()

    def count(self, target: str) -> int:
        """Return how many events were rejected again."""
        return len(self.places)

    def letters(self, target: str) -> Iterator[Letter]:
        """Yield nothing."""
        yield from ()

    def kept(self, target: str) -> Iterator[Kept]:
        """Yield nothing."""
        yield from ()

    def forget(self, target: str, names: Collection[str] | None) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Replay:
    """What it takes to replay the dead letters of one target; nothing else may write to it meanwhile."""

    work: Drain
    """Its fold rejects into `bad`."""
    bad: StillBad
    aside: Aside
    folder: Path
    again: Callable[[Sequence[Kept]], Slice]
    spark: Callable[[], SparkSession]

    def run(self, chosen: Collection[str] | None = None) -> list[Counts]:
        """Replay the letters with the names `chosen`, or all of this life; return what became of them by table.

        One that another program sent does not say of which life it is. It is replayed only if it is chosen by name: the
        target may have forgotten a delete that came after it.
        """
        self.settle()
        logs = (self.work.log.name,) if chosen is None else (self.work.log.name, "")
        letters = [
            letter
            for letter in self.aside.kept(self.work.target)
            if letter.log in logs and (chosen is None or letter.name in chosen)
        ]
        counts: list[Counts] = []
        for first in range(0, len(letters), AT_ONCE):
            some = letters[first : first + AT_ONCE]
            piece = self.again(some)
            try:
                counts += self._apply(piece, {_place(letter.event): letter.name for letter in some})
            finally:
                piece.release()
        return by_table(counts)

    def settle(self) -> None:
        """Finish what a crash left between a commit and the list."""
        noted = state.load(self._note)
        if noted is None:
            return
        names, present = noted["names"], noted["log"] == self.work.log.name
        mark = self.work.fold.target.mark(str(noted["table"])) if present else None
        if mark and mark.log == noted["log"] and mark.replays >= int(str(noted["number"])) and isinstance(names, list):
            self.aside.forget(self.work.target, [str(name) for name in names])
        self._note.unlink()

    def _apply(self, piece: Slice, names: dict[Place, str]) -> list[Counts]:
        self.work.make_room(piece)
        counts = [self._table(piece, topic, names) for topic in piece.topics()]
        self.bad.places.clear()
        counts += self.work.fold.aside(piece)
        # What is of no table any more: it means nothing by design, so there is nothing to wait for.
        of_tables = {place for topic in piece.topics() for place in self._places(piece, topic)}
        loose = {(r[0], r[1], r[2]) for r in piece.read(self.spark()).select(*_PLACE).toLocalIterator()} - of_tables
        self.aside.forget(self.work.target, [names[place] for place in loose - self.bad.places])
        return counts

    def _table(self, piece: Slice, topic: str, names: dict[Place, str]) -> Counts:
        places = self._places(piece, topic)
        self.bad.places.clear()
        table = self.work.tables[topic].table if topic in self.work.tables else topic

        def settled() -> list[str]:
            return sorted(names[place] for place in places - self.bad.places)

        marks: list[Mark] = []

        def noted(mark: Mark) -> None:
            marks[:] = [mark]
            content = {"log": mark.log, "table": table, "number": mark.replays, "names": settled()}
            state.save(self._note, dict(content))

        # A receiver may refuse events while they are sent: the note must not name them when the mark moves.
        self.bad.told = lambda: noted(marks[0]) if marks else None
        try:
            counts = self.work.replay(piece, topic, noted)
        finally:
            self.bad.told = lambda: None
        failpoint("C29")
        self.aside.forget(self.work.target, settled())
        self._note.unlink(missing_ok=True)
        return counts

    def _places(self, piece: Slice, topic: str) -> set[Place]:
        # Few: there are at most AT_ONCE messages.
        return {(r[0], r[1], r[2]) for r in piece.rows(self.spark(), topic).select(*_PLACE).toLocalIterator()}

    @property
    def _note(self) -> Path:
        return self.folder / f"{file_name(self.work.target)}.json"


_PLACE = ("topic", "partition", "offset")


def _place(event: Rejected) -> Place:
    return event.topic, event.partition, event.offset
