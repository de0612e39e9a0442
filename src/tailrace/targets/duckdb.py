"""Tables in one DuckDB file, kept current in transactions of their own.

DuckDB has a type for nearly everything that Spark has, so rows cross over as Arrow and nothing is rewritten. A
file belongs to one process at a time; it is opened for each transaction and closed after it, so that others can
read in between. Tables have no primary key: DuckDB would check it row by row, and joins need no index.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field
from pyspark.sql import SparkSession

from tailrace.core.errors import Halt, NotReady, Retryable, TailraceError, Unreachable
from tailrace.core.nested import element_of, entry_of, fields_of
from tailrace.targets._columns import POSITION
from tailrace.targets._sql.dialect import Dialect, Kind, Values, is_nested, json_kind, quoted_text, text_kind
from tailrace.targets._sql.dialect import double_quoted as quote
from tailrace.targets._sql.table import Mode
from tailrace.targets._sql.target import TOMBSTONE_DAYS, SqlTarget, file_and_table, one_table


class Options(BaseModel):
    """The keys under `duckdb` of a sink."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    path: str = Field(min_length=1)
    """The file; it is made if it is not there."""
    tombstone_days: int = Field(default=TOMBSTONE_DAYS, ge=1)
    """How many days a deleted row is remembered, so that no late event brings it back."""


def open_target(
    name: str,
    options: Options,
    *,
    spark: Callable[[], SparkSession],
    pipeline_id: str,
    tables: Mapping[str, str],
    mode: Mode,
) -> SqlTarget:
    """Return the target that `options` describe; nothing is opened yet."""
    return SqlTarget(
        name,
        DuckDB(options.path),
        spark=spark,
        pipeline_id=pipeline_id,
        tables=tables,
        mode=mode,
        tombstone_days=options.tombstone_days,
    )


def open_table(
    where: str, table: str, spark: SparkSession, mode: Mode, pipeline_id: str = "apply_changes"
) -> SqlTarget:
    """Return a target of one `table`; `where` is `<file>#<table>`."""
    path, name = file_and_table("duckdb", where)
    return one_table(name, table, DuckDB(path), spark, mode, pipeline_id)


_PLAIN = {
    "boolean": "BOOLEAN",
    "tinyint": "TINYINT",
    "smallint": "SMALLINT",
    "int": "INTEGER",
    "bigint": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP",
}
_RANGED = ("tinyint", "smallint", "int", "bigint", "string", "date", "decimal")


def native(kind: str) -> str | None:
    """Return DuckDB's own type for values of the Spark type `kind`; `None` if it has none."""
    if kind.startswith("decimal("):
        return kind.upper()
    fields, element, entry = fields_of(kind), element_of(kind), entry_of(kind)
    if fields:
        parts = {name: native(field) for name, field in fields.items()}
        listed = ", ".join(f"{quote(name)} {part}" for name, part in parts.items())
        return None if None in parts.values() else f"STRUCT({listed})"
    if element is not None:
        inner = native(element)
        return inner and f"{inner}[]"
    if entry is not None:
        key, value = native(entry[0]), native(entry[1])
        return f"MAP({key}, {value})" if key and value else None
    return _PLAIN.get(kind)


def kind(name: str) -> Kind:
    """Return how values of the Spark type called `name` are stored."""
    own = native(name)
    if name == "json":
        return Kind("JSON")
    if own is None:
        return json_kind("JSON", name) if is_nested(name) else text_kind("VARCHAR", name)
    if is_nested(name):
        return Kind(own, back=lambda v: v.cast(name))
    return Kind(own, ranged=name.partition("(")[0] in _RANGED)


def widen(table: str, column: str, old: str, new: str) -> list[str]:
    """Return what gives a column its new type."""
    have, want = kind(old).sql, kind(new).sql
    value = f"CAST({column} AS TIMESTAMP) AT TIME ZONE 'UTC'" if want == "TIMESTAMPTZ" else f"CAST({column} AS {want})"
    return [] if have == want else [f"ALTER TABLE {table} ALTER COLUMN {column} SET DATA TYPE {want} USING {value}"]


DIALECT = Dialect(
    "DuckDB",
    kind,
    quote,
    parameter=lambda n: f"${n}",
    exists="SELECT 1 FROM information_schema.tables WHERE table_catalog = current_database() "
    "AND table_schema = 'main' "
    "AND translate(table_name, 'ABCDEFGHIJKLMNOPQRSTUVWXYZ', 'abcdefghijklmnopqrstuvwxyz') = $1",
    positioned=lambda name: f"SELECT 1 FROM pragma_table_info({quoted_text(quote(name))}) WHERE name = '{POSITION}'",
    widen=widen,
    position="VARCHAR",
    rewrites=True,
    documents=True,
    keyed=False,
    folds=True,
)

_locks: dict[str, threading.RLock] = {}


class DuckDB:
    """A file, opened anew for every transaction."""

    dialect = DIALECT
    errors: tuple[type[Exception], ...] = (duckdb.Error,)

    def __init__(self, path: str) -> None:
        self._path = Path(path).absolute()

    @contextlib.contextmanager
    def connect(self, *, write: bool) -> Iterator[_Session]:
        if write:
            self._make_folder()
        there = write or self._path.exists()
        # Threads of ours take turns: a transaction would fail on what another one has changed since it began.
        with (
            _locks.setdefault(str(self._path), threading.RLock()),
            duckdb.connect(str(self._path) if there else ":memory:") as connection,
        ):
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute("SET enable_progress_bar = false")
            connection.execute("BEGIN")
            # Closing without a commit undoes everything.
            yield _Session(connection)

    def translate(self, error: Exception, what: str) -> TailraceError:
        text = " ".join(str(error).split())
        # First, for DuckDB tells of it as a transaction that failed.
        if "No space left" in text:
            hint = "Nothing was committed. Free some space; the batch is then applied again."
            return Unreachable("disk-full", f"there was no space left while {what}", hint)
        if "Could not set lock" in text:
            hint = "DuckDB lets one process at a time open a file for writing. Close the other one."
            return Unreachable("target-locked", f'another process has "{self._path.name}" open, met while {what}', hint)
        if isinstance(error, duckdb.TransactionException):
            hint = "Nothing was committed. Apply the batch again, one writer at a time."
            return Retryable("write-conflict", f"another writer committed first while {what}", hint)
        if isinstance(error, duckdb.ConversionException):
            hint = (
                "DuckDB takes as JSON what its own reader reads. Mend the row in the source, or leave the column out "
            )
            hint += "with columns."
            return Halt("value-refused", f"DuckDB cannot store a value, met while {what}", hint)
        if isinstance(error, duckdb.OutOfMemoryException):
            hint = "Nothing was committed. Lower slice.max_rows, or give the process more memory."
            return Halt("target-memory", f"DuckDB had not enough memory while {what}", hint)
        if isinstance(error, duckdb.IOException):
            hint = "It must be a DuckDB database of a version that this one reads, and be writable."
            return NotReady("target-not-ready", f'the file "{self._path}" cannot be used: {text[:300]}', hint)
        return Halt(
            "sql-failed",
            f"DuckDB failed while {what}: {type(error).__name__}",
            "The cause is in the log, below this error. Nothing of the batch was committed.",
        )

    def _make_folder(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            hint = "Give another path, or the right to make the folder."
            raise NotReady(
                "target-not-ready", f'the folder "{self._path.parent}" cannot be made: {error.strerror}', hint
            ) from error


class _Session:
    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def run(self, sql: str, values: Values = ()) -> int:
        found = self._connection.execute(sql, list(values)).fetchall()
        return int(found[0][0]) if found and isinstance(found[0][0], int) else 0

    def ask(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, list(values)).fetchall()

    def fetch(self, sql: str, values: Values, kinds: Mapping[str, Kind]) -> pa.Table:
        return self._connection.sql(sql, params=list(values)).to_arrow_table()

    def load(self, table: str, columns: Sequence[str], batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            numbered = pa.table(batch.columns, names=[f"c{n}" for n in range(batch.num_columns)])
            self._connection.register("_tailrace_batch", numbered)
            self._connection.execute(f"INSERT INTO {table} ({', '.join(columns)}) SELECT * FROM _tailrace_batch")
            self._connection.unregister("_tailrace_batch")

    def commit(self) -> None:
        self._connection.execute("COMMIT")
        self._connection.execute("BEGIN")
