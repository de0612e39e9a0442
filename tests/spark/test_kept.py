"""Rows that are kept are read once, and nothing of them is left when they are forgotten."""

from __future__ import annotations

import shutil
from pathlib import Path

from pyspark.sql import SparkSession

from tailrace.spark.kept import forget, keep


def test_kept_rows_are_there_though_what_they_were_read_from_is_gone(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "rows"
    spark.range(100).write.parquet(str(path))
    kept = keep(spark.read.parquet(str(path)))
    assert kept.count() == 100
    shutil.rmtree(path)
    assert kept.where("id >= 90").count() == 10
    forget(kept)


def test_forgotten_rows_take_no_memory(spark: SparkSession) -> None:
    held = _held(spark)
    kept = keep(spark.range(1000))
    kept.count()
    assert _held(spark) > held
    forget(kept)
    assert _held(spark) == held


def _held(spark: SparkSession) -> int:
    """Return how many bytes of rows Spark holds."""
    sizes = spark.sparkContext._jsc.sc().getRDDStorageInfo()
    return sum(size.memSize() + size.diskSize() for size in sizes)
