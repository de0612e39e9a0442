"""Rows of this process reach Spark whole, whatever batches they come in."""

from __future__ import annotations

import datetime
import random
import re
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import tailrace
from tailrace.spark.frame import frame, from_arrow

SOURCE = Path(tailrace.__file__).parent

COLUMNS = (
    "n bigint, s string, `odd.na``me` array<string>, at timestamp, plain timestamp_ntz, b binary, d decimal(10,2), "
    "t struct<a: int, `b c`: string>, m map<string, int>, f float, day date, yes boolean"
)
ROW = (
    1, "x", ["a", None], datetime.datetime(2020, 1, 1, 1, 2, 3, 4), datetime.datetime(2020, 1, 1), b"x",
    Decimal("1.50"), (1, "y"), {"a": 1}, 1.5, datetime.date(1, 1, 1), True,
)  # fmt: skip


def test_a_table_with_empty_batches_anywhere_keeps_all_its_rows(spark: SparkSession) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    sizes = [0, *(chance.choice([0, 0, 1, 3]) for _ in range(12)), 2, 0]
    chance.shuffle(sizes)
    batches, first = [], 0
    for size in sizes:
        batches.append(pa.record_batch({"n": pa.array(range(first, first + size), pa.int64())}))
        first += size
    rows = from_arrow(spark, pa.Table.from_batches(batches)).collect()
    assert sorted(row["n"] for row in rows) == list(range(first)), f"seed {seed}"


def test_values_of_every_type_are_what_spark_itself_makes_of_them(spark: SparkSession) -> None:
    rows = [ROW, (None,) * len(ROW)]
    ours, theirs = frame(spark, rows, COLUMNS), spark.createDataFrame(rows, COLUMNS)
    assert ours.schema == theirs.schema
    assert ours.collect() == theirs.collect()
    nothing = frame(spark, [], COLUMNS)
    assert (nothing.schema, nothing.collect()) == (theirs.schema, [])


def test_there_is_no_other_way_into_spark() -> None:
    found = [
        file.relative_to(SOURCE).as_posix()
        for file in SOURCE.rglob("*.py")
        if re.search(r"\bcreateDataFrame\(", file.read_text())
    ]
    assert found == ["spark/frame.py"]
