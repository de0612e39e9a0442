"""Is a target's table equal to its source's, row by row and value by value?

Both sides become the same Python values: the target's type decides how the text that PostgreSQL prints
is read, so that numbers are exact decimals, a timestamptz is an instant, and what the target keeps as
text (json, uuid, enum, numeric without a scale) must match to the byte. NULL equals only NULL. A column
that the target lacks makes the tables differ; one that only the target has is what a dropped column
leaves behind, and there is nothing to compare it with.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import SparkSession

from tailrace.core.table import file_name, target_names

Key = tuple[object, ...]
Read = Callable[[str], pa.Table]
"""Gives the rows that a target holds in the table of a name."""

_SHOWN = 10

_TEXT_FORMS = {
    pa.string(): "text",
    pa.large_string(): "text",
    pa.bool_(): "bool",
    pa.int8(): "int8",
    pa.int16(): "int8",
    pa.int32(): "int8",
    pa.int64(): "int8",
    pa.float32(): "float4",
    pa.float64(): "float8",
    pa.date32(): "date",
    pa.binary(): "bytea",
    pa.large_binary(): "bytea",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """How one table of the source and of the target compare; no values of rows but their keys."""

    table: str
    source_rows: int
    target_rows: int
    missing: tuple[Key, ...] = ()
    """Rows that only the source has."""
    extra: tuple[Key, ...] = ()
    """Rows that only the target has, or has twice."""
    differing: dict[Key, tuple[str, ...]] = field(default_factory=dict)
    """Rows that both have, with the columns whose values differ."""
    columns: tuple[str, ...] = ()
    """Columns that only the source has."""

    @property
    def equal(self) -> bool:
        """Say whether every row of the one is in the other, with the same values."""
        return not (self.missing or self.extra or self.differing or self.columns)

    def lines(self) -> list[str]:
        """Return what a person reads: one line, and where the tables differ one for each key, up to a few."""
        if self.equal:
            return [f"{self.table}: {self.source_rows} rows, equal"]
        texts = [f"column {name}: only in the source" for name in self.columns]
        texts += [f"key {_shown(key)}: only in the source" for key in self.missing]
        texts += [f"key {_shown(key)}: only in the target" for key in self.extra]
        texts += [f"key {_shown(key)}: differs in {', '.join(names)}" for key, names in self.differing.items()]
        more = [f"and {len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
        head = f"{self.table}: {self.source_rows} rows in the source, {self.target_rows} in the target, DIFFERENT"
        return [head, *(f"  {text}" for text in (*texts[:_SHOWN], *more))]


def compare(connection: psycopg.Connection, table: str, held: pa.Table) -> Comparison:
    """Compare `table` (`schema.name`) as `connection` sees it with the rows that a target holds of it."""
    name = sql.Identifier(*table.split(".", 1))
    keys, columns = _shape(connection, name.as_string(connection))
    if not keys:
        raise ValueError(f'table "{table}" has no primary key to compare by')
    common = [column for column in columns if column in held.column_names]
    lost = tuple(column for column in columns if column not in common)
    if any(key in lost for key in keys):
        return Comparison(table, _count(connection, name), held.num_rows, columns=lost)
    at = [common.index(key) for key in keys]
    source = {tuple(row[n] for n in at): row for row in _source_rows(connection, name, common, held.schema)}
    count, extra, differing = len(source), [], {}
    values = [[_exact(value) for value in held.column(column).to_pylist()] for column in common]
    for row in zip(*values, strict=True):
        key = tuple(row[n] for n in at)
        expected = source.pop(key, None)
        if expected is None:
            extra.append(key)
        elif expected != row:
            pairs = zip(common, expected, row, strict=True)
            differing[key] = tuple(column for column, one, other in pairs if one != other)
    missing = tuple(sorted(source, key=repr))
    return Comparison(table, count, held.num_rows, missing, tuple(sorted(extra, key=repr)), differing, lost)


def compare_all(dsn: str, read: Read, tables: Sequence[str]) -> list[Comparison]:
    """Compare `tables` as the database has them at one moment with what `read` finds under each name of the target."""
    names = target_names(tables, {})
    with psycopg.connect(dsn, options="-c timezone=UTC -c default_transaction_isolation=repeatable\\ read") as source:
        return [compare(source, table, read(names[table])) for table in tables]


def in_delta(spark: SparkSession, lake: Path) -> Read:
    """Return what reads the Delta tables in the folder `lake`."""
    return lambda name: spark.read.format("delta").load(str(lake / file_name(name))).toArrow()


def in_duckdb(path: Path) -> Read:
    """Return what reads the tables in the DuckDB file at `path`, as any other reader would."""

    def read(name: str) -> pa.Table:
        import duckdb

        with duckdb.connect(str(path), read_only=True) as reader:
            reader.execute("SET TimeZone = 'UTC'")
            return reader.table(f'"{name}"').to_arrow_table()

    return read


def _shape(connection: psycopg.Connection, name: str) -> tuple[list[str], list[str]]:
    columns = connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped "
        "ORDER BY attnum",
        (name,),
    ).fetchall()
    keys = connection.execute(
        "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) "
        "WHERE i.indrelid = %s::regclass AND i.indisprimary ORDER BY array_position(i.indkey::int2[], a.attnum)",
        (name,),
    ).fetchall()
    return [key for (key,) in keys], [column for (column,) in columns]


def _count(connection: psycopg.Connection, name: sql.Identifier) -> int:
    row = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(name)).fetchone()
    return int(row[0]) if row else 0


def _source_rows(
    connection: psycopg.Connection, name: sql.Identifier, columns: Sequence[str], schema: pa.Schema
) -> list[Key]:
    # COPY writes what a type prints, and lets us choose how to read it, whatever the type is.
    chosen = sql.SQL(", ").join(map(sql.Identifier, columns))
    query = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT").format(chosen, name)
    kinds = [schema.field(column).type for column in columns]
    single = [pa.types.is_float32(kind) for kind in kinds]
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        copy.set_types([_text_form(kind) for kind in kinds])
        return [
            tuple(_exact(_rounded(v) if narrow else v) for v, narrow in zip(row, single, strict=True))
            for row in copy.rows()
        ]


def _text_form(kind: pa.DataType) -> str:
    """Return the PostgreSQL type whose text form is read into the same Python value as `kind` gives."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"{_text_form(kind.value_type)}[]"
    if pa.types.is_decimal(kind):
        return "numeric"
    if pa.types.is_timestamp(kind):
        return "timestamptz" if kind.tz else "timestamp"
    if kind not in _TEXT_FORMS:
        raise ValueError(f"no comparison for values of type {kind}")
    return _TEXT_FORMS[kind]


def _rounded(value: float | None) -> float | None:
    """Return the number that a float of four bytes holds, for Python has only those of eight."""
    return None if value is None else float(struct.unpack("f", struct.pack("f", value))[0])


def _exact(value: object) -> object:
    """Return a value that can be a key and equals only what is the same: NaN itself, 0.0 not -0.0."""
    if isinstance(value, float):
        return ("float", value.hex())
    if isinstance(value, list):
        return tuple(map(_exact, value))
    return value


def _shown(key: Key) -> str:
    values = [str(value[1]) if isinstance(value, tuple) else str(value) for value in key]
    return ", ".join(values)
