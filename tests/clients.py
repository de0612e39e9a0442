"""The tables of every target, each read with a client of its own kind: nothing of Tailrace reads here.

A store may belong to a process that was killed: files of databases are copied before they are opened, so that what has
to be undone after a crash is left for the product to undo.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader
from pyiceberg.catalog.sql import SqlCatalog
from pymysql.cursors import DictCursor

from dev.services.mariadb import MariaDb
from tailrace.demo.postgres import EmbeddedPostgres

Row = dict[str, Any]

FILES = ("delta", "iceberg", "parquet", "sqlite", "duckdb")
"""Targets that need no server."""
EVERY = (*FILES, "postgres", "mysql")


@dataclass(frozen=True)
class Store:
    """A place that tables are kept in: what a pipeline file says of it, and how its rows are read."""

    kind: str
    options: dict[str, Any]
    """The keys under the name of the kind."""
    read: Callable[[str], list[Row]]
    """Returns the rows of a table, reserved columns included; none if it is not there."""
    types: Callable[[str], dict[str, str]]
    """Returns the types of the columns of a table, as the client calls them."""

    def sink(self, name: str, **more: Any) -> dict[str, Any]:
        """Return the sink of a pipeline that writes here."""
        return {"sink_id": name, "sink_type": self.kind, self.kind: self.options, **more}


def in_files(kind: str, folder: Path) -> Store:
    """Return a store of one of `FILES` below `folder`."""
    if kind == "delta":
        return Store(
            kind,
            {"path": str(folder)},
            lambda table: _delta(folder / table),
            lambda table: _delta_types(folder / table),
        )
    if kind == "parquet":
        return Store(
            kind,
            {"path": str(folder)},
            lambda table: [row for file in _parquet(folder, table) for row in file.to_pylist()],
            lambda table: {field.name: str(field.type) for field in _parquet(folder, table)[0].schema},
        )
    if kind == "iceberg":
        uri = f"sqlite:///{folder}/catalog.db"
        return Store(
            kind,
            {"catalog_uri": uri, "warehouse": str(folder)},
            lambda table: found.scan().to_arrow().to_pylist() if (found := _iceberg(uri, folder, table)) else [],
            lambda table: {f.name: str(f.field_type) for f in _iceberg(uri, folder, table).schema().fields},
        )
    path = folder / "tables.db"
    ask, columns = (_sqlite, _SQLITE_COLUMNS) if kind == "sqlite" else (_duckdb, _DUCKDB_COLUMNS)
    return Store(
        kind,
        {"path": str(path)},
        lambda table: ask(path, table, f'SELECT * FROM "{table}"'),
        lambda table: {row["name"]: row["type"] for row in ask(path, table, columns.format(table))},
    )


def in_postgres(server: EmbeddedPostgres, schema: str) -> Store:
    """Return a store in a schema of a server."""
    options = {
        "host": "127.0.0.1", "port": server.port, "database": "postgres", "schema": schema,
        "username": server.user, "password": server.password,
    }  # fmt: skip

    def ask(table: str, query: str) -> list[Row]:
        name = sql.Identifier(schema, table)
        with psycopg.connect(server.dsn(), row_factory=dict_row, options="-c TimeZone=UTC") as connection:
            # The text itself, and not what Python makes of it.
            connection.adapters.register_loader("json", TextLoader)
            (found,) = connection.execute("SELECT to_regclass(%s) AS here", [name.as_string()])
            asked = sql.SQL(query).format(name=name, text=sql.Literal(name.as_string()))  # type: ignore[arg-type]
            return connection.execute(asked).fetchall() if found["here"] else []

    columns = (
        "SELECT attname AS name, format_type(atttypid, atttypmod) AS type FROM pg_attribute "
        "WHERE attrelid = to_regclass({text}) AND attnum > 0 AND NOT attisdropped"
    )
    return Store(
        "postgres",
        options,
        lambda table: ask(table, "SELECT * FROM {name}"),
        lambda table: {row["name"]: row["type"] for row in ask(table, columns)},
    )


def in_mysql(server: MariaDb, schema: str) -> Store:
    """Return a store in a database of a server."""
    options = {
        "host": server.host, "port": server.port, "database": server.database, "schema": schema,
        "username": server.user, "password": server.password,
    }  # fmt: skip

    def ask(table: str, query: str) -> list[Row]:
        with server.connect() as connection, connection.cursor(DictCursor) as cursor:
            here = "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
            if not cursor.execute(here, [schema, table]):
                return []
            cursor.execute(query.format(f"`{schema}`.`{table}`"))
            return list(cursor.fetchall())

    return Store(
        "mysql",
        options,
        lambda table: ask(table, "SELECT * FROM {}"),
        lambda table: {row["Field"]: row["Type"] for row in ask(table, "SHOW COLUMNS FROM {}")},
    )


def _delta(folder: Path) -> list[Row]:
    if not DeltaTable.is_deltatable(str(folder)):
        return []
    rows: list[Row] = pa.table(DeltaTable(str(folder)).to_pyarrow_table()).to_pylist()
    return rows


def _delta_types(folder: Path) -> dict[str, str]:
    fields = json.loads(DeltaTable(str(folder)).schema().to_json())["fields"]
    return {
        field["name"]: kind if isinstance(kind := field["type"], str) else f"array<{kind['elementType']}>"
        for field in fields
    }


def _iceberg(uri: str, folder: Path, table: str) -> Any:
    if not (folder / "catalog.db").exists():
        return None
    catalog = SqlCatalog("default", uri=uri, warehouse=str(folder))
    try:
        return catalog.load_table(f"default.{table}") if catalog.table_exists(f"default.{table}") else None
    finally:
        catalog.engine.dispose()


def _parquet(folder: Path, table: str) -> list[pa.Table]:
    manifests = sorted((folder / table / "manifests").glob("*.json"))
    files = json.loads(manifests[-1].read_text())["content"]["files"] if manifests else []
    return [pq.read_table(folder / name, partitioning=None) for name in files]


_SQLITE_COLUMNS = "SELECT name, type FROM pragma_table_info('{}')"
_DUCKDB_COLUMNS = "SELECT column_name AS name, data_type AS type FROM duckdb_columns() WHERE table_name = '{}'"


def _sqlite(path: Path, table: str, query: str) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        copy = _copied(path, Path(folder))
        if copy is None:
            return []
        with closing(sqlite3.connect(copy)) as connection:
            connection.row_factory = sqlite3.Row
            assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            here = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [table]).fetchall()
            return list(map(dict, connection.execute(query))) if here else []


def _duckdb(path: Path, table: str, query: str) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        copy = _copied(path, Path(folder))
        if copy is None:
            return []
        with duckdb.connect(str(copy)) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            here = connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = ?", [table]).fetchall()
            return connection.sql(query).to_arrow_table().to_pylist() if here else []


def _copied(path: Path, folder: Path) -> Path | None:
    """Return a copy of a database with what lies beside it; `None` if there is none."""
    for file in path.parent.glob(f"{path.name}*"):
        shutil.copy(file, folder)
    return folder / path.name if path.exists() else None
