"""A session on a MySQL or MariaDB server: strict, in UTC, in one transaction until it commits.

Rows go in as the text of one INSERT for thousands of them, made column by column. LOAD DATA LOCAL is twice as fast, but
MySQL refuses it unless it is told otherwise, and who asks for it lets the server ask for any file.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pymysql
from pymysql.constants import CLIENT, FIELD_TYPE
from pymysql.converters import conversions
from pymysql.cursors import SSCursor

from tailrace.core.errors import Halt, NotReady, Retryable, TailraceError, Unreachable
from tailrace.targets._sql.crossing import in_utc
from tailrace.targets._sql.dialect import Dialect, Kind, Values

_SETTINGS = {
    "sql_mode": "'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,NO_ENGINE_SUBSTITUTION'",
    "time_zone": "'+00:00'",
    "default_storage_engine": "InnoDB",
    "default_tmp_storage_engine": "InnoDB",
    "sql_notes": "1",
    "sql_safe_updates": "0",
    "sql_big_selects": "1",
    # A wait for a row, and one for a table, in seconds; what the server is set to may be a year.
    "innodb_lock_wait_timeout": "60",
    "lock_wait_timeout": "60",
}
_AS_TEXT = (FIELD_TYPE.DATE, FIELD_TYPE.DATETIME, FIELD_TYPE.TIMESTAMP, FIELD_TYPE.TIME, FIELD_TYPE.NEWDECIMAL)
_CONVERSIONS = {kind: how for kind, how in conversions.items() if kind not in _AS_TEXT}
_STATEMENT = 4 << 20
"""So many bytes an INSERT has at most, unless a single row has more."""
_ROWS = 10_000
_PLACE = re.compile("\x00(\\d+)\x00")
_FULL = re.compile(r"(?i)(errcode:|errno:?|error) 28\b")

_CUT = (1264, 1265, 1292, 1366, 1406)
_LOCKED = 1205
_CONFLICTS = (1020, _LOCKED, 1213, 1412)
_LOST = (1040, 1053, 1077, 1158, 1159, 1160, 1161, 1290, 1317, 1836, 1927, 1969, 3024, 4031)
_CANCELLED = (1290, 1317, 1836, 1969, 3024)
"""Of those, what a server says that is there: it may only be read, or what was asked took too long."""
_DENIED = (1044, 1142, 1143, 1227)
_LOGIN = (1130, 1251, 1698, 2059)
_CONSTRAINTS = (1048, 1062, 1169, 1216, 1217, 1451, 1452, 3819, 4025)
_STORAGE = (*range(1, 200), 1023, 1024, 1026, 1030, 1878)
"""Files of the server: the low codes are those of the library that all of it reads and writes by."""
_REFUSED = (*_CUT, 1071, 1118, 1153, 1301, 1411, 3140, 3141)


def place(number: int) -> str:
    """Return the place of a value in a statement: no name can hold the character 0."""
    return f"\x00{number}\x00"


class MySQL:
    """A server, connected to anew for every transaction."""

    errors: tuple[type[Exception], ...] = (pymysql.Error,)

    def __init__(self, login: Mapping[str, Any], dialect: Dialect) -> None:
        self._login = {**login, "password": login.get("password", "").encode()}
        self.dialect = dialect

    @contextlib.contextmanager
    def connect(self, *, write: bool) -> Iterator[_Session]:
        connection = pymysql.connect(
            **self._login,
            charset="utf8mb4",
            autocommit=False,
            connect_timeout=10,
            conv=_CONVERSIONS,
            # An update counts the rows that it finds, also those that were so before.
            client_flag=CLIENT.FOUND_ROWS,
            program_name="tailrace",
        )
        with contextlib.closing(connection):
            session = _Session(connection)
            session.run("SET SESSION " + ", ".join(f"{name} = {value}" for name, value in _SETTINGS.items()))
            # A writer sees what the lock it waited for has left; several queries of a reader see one state.
            level = "READ COMMITTED" if write else "REPEATABLE READ"
            session.run(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
            session.run("START TRANSACTION" + ("" if write else " WITH CONSISTENT SNAPSHOT, READ ONLY"))
            # Closing without a commit undoes everything but tables made and altered.
            yield session

    def translate(self, error: Exception, what: str) -> TailraceError:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        name = f"{type(error).__name__} {code}"
        if code in _CONFLICTS:
            hint = "Nothing was committed. Apply the batch again, one writer at a time."
            said = f"MySQL gave way to another transaction while {what} ({name})"
            # Whoever has the lock may have it for long, and is not to be outlived.
            return (Unreachable if code == _LOCKED else Retryable)("write-conflict", said, hint)
        told = str(error.args[1]) if len(error.args) > 1 else ""
        if code in (1021, 1114) or (code in (*_STORAGE, 1005, 1180) and _FULL.search(told)):
            hint = "Nothing was committed. Free some space; the batch is then applied again."
            return Unreachable("disk-full", f"MySQL had no space left while {what}", hint)
        if code in _STORAGE:
            hint = "Nothing was committed. See the log of the server, its disk, its tmpdir and its memory."
            return Retryable("target-unavailable", f"storage of MySQL failed while {what} ({name})", hint)
        if code in _LOST or code in range(2000, 2058) or isinstance(error, pymysql.InterfaceError):
            hint = "See that the server is up, and that host and port are right."
            said = f"MySQL did not answer, or could not go on, while {what} ({name})"
            return (Retryable if code in _CANCELLED else Unreachable)("target-unavailable", said, hint)
        if code in _CONSTRAINTS:
            hint = "Something else has put a constraint on the table. Remove it, or leave the column out with columns."
            return Halt("constraint-violated", f"a row breaks a constraint, met while {what} ({name})", hint)
        if code in _REFUSED:
            hint = (
                "MySQL cannot hold it: a double is a number and finite, a key of text is short enough for an index, a "
            )
            hint += (
                "row fits into max_allowed_packet. Mend the row in the source, or leave the column out with columns."
            )
            return Halt("value-refused", f"MySQL cannot store a value, met while {what} ({name})", hint)
        return self._not_ready(code, what) or Halt(
            "sql-failed",
            f"MySQL failed while {what}: {name}",
            "The cause is in the log, below this error. Nothing of the batch was committed.",
        )

    def _not_ready(self, code: int, what: str) -> NotReady | None:
        user = self._login["user"]
        if code == 1045:
            hint = "Set username and password of the target."
            return NotReady("wrong-password", f'MySQL refused the password of user "{user}"', hint)
        if code == 1049:
            hint = "Set database of the target, or create it."
            return NotReady("unknown-database", f'MySQL has no database "{self._login["database"]}"', hint)
        if code in _LOGIN:
            hint = "Create the user for this host, with a password."
            return NotReady("login-refused", f'MySQL refused the login of user "{user}"', hint)
        if code in _DENIED:
            hint = f'Give the user "{user}" SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX, DROP and CREATE '
            hint += "TEMPORARY TABLES on the database."
            return NotReady("missing-grant", f"MySQL refused the right to do it while {what}", hint)
        return None


class _Session:
    def __init__(self, connection: pymysql.Connection) -> None:
        self._connection = connection

    def run(self, sql: str, values: Values = ()) -> int:
        with self._connection.cursor() as cursor:
            cursor.execute(_bound(cursor, sql, values))
            self._refuse_cuts(cursor)
            return int(cursor.rowcount)

    def ask(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(_bound(cursor, sql, values))
            return list(cursor.fetchall())

    def fetch(self, sql: str, values: Values, kinds: Mapping[str, Kind]) -> pa.Table:
        schema = pa.schema([(f"c{n}", kind.arrow) for n, kind in enumerate(kinds.values())])
        batches = []
        with self._connection.cursor(SSCursor) as cursor:
            cursor.execute(_bound(cursor, sql, values))
            while rows := cursor.fetchmany(_ROWS):
                columns = zip(zip(*rows, strict=True), schema, strict=True)
                arrays = [pa.array(column, field.type) for column, field in columns]
                batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        return pa.Table.from_batches(batches, schema)

    def load(self, table: str, columns: Sequence[str], batches: Iterable[pa.RecordBatch]) -> None:
        start = f"INSERT INTO {table} ({', '.join(columns)}) VALUES (".encode()
        packet = self.ask("SELECT @@max_allowed_packet")[0][0]
        with self._connection.cursor() as cursor:
            for batch in batches:
                for rows in _pieces(_texts(batch), _STATEMENT):
                    text = b"".join((start, rows, b")"))
                    if len(text) >= packet:
                        raise pymysql.DataError(1153, "a row is greater than max_allowed_packet")
                    cursor.execute(text)
                    self._refuse_cuts(cursor)

    def commit(self) -> None:
        self._connection.commit()

    def _refuse_cuts(self, cursor: Any) -> None:
        """Make an error of what a strict session lets pass: digits behind the point, spaces at the end."""
        if cursor.warning_count:
            for _, code, text in self._connection.show_warnings():
                if code in _CUT:
                    raise pymysql.DataError(code, text)


def _bound(cursor: Any, sql: str, values: Values) -> str:
    return _PLACE.sub(lambda found: str(cursor.mogrify("%s", (values[int(found[1]) - 1],))), sql)


def _pieces(rows: pa.Array, most: int) -> Iterator[pa.Buffer]:
    """Yield the texts of rows joined, no piece with more than `most` bytes unless it is a single row."""
    if len(rows) > 1 and pc.sum(pc.binary_length(rows)).as_py() > most:
        half = len(rows) // 2
        yield from _pieces(rows[:half], most)
        yield from _pieces(rows[half:], most)
    elif len(rows):
        listed = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows)
        yield pc.binary_join(listed, pa.scalar("),(", rows.type))[0].as_buffer()


def _texts(batch: pa.RecordBatch) -> pa.Array:
    """Return each row of `batch` as it stands between the brackets of an INSERT."""
    return pc.binary_join_element_wise(*map(_literals, batch.columns), pa.scalar(",", pa.large_string()))


def _literals(column: pa.Array) -> pa.Array:
    kind, around = column.type, ("'", "'")
    if pa.types.is_timestamp(kind):
        text = in_utc(column)
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        text, around = column, ("x'", "'")
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text = pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), "'", "''")
    elif pa.types.is_floating(kind):
        if pc.any(pc.invert(pc.is_finite(column))).as_py():
            raise pymysql.DataError(1366, "a double is not a number, or not finite")
        text = column  # In quotes, or -0.0 would be a whole number without a sign.
    else:
        text, around = column, ("", "")
    parts = (pa.scalar(part, pa.large_string()) for part in (*around, ""))
    first, last, between = parts
    whole = pc.binary_join_element_wise(first, text.cast(pa.large_string()), last, between)
    return pc.fill_null(whole, "NULL")
