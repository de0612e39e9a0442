"""Tables in one SQLite file, kept current in transactions of their own.

SQLite has integers, reals, text and bytes. What is none of these is stored as text that says all of it:

    decimal    1234.50                             with all the digits of its scale
    date       2024-02-29
    timestamp  2024-02-29 23:59:59.999999Z         in UTC; without the Z for one without a zone
    nested     {"a":1,"b":[1.50,null]}             JSON

Booleans are 0 and 1; a number that is none is the text NaN. One process writes at a time; readers are never held up.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field
from pyspark.sql import SparkSession

from tailrace.core.errors import Halt, NotReady, Retryable, TailraceError, Unreachable
from tailrace.core.table import Column, Table
from tailrace.targets._columns import POSITION
from tailrace.targets._sql.crossing import times_as_text
from tailrace.targets._sql.dialect import (
    Dialect,
    Kind,
    Session,
    Values,
    is_nested,
    json_kind,
    quoted_text,
    text_kind,
)
from tailrace.targets._sql.dialect import double_quoted as quote
from tailrace.targets._sql.table import Mode
from tailrace.targets._sql.target import TOMBSTONE_DAYS, SqlTarget, file_and_table, one_table

_PATIENCE = 30.0
"""Seconds to wait for another process that writes."""
_ROWS = 10_000
_CACHE = 65_536
"""KiB. Pages that a batch changes more than once are then written once; SQLite's own 2 MiB are few for that."""


class Options(BaseModel):
    """The keys under `sqlite` of a sink."""

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
        SQLite(options.path),
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
    path, name = file_and_table("sqlite", where)
    return one_table(name, table, SQLite(path), spark, mode, pipeline_id)


_PLAIN = {
    "string": Kind("TEXT", pa.string(), ranged=True),
    "binary": Kind("BLOB", pa.binary()),
    "boolean": Kind("BOOLEAN", pa.int64(), lambda v: v.cast("int"), lambda v: v.cast("boolean")),
    "float": Kind("REAL", pa.float64(), lambda v: v.cast("double"), lambda v: v.cast("float")),
    "double": Kind("REAL", pa.float64()),
    # A timestamp becomes text on its way in, where Arrow knows the zone.
    "timestamp": Kind("TEXT", pa.string(), back=lambda v: v.cast("timestamp")),
    "timestamp_ntz": Kind("TEXT", pa.string(), back=lambda v: v.cast("timestamp_ntz")),
}
_INTEGERS = ("tinyint", "smallint", "int", "bigint")


def kind(name: str) -> Kind:
    """Return how values of the Spark type called `name` are stored."""
    if name in _INTEGERS:
        return Kind("INTEGER", pa.int64(), back=lambda v: v.cast(name), ranged=True)
    return _PLAIN.get(name) or (json_kind("TEXT", name) if is_nested(name) else text_kind("TEXT", name))


def convert(column: str, old: str, new: str) -> str:
    """Return `column` in the form that values of the type `new` have."""
    if new.startswith("decimal"):
        digits = _scale(new) - _scale(old)
        zeros = ("." if not _scale(old) and digits else "") + "0" * digits
        return f"CAST({column} AS TEXT) || '{zeros}'"
    if (old, new) == ("date", "timestamp_ntz"):
        return f"{column} || ' 00:00:00.000000'"
    if (old, new) == ("date", "timestamp"):
        return f"{column} || ' 00:00:00.000000Z'"
    # Stored floats are as a double is; what is no number is text, and a cast would make it 0.
    return f"CAST({column} AS REAL)" if new in ("float", "double") and old not in ("float", "double") else column


def widen(table: str, column: str, old: str, new: str) -> list[str]:
    """Return what brings stored values to the form that new ones have."""
    value = convert(column, old, new)
    return [] if value == column else [f"UPDATE {table} SET {column} = {value}"]


_REFLECTED = {
    **dict.fromkeys(("INTEGER", "INT", "BIGINT"), "bigint"),
    **dict.fromkeys(("REAL", "DOUBLE"), "double"),
    **dict.fromkeys(("TEXT", "VARCHAR", "CHAR"), "string"),
    "BLOB": "binary",
    "BOOLEAN": "boolean",
}

_WHOLE = "BINARY"
_KEY_COLLATIONS = (
    "SELECT part.name, part.coll FROM pragma_index_list(?1) listed, pragma_index_xinfo(listed.name) part "
    "WHERE listed.origin = 'pk' AND part.key"
)


def reflect(session: Session, name: str) -> Table | str:
    """Return the table called `name`, or why it cannot be kept."""
    columns, keys = [], {}
    collations = dict(session.ask(_KEY_COLLATIONS, [name]))
    for _, column, declared, _, _, place in session.ask(f"PRAGMA table_info({quote(name)})"):
        # SQLite itself takes no notice of a length.
        kind = _REFLECTED.get(re.sub(r"^((VAR)?CHAR) ?\(\d+\)$", r"\1", declared.upper()))
        if kind is None:
            return f'its column "{column}" is declared {declared or "without a type"}'
        if place and (collation := collations.get(column, _WHOLE)) != _WHOLE:
            return f'its key "{column}" is not compared byte by byte, but with COLLATE {collation}'
        columns.append(Column(column, kind))
        if place:
            keys[place] = column
    return Table(name, tuple(columns), tuple(keys[n] for n in sorted(keys))) if keys else "it has no primary key"


def _scale(kind: str) -> int:
    return int(kind.rstrip(")").rsplit(",", 1)[1]) if kind.startswith("decimal") else 0


DIALECT = Dialect(
    "SQLite",
    kind,
    quote,
    parameter=lambda n: f"?{n}",
    exists="SELECT 1 FROM sqlite_master WHERE type IN ('table', 'view') AND lower(name) = ?1",
    positioned=lambda name: f"SELECT 1 FROM pragma_table_info({quoted_text(name)}) WHERE name = '{POSITION}'",
    widen=widen,
    convert=convert,
    reflect=reflect,
    attached="SELECT sql FROM sqlite_master WHERE type IN ('index', 'trigger') AND lower(tbl_name) = ?1 AND sql <> ''",
    now="strftime('%Y-%m-%d %H:%M:%f', 'now') || '000Z'",
    folds=True,
    reserved="sqlite_",
)

_locks: dict[str, threading.Lock] = {}


class SQLite:
    """A file, opened anew for every transaction."""

    dialect = DIALECT
    errors: tuple[type[Exception], ...] = (sqlite3.Error,)

    def __init__(self, path: str) -> None:
        self._path = Path(path).absolute()

    @contextlib.contextmanager
    def connect(self, *, write: bool) -> Iterator[_Session]:
        if write:
            self._make_folder()
        there = write or self._path.exists()
        # Threads of ours take turns, so that only another process can be in the way.
        with _locks.setdefault(str(self._path), threading.Lock()) if write else contextlib.nullcontext():
            connection = sqlite3.connect(self._path if there else ":memory:", timeout=_PATIENCE, isolation_level=None)
            with contextlib.closing(connection):
                if write:
                    connection.execute("PRAGMA journal_mode = WAL")
                    # A table that is made anew is missing for a moment, which views of it must not mind.
                    connection.execute("PRAGMA legacy_alter_table = ON")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute(f"PRAGMA cache_size = -{_CACHE}")
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                # Closing without a commit undoes everything.
                yield _Session(connection)

    def translate(self, error: Exception, what: str) -> TailraceError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        name, text = getattr(error, "sqlite_errorname", type(error).__name__), str(error)
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Unreachable("target-locked", f'another process kept "{self._path.name}" locked while {what}')
        if code == sqlite3.SQLITE_FULL:
            hint = "Nothing was committed. Free some space; the batch is then applied again."
            return Unreachable("disk-full", f"there was no space left while {what}", hint)
        if code == sqlite3.SQLITE_IOERR:
            return Retryable("target-unavailable", f"storage failed while {what}: {name}")
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_PERM):
            hint = "It must be an SQLite database, and the file and its folder must be writable."
            return NotReady("target-not-ready", f'the file "{self._path}" cannot be used: {text}', hint)
        return Halt(
            "sql-failed",
            f"SQLite failed while {what}: {name}",
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
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def run(self, sql: str, values: Values = ()) -> int:
        return self._connection.execute(sql, values).rowcount

    def ask(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, values).fetchall()

    def fetch(self, sql: str, values: Values, kinds: Mapping[str, Kind]) -> pa.Table:
        cursor = self._connection.execute(sql, values)
        schema = pa.schema([(f"c{n}", kind.arrow) for n, kind in enumerate(kinds.values())])
        batches = []
        while rows := cursor.fetchmany(_ROWS):
            arrays = [_array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
            batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        return pa.Table.from_batches(batches, schema)

    def load(self, table: str, columns: Sequence[str], batches: Iterable[pa.RecordBatch]) -> None:
        places = ", ".join("?" * len(columns))
        insert = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})"
        for batch in batches:
            self._connection.executemany(insert, zip(*map(_values, batch.columns), strict=True))

    def commit(self) -> None:
        self._connection.execute("COMMIT")
        self._connection.execute("BEGIN")


def _values(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        return times_as_text(column).to_pylist()  # type: ignore[no-any-return]
    values: list[Any] = column.to_pylist()
    if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        # SQLite would take it for NULL.
        return ["NaN" if value is not None and value != value else value for value in values]  # noqa: PLR0124
    return values


def _array(values: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    if pa.types.is_floating(kind) and "NaN" in values:
        values = tuple(float("nan") if value == "NaN" else value for value in values)
    return pa.array(values, kind)
