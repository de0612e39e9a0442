"""From the change log into each target with tables: events per second against reading alone, and
whether the tables are right.

    python -m bench.targets --slices 1 6 10

R is what Spark does before any target comes in: read, decode, newest per key. R and the targets are measured in turns,
on the same log, and the median of each counts: what else a machine does meanwhile is shared by all. The session is
warm: every kind of run was there twice before.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.apply import peak_memory_mb
from bench.workload import TABLE, TOPIC, Workload
from tailrace.apply import engine
from tailrace.apply.target import Target
from tailrace.control.progress import Progress
from tailrace.control.rejects import Rejects
from tailrace.core.table import Evolution
from tailrace.envelopes import debezium
from tailrace.log.landed import LandedLog
from tailrace.runtime.drain import Drain, Pace, drain
from tailrace.runtime.fold import Fold
from tailrace.runtime.report import Silent
from tailrace.runtime.rules import Choice, Rules
from tailrace.spark import session
from tailrace.targets import duckdb, iceberg, mysql, postgres, sqlite

Rows = dict[int, tuple[str, int, str]]
TARGETS = ("sqlite", "duckdb", "postgres", "mysql", "iceberg")
_QUERY = "SELECT id, status, quantity, total FROM orders"


WARM = 2
"""So often each kind of run comes before it is measured."""


def reading(spark: SparkSession, log: LandedLog, work: Workload) -> float:
    """Return the seconds that it takes to read, decode and keep the newest per key."""
    started = time.monotonic()
    piece = log.slice(-1, work.events)
    assert piece is not None
    rows = debezium.open_rows(piece.read(spark), TABLE, 1, 1 << 24)
    shaped = engine.align([(engine.judge(rows, TABLE.keys), TABLE)], TABLE)
    newest = engine.newest_per_key(shaped, TABLE, engine.in_log_order())
    newest.write.format("noop").mode("overwrite").save()
    return time.monotonic() - started


def measure(
    spark: SparkSession, log: LandedLog, work: Workload, slices: int, folder: Path, place: Place
) -> dict[str, Any]:
    """Drain `log` in `slices` into `place`, and return the figures."""
    # A slice ends with a page.
    pages = -(-work.events // slices // work.page_rows)
    max_rows = pages * work.page_rows
    target = place.target(spark, folder)
    rejects = Rejects(folder / "rejects", enabled=False, limit=0)
    fold = Fold(lambda: spark, log, target, Rules("scd1", Evolution.ALTER, 1 << 24), rejects, Silent())
    progress = Progress(folder / "progress")
    job = Drain("target", log, fold, {TOPIC: Choice(TABLE.name)}, progress, Pace(max_rows, 1.0), Silent())
    started = time.monotonic()
    each: list[float] = []
    for _ in drain(job, threading.Event(), lambda step: step(), upto=log.head()):
        each.append(round(time.monotonic() - started - sum(each), 3))
    seconds = time.monotonic() - started
    return {
        "target": place.name,
        "slices": len(each),
        "seconds": round(seconds, 3),
        "seconds_per_slice": each,
        "events_per_second": round(work.events / seconds),
    }


class Place:
    """A database to be measured: how it is opened as a target, and how its table is read without one."""

    def __init__(
        self, name: str, module: Any, options: Callable[[Path], dict[str, Any]], query: Callable[[Path], Iterator[Any]]
    ) -> None:
        self.name = name
        self._module = module
        self._options = options
        self._query = query

    def target(self, spark: SparkSession, folder: Path) -> Target:
        """Return the target, in a place of its own for each `folder`."""
        options = self._module.Options(**self._options(folder))
        names = {TABLE.name: "orders"}
        opened: Target = self._module.open_target(
            self.name, options, spark=lambda: spark, pipeline_id="bench", tables=names, mode="scd1"
        )
        return opened

    def rows(self, folder: Path) -> Rows:
        """Return (status, quantity, total) by id, as the database's own client reads them."""
        return {row[0]: (row[1], row[2], str(row[3])) for row in self._query(folder)}


def _in_sqlite(folder: Path) -> Iterator[Any]:
    with closing(sqlite3.connect(folder / "lite.db")) as connection:
        yield from connection.execute(_QUERY)


def _in_duckdb(folder: Path) -> Iterator[Any]:
    import duckdb as client

    with client.connect(str(folder / "duck.db")) as connection:
        yield from connection.execute(_QUERY).fetchall()


def _in_iceberg(folder: Path) -> Iterator[Any]:
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("default", uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=str(folder / "ice"))
    rows = catalog.load_table("default.orders").scan(selected_fields=("id", "status", "quantity", "total")).to_arrow()
    for row in rows.to_pylist():
        yield row["id"], row["status"], row["quantity"], row["total"]


@contextmanager
def _in_postgres(folder: Path) -> Iterator[Place]:
    import psycopg

    from tailrace.demo.postgres import EmbeddedPostgres

    with EmbeddedPostgres(folder / "server") as server:
        login = {"host": "127.0.0.1", "port": server.port, "database": "postgres", "username": server.user}

        def query(at: Path) -> Iterator[Any]:
            with psycopg.connect(server.dsn()) as connection:
                yield from connection.execute(_QUERY.replace("orders", f'"{at.name}".orders').encode())

        yield Place("postgres", postgres, lambda at: login | {"password": server.password, "schema": at.name}, query)


@contextmanager
def _in_mariadb() -> Iterator[Place]:
    from dev.services import running

    with running("mariadb") as up:
        server = up.mariadb
        login = {"host": server.host, "port": server.port, "database": server.database, "username": server.user}

        def query(at: Path) -> Iterator[Any]:
            with closing(server.connect(at.name)) as connection, connection.cursor() as cursor:
                cursor.execute(_QUERY)
                yield from cursor.fetchall()

        yield Place("mysql", mysql, lambda at: login | {"password": server.password, "schema": at.name}, query)


@contextmanager
def opened(kind: str, folder: Path) -> Iterator[Place]:
    """Give a place to measure; its server, if it has one, runs for as long."""
    match kind:
        case "sqlite":
            yield Place(kind, sqlite, lambda at: {"path": str(at / "lite.db")}, _in_sqlite)
        case "duckdb":
            yield Place(kind, duckdb, lambda at: {"path": str(at / "duck.db")}, _in_duckdb)
        case "iceberg":
            yield Place(
                kind,
                iceberg,
                lambda at: {"catalog_uri": f"sqlite:///{at / 'catalog.db'}", "warehouse": str(at / "ice")},
                _in_iceberg,
            )
        case "postgres":
            with _in_postgres(folder) as place:
                yield place
        case _:
            with _in_mariadb() as place:
                yield place


def run(events: int, keys: int, slices: Sequence[int], kinds: Sequence[str], turns: int = 3) -> dict[str, Any]:
    """Return the figures of every target and number of slices, each with its ratio to reading alone."""
    spark = session()
    folder = Path(tempfile.mkdtemp(prefix="tailrace-bench-"))
    work = Workload(events, keys, page_rows=10_000)
    log = LandedLog(folder / "log", "bench", 1)
    log.recover(None)
    try:
        for page in work.pages():
            log.append(page)
        expected = work.table()
        alone: list[float] = []
        found: dict[tuple[str, int], list[dict[str, Any]]] = {}
        with ExitStack() as stack:
            places = [stack.enter_context(opened(kind, folder)) for kind in kinds]
            for turn, place in product(range(-WARM, turns), places):
                seconds = reading(spark, log, work)
                alone += [seconds] if turn >= 0 else []
                for count in slices:
                    at = folder / f"{place.name}-{count}-{turn + WARM}"
                    figures = measure(spark, log, work, count, at, place)
                    figures["equal"] = place.rows(at) == expected
                    print(json.dumps({"turn": turn, "reading": round(seconds, 3), **figures}), flush=True)
                    if turn >= 0:
                        found.setdefault((place.name, count), []).append(figures)
        read = statistics.median(alone)
        runs = []
        for same in found.values():
            figures = sorted(same, key=lambda one: one["seconds"])[len(same) // 2]
            equal = all(one["equal"] for one in same)
            runs.append({**figures, "equal": equal, "of_reading": round(read / figures["seconds"], 2)})
        return {
            "events": events,
            "keys": keys,
            "reading": round(events / read),
            "runs": runs,
            "memory_mb": peak_memory_mb(spark),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Run the benchmark and print its figures as JSON; exit 1 if a table is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--slices", type=int, nargs="+", default=[1, 6, 10])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=TARGETS)
    options = parser.parse_args()
    figures = run(options.events, options.keys, options.slices, options.targets, options.turns)
    print(json.dumps(figures, indent=2))
    raise SystemExit(0 if all(one["equal"] for one in figures["runs"]) else 1)


if __name__ == "__main__":
    main()
