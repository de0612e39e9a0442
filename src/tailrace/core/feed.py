"""A file of a feed: what tells it from every other, and where its rows lie in the change log.

A feed is a directory, or a prefix of a bucket, that somebody else fills with files of changes. Every file that is
taken gets a place in a catalogue, once and for good; its rows have the offsets from `first` on. `order` is the place
that the file has in the feed's own order, as text that compares in that order, whenever the file may have come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class State(NamedTuple):
    """What tells without reading that a file is not what it was."""

    size: int
    modified_ns: int
    tag: str = ""
    """What a store says identifies the content; empty for a file of this machine."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A file as a listing shows it: `name` is its path below the feed."""

    name: str
    size: int
    modified_ns: int
    order: str
    sha256: str = ""
    """The hash that a manifest says it has; empty if none does."""
    tag: str = ""
    listed: bool = False
    """A manifest lists it at a place that was not followed yet."""

    @property
    def state(self) -> State:
        """What it was when it was seen."""
        return State(self.size, self.modified_ns, self.tag)


@dataclass(frozen=True, slots=True)
class Examined:
    """What one pass over the bytes of a file says of it."""

    sha256: str
    rows: int
    """At least as many as it has rows: they get so many offsets."""
    header: str = ""
    """What files that are read together share: the names of the columns of a CSV file, the schema of a Parquet file."""
    whole: bool = False
    """It cannot be split by lines: a value goes on over several, or it is compressed."""
    damaged: bool = False
    """Some bytes are no text in the encoding of the feed."""
    problem: str = ""
    """Why it cannot be read at all, as `code: words`; empty if it can."""
    plain: int = 0
    """How many bytes of text it has, unpacked; 0 if that is not known."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in the catalogue."""

    number: int
    name: str
    size: int
    modified_ns: int
    order: str
    first: int
    last: int
    """Its last offset; the next file begins after it."""
    content: Examined
    of: int = -1
    """The entry that this one is a repeat of, on request; -1 if it is none."""
    tag: str = ""

    @property
    def state(self) -> State:
        """What the file was when it was entered."""
        return State(self.size, self.modified_ns, self.tag)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a slice found in one file: `problem` says why nothing of it is applied."""

    number: int
    rows: int = 0
    rejected: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Fate:
    """What a commit makes of the rows of one file; what is none of these is superseded."""

    number: int
    applied: int
    rejected: int


def name_order(name: str, version: int = 0) -> str:
    """Return the place of a file in the order of names; a later version of one name comes after it."""
    return f"{name.encode('utf-8', 'surrogateescape').hex()}.{version:04x}"


def modified_order(modified_ns: int, name: str, version: int = 0) -> str:
    """Return the place of a file in the order of the times of change, of equal ones by name."""
    return f"{max(modified_ns, 0):016x}.{name_order(name, version)}"


def manifest_order(sequence: int, index: int, version: int = 0) -> str:
    """Return the place of the file that is the `index`th of the manifest with number `sequence`."""
    return f"{sequence:016x}.{index:08x}.{version:04x}"


def version_of(order: str) -> int:
    """Return which version of a file has this place."""
    return int(order.rpartition(".")[2], 16)


def next_version(order: str) -> str:
    """Return the place right behind `order`, for other content in the place of a file."""
    return f"{order.rpartition('.')[0]}.{version_of(order) + 1:04x}"


ORDERS = {
    "name": r"([0-9a-f]*\.[0-9a-f]{4})",
    "modified": r"([0-9a-f]{16}\.[0-9a-f]*\.[0-9a-f]{4})",
    "manifest": r"([0-9a-f]{16}\.[0-9a-f]{8}\.[0-9a-f]{4})",
}
"""What a place looks like, by the order of the feed: it is found again in the position of a row."""
