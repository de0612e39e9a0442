"""Histories through a memory log and a drain into a target, for tests that compare the outcome with a model."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from tailrace.apply.target import Target
from tailrace.control.progress import Progress
from tailrace.control.rejects import Rejects
from tailrace.core.change import Change
from tailrace.core.table import Evolution
from tailrace.log.memory import MemoryLog
from tailrace.runtime.drain import Drain, Pace, drain
from tailrace.runtime.fold import Counts, Fold
from tailrace.runtime.report import Silent
from tailrace.runtime.rules import Choice, Rules
from tailrace.sources.memory import MemorySource
from tailrace.targets import delta
from tests.spark.histories import TABLE


def logged(changes: Sequence[Change], page_rows: int, *, ordered: bool = True, life: int = 1) -> MemoryLog:
    log = MemoryLog("memory" if life == 1 else f"memory-{life}", life, ordered=ordered)
    log.recover(None)
    for page in MemorySource([TABLE], changes, page_rows=page_rows).pages(None):
        log.append(page)
    return log


def drained(
    spark: SparkSession,
    log: MemoryLog,
    target: Target,
    folder: Path,
    max_rows: int,
    mode: str = "scd1",
    soft: str = "",
    tracked: tuple[str, ...] = (),
    limit: int = 0,
) -> list[Counts]:
    rejects = Rejects(folder / "rejects", enabled=limit > 0, limit=limit)
    work = Fold(lambda: spark, log, target, Rules(mode, Evolution.ALTER, 1 << 20, soft), rejects, Silent())
    pace = Pace(max_rows, 0.1)
    tables = {f"cdc.{TABLE.name}": Choice(TABLE.name, track_history=tracked)}
    job = Drain("t", log, work, tables, Progress(folder / "progress"), pace, Silent())
    done = drain(job, threading.Event(), lambda step: step(), upto=log.head())
    return [counts for _, slices in done for counts in slices]


def lake(spark: SparkSession, folder: Path, mode: delta.Mode = "scd1") -> Target:
    return delta.open_target(
        "t",
        delta.Options(path=str(folder / "lake")),
        spark=lambda: spark,
        pipeline_id="p",
        tables={TABLE.name: "packed"},
        mode=mode,
    )
