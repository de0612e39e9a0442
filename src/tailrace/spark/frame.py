"""Rows of this process as a DataFrame, through Arrow: no Python worker is started to carry a handful of them.

This is the only way from here into Spark. Spark ends a table at the first record batch without rows, wherever it
stands, and says nothing: whoever hands it a table as it came may lose what lies behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.pandas.types import from_arrow_schema
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
    return from_arrow(spark, LocalDataToArrowConversion.convert(some, shape, use_large_var_types=False), shape)


def from_arrow(spark: SparkSession, table: pa.Table, schema: StructType | None = None) -> DataFrame:
    """Return all rows of `table`, with the columns of `schema` or, without one, those that Arrow's types give."""
    shape = schema or from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
    if not table.num_rows:
        return frame(spark, [], shape)
    whole = pa.Table.from_batches([batch for batch in table.to_batches() if batch.num_rows], table.schema)
    return spark.createDataFrame(whole, shape)
