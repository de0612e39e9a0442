"""What a source hands over: some rows, and where the source stands once they are durable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tailrace.core.checkpoint import Checkpoint
from tailrace.core.table import Table

Rows = TypeVar("Rows", covariant=True)


@dataclass(frozen=True, slots=True)
class Page(Generic[Rows]):
    """A stretch of a source between two checkpoints.

    `since` and `checkpoint` make pages a chain: the log appends a page only behind the one it
    follows. The two halves of a changed key are never in two pages, because the second may need what
    the first one deletes. `schemas` holds, by fingerprint, every table schema that the rows refer to.
    `empty` holds, by topic, the tables that the snapshot found without rows; the page that ends it has them.
    """

    rows: Rows
    since: Checkpoint | None
    checkpoint: Checkpoint
    schemas: Mapping[str, Table] = field(default_factory=dict)
    empty: Mapping[str, Table] = field(default_factory=dict)
