"""What the runtime needs from a target: it can say what it holds, change its shape, and take a batch.

A target keeps one promise: rows and mark are one commit. Everything else follows from it: after any
crash the mark tells what the rows include, and applying the same batch again changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from pyspark.sql import DataFrame, SparkSession

from tailrace.apply.ranges import Ranges
from tailrace.core import offsets
from tailrace.core.checkpoint import Checkpoint
from tailrace.core.table import Fit, Table

NOWHERE: Ranges = {}
"""No range is known, so every key is meant."""

ANYONE = ""
"""In the place of a pipeline's name: a table is read, and not written, so it does not matter whose it is."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What the rows of one table include: the log up to `offset`, and what that says of positions.

    `log` names the incarnation of the change log that `offset` counts in. `high` is the greatest
    position applied, so a batch that starts above it cannot be late. `floor` is the position of the
    newest truncate: nothing at or below it may come back. `batches` names the latest batches that were
    given a name, which are not applied twice. `replays` is the number of the latest commit that brought no
    more of the log, but events of it that had been put aside; 0 if there was none.

    Of a log in partitions, `offset` is an `Offsets`; as a number it grows with every commit.
    """

    log: str
    offset: int
    high: str = ""
    floor: str = ""
    batches: tuple[str, ...] = ()
    replays: int = 0

    def includes(self, other: Mark) -> bool:
        """Say whether rows with this mark have everything up to `other`, so that a batch with it is a repeat."""
        return self.log == other.log and int(self.offset) >= int(other.offset) and self.replays >= other.replays

    def to_json(self) -> dict[str, object]:
        """Return the form that a target stores; `mark_from_json` is its inverse."""
        stored: dict[str, object] = {
            "log": self.log,
            "offset": int(self.offset),
            "high": self.high,
            "floor": self.floor,
        }
        if self.batches:
            stored["batches"] = list(self.batches)
        if self.replays:
            stored["replays"] = self.replays
        if partitions := offsets.by_partition(self.offset):
            stored["partitions"] = dict(partitions)
        return stored


def mark_from_json(stored: Mapping[str, Any]) -> Mark:
    """Return the mark that `Mark.to_json` made."""
    number = int(stored["offset"])
    partitions = stored.get("partitions")
    offset = offsets.from_json(partitions, number) if partitions else number
    batches, replays = tuple(stored.get("batches", ())), int(stored.get("replays", 0))
    return Mark(stored["log"], offset, stored["high"], stored["floor"], batches, replays)


_REPLAYS = "#replays"


def replays_of(log: str, number: int) -> tuple[str, int]:
    """Return the sequence in which replays of events of `log` are numbered, and a number in it."""
    return f"{log}{_REPLAYS}", number


def is_log(sequence: str) -> bool:
    """Say whether a sequence of commits is that of a change log, and not that of replays."""
    return not sequence.endswith(_REPLAYS)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An event that the other side will never take, by its place in the log, and why: `code: words`."""

    topic: str
    partition: int
    offset: int
    reason: str


def _never(refused: Sequence[Refusal]) -> None:
    raise AssertionError(f"{len(refused)} events were refused by a target that refuses none")


@dataclass(frozen=True, slots=True)
class Batch:
    """The reconciled changes of one table, and the mark that its rows include once applied.

    `rows` has the columns of `table`, then `_cdc_position`, `_cdc_op` (`u` upsert or `d` delete),
    `_cdc_unchanged` (array of column names whose value the target keeps) and `_cdc_events` (how many
    change events the row stands for): one row per key, materialised, safe to read more than once, and
    every one of them newer than what the target has of its key.
    """

    table: Table
    rows: DataFrame
    mark: Mark
    truncate: str = ""
    """Delete every row whose position is at or below this, in the same commit; empty for no truncate."""
    partial: frozenset[str] = frozenset()
    """The columns that `_cdc_unchanged` names in any row: a column outside it is always carried."""
    soft: str = ""
    """The column that a truncate marks in the rows that it would delete; empty if they go."""
    ties: bool = False
    """An upsert at the very position of the row that the target has replaces it."""
    after: Mark | None = None
    """The mark that the table must have; with another one the batch is refused as a conflict."""
    hidden: DataFrame | None = None
    """In mode scd2: what is to be remembered beside the records of this commit. `rows` are then records to
    write (`u`) or remove (`d`), told apart by key and position, with `__START_AT` and `__END_AT`."""
    reject: Callable[[Sequence[Refusal]], None] = _never
    """Puts events aside that the other side refuses, durably; for a target that is `Sending`."""
    replay: bool = False
    """The rows are of events that had been put aside: the mark has another `replays`, and no more of the log."""

    @property
    def step(self) -> tuple[str, int]:
        """A sequence of commits, and the number of this one in it: replays are counted apart from the log."""
        return replays_of(self.mark.log, self.mark.replays) if self.replay else (self.mark.log, int(self.mark.offset))


@dataclass(frozen=True, slots=True)
class Applied:
    """What a batch did to the rows of the table."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    rejected: int = 0
    """How many events of it went to `Batch.reject`, also in an earlier attempt that did not come to its end."""


class Target(Protocol):
    """A system whose tables are kept current.

    Calls for different tables may run at the same time, each from a thread of its own.
    """

    name: str

    def mark(self, table: str) -> Mark | None:
        """Return what `table` includes; `None` if it was never written."""
        ...

    def have(self, table: str) -> Table | None:
        """Return the shape of `table` without reserved columns; `None` if it does not exist."""
        ...

    def notes(self, table: str) -> dict[str, str]:
        """Return what was to be remembered with `table` when it was created."""
        ...

    def known(self, table: str, near: Ranges = NOWHERE) -> DataFrame:
        """Return what the target has of each key: key columns, `_cdc_position`, `_cdc_alive`.

        Deleted rows are in it, with the position of their tombstone, for as long as those are kept.
        Keys outside of `near` may be left out.
        """
        ...

    def current(self, table: str, near: Ranges = NOWHERE) -> DataFrame:
        """Return the rows of `table` as they are now: at least the columns that `have` names, and `_cdc_position`."""
        ...

    def evolve(self, table: str, change: Fit) -> None:
        """Create or alter `table` as `change` says; doing it again does nothing."""
        ...

    def apply(self, batch: Batch) -> Applied:
        """Write the rows and the mark of `batch` in one commit.

        A row never replaces one with a greater position, deleted ones included. A batch whose mark
        is not beyond the table's own changes nothing.
        """
        ...


@runtime_checkable
class Historic(Protocol):
    """The power of a target to keep records of what rows were: mode scd2."""

    def records(self, table: str, near: Ranges = NOWHERE) -> tuple[DataFrame, DataFrame | None]:
        """Return the visible records, and what is hidden beside them if there ever was anything."""
        ...


class Prepared(Protocol):
    """A table that is written, and that nobody sees yet."""

    def commit(self) -> None:
        """Put it in the place of the one that is there, in one step."""
        ...


@runtime_checkable
class Replacing(Protocol):
    """The power, and the only way, of a target whose tables are files that are replaced whole."""

    def stored(self, spark: SparkSession, table: str) -> tuple[DataFrame, Table, int] | None:
        """Return the rows of `table`, the shape they were opened with and how many they are; `None` if there are none.

        Rows of another life than the mark names are not meant: whoever asks has looked at the mark.
        """
        ...

    def prepare(self, table: str, rows: DataFrame, shape: Table, mark: Mark) -> Prepared:
        """Write `rows`, opened with `shape`, and `mark` into one file, under a name that nobody reads."""
        ...


@runtime_checkable
class Sending(Protocol):
    """The power of a target that sends changes away, and keeps no table of them: mode append.

    Its batches have one row per event, as in any table of that mode, and `_cdc_unchanged`; their table says its keys.
    """

    sends: bool


@runtime_checkable
class Landing(Protocol):
    """The power of a target that lands events of a source for others to fold, and says beside them how far it was read.

    Its batches have the columns that `targets.bronze.columns` names.
    """

    source_id: str
    run_id: str

    def note(self, checkpoint: Checkpoint) -> None:
        """Say durably that everything before `checkpoint` is landed; saying it again does nothing."""
        ...


@runtime_checkable
class Forgetting(Protocol):
    """The power of a target that remembers deleted rows to forget them in time."""

    def collect_tombstones(self) -> None:
        """Drop tombstones past their retention; they are as old as the day that they are of."""
        ...


@runtime_checkable
class Tidying(Protocol):
    """The power of a target that keeps old versions for a while to let go of them."""

    def remove_old(self) -> None:
        """Remove what nobody needs any more."""
        ...
