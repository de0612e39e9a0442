"""What we ask of a MariaDB server: who it is, what it has, what it allows, and how far its binlog goes."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pymysql

from tailrace.core.errors import Halt, Misconfigured, NotReady
from tailrace.sources._binlog_stand import Stand, file_number

OLDEST = (10, 5)

_SYSTEM = ("mysql", "information_schema", "performance_schema", "sys")
_UNREADABLE = ("uuid", "inet4", "inet6", "vector", "xmltype")
_TABLES = """
SELECT t.table_schema, t.table_name, t.engine, coalesce(
         (SELECT group_concat(k.column_name ORDER BY k.ordinal_position SEPARATOR '\\n')
          FROM information_schema.key_column_usage k
          WHERE k.table_schema = t.table_schema AND k.table_name = t.table_name AND k.constraint_name = 'PRIMARY'), ''),
       coalesce((SELECT max(c.column_name) FROM information_schema.columns c
          WHERE c.table_schema = t.table_schema AND c.table_name = t.table_name AND c.data_type IN %s), '')
FROM information_schema.tables t
WHERE t.table_type = 'BASE TABLE' AND t.table_schema NOT IN %s
ORDER BY 1, 2
"""
_CASCADE = re.compile(r"CONSTRAINT `(.+?)` FOREIGN KEY .*ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)")
_IDLE = ("Format_desc", "Gtid_list", "Binlog_checkpoint", "Start_encryption", "Rotate", "Stop")
"""Events that belong to no transaction."""


@dataclass(frozen=True, slots=True)
class Found:
    """A table of the server."""

    schema: str
    table: str
    engine: str
    keys: tuple[str, ...]
    unreadable: str
    """A column of a type that the engine reads wrongly from the binlog, or not at all."""


class Server:
    """An open connection; every statement commits by itself."""

    def __init__(self, connection: pymysql.Connection, user: str) -> None:
        self._connection = connection
        self.user = user

    def ask(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows that the server answers with."""
        with self._connection.cursor() as cursor:
            cursor.execute(statement, tuple(values) or None)
            return list(cursor.fetchall())

    def settings(self, *names: str) -> list[str]:
        """Return the global settings called `names`, in their order; empty where the server has none."""
        rows = self.ask("SHOW GLOBAL VARIABLES WHERE variable_name IN %s", [names])
        found = {str(name).lower(): str(value) for name, value in rows}
        return [found.get(name, "") for name in names]


@contextlib.contextmanager
def connection(login: Mapping[str, Any]) -> Iterator[Server]:
    """Open a connection; errors of the server become ours."""
    try:
        opened = pymysql.connect(**login, charset="utf8mb4", autocommit=True, connect_timeout=10, read_timeout=60)
        with contextlib.closing(opened):
            yield Server(opened, login["user"])
    except pymysql.Error as error:
        raise _refused(login, error) from error


def _refused(login: Mapping[str, Any], error: pymysql.Error) -> Halt:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    said = str(error.args[1]) if len(error.args) > 1 else type(error).__name__
    where, user = f"{login['host']}:{login['port']}", login["user"]
    if code == 1045:
        return NotReady(
            "wrong-password",
            f'MariaDB at {where} refused the password of user "{user}"',
            "Set username and password of the source.",
        )
    if code in (1130, 1251, 1698, 2059):
        return NotReady(
            "login-refused",
            f"MariaDB at {where} refused the login: {said}",
            f'Create the user "{user}" for this host, with a password.',
        )
    if code in (1044, 1142, 1143, 1227):
        return missing_grant(user, said)
    if code in range(2000, 2060) or code in (1040, 1053, 1927) or isinstance(error, pymysql.err.InterfaceError):
        return NotReady(
            "mysql-unreachable",
            f"MariaDB at {where} does not answer: {said}",
            "Start the server, or set host and port of the source.",
        )
    return Halt("mysql-failed", f"MariaDB refused: {said} ({code})", "Look at the server's log for the statement.")


def missing_grant(user: str, said: str) -> NotReady:
    """Return the error for a right that the user lacks."""
    return NotReady(
        "missing-grant",
        f"MariaDB refused: {said}",
        "Have an administrator run: GRANT SELECT, RELOAD, SHOW DATABASES, REPLICATION SLAVE, BINLOG MONITOR ON *.* "
        f"TO '{user}';",
    )


def refuse_unready(server: Server) -> None:
    """Raise the first thing about the server or the user that would keep us from reading changes."""
    names = ("version", "log_bin", "binlog_format", "binlog_row_image", "log_bin_compress")
    refuse_settings(dict(zip(names, server.settings(*names), strict=True)))
    refuse_grants(server)
    if not server.settings("gtid_binlog_pos")[0]:
        raise NotReady(
            "binlog-empty",
            "the binlog of MariaDB has no transaction yet, so there is no place to begin at",
            "Change a row of any table once.",
        )


def refuse_settings(settings: Mapping[str, str]) -> None:
    """Raise if a server with these settings writes no binlog that says every change."""
    version = settings["version"]
    if "mariadb" not in version.lower():
        raise Misconfigured(
            "not-available",
            f"the server is MySQL {version}, and this release captures MariaDB only",
            "Capture MySQL with a Debezium connector of your own, and read its topics with source_type: kafka.",
        )
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST:
        raise NotReady(
            "mysql-too-old",
            f"MariaDB is version {version} and at least {OLDEST[0]}.{OLDEST[1]} is needed",
            "Upgrade the server.",
        )
    if settings["log_bin"] != "ON":
        raise NotReady("binlog-off", "MariaDB writes no binlog", "Set log_bin and restart the server.")
    for name, wanted in (("binlog_format", "ROW"), ("binlog_row_image", "FULL"), ("log_bin_compress", "OFF")):
        if settings[name] not in (wanted, ""):
            raise NotReady(
                "binlog-format",
                f'{name} of MariaDB is "{settings[name]}"',
                f"Set {name} = {wanted} for the server, and have its clients connect again.",
            )


def refuse_grants(server: Server) -> None:
    """Raise if the user may not read the binlog, or not take a snapshot that is consistent."""
    granted = " ".join(str(row[0]) for row in server.ask("SHOW GRANTS"))
    everywhere = " ".join(re.findall(r"GRANT (.+?) ON \*\.\* TO", granted))
    if "ALL PRIVILEGES" in everywhere:
        return
    for right in ("REPLICATION SLAVE", "RELOAD"):
        if not re.search(rf"\b{right}\b(?! ADMIN)", everywhere):
            raise missing_grant(server.user, f'the user "{server.user}" has no {right} right')
    head(server)


def origin(server: Server) -> str:
    """Return which server this is."""
    uid, number = server.settings("server_uid", "server_id")
    return f"{uid}/{number}"


def head(server: Server) -> Stand:
    """Return where the server writes now."""
    rows = server.ask("SHOW MASTER STATUS")
    if not rows:
        raise NotReady("binlog-off", "MariaDB writes no binlog", "Set log_bin and restart the server.")
    return Stand(str(rows[0][0]), int(rows[0][1]))


def binlogs(server: Server) -> dict[str, int]:
    """Return the binlogs that the server still has, oldest first, each with its size."""
    return {str(row[0]): int(row[1]) for row in server.ask("SHOW BINARY LOGS")}


def distance(server: Server, stand: Stand) -> int:
    """Return how many bytes of binlog lie behind `stand`."""
    behind = sum(size for name, size in binlogs(server).items() if file_number(name) >= stand.order[0])
    return max(0, behind - stand.pos)


def gtids_at(server: Server, stand: Stand) -> str | None:
    """Return the GTIDs up to a place; None if no transaction ends there."""
    found = server.ask("SELECT BINLOG_GTID_POS(%s, %s)", [stand.file, stand.pos])[0][0]
    return None if found is None else str(found if isinstance(found, str) else found.decode())


def idle_end(server: Server, stand: Stand, handled: int) -> Stand:
    """Return how far beyond `stand` there are only events without rows, `handled` of them having been read.

    A statement that changes a table is a transaction that nothing ends, so a reader never says that it is past it.
    """
    end = stand.pos
    rows = server.ask("SHOW BINLOG EVENTS IN %s FROM %s LIMIT 8", [stand.file, stand.pos])
    kinds = [(str(row[2]), int(row[4]), str(row[5])) for row in rows]
    if handled >= 2 and len(kinds) >= 2 and kinds[0][0] == "Gtid" and not kinds[0][2].startswith("BEGIN"):
        end, kinds = kinds[1][1], kinds[2:]
    for kind, after, _ in kinds:
        if kind not in _IDLE:
            break
        end = max(end, after)
    return Stand(stand.file, end)


def all_tables(server: Server) -> dict[str, Found]:
    """Return the tables of the server, by qualified name."""
    rows = server.ask(_TABLES, [_UNREADABLE, _SYSTEM])
    return {
        f"{schema}.{table}": Found(schema, table, engine or "", tuple(keys.split("\n")) if keys else (), *others)
        for schema, table, engine, keys, *others in rows
    }


def chosen_tables(server: Server, names: Iterable[str], database: str) -> dict[str, Found]:
    """Return the tables called `names`; if none are named, those of `database`."""
    have = all_tables(server)
    wanted = list(names) or [name for name, found in have.items() if found.schema == database]
    for name in wanted:
        if name not in have:
            near = difflib.get_close_matches(name, have, 1)
            raise Misconfigured(
                "unknown-table",
                f'the server has no table "{name}" that the user may see',
                f'Did you mean "{near[0]}"?' if near else "Name tables with their database, for example shop.orders.",
            )
    if not wanted:
        raise Misconfigured(
            "no-tables", f'database "{database}" has no table to read', "Create a table, or set database."
        )
    return {name: have[name] for name in wanted}


def refuse_tables(server: Server, tables: Mapping[str, Found]) -> None:
    """Raise for the first table that cannot be read whole."""
    for name, found in tables.items():
        if found.engine.lower() != "innodb":
            raise Misconfigured(
                "not-transactional",
                f'table "{name}" has the storage engine "{found.engine}", whose rows cannot be read at one moment',
                f"Run: ALTER TABLE {name} ENGINE=InnoDB; or leave the table out.",
            )
        if found.unreadable:
            raise Misconfigured(
                "unsupported-type",
                f'column "{found.unreadable}" of table "{name}" has a type that cannot be captured',
                "Make it text, or leave the table out.",
            )
        # Who may only read does not see foreign keys elsewhere.
        quoted = ".".join("`" + part.replace("`", "``") + "`" for part in (found.schema, found.table))
        cascade = _CASCADE.search(str(server.ask(f"SHOW CREATE TABLE {quoted}")[0][1]))
        if cascade:
            raise Misconfigured(
                "cascading-key",
                f'the server changes rows of table "{name}" by its foreign key "{cascade[1]}", and does not write that '
                "to its binlog",
                "Make the key RESTRICT and have the application change those rows, or leave the table out.",
            )
