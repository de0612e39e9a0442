"""Rows that leave Spark part by part."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tailrace.core.errors import Retryable
from tailrace.spark import parts as module
from tailrace.spark.effort import PART, suit
from tailrace.spark.parts import parts


@pytest.mark.parametrize("in_memory", [0, 40_000, module.IN_MEMORY])
def test_every_row_comes_once_whether_it_waited_in_memory_or_in_a_file(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    monkeypatch.setattr(module, "IN_MEMORY", in_memory)
    rows = spark.range(0, 50_000, numPartitions=5).select("id", F.timestamp_seconds("id").alias("at"))
    table = pa.Table.from_batches(parts(rows))
    assert table.sort_by("id").equals(rows.toArrow())


def test_a_struct_may_be_null_though_its_fields_never_are(spark: SparkSession) -> None:
    inner = F.struct(F.lit(1).alias("a"))
    rows = spark.range(1).select(F.when(F.lit(False), F.struct(inner.alias("s"))).alias("v"), F.array(inner).alias("w"))
    assert pa.Table.from_batches(parts(rows)).to_pylist() == [{"v": None, "w": [{"a": 1}]}]


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


def test_whoever_goes_no_further_leaves_nothing_behind(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IN_MEMORY", 0)
    taken = parts(spark.range(0, 400_000, numPartitions=8).select(F.repeat(F.lit("x"), 100)))
    next(taken)
    taken.close()
    assert not any(thread.name == "parts" for thread in threading.enumerate())
    assert not any("tailrace-parts" in str(link.resolve()) for link in Path("/proc/self/fd").glob("*"))
    assert spark.range(10).count() == 10


def test_a_full_disk_on_the_way_is_told_as_one(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "IN_MEMORY", 0)
    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(Retryable) as refused:
        list(parts(spark.range(0, 50_000, numPartitions=5)))
    assert refused.value.code == "disk-full"


def test_many_rows_are_divided_into_more_parts(spark: SparkSession) -> None:
    ours = spark.newSession()
    for rows, expected in [(0, "2"), (PART * 7, "7"), (10, "2")]:
        suit(ours, rows)
        assert ours.conf.get("spark.sql.shuffle.partitions") == expected


def test_a_part_may_take_longer_than_connecting_may(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_AUTH_SOCKET_TIMEOUT", "1")
    slow = spark.range(0, 2, numPartitions=1).selectExpr(
        "id", "java_method('java.lang.Thread', 'sleep', 1500L) AS slept"
    )
    assert sum(part.num_rows for part in parts(slow)) == 2
