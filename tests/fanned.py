"""A pipeline of files into Delta, PostgreSQL and SQLite at once, with its audit in PostgreSQL: one reading proves three."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from tailrace.apply.target import Target
from tailrace.core.errors import Halt
from tailrace.core.feed import ORDERS, Entry
from tailrace.demo.postgres import EmbeddedPostgres
from tailrace.runtime.feed import FileFeed
from tests.feeds import Feed, Warned

TARGETS = ("box", "lake", "store")
Rows = list[tuple[Any, ...]]


@dataclass
class Fan(Feed):
    """A feed that three targets read; whatever is asked of it, all three must answer alike."""

    server: EmbeddedPostgres | None = None
    database: str = ""
    mode: str = "scd1"
    evolution: str = "skip"
    columns: str = "id, name"
    counts: dict[str, dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.server is not None
        login = {
            "host": "127.0.0.1", "port": str(self.server.port), "database": self.database,
            "username": self.server.user, "password": self.server.password, "schema": "store",
        }  # fmt: skip
        shared = {"mode": self.mode, "schema_evolution": self.evolution}
        self.sink = dict(shared)
        self.others = [
            {"sink_id": "lake", "sink_type": "delta", "delta": {"path": str(self.folder / "lake")}, **shared},
            {"sink_id": "store", "sink_type": "postgres", "postgres": login, **shared},
        ]
        self.platform = {
            "control": {"root": str(self.folder / "state"), "audit_dsn": self.server.dsn(self.database)},
            "retry": {"initial_wait_seconds": "0", "jitter": "false"},
        }

    def run(self, *, max_slices: int | None = None) -> dict[str, Any]:
        """Run to the head; return the counts of the table, which are those of every target."""
        report = Warned()
        with self.opened() as pipeline:
            done = pipeline.run(once=True, max_slices=max_slices, report=report)
        self.warnings += report.warnings
        if error := done.first_error():
            raise error
        targets: Any = done.to_json()["targets"]
        self.counts = {one["target"]: one["tables"][0] if one["tables"] else {} for one in targets}
        assert self.counts["box"] == self.counts["lake"] == self.counts["store"]
        return self.counts["box"]

    @contextmanager
    def target(self, name: str) -> Iterator[Target]:
        with self.opened() as pipeline:
            life = pipeline._checkpoints.life()
            assert life is not None
            sink = next(sink for sink in pipeline._config.sinks if sink.sink_id == name)
            yield pipeline._drains.open_target(sink, life.tables)

    def rows(self, columns: str = "", table: str = "people", *, in_lake: bool = False) -> Rows:
        """Return the rows, which are those of both databases, and of the lake too if it is asked; that takes longer."""
        columns = columns or self.columns
        found = super().rows(columns, table)
        assert found == self._stored(columns, table)
        if in_lake:
            assert found == self._in_lake(columns, table)
        return found

    def commits(self) -> int:
        """Return how many commits the table in the lake had."""
        return len(list((self.folder / "lake/people/_delta_log").glob("*.json")))

    def _stored(self, columns: str, table: str) -> Rows:
        assert self.server is not None
        with psycopg.connect(self.server.dsn(self.database)) as db:
            there = db.execute("SELECT 1 FROM pg_tables WHERE schemaname = 'store' AND tablename = %s", [table])
            if not there.fetchall():
                return []
            return db.execute(f"SELECT {columns} FROM store.{table} ORDER BY 1".encode()).fetchall()

    def _in_lake(self, columns: str, table: str) -> Rows:
        if not (self.folder / "lake" / table).exists():
            return []
        names = [name.strip() for name in columns.split(",")]
        rows = self.spark.read.format("delta").load(str(self.folder / "lake" / table)).select(*names).orderBy(names[0])
        return [tuple(row) for row in rows.collect()]

    def audited(self, *, settled: bool = True) -> dict[str, dict[str, Any]]:
        """Return what the audit says of each file, newest entry last; it must agree with the targets, and with itself.

        After a run that halted, not all is `settled`.
        """
        with self.opened() as pipeline:
            life, inlet = pipeline._checkpoints.life(), pipeline._inlet
            assert life is not None
            assert isinstance(inlet, FileFeed)
            audit = inlet.audit(life)
            records: Any = audit.rows(TARGETS)
        entries = audit.after(-1, 1 << 60, 1000)
        place = re.compile(rf"\.{ORDERS[self.source.get('order', 'name')]}\.[0-9a-f]{{16}}$")
        for name in TARGETS:
            mine = [record for record in records if record["target"] == name]
            assert not settled or {record["state"] for record in mine} <= {"committed", "failed"}
            with self.target(name) as target:
                mark = target.mark("people")
                rows = target.current("people").select("_cdc_position").distinct().collect() if mark else []
            agree(entries, mine, -1 if mark is None else int(mark.offset), {found(place, row[0]) for row in rows})
        shown = ("state", "rows", "applied", "superseded", "filtered", "rejected", "error")
        by_target = [
            [{key: r[key] for key in ("file", *shown)} for r in records if r["target"] == name] for name in TARGETS
        ]
        assert by_target[0] == by_target[1] == by_target[2]
        return {record["file"]: record for record in by_target[0]}


def found(place: re.Pattern[str], position: str) -> str:
    match = place.search(position)
    assert match, position
    return match[1]


def agree(entries: list[Entry], records: list[dict[str, Any]], mark: int, orders: set[str]) -> None:
    """Hold the records of one target against its mark and the files that its rows are of, and counts against each other."""
    known = {entry.number: entry for entry in entries}
    applied = {known[record["number"]].order for record in records if record["applied"]}
    # Every row is of a file that was applied, and so of none that failed.
    assert orders <= applied, orders - applied
    for record in records:
        state, last = record["state"], known[record["number"]].last
        outcome = [record[name] for name in ("applied", "superseded", "filtered", "rejected")]
        if state == "failed":
            assert record["error"], record
            assert outcome[:3] == [None, None, None], record
        elif state == "committed":
            assert not record["error"], record
            assert record["rows"] == sum(outcome), record
            # What changed a row is in a commit, and so its marker is there.
            assert not record["applied"] or last <= mark, record
        else:
            assert last > mark, record


class Killed(Halt):
    """Stands for the end of the process."""

    def __init__(self) -> None:
        super().__init__("killed", "the process was killed here", "It is started again.")


@contextmanager
def killed(before: str) -> Iterator[None]:
    """Have every process end when it comes to `before`, with its claims as they are: nobody lets go of them."""

    def end(*_: object, **__: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(before, end)
        # A process that is killed lets go of nothing; the next one of its machine frees its claims.
        patch.setattr("tailrace.log._heart.Heart.stop", lambda heart: heart._stopped.set())
        yield
