"""A Convex deployment that grows transaction by transaction into bronze tables, for `tests.e2e.kills`.

After every kill each table must hold a beginning of its events, none of them twice, no fewer than before; and the
control table must speak of nothing that is not there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tailrace.testing.convex import Deployment, Emulator
from tests.e2e.command import PLATFORM, Command

TABLES = (("", "users"), ("billing", "lines"))
POINTS = ("C19", "C20", "C21", "C22", "C23", "C25", "C71", "C72")

Event = tuple[str, str, int, bool]
"""Table, document, sequence, and whether it is a delete."""


@dataclass
class Deployed(Command):
    """A deployment, and the pipeline that lands its events."""

    server: Emulator
    puts: int = 0
    began: int = 0
    """Where the snapshot was taken."""
    _old: list[tuple[str, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        source = {
            "source_type": "convex", "deployment_url": self.server.url, "deploy_key": self.server.behaviour.key,
        }  # fmt: skip
        sink = {"sink_id": "landing", "sink_type": "bronze", "bronze": {"path": str(self.folder / "bronze")}}
        self.write({"pipeline_id": "kills", "source": source, "sinks": [sink]}, PLATFORM)

    def put(self, *, grows: bool = False) -> None:
        """Commit a transaction: it makes documents, changes and deletes some of the one before, perhaps with a new field."""
        self.puts += 1
        document: dict[str, Any] = {"n": self.puts, **({f"extra{self.puts}": 1} if grows else {})}
        old, self._old = self._old, []
        with self.server.deployment.transaction() as made:
            for component, table in TABLES:
                self._old += [(component, table, made.insert(table, document, component)) for _ in range(3)]
            for n, (component, table, key) in enumerate(old):
                if n % 3 == 0:
                    made.delete(table, key, component)
                elif n % 3 == 1:
                    made.replace(table, key, document, component)
        self.began = self.began or self.server.deployment.head

    def expected(self) -> Counter[Event]:
        """Return the events that there are: documents of the snapshot, and every revision after it."""
        deployment, found = self.server.deployment, Counter[Event]()
        for component, table in TABLES:
            name = bronze_name(component, table)
            tablet = deployment.table(table, component)
            assert tablet is not None
            found.update((name, key, ts, False) for key, ts, _ in tablet.documents_at(self.began))
            for key, revisions in tablet.revisions.items():
                found.update((name, key, ts, document is None) for ts, document in revisions if ts > self.began)
        return found


@dataclass
class Landed:
    """The bronze tables, looked at after every kill."""

    feed: Deployed
    seen: Counter[Event] = field(default_factory=Counter)

    def look(self) -> str:
        """Return what is wrong with the tables; nothing if each has a beginning of its events, and the checkpoint it."""
        found, expected = self._found(), self.feed.expected()
        if wrong := found - expected:
            return f"left over or doubled: {list(wrong)[:3]}"
        if gone := self.seen - found:
            return f"gone again: {list(gone)[:3]}"
        self.seen = found
        for component, table in TABLES:
            name = bronze_name(component, table)
            if holes := _upto(expected, max((e[2] for e in found if e[0] == name), default=0), name) - found:
                return f"left out: {list(holes)[:3]}"
        cursor = self._cursor()
        if ahead := _upto(expected, cursor) - found:
            return f"the checkpoint {cursor} is ahead of: {list(ahead)[:3]}"
        return ""

    def end(self) -> str:
        """Return what is wrong with the tables once everything is landed."""
        lost = self.feed.expected() - self._found()
        behind = "" if self._cursor() >= self.feed.server.deployment.head else "the checkpoint is behind"
        return self.look() or (f"lost: {list(lost)[:3]}" if lost else behind)

    def _found(self) -> Counter[Event]:
        found = Counter[Event]()
        for component, table in TABLES:
            name = bronze_name(component, table)
            for row in rows_of(self.feed.folder / "bronze" / name):
                found[name, row["_cdc_document_id"], int(row["_cdc_sequence_num"]), row["_cdc_is_deleted"]] += 1
        return found

    def _cursor(self) -> int:
        """Return up to where the control table says that events are landed."""
        rows = rows_of(self.feed.folder / "bronze" / "connector_checkpoint")
        newest = max(rows, key=lambda row: row["updated_at"], default=None)
        return int(newest["delta_cursor"] or 0) if newest else 0


def bronze_name(component: str, table: str) -> str:
    return f"convex__{component or 'app'}__{table}__cdc"


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a Delta table whose columns are mapped by name, read from its log; none if it is not there."""
    fields: list[dict[str, Any]] = []
    files: dict[str, None] = {}
    for commit in sorted((folder / "_delta_log").glob("*.json")):
        for action in map(json.loads, commit.read_text().splitlines()):
            if "metaData" in action:
                fields = json.loads(action["metaData"]["schemaString"])["fields"]
            elif "add" in action:
                files[action["add"]["path"]] = None
            elif "remove" in action:
                files.pop(action["remove"]["path"], None)
    names = {str(f["metadata"].get("delta.columnMapping.physicalName", f["name"])): str(f["name"]) for f in fields}
    found = []
    for file in files:
        rows = pq.read_table(folder / file, partitioning=None).to_pylist()
        found += [{name: row.get(column) for column, name in names.items()} for row in rows]
    return found


@contextmanager
def landing(folder: Path) -> Iterator[tuple[Deployed, Landed]]:
    """Serve a deployment for as long as it is needed."""
    with Emulator(Deployment(seed=7)) as server:
        feed = Deployed(folder, server)
        yield feed, Landed(feed)


def _upto(events: Counter[Event], sequence: int, table: str = "") -> Counter[Event]:
    return Counter({event: n for event, n in events.items() if event[2] <= sequence and table in ("", event[0])})
