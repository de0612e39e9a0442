"""How far a pipeline is behind, measured at one moment: the log behind its source, each target behind the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tailrace.core import offsets
from tailrace.core.errors import TailraceError

SERVER = "server"
"""Under this name a measurement tells that the source could not be asked, and why."""


@dataclass(frozen=True, slots=True)
class TargetLag:
    """Where one target stands in the change log, and where that ends."""

    target: str
    upto: int
    head: int
    dead_letters: int = 0
    marks: Mapping[str, object] = field(default_factory=dict)
    """The offset that each table includes, as last seen."""

    @property
    def events(self) -> int:
        """How many events the target has not applied yet."""
        return sum(lag for _, lag, _, _ in self.partitions())

    def partitions(self) -> list[tuple[str, int, int, int]]:
        """Return name, lag, offset and head of each partition; a log that is one sequence has one without a name."""
        ends = offsets.by_partition(self.head)
        if not ends:
            return [("", max(int(self.head) - int(self.upto), 0), int(self.upto), int(self.head))]
        have = offsets.by_partition(self.upto)
        return [(name, max(end - have.get(name, -1), 0), have.get(name, -1), end) for name, end in ends.items()]


@dataclass(frozen=True, slots=True)
class Lag:
    """What a measurement found; with an `error`, nothing of the log and its targets."""

    source: Mapping[str, object] = field(default_factory=dict)
    """What the source says of itself: `lag_bytes`, `lag_seconds`, `slot_retained_bytes`, `connector`, …; `server`."""
    targets: tuple[TargetLag, ...] = ()
    checkpoint_age: float | None = None
    """Seconds since the stored checkpoint was saved."""
    error: TailraceError | None = None

    def to_json(self) -> list[dict[str, object]]:
        """Return lag and offset by target and partition, as the log event and the health server tell them."""
        return [
            {"sink_id": found.target, **place_of(name), "lag": lag, "offset": offset}
            for found in self.targets
            for name, lag, offset, _ in found.partitions()
        ]


def asked(source: Callable[[], Mapping[str, object]]) -> Mapping[str, object]:
    """Return what `source` says; that it does not answer is an answer too, and keeps nothing else from being told."""
    try:
        return source()
    except TailraceError as error:
        told = {"code": error.code, "message": str(error), "hint": error.hint}
        return {SERVER: {"state": "UNREACHABLE", **told}}


def place_of(name: str) -> dict[str, object]:
    """Return topic and number of the partition called `name`; nothing for a log that is one sequence."""
    topic, _, number = name.rpartition(":")
    return {"topic": topic, "partition": int(number)} if topic else {}
