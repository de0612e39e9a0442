"""Columns between Spark, Arrow and files: the types of a table, the hash of a key, rows in and out.

The hash of a key decides in which bucket its row lies. It must not change when a key's type is widened, so numbers are
hashed as doubles, and days as moments; two keys may well have the same.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from tailrace.apply.engine import OP, POSITION, UNCHANGED, column
from tailrace.core.table import Table
from tailrace.spark.frame import described, from_arrow
from tailrace.targets._columns import columns_of
from tailrace.targets.parquet.merge import DAY, HASH, kept

HASHES = 1 << 30
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


class Shapes:
    """The schemas of one table's files, for as long as the table has this shape."""

    def __init__(self, table: Table, mode: str) -> None:
        self.table = table
        ours = {HASH: "int"} if mode == "scd1" else {}
        self.rows = _schema({**dict(columns_of(table, mode)), **ours})
        keys = {key: table.column(key).type for key in table.keys}
        self.graves = _schema({**keys, POSITION: "string", HASH: "int", DAY: "string"})


def _schema(types: Mapping[str, str]) -> pa.Schema:
    listed = ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in types.items())
    made = to_arrow_schema(described(listed))
    return pa.schema([pa.field(field.name, field.type) for field in made])


def hashed(table: Table) -> Expression:
    """Return the hash of the key of a row."""
    return F.pmod(F.xxhash64(*(_canonical(table.column(key).type, column(key)) for key in table.keys)), F.lit(HASHES))


def _canonical(kind: str, value: Expression) -> Expression:
    if kind.partition("(")[0] in _NUMBERS:
        return value.cast("double")
    return value.cast("timestamp_ntz") if kind == "date" else value


def outgoing(rows: DataFrame, table: Table, partial: Sequence[str]) -> pa.Table:
    """Return the rows of a batch in mode scd1 as Arrow, ready to be merged."""
    carried = [name for name in table.names() if name in rows.columns]
    values = [column(name).cast(table.column(name).type).alias(name) for name in carried]
    flags = [
        F.coalesce(F.array_contains(column(UNCHANGED), name), F.lit(False)).alias(kept(n))
        for n, name in enumerate(partial)
    ]
    return rows.select(*values, POSITION, hashed(table).cast("int").alias(HASH), OP, *flags).toArrow()


def incoming(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return stored columns as rows of Spark."""
    numbered = table.rename_columns([f"c{n}" for n in range(table.num_columns)])
    return from_arrow(spark, numbered).select(
        *(F.col(f"c{n}").alias(name) for n, name in enumerate(table.column_names))
    )


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give `table` the columns of `schema`: one that it lacks is NULL."""
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
        else:
            found = table[field.name]
            columns.append(found if found.type == field.type else found.cast(field.type))
    return pa.table(columns, schema=schema)


def to_file(table: pa.Table) -> bytes:
    """Return `table` as a Parquet file."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def from_file(raw: bytes, schema: pa.Schema) -> pa.Table:
    """Return the columns of a Parquet file that `schema` names."""
    file = pq.ParquetFile(io.BytesIO(raw))
    names = [field.name for field in schema if field.name in file.schema_arrow.names]
    whole = file.read() if len(names) == len(file.schema_arrow.names) else file.read().select(names)
    return conformed(whole, schema)
