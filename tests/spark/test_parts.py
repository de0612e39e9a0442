"""Rows that leave Spark part by part."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tailrace.spark import parts as module
from tailrace.spark.parts import parts


@pytest.mark.parametrize("in_memory", [0, 40_000, module.IN_MEMORY])
def test_every_row_comes_once_whether_it_waited_in_memory_or_in_a_file(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    monkeypatch.setattr(module, "IN_MEMORY", in_memory)
    rows = spark.range(0, 50_000, numPartitions=5).select("id", F.timestamp_seconds("id").alias("at"))
    table = pa.Table.from_batches(parts(rows))
    assert table.sort_by("id").equals(rows.toArrow())


def test_what_goes_wrong_in_spark_is_told(spark: SparkSession) -> None:
    rows = spark.range(0, 50_000, numPartitions=5).select(
        F.when(F.col("id") < 40_000, F.col("id")).otherwise(F.raise_error(F.lit("broken")).cast("bigint"))
    )
    with pytest.raises(PySparkException, match="broken"):
        list(parts(rows))


def test_whoever_takes_his_time_holds_up_nobody(spark: SparkSession) -> None:
    # More than the sockets between Spark and this process hold.
    taken = parts(spark.range(0, 400_000, numPartitions=8).select(F.repeat(F.lit("x"), 100)))
    next(taken)
    counted: list[int] = []
    other = threading.Thread(target=lambda: counted.append(spark.range(10).count()), daemon=True)
    other.start()
    other.join(60)
    assert counted == [10]
    assert sum(part.num_rows for part in taken) == 400_000 - 10_000
