"""A source in memory: a list of changes, served in pages. It defines what a source promises.

Reading twice from a checkpoint gives the same changes, pages chain, and `acknowledge` may be repeated.
A place is the number of changes before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from tailrace.core.change import Change, Key, Op
from tailrace.core.checkpoint import Checkpoint, Place, Tailing
from tailrace.core.page import Page
from tailrace.core.table import Table
from tailrace.envelopes import rows as landed_rows


class Options(BaseModel):
    """A source in memory has no settings: it is given its changes in Python."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class MemorySource:
    """Serves `changes`, which may grow, with positions of the form that `core.position` makes."""

    name = "memory"

    def __init__(
        self, tables: Sequence[Table], changes: Sequence[Change], *, topic_prefix: str = "cdc", page_rows: int = 3
    ) -> None:
        self.changes = changes
        self.acknowledged = 0
        self._tables = {table.name: table for table in tables}
        self._prefix = topic_prefix
        self._page_rows = page_rows
        self._closed = False

    def pages(self, since: Checkpoint | None, until: Place | None = None) -> Iterator[Page[pa.Table]]:
        """Yield what is new since `since`, up to `until` or all there is now."""
        start = int(since.at) if isinstance(since, Tailing) else 0
        end = len(self.changes) if until is None else min(int(until), len(self.changes))
        while start < end and not self._closed:
            upto = min(start + self._page_rows, end)
            while upto < end and self.changes[upto].old_key is not None:
                upto += 1
            checkpoint = Tailing("memory", str(upto))
            schemas = {table.fingerprint(): table for table in self._tables.values()}
            yield Page(self._rows(self.changes[start:upto]), since, checkpoint, schemas)
            start, since = upto, checkpoint

    def acknowledge(self, checkpoint: Checkpoint) -> None:
        """Remember how far the reader is; nothing is forgotten."""
        if isinstance(checkpoint, Tailing):
            self.acknowledged = max(self.acknowledged, int(checkpoint.at))

    def head(self) -> Place:
        """Return the place after the last change."""
        return str(len(self.changes))

    def close(self) -> None:
        """End `pages` after the page in hand."""
        self._closed = True

    def _rows(self, changes: Sequence[Change]) -> pa.Table:
        now = datetime.now(UTC)
        return pa.Table.from_pylist(
            [
                {
                    "topic": f"{self._prefix}.{change.table}",
                    "key": None if change.op is Op.TRUNCATE else _json(self._key(change)),
                    "value": _json(self._message(change)),
                    "timestamp": now,
                    "headers": [
                        {"key": landed_rows.SCHEMA_HEADER, "value": self._tables[change.table].fingerprint().encode()}
                    ],
                }
                for change in changes
            ],
            schema=pa.schema([field for field in landed_rows.ARROW if field.name not in ("partition", "offset")]),
        )

    def _key(self, change: Change) -> dict[str, object]:
        return self._named(change.table, change.key)

    def _named(self, table: str, key: Key) -> dict[str, object]:
        return dict(zip(self._tables[table].keys, key, strict=True))

    def _message(self, change: Change) -> dict[str, object]:
        _, phase, place = change.position.split(".")
        source: dict[str, object] = {"lsn": int(place, 16), "ts_ms": 0, **({"snapshot": True} if phase != "2" else {})}
        deleted = change.op is Op.DELETE
        return {
            "op": change.op.value,
            "before": self._key(change) if deleted else None,
            "after": None if change.after is None or deleted else {**self._key(change), **change.after},
            "unchanged": sorted(change.unchanged),
            **({} if change.old_key is None else {"old_key": self._named(change.table, change.old_key)}),
            "source": source,
            "ts_ms": 0,
        }


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
