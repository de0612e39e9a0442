"""From a directory of CSV files into a table: rows per second against reading alone, and whether the table is right.

    python -m bench.files --rows 500000 --files 10 1000

Reading alone is what Spark takes to read the files and type their columns. The session is warm: what is measured is the
second run of its kind.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from pyspark.sql import SparkSession

from bench.apply import peak_memory_mb
from tailrace.config.load import pipeline_from
from tailrace.config.platform import PlatformConfig
from tailrace.config.yaml_text import read_yaml
from tailrace.runtime.build import open_pipeline
from tailrace.runtime.report import Silent
from tailrace.spark import session

_COLUMNS = {"id": "bigint", "name": "string", "total": "decimal(12,2)", "seq": "bigint"}
Table = dict[int, tuple[str, str]]


def write(folder: Path, rows: int, files: int, keys: int) -> Table:
    """Write `rows` changes of `keys` rows into `files` files; return the table that they must become."""
    folder.mkdir(parents=True)
    chance, table = random.Random(1), dict[int, tuple[str, str]]()
    share = -(-rows // files)
    for n in range(files):
        lines = ["id,name,total,seq,op"]
        for seq in range(n * share, min(rows, (n + 1) * share)):
            key, total = chance.randrange(keys), f"{chance.randrange(10_000_000) / 100:.2f}"
            if chance.random() < 0.1:
                table.pop(key, None)
                lines.append(f"{key},,,{seq},D")
            else:
                table[key] = (f"name {seq}", total)
                lines.append(f"{key},name {seq},{total},{seq},U")
        (folder / f"{n:06d}.csv").write_text("\n".join([*lines, ""]))
    return table


def reading(spark: SparkSession, folder: Path) -> float:
    """Return the seconds that it takes to read and type all rows."""
    started = time.monotonic()
    schema = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
    rows = spark.read.option("header", "true").schema(f"{schema}, op string").csv(str(folder))
    rows.write.format("noop").mode("overwrite").save()
    return time.monotonic() - started


def applying(spark: SparkSession, folder: Path, work: Path) -> float:
    """Run a pipeline from `folder` into SQLite to its head; return the seconds."""
    text = {
        "pipeline_id": "bench",
        "source": {
            "source_type": "files", "path": str(folder), "format": "csv", "table": "people", "stable_seconds": 0,
            "columns": [{"name": name, "type": kind} for name, kind in _COLUMNS.items()],
        },
        "cdc": {"keys": ["id"], "operation_column": "op", "sequence_by": "seq"},
        "sinks": [{"sink_id": "box", "sink_type": "sqlite", "sqlite": {"path": str(work / "box.db")}}],
    }  # fmt: skip
    config = pipeline_from(read_yaml("bench", json.dumps(text).encode()), {}).config
    platform = PlatformConfig.model_validate({"control": {"root": str(work / "state")}, "health_enabled": "false"})
    with open_pipeline(config, platform) as pipeline:
        pipeline.__dict__["_session"] = spark
        started = time.monotonic()
        done = pipeline.run(once=True, report=Silent())
        seconds = time.monotonic() - started
    if error := done.first_error():
        raise error
    return seconds


def measure(spark: SparkSession, rows: int, files: int, folder: Path) -> dict[str, object]:
    """Write, read and apply; return the figures."""
    expected = write(folder / "in", rows, files, max(rows // 5, 1))
    alone = min(reading(spark, folder / "in") for _ in range(2))
    seconds = [applying(spark, folder / "in", folder / f"run{n}") for n in range(2)][-1]
    with closing(sqlite3.connect(folder / "run1" / "box.db")) as db:
        found = {row[0]: (row[1], row[2]) for row in db.execute("SELECT id, name, total FROM people")}
    return {
        "rows": rows,
        "files": files,
        "seconds": round(seconds, 3),
        "rows_per_second": round(rows / seconds),
        "reading_seconds": round(alone, 3),
        "peak_memory_mb": peak_memory_mb(spark),
        "equal": found == expected,
    }


def main() -> None:
    """Measure; exit 1 if a table is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--files", type=int, nargs="+", default=[10, 1000])
    chosen = parser.parse_args()
    spark = session()
    folder = Path(tempfile.mkdtemp(prefix="bench-files-"))
    try:
        figures = [measure(spark, chosen.rows, files, folder / str(files)) for files in chosen.files]
    finally:
        shutil.rmtree(folder)
    print(json.dumps(figures, indent=2))
    raise SystemExit(0 if all(figure["equal"] for figure in figures) else 1)


if __name__ == "__main__":
    main()
