"""What a lakehouse can do beyond keeping rows current: tell what its tables were, go back there, and tidy up.

A table that is taken back takes its mark along, so the change log says what it lacks; tidying up changes no row and
loses no mark.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pyspark.sql import DataFrame

from tailrace.apply.target import Mark
from tailrace.core.errors import Halt


@dataclass(frozen=True, slots=True)
class Version:
    """A table as it once was: a version of Delta, a snapshot of Iceberg."""

    id: int
    at: datetime.datetime
    operation: str
    mark: Mark | None
    """What the commit itself carries; one that only tidied up carries none."""
    current: bool = False


@dataclass(frozen=True, slots=True)
class Upkeep:
    """When a table is worth tidying up, and how much is done at a time."""

    files: int
    """Files that lie together are joined when they are at least so many."""
    rows: int
    """About how many rows are rewritten before that is committed."""


@runtime_checkable
class Versioned(Protocol):
    """The power of a target whose tables keep what they were.

    What changes a table here must not meet an apply to it: whoever calls is the only writer.
    """

    def versions(self, table: str, most: int) -> list[Version]:
        """Return what `table` was, the latest first, `most` at most; none if it does not exist."""
        ...

    def version_at(self, table: str, moment: datetime.datetime) -> int | None:
        """Return the version that readers of `table` saw at `moment`; `None` if there was none, or it is gone."""
        ...

    def rows_at(self, table: str, version: int | None = None) -> DataFrame:
        """Return the rows of `table` as stored, of now or of `version`."""
        ...

    def mark_at(self, table: str, version: int) -> Mark | None:
        """Return what the rows of `version` include; halt if that is not known any more."""
        ...

    def take_back(self, table: str, version: int) -> None:
        """Make `table` what it was at `version`: rows, shape, mark, and what is remembered of deleted rows."""
        ...

    def compact(self, table: str, upkeep: Upkeep) -> Mapping[str, int]:
        """Join small files, those of one partition at a time; return how many went and came."""
        ...

    def expire(self, table: str, before: datetime.datetime) -> Mapping[str, int]:
        """Let go of versions from before `before`, never of the mark; return how much went."""
        ...


def unknown_version(table: str, version: int) -> Halt:
    """Return the halt for a version that is not, or no longer, there."""
    return Halt(
        "unknown-snapshot",
        f'table "{table}" has no snapshot {version}',
        "It was expired, or never was. See cdc lakehouse snapshots.",
    )


def gone(table: str, version: int) -> Halt:
    """Return the halt for a version whose files were removed."""
    return Halt(
        "snapshot-gone",
        f'files of snapshot {version} of table "{table}" were removed',
        "They were expired. Nothing was changed. Choose a later snapshot.",
    )


def unmarked(table: str, version: int) -> Halt:
    """Return the halt for a version of which nobody knows what it includes."""
    return Halt(
        "mark-lost",
        f'nothing says which changes snapshot {version} of table "{table}" includes',
        "The commit that said so is gone, or the table was restored by other means. Choose a later one.",
    )
