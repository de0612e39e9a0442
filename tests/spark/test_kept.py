"""Rows that are kept are read once, and nothing of them is left when they are forgotten."""

from __future__ import annotations

import shutil
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tailrace.spark.kept import forget, keep


def test_kept_rows_are_there_though_what_they_were_read_from_is_gone(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "rows"
    spark.range(100).write.parquet(str(path))
    kept = keep(spark.read.parquet(str(path)))
    assert kept.count() == 100
    shutil.rmtree(path)
    assert kept.where("id >= 90").count() == 10
    forget(kept)


def test_forgotten_rows_are_not_held(spark: SparkSession) -> None:
    kept = keep(spark.range(1000))
    kept.count()
    assert _held(kept)
    forget(kept)
    assert not _held(kept)


def _held(kept: DataFrame) -> bool:
    """Say whether Spark holds these rows."""
    number = kept._jdf.queryExecution().logical().rdd().id()
    return number in kept.sparkSession.sparkContext._jsc.getPersistentRDDs()
