"""Rows of this process as a DataFrame, through Arrow: no Python worker is started to carry a handful of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.types import StructType


def described(columns: str) -> StructType:
    """Return the schema that `columns` spell out, as in a CREATE TABLE; no job is run for it."""
    return cast("StructType", StructType.fromDDL(columns))


def frame(spark: SparkSession, rows: Iterable[Sequence[object]], schema: str | StructType) -> DataFrame:
    """Return `rows` with the columns of `schema`; a moment without a zone is one of this machine's own."""
    shape = described(schema) if isinstance(schema, str) else schema
    some = list(rows)
    if not some:
        return spark.range(0).select(*(F.lit(None).cast(field.dataType).alias(field.name) for field in shape))
    return spark.createDataFrame(LocalDataToArrowConversion.convert(some, shape, use_large_var_types=False), shape)
