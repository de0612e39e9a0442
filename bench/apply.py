"""From the change log to Delta: events per second, seconds per slice, and whether the table is right.

    python -m bench.apply --events 500000 --keys 100000 --slices 1

The session is warm: every measured run is the second of its kind. The time counted is that of the drain,
from the first look at the log to the saved progress of the last slice.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.workload import TABLE, TOPIC, Workload
from tailrace.control.progress import Progress
from tailrace.control.rejects import Rejects
from tailrace.core.table import Evolution
from tailrace.log.landed import LandedLog
from tailrace.runtime.drain import Drain, Pace, drain
from tailrace.runtime.fold import Fold
from tailrace.runtime.report import Silent
from tailrace.runtime.rules import Choice, Rules
from tailrace.spark import session
from tailrace.targets import delta


def measure(spark: SparkSession, work: Workload, slices: int, folder: Path) -> dict[str, object]:
    """Log `work`, drain it in `slices`, compare the table, and return the figures."""
    log = LandedLog(folder / "log", "bench", 1)
    log.recover(None)
    for page in work.pages():
        log.append(page)
    max_rows = -(-work.events // slices) + work.page_rows if slices > 1 else work.events
    target = delta.open_target(
        "lake",
        delta.Options(path=str(folder / "lake")),
        spark=lambda: spark,
        pipeline_id="bench",
        tables={TABLE.name: "orders"},
        mode="scd1",
    )
    rejects = Rejects(folder / "rejects", enabled=False, limit=0)
    fold = Fold(lambda: spark, log, target, Rules("scd1", Evolution.ALTER, 1 << 24), rejects, Silent())
    pace = Pace(max_rows, 1.0)
    job = Drain("lake", log, fold, {TOPIC: Choice(TABLE.name)}, Progress(folder / "p"), pace, Silent())
    started = time.monotonic()
    each: list[float] = []
    for _ in drain(job, threading.Event(), lambda step: step(), upto=log.head()):
        each.append(round(time.monotonic() - started - sum(each), 3))
    seconds = time.monotonic() - started
    rows = spark.read.format("delta").load(str(folder / "lake" / "orders"))
    found = {r[0]: (r[1], r[2], str(r[3])) for r in rows.select("id", "status", "quantity", "total").toLocalIterator()}
    return {
        "events": work.events,
        "keys": work.keys,
        "slices": len(each),
        "seconds": round(seconds, 3),
        "seconds_per_slice": each,
        "events_per_second": round(work.events / seconds),
        "rows": len(found),
        "equal": found == work.table(),
    }


def run(events: int, keys: int, slices: Sequence[int]) -> dict[str, Any]:
    """Return the figures of one run per number of slices, and the most memory that Python and the JVM held."""
    spark = session()
    folder = Path(tempfile.mkdtemp(prefix="tailrace-bench-"))
    try:
        for n, count in enumerate(slices):
            measure(spark, Workload(events, keys), count, folder / f"warm-{n}")
        runs = [measure(spark, Workload(events, keys), count, folder / f"{n}") for n, count in enumerate(slices)]
        return {"runs": runs, "driver_memory_mb": peak_memory_mb(spark)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def peak_memory_mb(spark: SparkSession) -> int:
    """Return the most resident memory that this process and Spark's JVM have held, in megabytes."""
    jvm: Any = spark.sparkContext._jvm
    java = jvm.java.lang.ProcessHandle.current().pid()
    return sum(_peak(pid) for pid in ("self", str(java))) // 1024


def _peak(pid: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def main() -> None:
    """Run the benchmark and print its figures as JSON; exit 1 if a table is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--slices", type=int, nargs="+", default=[1, 5])
    options = parser.parse_args()
    figures = run(options.events, options.keys, options.slices)
    print(json.dumps(figures, indent=2))
    raise SystemExit(0 if all(one["equal"] for one in figures["runs"]) else 1)


if __name__ == "__main__":
    main()
