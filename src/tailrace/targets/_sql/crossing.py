"""Rows from Spark to a database and back: whole columns as Arrow, each in the form that the database keeps."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tailrace.apply.engine import column
from tailrace.spark.frame import from_arrow
from tailrace.spark.kinds import kind_of
from tailrace.spark.parts import parts
from tailrace.targets._columns import UNCHANGED
from tailrace.targets._sql.dialect import Dialect, Kind, in_spark
from tailrace.targets._sql.statements import KEPT


def outgoing(
    rows: DataFrame, types: Mapping[str, str], dialect: Dialect, keys: Sequence[str] = ()
) -> closing[Generator[pa.RecordBatch]]:
    """Give the columns of `rows` that `types` names, as they are stored, part by part.

    Within a part they come in the order of `keys`: an index takes neighbours several times as fast as rows that lie
    all over it. Where there is no index, their order is nobody's.
    """
    have = {field.name: kind_of(field.dataType) for field in rows.schema}
    values = []
    for name, kind in types.items():
        value = column(name) if have[name] == in_spark(kind) else column(name).cast(in_spark(kind))
        values.append(dialect.kind(kind).out(value).alias(name))
    if keys and dialect.keyed:
        rows = rows.sortWithinPartitions(*map(column, keys))
    return closing(parts(rows.select(*values)))


def in_utc(column: pa.Array) -> pa.Array:
    """Return moments as what a clock in UTC shows: Arrow writes a time with a zone five times as slowly."""
    zoned = column.cast(pa.timestamp("us", "UTC")) if column.type.tz else column
    return zoned.cast(pa.timestamp("us"))


def times_as_text(column: pa.Array) -> pa.Array:
    """Return `column` with moments in UTC and marked so, as text that every database reads alike."""
    text = in_utc(column).cast(pa.string())
    return pc.binary_join_element_wise(text, "Z", "") if column.type.tz else text


def one_value(column: pa.Array) -> object:
    """Return the first value of `column`, to be bound to a statement that casts it to its type."""
    return (times_as_text(column) if pa.types.is_timestamp(column.type) else column)[0].as_py()


def with_kept(rows: DataFrame, partial: Sequence[str]) -> DataFrame:
    """Add what `_cdc_unchanged` says, as one character for each of `partial`: 1 where the target keeps its value."""
    flags = (F.when(F.array_contains(column(UNCHANGED), name), "1").otherwise("0") for name in partial)
    return rows.withColumn(KEPT, F.concat(*flags))


def incoming(spark: SparkSession, table: pa.Table, kinds: Mapping[str, Kind]) -> DataFrame:
    """Return stored columns as Spark's own types."""
    # Names from outside are given at the end: until then a column is a number.
    numbered = table.rename_columns([f"c{n}" for n in range(table.num_columns)])
    values = (kind.back(F.col(f"c{n}")).alias(name) for n, (name, kind) in enumerate(kinds.items()))
    return from_arrow(spark, numbered).select(*values)
