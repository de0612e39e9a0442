"""How far a pipeline is behind, measured at one moment: the log behind its source, each target behind the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace.core import offsets
from tailrace.core.errors import TailraceError


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
    """What a measurement found; with an `error`, it found nothing."""

    source: Mapping[str, object] = field(default_factory=dict)
    """What the source says of itself: `lag_bytes`, `lag_seconds`, `slot_retained_bytes`, `connector`, …"""
    targets: tuple[TargetLag, ...] = ()
    checkpoint_age: float | None = None
    """Seconds since the stored checkpoint was saved."""
    error: TailraceError | None = None

    def to_json(self) -> list[dict[str, object]]:
        """Return lag and offset by target and partition, as the log event and the health server tell them."""
        return [
            {"sink_id": found.target, **_place(name), "lag": lag, "offset": offset}
            for found in self.targets
            for name, lag, offset, _ in found.partitions()
        ]


def _place(name: str) -> dict[str, object]:
    topic, _, number = name.rpartition(":")
    return {"topic": topic, "partition": int(number)} if topic else {}
