"""What a batch costs as its table grows: seconds and events per second for scd1 and scd2, at one size of batch.

    python -m bench.tables --rows 10000 1000000 10000000

Keys close together are the common case: recent rows. Random keys touch every file, and what bounds them is reading and
marking those.

The tables of all sizes are there at once and take batches in turns, so that whatever else the machine does falls on
each alike; the first batches only warm up, because a large table is merged by other statements than a small one, and
Java compiles both for a while. A figure is the median of the batches after those. On a machine that others use too, the
CPU says more than the clock on the wall, so both are told. Each table is compared at the end, row by row.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tailrace
from dev.cpu import worked

EVENTS, CHUNK = 10_000, 1_000_000
ROUNDS = {"close": (8, 9), "random": (2, 3)}
"""By kind of keys: how many batches each table takes to warm up, and how many are measured."""


@dataclass
class Measured:
    """One table, the newest batch that its keys were in, and what each batch took on the wall and of CPU."""

    target: str
    rows: int
    scd_type: Literal[1, 2]
    written: int = 0
    newest: dict[int, int] = field(default_factory=dict)
    took: list[tuple[float, float]] = field(default_factory=list)

    def fill(self, spark: SparkSession) -> None:
        """Write every row once."""
        for start in range(0, self.rows, CHUNK):
            self._apply(spark.range(start, min(start + CHUNK, self.rows)), 0)
        self.written = self.rows

    def update(self, spark: SparkSession, n: int, keys: Iterable[int]) -> None:
        """Apply batch `n`, a change of each of `keys`."""
        chosen = list(keys)
        batch = spark.createDataFrame([(key,) for key in chosen], "id bigint").localCheckpoint()
        wall, cpu = time.monotonic(), worked()
        self._apply(batch, n)
        self.took.append((time.monotonic() - wall, worked() - cpu))
        self.newest |= dict.fromkeys(chosen, n)
        self.written += len(chosen)

    def equal(self, spark: SparkSession) -> bool:
        """Say whether the table holds the newest value of every key and, as a history, a record for every change."""
        found = tailrace.read(self.target)
        current = found if self.scd_type == 1 else found.where("__END_AT IS NULL")
        newest = spark.createDataFrame(list(self.newest.items()), "id bigint, n bigint")
        expected = F.concat(F.lit("value "), F.coalesce("n", F.lit(0)))
        right = current.join(newest, "id", "left").where(F.col("value") == expected)
        whole = self.rows if self.scd_type == 1 else self.written
        return right.select("id").distinct().count() == current.count() == self.rows and found.count() == whole

    def _apply(self, batch: DataFrame, n: int) -> None:
        made = batch.select("id", F.lit(n).cast("bigint").alias("seq")).selectExpr(
            "id", "concat('value ', seq) AS value", "repeat('x', 40) AS padding", "seq"
        )
        tailrace.apply_changes(
            made,
            self.target,
            keys=["id"],
            sequence_by="seq",
            except_column_list=["seq"],
            stored_as_scd_type=self.scd_type,
        )


def measure(
    spark: SparkSession, folder: Path, sizes: list[int], kinds: list[str], scd_type: Literal[1, 2]
) -> list[dict[str, Any]]:
    """Fill a table of each size, let them take batches of each kind of keys in turns, and compare them."""
    tables = [Measured(f"delta:{folder}/{rows}", rows, scd_type) for rows in sizes]
    for table in tables:
        table.fill(spark)
    figures, n = [], 0
    for keys in kinds:
        warm, measured = ROUNDS[keys]
        for table in tables:
            table.took.clear()
        for _ in range(warm + measured):
            n += 1
            for table in tables if n % 2 else reversed(tables):
                table.update(spark, n, _chosen(keys, table.rows, n))
        figures += [_figures(table, keys, table.took[warm:], tables[0].took[warm:]) for table in tables]
    for figure in figures:
        figure["equal"] = next(table for table in tables if table.rows == figure["rows"]).equal(spark)
        print(json.dumps(figure), flush=True)
    return figures


def _chosen(keys: str, rows: int, n: int) -> Iterable[int]:
    if keys == "close":
        return range(max(0, rows - EVENTS), rows)
    return random.Random(n).sample(range(rows), min(EVENTS, rows))


def _figures(
    table: Measured, keys: str, took: list[tuple[float, float]], smallest: list[tuple[float, float]]
) -> dict[str, Any]:
    """Return what `table` took, also as a ratio to the `smallest` table in the same rounds."""
    wall, cpu = (statistics.median(each) for each in zip(*took, strict=True))
    least_wall, least_cpu = (statistics.median(each) for each in zip(*smallest, strict=True))
    return {
        "scd_type": table.scd_type,
        "rows": table.rows,
        "keys": keys,
        "events": EVENTS,
        "seconds": [round(seconds, 2) for seconds, _ in took],
        "cpu_seconds": [round(seconds, 2) for _, seconds in took],
        "median_seconds": round(wall, 2),
        "median_cpu_seconds": round(cpu, 2),
        "events_per_second": round(EVENTS / wall),
        "ratio": round(wall / least_wall, 2),
        "cpu_ratio": round(cpu / least_cpu, 2),
    }


def run(sizes: list[int], kinds: list[str], types: list[Literal[1, 2]]) -> dict[str, Any]:
    """Return the figures, and each as a ratio to the first size of its kind."""
    spark = tailrace.session()
    runs = []
    for scd_type in types:
        folder = Path(tempfile.mkdtemp(prefix="tailrace-bench-"))
        try:
            runs += measure(spark, folder, sizes, kinds, scd_type)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return {"runs": runs}


def main() -> None:
    """Run the benchmark; exit 1 if a table is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 1_000_000, 10_000_000])
    parser.add_argument("--keys", nargs="+", choices=["close", "random"], default=["close", "random"])
    parser.add_argument("--scd-type", type=int, nargs="+", choices=[1, 2], default=[1, 2])
    options = parser.parse_args()
    figures = run(options.rows, options.keys, options.scd_type)
    raise SystemExit(0 if all(one["equal"] for one in figures["runs"]) else 1)


if __name__ == "__main__":
    main()
