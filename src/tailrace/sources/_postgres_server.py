"""What we ask of a PostgreSQL server and what we make there: tables, publication, slot.

Names are always quoted by the driver and values always bound. Whatever the server refuses comes out as an error
that says what to grant or to set.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from tailrace.core.errors import Halt, Misconfigured, NotReady
from tailrace.sources._debezium.stand import lsn_number

Server = psycopg.Connection[tuple[Any, ...]]

OLDEST = 14
"""Logical messages reach a publication from this major version on; heartbeats are made of them."""

MESSAGE = "SELECT pg_logical_emit_message(true, 'tailrace', '')"

# Arrays that the engine leaves out of a row without a word: of xml, money, char, interval, bit and so on. Beside them
# it fails at a domain over an enum.
_DROPPED = (143, 791, 1003, 1017, 1187, 1561, 1563, 2201)

# Of these arrays, and of everything that is not one, the engine says when a long value was left out because it did
# not change. Of other arrays and of these types it does not, unless the table's replica identity is full.
_TOLD = ("_text", "_varchar", "_bpchar", "_json", "_jsonb", "_bytea", "_int4", "_date", "_int8", "_uuid")
_UNTOLD = ("geometry", "geography", "vector", "halfvec", "sparsevec")

# A key that is deferrable identifies no row: within a transaction two rows may have it, and PostgreSQL takes it for no
# replica identity. Rows of a partitioned table have the identity of their partition, which need not be its own.
_TABLES = """
WITH RECURSIVE based(oid, base) AS (
  SELECT oid, oid FROM pg_type WHERE typtype <> 'd'
  UNION ALL SELECT d.oid, b.base FROM pg_type d JOIN based b ON b.oid = d.typbasetype WHERE d.typtype = 'd'
), leaf AS (
  SELECT c.oid AS root, l.oid, l.relreplident AS identity
  FROM pg_class c LEFT JOIN LATERAL (SELECT relid FROM pg_partition_tree(c.oid) WHERE isleaf) t ON true
  JOIN pg_class l ON l.oid = coalesce(t.relid, c.oid)
  WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
)
SELECT n.nspname || '.' || c.relname, c.oid, n.nspname, c.relname, c.relkind = 'p',
       NOT EXISTS (SELECT FROM leaf l WHERE l.root = c.oid AND l.identity <> 'f'), pg_has_role(c.relowner, 'USAGE'),
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'), row_security_active(c.oid),
       c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid),
       coalesce((SELECT array_agg(a.attname::text ORDER BY k.place)
                 FROM pg_index i, unnest(i.indkey) WITH ORDINALITY k(attnum, place), pg_attribute a
                 WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate AND k.place <= i.indnkeyatts
                   AND a.attrelid = c.oid AND a.attnum = k.attnum), '{}'),
       coalesce((SELECT array_agg(a.attname::text) FROM pg_attribute a JOIN based d ON d.oid = a.atttypid
                 JOIN pg_type t ON t.oid = d.base
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
                   AND (d.base = ANY(%(dropped)s) OR t.typtype = 'e' AND d.oid <> d.base)), '{}'),
       coalesce((SELECT array_agg(a.attname::text ORDER BY a.attnum)
                 FROM pg_attribute a JOIN based d ON d.oid = a.atttypid JOIN pg_type t ON t.oid = d.base
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
                   AND a.attstorage <> 'p' AND EXISTS (SELECT FROM leaf l WHERE l.root = c.oid AND l.identity <> 'f')
                   AND (t.typcategory = 'A' AND t.typname <> ALL(%(told)s) OR t.typname = ANY(%(untold)s))), '{}'),
       coalesce((SELECT array_agg(a.attname::text) FROM pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND NOT EXISTS (
                   SELECT FROM leaf l WHERE l.root = c.oid AND l.identity <> 'f' AND NOT EXISTS (
                     SELECT FROM pg_index i, unnest(i.indkey) WITH ORDINALITY k(attnum, place), pg_attribute b
                     WHERE i.indrelid = l.oid AND i.indimmediate AND k.place <= i.indnkeyatts
                       AND (l.identity = 'i' AND i.indisreplident OR l.identity = 'd' AND i.indisprimary)
                       AND b.attrelid = l.oid AND b.attnum = k.attnum AND b.attname = a.attname))), '{}'),
       coalesce((SELECT array_agg(a.attname::text) FROM pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> ''), '{}')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\\_%%'
  AND NOT EXISTS (SELECT FROM pg_depend d
                  WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
ORDER BY 1
"""

_PUBLISHED = """
SELECT t.schemaname || '.' || t.tablename, concat_ws('/', p.oid, r.oid, c.oid)
FROM pg_publication_tables t JOIN pg_publication p USING (pubname)
JOIN pg_class c ON c.relname = t.tablename AND c.relnamespace = quote_ident(t.schemaname)::regnamespace
LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
WHERE t.pubname = %s
"""

_COLUMNS = """
SELECT n.nspname || '.' || c.relname, a.attnum::text, a.attname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
WHERE n.nspname || '.' || c.relname = ANY(%s) AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY 1, a.attnum
"""

_SLOT = """
SELECT plugin, database, active_pid, wal_status, confirmed_flush_lsn::text, restart_lsn::text
FROM pg_replication_slots WHERE slot_name = %s
"""


@dataclass(frozen=True, slots=True)
class Found:
    """A table of the server, with what we may do with it."""

    name: str
    oid: int
    schema: str
    table: str
    partitioned: bool
    identity_full: bool
    """All of a row that was changed or deleted is sent, of every partition."""
    owned: bool
    readable: bool
    hidden: bool
    """Row security keeps some of its rows from us, of which changes would tell."""
    inherited: bool
    """Other tables inherit from it: reading it would give their rows too, and its changes are not theirs."""
    keys: tuple[str, ...]
    dropped: tuple[str, ...]
    untold: tuple[str, ...]
    identity: tuple[str, ...]
    """What is sent of a row that was changed or deleted, of every partition."""
    generated: tuple[str, ...]
    """Columns that the database computes: a snapshot would have them, and no change does."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A replication slot as the server shows it."""

    plugin: str | None
    database: str | None
    active_pid: int | None
    wal_status: str | None
    confirmed: int | None
    restart: int | None


_CONNECT: Mapping[str, Any] = {
    "connect_timeout": 10,
    "application_name": "tailrace",
    "client_encoding": "utf8",
    # What is read as text is to look the same whatever database and role are set to.
    "options": "-c datestyle=ISO -c timezone=UTC -c extra_float_digits=1",
}


@contextmanager
def connection(dsn: Mapping[str, Any], closing: threading.Event | None = None) -> Iterator[Server]:
    """Open a connection that commits each statement; errors of the server become ours.

    A statement that waits, for a lock or for the transactions of others to end, is cancelled when `closing` is set.
    """
    try:
        with psycopg.connect(**dsn, **_CONNECT, autocommit=True) as opened, _cancelling(opened, closing):
            yield opened
    except psycopg.errors.InsufficientPrivilege as error:
        raise NotReady(
            "missing-grant", f"PostgreSQL refused: {_first_line(error)}", f'Grant it to the user "{dsn["user"]}".'
        ) from error
    except psycopg.OperationalError as error:
        raise _unreachable(dsn, error) from error
    except psycopg.Error as error:
        raise Halt(
            "postgres-failed",
            f"PostgreSQL refused: {_first_line(error)}",
            "Look at the server's log for the statement.",
        ) from error


@contextmanager
def _cancelling(opened: Server, closing: threading.Event | None) -> Iterator[None]:
    if closing is None:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            if closing.is_set():
                with suppress(psycopg.Error):
                    opened.cancel_safe(timeout=5)

    watching = threading.Thread(target=watch, name="postgres-cancel", daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


def _unreachable(dsn: Mapping[str, Any], error: psycopg.OperationalError) -> NotReady:
    said = str(error)
    where = f"{dsn['host']}:{dsn['port']}"
    if "password" in said and ("authentication failed" in said or "no password supplied" in said):
        return NotReady(
            "wrong-password",
            f'PostgreSQL at {where} refused the password of user "{dsn["user"]}"',
            "Set username and password of the source.",
        )
    if 'database "' in said and "does not exist" in said:
        return NotReady(
            "unknown-database",
            f'PostgreSQL at {where} has no database "{dsn["dbname"]}"',
            "Set database of the source, or create it.",
        )
    if "pg_hba.conf" in said or ('role "' in said and "too many connections" not in said):
        return NotReady(
            "login-refused",
            f"PostgreSQL at {where} refused the login: {_first_line(error)}",
            f'Let the user "{dsn["user"]}" in: create the role, or add it to pg_hba.conf.',
        )
    return NotReady(
        "postgres-unreachable",
        f"PostgreSQL at {where} does not answer: {_first_line(error)}",
        "Start the server, or set host and port of the source.",
    )


def _first_line(error: psycopg.Error) -> str:
    text = error.diag.message_primary or str(error).strip()
    return text.splitlines()[-1].strip() if text else type(error).__name__


def origin(server: Server) -> str:
    """Return which system and which history of it this is: `<system identifier>/<timeline>`."""
    row = server.execute(
        "SELECT system_identifier, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int"
        " FROM pg_control_system()"
    ).fetchall()[0]
    return f"{row[0]}/{row[1]}"


def head(server: Server) -> int:
    """Return where the server writes now."""
    row = server.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()[0]
    return lsn_number(row[0])


def all_tables(server: Server) -> dict[str, Found]:
    """Return the tables of the database that can be replicated, by qualified name."""
    rows = server.execute(_TABLES, {"dropped": list(_DROPPED), "told": list(_TOLD), "untold": list(_UNTOLD)}).fetchall()
    return {row[0]: Found(*row[:10], *map(tuple, row[10:])) for row in rows}


def chosen_tables(server: Server, names: Iterable[str], publication: str) -> dict[str, Found]:
    """Return the tables called `names`; if none are named, those of `publication`, and if there is none, all."""
    have = all_tables(server)
    wanted = list(names) or sorted(published(server, publication) or have)
    for name in wanted:
        if name not in have:
            near = difflib.get_close_matches(name, have, 1)
            raise Misconfigured(
                "unknown-table",
                f'the database has no table "{name}" that can be replicated',
                f'Did you mean "{near[0]}"?' if near else "Name tables with their schema, for example public.orders.",
            )
    if not wanted:
        raise Misconfigured("no-tables", "the database has no table to read", "Create a table, or set database.")
    return {name: have[name] for name in wanted}


def slot(server: Server, name: str) -> Slot | None:
    """Return the slot called `name`, or None."""
    row = server.execute(_SLOT, [name]).fetchone()
    if row is None:
        return None
    confirmed, restart = (lsn_number(text) if text else None for text in row[4:])
    return Slot(row[0], row[1], row[2], row[3], confirmed, restart)


def published(server: Server, publication: str) -> dict[str, str] | None:
    """Return the tables of `publication`, or None if there is no such publication.

    Each comes with what it is known by: another text if table or publication was made anew, or the table was taken
    out and put back. What was changed in between is told by nobody.
    """
    if server.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", [publication]).fetchone() is None:
        return None
    return {row[0]: row[1] for row in server.execute(_PUBLISHED, [publication])}


def columns(server: Server, tables: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return, by table, the name of each column by its number, which it has for life."""
    found: dict[str, dict[str, str]] = {}
    for table, number, name in server.execute(_COLUMNS, [list(tables)]):
        found.setdefault(table, {})[number] = name
    return found


def publish(server: Server, publication: str, tables: Mapping[str, Found]) -> None:
    """Create `publication` for exactly `tables`, or see that it is that already."""
    have = published(server, publication)
    if have is None:
        listed = sql.SQL(", ").join(sql.Identifier(found.schema, found.table) for found in tables.values())
        server.execute(
            sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)").format(
                sql.Identifier(publication), listed
            )
        )
    else:
        refuse_partial(server, publication)
        if set(have) != set(tables):
            raise Misconfigured(
                "publication-differs",
                f'the publication "{publication}" covers {_listed(have)} and the pipeline reads {_listed(tables)}',
                "Set publication_name to a name of its own, or drop the publication if nobody uses it.",
            )


def refuse_partial(server: Server, publication: str) -> None:
    """Refuse a publication that leaves out some operations, columns or rows."""
    whole = server.execute(
        "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication WHERE pubname = %s",
        [publication],
    ).fetchone()
    filtered = (
        server.info.server_version >= 150000
        and server.execute(
            "SELECT 1 FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid"
            " WHERE p.pubname = %s AND (r.prqual IS NOT NULL OR r.prattrs IS NOT NULL)",
            [publication],
        ).fetchone()
    )
    if whole != (True,) or filtered:
        raise Misconfigured(
            "publication-partial",
            f'the publication "{publication}" leaves out operations, columns or rows',
            "Set publication_name to a name of its own, and Tailrace makes one that carries everything.",
        )


def drop_slot(server: Server, name: str) -> bool:
    """Drop the slot called `name` if there is one; never while somebody reads from it."""
    found = slot(server, name)
    if found is None:
        return False
    if found.active_pid:
        raise slot_active(name, found.active_pid)
    server.execute("SELECT pg_drop_replication_slot(%s)", [name])
    return True


def drop_publication(server: Server, name: str) -> bool:
    """Drop the publication called `name` if there is one and it is ours to drop; somebody else's stays."""
    owned = "SELECT pg_has_role(pubowner, 'USAGE') FROM pg_publication WHERE pubname = %s"
    if (True,) not in server.execute(owned, [name]).fetchall():
        return False
    server.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))
    return True


def slot_active(name: str, pid: int) -> NotReady:
    """Return the error for a slot that another process reads from."""
    return NotReady(
        "slot-active",
        f'the replication slot "{name}" is in use by the server process {pid}',
        "Stop the other reader, or give this pipeline a slot_name of its own.",
    )


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    text = ", ".join(f'"{name}"' for name in ordered[:5])
    return f"{text} and {len(ordered) - 5} more" if len(ordered) > 5 else text or "no table"


def refuse_unready(server: Server, user: str) -> None:
    """Raise the first thing about the server or the user that would keep us from reading changes."""
    if server.info.server_version < OLDEST * 10000:
        raise NotReady(
            "postgres-too-old",
            f"PostgreSQL is version {server.info.server_version // 10000} and at least {OLDEST} is needed",
            "Upgrade the server, or read it through Kafka Connect.",
        )
    if server.info.parameter_status("server_encoding") == "SQL_ASCII":
        raise Misconfigured(
            "unsupported-encoding",
            f'the database "{server.info.dbname}" has the encoding SQL_ASCII, which says of no text what it is',
            "Copy it into a database with an encoding, such as UTF8, and read that one.",
        )
    row = server.execute(
        "SELECT current_setting('wal_level'), pg_is_in_recovery(), rolsuper OR rolreplication"
        " OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname = 'rds_replication' AND pg_has_role(r.oid, 'USAGE'))"
        " FROM pg_roles WHERE rolname = current_user"
    ).fetchone()
    level, standby, may_replicate = row or ("", False, False)
    if level != "logical":
        raise NotReady(
            "wal-level", f'wal_level of PostgreSQL is "{level}"', 'Set wal_level = "logical" and restart the server.'
        )
    if standby:
        raise NotReady("standby", "PostgreSQL is a standby", "Set host and port of the source to the primary.")
    if not may_replicate:
        raise NotReady(
            "missing-grant", f'the user "{user}" has no REPLICATION right', f'Run: ALTER ROLE "{user}" REPLICATION;'
        )


def refuse_tables(tables: Mapping[str, Found], user: str) -> None:
    """Raise for the first table that cannot be read whole."""
    for name, found in tables.items():
        if not found.readable:
            raise NotReady(
                "missing-grant",
                f'the user "{user}" may not read table "{name}"',
                f'Run: GRANT USAGE ON SCHEMA "{found.schema}" TO "{user}"; GRANT SELECT ON {name} TO "{user}";',
            )
        if found.hidden:
            raise NotReady(
                "missing-grant",
                f'row security hides rows of table "{name}" from the user "{user}"',
                f'Run: ALTER ROLE "{user}" BYPASSRLS;',
            )
        if found.inherited:
            raise Misconfigured(
                "inherited-table",
                f'other tables inherit from table "{name}", so reading it would give their rows too',
                "Leave it out, and name the tables that inherit from it under tables.",
            )
        each = " And so for each of its partitions, to which that is not passed on." if found.partitioned else ""
        if not found.identity_full and not found.identity:
            raise Misconfigured(
                "no-replica-identity",
                f'table "{name}" has no replica identity, so publishing it would make its updates and deletes fail',
                f"Give it a primary key, or run: ALTER TABLE {name} REPLICA IDENTITY FULL;{each}",
            )
        if not found.identity_full and not set(found.keys) <= set(found.identity):
            raise Misconfigured(
                "identity-without-key",
                f'the replica identity of table "{name}" is an index without its primary key, so a delete does not '
                "tell which row is gone",
                f"Run: ALTER TABLE {name} REPLICA IDENTITY DEFAULT; or FULL, if a sink names another key.{each}",
            )
        if computed := [key for key in found.keys if key in found.generated]:
            raise Misconfigured(
                "generated-key",
                f'column "{computed[0]}" of table "{name}" is part of its key and generated, so no change carries it',
                "Make the key of columns that are stored as they are given, or leave the table out.",
            )
        if found.dropped:
            raise Misconfigured(
                "unsupported-type",
                f'column "{found.dropped[0]}" of table "{name}" has a type that cannot be captured',
                "Make it text or an array of text, or leave the table out.",
            )
        if found.untold:
            raise Misconfigured(
                "needs-full-identity",
                f'column "{found.untold[0]}" of table "{name}" has a type whose long values, when they do not change, '
                "cannot be told from null",
                f"Run: ALTER TABLE {name} REPLICA IDENTITY FULL;{each}",
            )


def refuse_unpublishable(server: Server, publication: str, tables: Mapping[str, Found], user: str) -> None:
    """Raise if the publication is missing and the user could not create it."""
    if published(server, publication) is not None:
        return
    row = server.execute("SELECT has_database_privilege(current_database(), 'CREATE')").fetchone()
    foreign = next((name for name, found in tables.items() if not found.owned), None)
    if row != (True,) or foreign:
        why = f'does not own table "{foreign}"' if foreign else "may not create in the database"
        names = ", ".join(tables)
        raise NotReady(
            "cannot-publish",
            f'the user "{user}" cannot create the publication "{publication}": it {why}',
            f'Have the owner run: CREATE PUBLICATION "{publication}" FOR TABLE {names} '
            "WITH (publish_via_partition_root = true);",
        )


def refuse_full(server: Server) -> None:
    """Raise if the server has no slot or no sender left for us."""
    for kind, used, setting in (
        ("replication slot", "pg_replication_slots", "max_replication_slots"),
        ("WAL sender", "pg_stat_replication", "max_wal_senders"),
    ):
        row = server.execute(
            sql.SQL("SELECT count(*), current_setting({})::int FROM {}").format(
                sql.Literal(setting), sql.Identifier(used)
            )
        ).fetchone()
        if row and row[0] >= row[1]:
            raise NotReady(
                "no-free-slot",
                f"PostgreSQL has no free {kind}: all {row[1]} are in use",
                f"Raise {setting} and restart the server, or drop one that is no longer needed.",
            )
