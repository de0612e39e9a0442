"""From files of changes into tables: rows per second by size, and whether the tables are right.

    python -m bench.files --targets sqlite duckdb postgres delta --sizes 20000 100000 1000000 --many 10000

Each size is one CSV file; `--many` is so many files of ten changes each. The last figure of a target is what 5,000
changes take into a table of a million rows, against the same changes into an empty one. Reading alone is what Spark
takes to read a file and type its columns. The session is warm: every target has had a smaller file before.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.apply import peak_memory_mb
from tailrace.config.load import pipeline_from
from tailrace.config.platform import PlatformConfig
from tailrace.config.yaml_text import read_yaml
from tailrace.demo.postgres import EmbeddedPostgres
from tailrace.runtime.build import open_pipeline
from tailrace.runtime.report import Silent
from tailrace.spark import session

_COLUMNS = {"id": "bigint", "name": "string", "total": "decimal(12,2)", "seq": "bigint"}
_QUERY = "SELECT id, name, total FROM people"
_FEW, _LARGE, _SMALL = 5_000, 1_000_000, 10
TARGETS, SIZES, MANY = ("sqlite", "duckdb", "postgres", "delta"), (20_000, 100_000, 1_000_000), 10_000
Table = dict[int, tuple[str, str]]


class Writer:
    """Writes files of changes, and knows the table that they must become."""

    def __init__(self, folder: Path, keys: int, deletes: float = 0.1) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.table: Table = {}
        self._chance = random.Random(1)
        self._keys = keys
        self._deletes = deletes
        self._seq = 0
        self._files = 0

    def file(self, rows: int, *, each_key_once: bool = False) -> None:
        """Write one file more."""
        lines = ["id,name,total,seq,op"]
        for n in range(rows):
            self._seq += 1
            key = n if each_key_once else self._chance.randrange(self._keys)
            if self._chance.random() < self._deletes and not each_key_once:
                self.table.pop(key, None)
                lines.append(f"{key},,,{self._seq},D")
            else:
                total = f"{self._chance.randrange(10_000_000) / 100:.2f}"
                self.table[key] = (f"name {self._seq}", total)
                lines.append(f"{key},name {self._seq},{total},{self._seq},U")
        (self.folder / f"{self._files:06d}.csv").write_text("\n".join([*lines, ""]))
        self._files += 1


@dataclass
class Place:
    """Where the table is kept: a folder of its own, and for a server a schema of its own."""

    kind: str
    folder: Path
    spark: SparkSession
    server: EmbeddedPostgres | None

    @property
    def schema(self) -> str:
        return f"{self.folder.parent.name}_{self.folder.name}"

    def sink(self) -> dict[str, Any]:
        """Return its section of a pipeline file."""
        options: dict[str, Any] = {"path": str(self.folder / "table")}
        if self.kind == "postgres" and self.server:
            options = {
                "host": "127.0.0.1", "port": self.server.port, "database": "postgres", "username": self.server.user,
                "password": self.server.password, "schema": self.schema,
            }  # fmt: skip
        return {"sink_id": "table", "sink_type": self.kind, self.kind: options}

    def rows(self) -> Table:
        """Return the table, as others read it."""
        return {int(row[0]): (row[1], str(row[2])) for row in self._rows()}

    def _rows(self) -> Iterator[Sequence[Any]]:
        path = str(self.folder / "table")
        if self.kind == "sqlite":
            with closing(sqlite3.connect(path)) as db:
                yield from db.execute(_QUERY)
        elif self.kind == "duckdb":
            import duckdb

            with duckdb.connect(path) as duck:
                yield from duck.execute(_QUERY).fetchall()
        elif self.kind == "delta":
            yield from self.spark.read.format("delta").load(f"{path}/people").select("id", "name", "total").collect()
        elif self.server:
            import psycopg

            with psycopg.connect(self.server.dsn()) as connection:
                yield from connection.execute(f'SELECT id, name, total FROM "{self.schema}".people'.encode())


def applying(feed: Path, place: Place) -> float:
    """Run a pipeline from `feed` to its head; return the seconds."""
    text = {
        "pipeline_id": "bench",
        "source": {
            "source_type": "files", "path": str(feed), "format": "csv", "table": "people", "stable_seconds": 0,
            "columns": [{"name": name, "type": kind} for name, kind in _COLUMNS.items()],
        },
        "cdc": {"keys": ["id"], "operation_column": "op", "sequence_by": "seq"},
        "sinks": [place.sink()],
    }  # fmt: skip
    config = pipeline_from(read_yaml("bench", json.dumps(text).encode()), {}).config
    root = str(place.folder / "state")
    platform = PlatformConfig.model_validate(
        {"control": {"root": root}, "health_enabled": "false", "slice": {"max_rows": str(2 * _LARGE)}}
    )
    place.folder.mkdir(parents=True, exist_ok=True)
    with open_pipeline(config, platform) as pipeline:
        pipeline.__dict__["_session"] = place.spark
        started = time.monotonic()
        done = pipeline.run(once=True, report=Silent())
        seconds = time.monotonic() - started
    if error := done.first_error():
        raise error
    return seconds


def reading(spark: SparkSession, folder: Path) -> float:
    """Return the seconds that it takes to read and type all rows, the better of two."""
    schema = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
    times = []
    for _ in range(2):
        started = time.monotonic()
        rows = spark.read.option("header", "true").schema(f"{schema}, op string").csv(str(folder))
        rows.write.format("noop").mode("overwrite").save()
        times.append(time.monotonic() - started)
    return min(times)


class Bench:
    """The runs of one target."""

    def __init__(self, kind: str, folder: Path, spark: SparkSession, server: EmbeddedPostgres | None) -> None:
        self._kind = kind
        self._folder = folder / kind
        self._spark = spark
        self._server = server

    def place(self, name: str) -> Place:
        """Return a new place."""
        return Place(self._kind, self._folder / name, self._spark, self._server)

    def size(self, rows: int, files: int = 1, name: str = "") -> dict[str, object]:
        """Apply `rows` changes in `files` files; return the figures."""
        name = name or f"{rows}_{files}"
        work = Writer(self._folder / f"in_{name}", max(rows // 5, 1))
        for _ in range(files):
            work.file(rows // files)
        alone = reading(self._spark, work.folder)
        place = self.place(f"at_{name}")
        seconds = applying(work.folder, place)
        return {
            "target": self._kind,
            "rows": rows,
            "files": files,
            "seconds": round(seconds, 2),
            "rows_per_second": round(rows / seconds),
            "reading_seconds": round(alone, 2),
            "equal": place.rows() == work.table,
        }

    def few_into_many(self) -> dict[str, object]:
        """Apply a few changes to a large table and to an empty one; return both times, the better of three each."""
        work = Writer(self._folder / "in_large", _LARGE)
        work.file(_LARGE, each_key_once=True)
        large = self.place("at_large")
        applying(work.folder, large)
        small = Writer(self._folder / "in_few", _LARGE)
        times: dict[str, list[float]] = {"large": [], "empty": []}
        for n in range(3):
            work.file(_FEW)
            times["large"].append(applying(work.folder, large))
            if n == 0:
                small.file(_FEW)
            times["empty"].append(applying(small.folder, self.place(f"at_empty{n}")))
        figures = {name: round(min(found), 2) for name, found in times.items()}
        return {
            "target": self._kind,
            "rows": _FEW,
            "seconds_into_a_million": figures["large"],
            "seconds_into_none": figures["empty"],
            "ratio": round(figures["large"] / figures["empty"], 2),
            "equal": large.rows() == work.table,
        }


@contextmanager
def postgres(wanted: bool, folder: Path) -> Iterator[EmbeddedPostgres | None]:  # noqa: FBT001
    """Give a server for as long as it is needed."""
    if not wanted:
        yield None
        return
    with EmbeddedPostgres(folder / "server") as server:
        yield server


def run(targets: Sequence[str], sizes: Sequence[int], many: int, *, few: bool) -> Iterator[dict[str, Any]]:
    """Yield the figures of every run."""
    spark = session()
    folder = Path(tempfile.mkdtemp(prefix="bench-files-"))
    try:
        with postgres("postgres" in targets, folder) as server:
            for kind in targets:
                bench = Bench(kind, folder, spark, server)
                bench.size(20_000, name="warm")
                for rows in sizes:
                    yield bench.size(rows)
                if many:
                    yield bench.size(many * _SMALL, many)
                if few:
                    yield bench.few_into_many()
                shutil.rmtree(folder / kind)
        yield {"memory_mb": peak_memory_mb(spark), "equal": True}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Measure; exit 1 if a table is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--many", type=int, default=MANY)
    parser.add_argument("--few", action=argparse.BooleanOptionalAction, default=True)
    chosen = parser.parse_args()
    right = True
    for figures in run(chosen.targets, chosen.sizes, chosen.many, few=chosen.few):
        print(json.dumps(figures), flush=True)
        right = right and bool(figures["equal"])
    raise SystemExit(0 if right else 1)


if __name__ == "__main__":
    main()
