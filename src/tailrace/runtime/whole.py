"""Logs whose messages are whole rows and say the type of each value, as Convex's are: one schema opens them all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from tailrace.core.table import Evolution, Table


@runtime_checkable
class Whole(Protocol):
    """An envelope of such messages."""

    def together(self, schemas: Sequence[Table], have: Table | None) -> Table:
        """Return the schema that rows written with any of `schemas` open with, for a target that has `have`."""
        ...

    def fitting(self, schemas: Sequence[Table], have: Table | None, policy: Evolution) -> Table:
        """Return that schema as far as a target that follows changes as `policy` says can follow it."""
        ...

    def twin(self, field: str) -> str:
        """Return the column that stands beside the one of `field`, where that cannot hold every value."""
        ...


def twins(envelope: object, table: Table, fields: Iterable[str]) -> tuple[str, ...]:
    """Return the columns of `table` that stand beside those of `fields`."""
    beside = map(envelope.twin, fields) if isinstance(envelope, Whole) else ()
    return tuple(name for name in beside if name in table.names())
