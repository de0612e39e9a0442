"""Change rows of one shape, put into a table with `apply_changes` and read back."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

import tailrace
from tailrace.spark.frame import frame

SCHEMA = "id int, name string, size int, seq bigint, op string"
PARTIAL = f"{SCHEMA}, _cdc_unchanged array<string>"


def feed(spark: SparkSession, *rows: tuple[Any, ...], schema: str = SCHEMA) -> DataFrame:
    return frame(spark, rows, schema)


def apply(source: DataFrame, target: str, **options: Any) -> tailrace.ApplyResult:
    given = {
        "keys": ["id"],
        "sequence_by": "seq",
        "apply_as_deletes": "op = 'd'",
        "except_column_list": ["seq", "op"],
        **options,
    }
    return tailrace.apply_changes(source, target, **given)


def rows(target: str, *names: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in tailrace.read(target).selectExpr(*(names or ["*"])).collect()), key=str)
