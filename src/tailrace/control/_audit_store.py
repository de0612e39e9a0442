"""Where the catalogue of a feed is kept: an SQLite file, or a schema of a PostgreSQL database; the same tables in both.

A transaction that writes waits for the one before it, so what it reads is what is there when it commits.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from tailrace.core.errors import Halt, NotReady, Retryable, Unreachable

FORMAT = 1
_PATIENCE = 30.0
_TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS files (
  number BIGINT PRIMARY KEY, name TEXT NOT NULL, size BIGINT NOT NULL, modified_ns BIGINT NOT NULL, tag TEXT NOT NULL,
  sequence TEXT NOT NULL, first BIGINT NOT NULL, last BIGINT NOT NULL, sha256 TEXT NOT NULL, content TEXT NOT NULL,
  entered_at TEXT NOT NULL, repeats BIGINT NOT NULL);
CREATE INDEX IF NOT EXISTS files_name ON files (name, number);
CREATE INDEX IF NOT EXISTS files_sha256 ON files (sha256);
CREATE INDEX IF NOT EXISTS files_first ON files (first);
CREATE INDEX IF NOT EXISTS files_repeats ON files (repeats);
CREATE INDEX IF NOT EXISTS files_sequence ON files (sequence);
CREATE TABLE IF NOT EXISTS work (
  target TEXT NOT NULL, number BIGINT NOT NULL, state TEXT NOT NULL, attempts BIGINT NOT NULL, worker TEXT NOT NULL,
  claimed_at TEXT NOT NULL, heartbeat TEXT NOT NULL, rows BIGINT, applied BIGINT, superseded BIGINT, filtered BIGINT,
  rejected BIGINT, error TEXT, run_id TEXT NOT NULL, upto BIGINT, settled_at TEXT, PRIMARY KEY (target, number));
CREATE INDEX IF NOT EXISTS work_state ON work (target, state, number);
"""
Values = Sequence[object]


class Session(Protocol):
    """A transaction; `?` stands for a value in a statement."""

    def rows(self, statement: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Return what a query finds."""
        ...

    def run(self, statement: str, values: Values = ()) -> None:
        """Change something."""
        ...

    def many(self, statement: str, values: Iterable[Values]) -> None:
        """Change something once for each of `values`."""
        ...


class Store(Protocol):
    """A place for the tables."""

    def open(self, *, write: bool) -> AbstractContextManager[Session]:
        """Begin a transaction, with the tables there; it is undone unless its end is reached."""
        ...


class SqliteStore:
    """The tables in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def open(self, *, write: bool) -> Iterator[Session]:
        """Open the file for one transaction; closing it without a commit undoes everything."""
        with self._turn, self._told():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self._path, timeout=_PATIENCE, isolation_level=None)
            with contextlib.closing(connection):
                connection.execute("PRAGMA synchronous = FULL")
                if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
                    connection.execute("PRAGMA journal_mode = WAL")
                    connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {FORMAT}; COMMIT;")
                _refuse_newer(str(self._path), connection.execute("PRAGMA user_version").fetchone()[0])
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                yield _SqliteSession(connection)
                connection.execute("COMMIT")

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code: Any = getattr(error, "sqlite_errorcode", 0)
            path = self._path
            if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise Retryable("state-write", f'another process kept the catalogue "{path}" locked') from error
            if code & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                hint = "Free some space on its disk, or set control.root to another one."
                raise Unreachable("disk-full", f'the catalogue "{path}" could not be written: {error}', hint) from error
            raise _corrupt(str(path), error) from error


class _SqliteSession:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, statement: str, values: Values = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, list(values)).fetchall()

    def run(self, statement: str, values: Values = ()) -> None:
        self._connection.execute(statement, list(values))

    def many(self, statement: str, values: Iterable[Values]) -> None:
        self._connection.executemany(statement, values)


class PostgresStore:
    """The tables in a schema of their own."""

    def __init__(self, dsn: str, schema: str, about: str) -> None:
        try:
            import psycopg
        except ModuleNotFoundError as error:
            raise NotReady(
                "missing-extra",
                f'control.audit_dsn needs the Python package "{error.name}", which is not installed',
                "Run: pip install 'tailrace[postgres]'",
            ) from error
        self._api = psycopg
        self._dsn = dsn
        self._schema = schema
        self._about = about
        self._turn = threading.Lock()
        self._made = False

    @contextlib.contextmanager
    def open(self, *, write: bool) -> Iterator[Session]:
        """Connect for one transaction; those that write come one after the other."""
        with self._turn, self._told(), self._api.connect(self._dsn) as connection, connection.cursor() as cursor:
            name = self._api.sql.Identifier(self._schema)
            if write or not self._made:
                cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [self._schema])
            if not self._made:
                cursor.execute(self._api.sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
            cursor.execute(self._api.sql.SQL("SET LOCAL search_path TO {}").format(name))
            if not self._made:
                self._make(cursor)
            yield _PostgresSession(cursor)
            connection.commit()
            self._made = True

    def _make(self, cursor: Any) -> None:
        cursor.execute(_TABLES)
        kept = "INSERT INTO about VALUES ('format', %s) ON CONFLICT (name) DO NOTHING"
        cursor.execute(kept, [str(FORMAT)])
        _refuse_newer(self._schema, int(cursor.execute("SELECT value FROM about WHERE name = 'format'").fetchone()[0]))
        said = self._api.sql.SQL("COMMENT ON SCHEMA {} IS {}")
        cursor.execute(said.format(self._api.sql.Identifier(self._schema), self._api.sql.Literal(self._about)))

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (self._api.OperationalError, self._api.InterfaceError) as error:
            raise Unreachable(
                "state-write",
                f'the catalogue in schema "{self._schema}" cannot be reached: {type(error).__name__}',
                "Check the server of control.audit_dsn.",
            ) from error
        except self._api.errors.InsufficientPrivilege as error:
            raise NotReady(
                "state-write",
                f'schema "{self._schema}" cannot be made or used with the user of control.audit_dsn',
                "Grant CREATE on the database to that user.",
            ) from error
        except self._api.Error as error:
            raise _corrupt(self._schema, error) from error


class _PostgresSession:
    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def rows(self, statement: str, values: Values = ()) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._cursor.execute(_marked(statement), list(values)).fetchall()
        return found

    def run(self, statement: str, values: Values = ()) -> None:
        self._cursor.execute(_marked(statement), list(values))

    def many(self, statement: str, values: Iterable[Values]) -> None:
        self._cursor.executemany(_marked(statement), list(values))


def _marked(statement: str) -> str:
    return statement.replace("?", "%s")


def _refuse_newer(what: str, version: int) -> None:
    if version > FORMAT:
        raise Halt(
            "state-too-new",
            f'the catalogue "{what}" has format {version}, and this release reads up to {FORMAT}',
            "A newer release wrote it. Run that release or a later one.",
        )


def _corrupt(what: str, error: Exception) -> Halt:
    return Halt(
        "corrupt-state",
        f'the catalogue "{what}" cannot be read: {error}',
        "Restore it from a backup. If there is none, run cdc undeploy and then cdc run, which reads the feed anew.",
    )
