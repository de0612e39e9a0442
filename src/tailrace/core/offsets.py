"""How far a change log was read: the last offset included, for each partition that the log has.

A log that is one sequence has one offset, and a plain integer says it. A log in partitions needs one for
each: `Offsets`. As a number it is how many events lie at or below it, less one, so it is the offset itself
for a log of one sequence, it grows with every step, and a difference is a number of events. What it does
not say as a number is whether one place includes another: that is `covers`. See ADR 9.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Self


class Offsets(int):
    """The last offset included, by name of the partition; a partition that is not named has none."""

    _by_partition: Mapping[str, int]

    def __new__(cls, by_partition: Mapping[str, int], beyond: int = -1) -> Self:
        """Make it, as a number greater than `beyond` if it names any event at all."""
        events = sum(last + 1 for last in by_partition.values())
        made = super().__new__(cls, max(events - 1, beyond + 1) if events else -1)
        made._by_partition = MappingProxyType(dict(sorted(by_partition.items())))
        return made

    @property
    def by_partition(self) -> Mapping[str, int]:
        """The last offset of each partition."""
        return self._by_partition

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Offsets):
            return dict(self.by_partition) == dict(other.by_partition)
        return int(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return int.__hash__(self)

    def __deepcopy__(self, _: object) -> Self:
        """Return itself: it never changes, and has no other way to be copied."""
        return self

    def __str__(self) -> str:
        return " ".join(f"{name}:{last}" for name, last in self.by_partition.items()) or "-1"

    def __repr__(self) -> str:
        return f"Offsets({dict(self.by_partition)!r})"


def by_partition(place: int) -> Mapping[str, int]:
    """Return the offsets of `place` by partition; none for a plain integer, which names no partition."""
    return place.by_partition if isinstance(place, Offsets) else {}


def covers(place: int, other: int) -> bool:
    """Say whether everything up to `other` lies up to `place`, as far as one can know."""
    if not isinstance(other, Offsets):
        return int(place) >= other
    have = by_partition(place)
    return all(have.get(name, -1) >= last for name, last in other.by_partition.items())


def lacks(place: int, noted: int) -> bool:
    """Say whether `place` is known to be behind `noted`; one that was rebuilt is a number, and says no partitions."""
    return not covers(place, noted) if by_partition(place) else int(place) < int(noted)


def together(have: int, upto: int) -> int:
    """Return the place that includes both, as a number greater than `have` if it includes more."""
    if not isinstance(upto, Offsets):
        return max(have, upto)
    if covers(have, upto):
        return have
    every = dict(by_partition(have))
    for name, last in upto.by_partition.items():
        every[name] = max(last, every.get(name, -1))
    return Offsets(every, beyond=have)


def least(places: Iterable[int]) -> int:
    """Return the place that all of `places` include; -1 if there are none."""
    every = list(places)
    if not any(isinstance(place, Offsets) for place in every):
        return min(every, default=-1)
    named = [by_partition(place) for place in every]
    shared = set(named[0]).intersection(*named[1:])
    return Offsets({name: min(offsets[name] for offsets in named) for name in shared})


def to_json(place: int) -> int | dict[str, int]:
    """Return the form that is stored and shown: an integer for a log that is one sequence."""
    return dict(place.by_partition) if isinstance(place, Offsets) else int(place)


def from_json(stored: object, number: int | None = None) -> int:
    """Return the place that `to_json` made, as the `number` that it had; anything else is a ValueError."""
    if isinstance(stored, dict) and all(isinstance(last, int) for last in stored.values()):
        return Offsets({str(name): int(last) for name, last in stored.items()}, -1 if number is None else number - 1)
    if isinstance(stored, int):
        return stored
    raise ValueError(f"not a place in a change log: {stored!r}")
