"""A change log in memory: what a log is, without files. It ships for tests and for trying things out."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tailrace.core.checkpoint import Checkpoint, Snapshotting
from tailrace.core.errors import Halt
from tailrace.core.page import Page
from tailrace.core.table import Table
from tailrace.envelopes import debezium
from tailrace.envelopes import rows as landed_rows
from tailrace.log.slice import Contents, Slice, total
from tailrace.spark.frame import described, from_arrow


@dataclass(frozen=True, slots=True)
class _Appended:
    first: int
    rows: list[dict[str, Any]]
    contents: Contents
    page: Page[pa.Table]

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1


class MemoryLog:
    """Pages in a list; `recover`, `append` and `slice` mean what they mean for a landed log.

    With `ordered=False` a reader expects that changes of one key come in any order.
    """

    envelope = debezium
    reads_ahead = False
    replaces = False

    def __init__(self, name: str = "memory", epoch: int = 1, *, ordered: bool = True) -> None:
        self.name = name
        self.epoch = epoch
        self.ordered = ordered
        self._appended: list[_Appended] = []
        self._schemas: dict[str, Table] = {}
        self._empty: dict[str, Table] = {}
        self._at: Checkpoint | None = None
        self._grown = threading.Condition()

    def recover(self, saved: Checkpoint | None) -> Checkpoint | None:
        """Return where the log really stands; an unfinished snapshot is forgotten."""
        if self._appended:
            tail = self._appended[-1].page
            behind = isinstance(saved, Snapshotting) and not isinstance(tail.checkpoint, Snapshotting)
            saved = tail.checkpoint if behind or saved in (None, tail.since) else saved
        if isinstance(saved, Snapshotting) and not saved.resumable:
            self._appended.clear()
        self._at = saved
        return saved

    def append(self, page: Page[pa.Table]) -> None:
        """Add `page`; adding the newest page again does nothing."""
        if self._appended:
            tail = self._appended[-1].page
            if (tail.since, tail.checkpoint) == (page.since, page.checkpoint):
                return
        if page.since != self._at:
            raise Halt("broken-chain", f"a page follows {page.since}, and the log stands at {self._at}")
        first = self._appended[-1].last + 1 if self._appended else 0
        rows = [{**row, "partition": 0, "offset": first + n} for n, row in enumerate(page.rows.to_pylist())]
        contents = total(_contents(row) for row in rows)
        with self._grown:
            self._schemas.update(page.schemas)
            self._empty.update(page.empty)
            self._appended.append(_Appended(first, rows, contents, page))
            self._at = page.checkpoint
            self._grown.notify_all()

    def head(self) -> int:
        """Return the last offset that readers may see; -1 if there is none."""
        return self._appended[-1].last if self._visible() else -1

    def slice(self, after: int, max_rows: int, upto: int | None = None) -> Slice | None:
        """Return the next rows after offset `after`, about `max_rows` of them; `None` if there are none."""
        chosen: list[_Appended] = []
        for part in self._visible():
            if part.last <= after or not part.rows:
                continue
            if chosen and (part.last - chosen[0].first + 1 > max_rows):
                break
            if upto is not None and part.first > upto:
                break
            chosen.append(part)
        if not chosen:
            return None
        rows = [row for part in chosen for row in part.rows]

        def read(spark: SparkSession) -> DataFrame:
            table = pa.Table.from_pylist(rows, schema=landed_rows.ARROW)
            return from_arrow(spark, table).to(described(landed_rows.SPARK))

        return Slice(after, chosen[-1].last, total(part.contents for part in chosen), read)

    def begins(self) -> int:
        """Return the offset before the first that is still there: nothing expires here."""
        return -1

    def require_rest(self, place: int) -> None:
        """Do nothing: nothing is ever gone."""

    def empty(self) -> Mapping[str, Table]:
        """Return, by topic, the tables that the snapshot found without rows."""
        return self._empty

    def schema(self, fingerprint: str) -> Table:
        """Return the table schema that rows with `fingerprint` were written with."""
        return self._schemas[fingerprint]

    def awaited(self, topic: str) -> frozenset[str] | None:
        """Return nothing: a schema says every column of its table."""
        return None

    def wait(self, seconds: float) -> None:
        """Return when a page was appended, or after `seconds`."""
        with self._grown:
            self._grown.wait(seconds)

    def _visible(self) -> list[_Appended]:
        done = self._appended and not isinstance(self._appended[-1].page.checkpoint, Snapshotting)
        return self._appended if done else []


def _contents(row: dict[str, Any]) -> Contents:
    fingerprint = next((h["value"].decode() for h in row["headers"] if h["key"] == landed_rows.SCHEMA_HEADER), "")
    features = landed_rows.features(pa.chunked_array([[row["value"]]], pa.binary()))
    return Contents({(row["topic"], fingerprint): 1}, {row["topic"]: features})
