"""What a batch costs as its table grows: seconds and events per second for scd1 and scd2, at one size of batch.

    python -m bench.tables --rows 10000 1000000 10000000

Keys close together are the common case: recent rows. Random keys touch every file, and what bounds them is reading and
marking those. Each figure is the median of five batches after three to warm up: a large table is merged in another way
than a small one, and Java compiles that anew. Each table is compared at the end.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import tailrace

EVENTS, CHUNK, WARM, MEASURED = 10_000, 1_000_000, 3, 5


def measure(spark: SparkSession, folder: Path, rows: int, scd_type: Literal[1, 2], keys: str) -> dict[str, Any]:
    """Fill a table with `rows`, apply batches of `EVENTS` updates of close or random `keys`, and compare."""
    target = f"delta:{folder}/{scd_type}-{rows}-{keys}"
    for start in range(0, rows, CHUNK):
        _apply(target, scd_type, spark.range(start, min(start + CHUNK, rows)).withColumn("seq", F.lit(0)))
    chance = random.Random(rows)
    touched: set[int] = set()
    seconds: list[float] = []
    for n in range(1, WARM + MEASURED + 1):
        low = max(0, rows - EVENTS)
        chosen = range(low, rows) if keys == "close" else chance.sample(range(rows), min(EVENTS, rows))
        touched.update(chosen)
        batch = spark.createDataFrame([(key,) for key in chosen], "id bigint").withColumn("seq", F.lit(n))
        started = time.monotonic()
        _apply(target, scd_type, batch)
        seconds.append(round(time.monotonic() - started, 2))
    found = tailrace.read(target)
    current = found if scd_type == 1 else found.where("__END_AT IS NULL")
    row = current.agg(F.count(F.lit(1)), F.count_if(F.col("value") != "value 0")).first()
    median = statistics.median(seconds[WARM:])
    return {
        "scd_type": scd_type,
        "rows": rows,
        "keys": keys,
        "events": EVENTS,
        "seconds": seconds,
        "median_seconds": median,
        "events_per_second": round(EVENTS / median),
        "equal": row is not None and tuple(row) == (rows, len(touched)),
    }


def _apply(target: str, scd_type: Literal[1, 2], batch: Any) -> None:
    made = batch.selectExpr(
        "id", "concat('value ', seq) AS value", "repeat('x', 40) AS padding", "cast(seq AS bigint) AS seq"
    )
    tailrace.apply_changes(
        made, target, keys=["id"], sequence_by="seq", except_column_list=["seq"], stored_as_scd_type=scd_type
    )


def run(sizes: list[int], kinds: list[str], types: list[Literal[1, 2]]) -> dict[str, Any]:
    """Return the figures, and each as a ratio to the smallest table of its kind in the same run."""
    spark = tailrace.session()
    runs = []
    for scd_type in types:
        # The first batches of a session are slow, and must not be what the others are compared with.
        _measured(spark, min(sizes), scd_type, kinds[0])
        for keys in kinds:
            for rows in sizes:
                runs.append(_measured(spark, rows, scd_type, keys))
                first = next(r for r in runs if (r["scd_type"], r["keys"]) == (scd_type, keys))
                runs[-1]["ratio"] = round(runs[-1]["median_seconds"] / first["median_seconds"], 2)
                print(json.dumps(runs[-1]), flush=True)
    return {"runs": runs}


def _measured(spark: SparkSession, rows: int, scd_type: Literal[1, 2], keys: str) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="tailrace-bench-"))
    try:
        return measure(spark, folder, rows, scd_type, keys)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
