"""How the engine is set up for PostgreSQL, and what its failures mean to us.

Values reach the log exactly: numbers of any size as text, times as whole microseconds, nothing rounded. The
engine never retries and never re-creates anything by itself; the runtime decides what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tailrace.core.errors import Halt, NotReady, ResyncRequired, TailraceError, Unreachable
from tailrace.sources._debezium.engine import Cause, said_by
from tailrace.sources._postgres_server import MESSAGE

if TYPE_CHECKING:
    from tailrace.sources.postgres import Options

_EXACT = {
    "decimal.handling.mode": "string",
    "time.precision.mode": "microseconds",
    "interval.handling.mode": "string",
    "hstore.handling.mode": "json",
    "binary.handling.mode": "bytes",
    "include.unknown.datatypes": "true",
    "column.propagate.source.type": ".*",
    "schema.name.adjustment.mode": "none",
    "field.name.adjustment.mode": "none",
    "tombstones.on.delete": "false",
    "skipped.operations": "none",
}

_CAREFUL = {
    "publication.autocreate.mode": "disabled",
    "lsn.flush.mode": "connector",
    "slot.drop.on.stop": "false",
    "slot.max.retries": "0",
    "retriable.restart.connector.wait.ms": "100",
    "event.processing.failure.handling.mode": "fail",
    "event.converting.failure.handling.mode": "fail",
    "database.query.timeout.ms": "0",
    "driver.connectTimeout": "10",
    # Whatever database and role are set to: the engine reads these two forms, and a snapshot takes its time.
    "driver.options": "-c intervalstyle=postgres -c bytea_output=hex -c extra_float_digits=1 -c statement_timeout=0 "
    "-c idle_in_transaction_session_timeout=0 -c lock_timeout=0",
}


def engine_config(
    options: Options,
    tables: Iterable[str],
    batch_rows: int,
    heartbeat_seconds: float,
    *,
    fresh: bool,
    left_out: Iterable[str] = (),
) -> dict[str, str]:
    """Return the engine's settings; `fresh` means that it makes the slot and reads the rows that are there.

    `left_out` names columns with their tables: of these neither the snapshot nor a change has a value.
    """
    return {
        **_excluding(left_out),
        **_EXACT,
        **_CAREFUL,
        **_database(options, tables),
        "name": "tailrace",
        "topic.prefix": "tailrace",
        "snapshot.mode": "initial" if fresh else "no_data",
        "snapshot.fetch.size": "10000",
        "max.batch.size": str(batch_rows),
        "max.queue.size": str(4 * batch_rows),
        "max.queue.size.in.bytes": str(128 << 20),
        # A batch is a page is a file: wait a little for company, unless the batch is full already.
        "poll.interval.ms": "300",
        "heartbeat.interval.ms": str(int(heartbeat_seconds * 1000)),
        "heartbeat.action.query": MESSAGE,
    }


def connector_config(
    options: Options, tables: Iterable[str], heartbeat_seconds: float, *, avro: bool, left_out: Iterable[str] = ()
) -> dict[str, str]:
    """Return the settings of a connector in Kafka Connect: the schema in each message says what its values are."""
    return {
        **_excluding(left_out),
        **_database(options, tables),
        "publication.autocreate.mode": "disabled",
        "slot.drop.on.stop": "false",
        "snapshot.mode": "initial" if options.snapshot_mode == "initial" else "no_data",
        "skipped.operations": "none",
        "tombstones.on.delete": "false",
        "heartbeat.interval.ms": str(int(heartbeat_seconds * 1000)),
        "heartbeat.action.query": MESSAGE,
        # They keep the slot moving, and would otherwise have a topic of their own.
        "message.prefix.exclude.list": ".*",
        **({"schema.name.adjustment.mode": "avro"} if avro else {}),
    }


def _database(options: Options, tables: Iterable[str]) -> dict[str, str]:
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": options.host,
        "database.port": str(options.port),
        "database.user": options.username,
        "database.password": options.password.get_secret_value(),
        "database.dbname": options.database,
        "plugin.name": "pgoutput",
        "slot.name": options.slot_name,
        "publication.name": options.publication_name,
        "table.include.list": _listed(tables),
    }


def _excluding(columns: Iterable[str]) -> dict[str, str]:
    # The engine does not tell patterns apart by case unless they say so; what is left out too much is lost.
    listed = ",".join(f"(?-i){_listed([column])}" for column in columns)
    return {"column.exclude.list": listed} if listed else {}


def _listed(names: Iterable[str]) -> str:
    """Return a list of patterns, each of which matches one name, in any case."""
    return ",".join(re.sub(r"([^A-Za-z0-9_])", r"\\\1", name) for name in names)


_LOST = re.compile(
    r"can no longer get changes from replication slot|has been invalidated|WAL segment .* has already been removed"
    r"|has been removed from the database write-ahead log|(replication slot|publication) .* does not exist"
    r"|came where .* was expected|came without the key",
    re.DOTALL,
)


def failed(causes: list[Cause], options: Options, resync: str) -> TailraceError:
    """Return our error for the chain of errors that ended the engine."""
    said = said_by(causes, options.password.get_secret_value())
    states = [cause.state for cause in causes if cause.state]
    if any(_LOST.search(cause.message) for cause in causes):
        return ResyncRequired(f"PostgreSQL can no longer give the changes that are missing: {said}", resync)
    if "55006" in states:
        return NotReady(
            "slot-active",
            f'the replication slot "{options.slot_name}" is in use: {said}',
            "Stop the other reader, or give this pipeline a slot_name of its own.",
        )
    broken = any(state.startswith(("08", "57P", "53")) for state in states)
    if broken or any(cause.kind.startswith(("java.io.", "java.net.")) for cause in causes):
        return Unreachable("connection-lost", f"the connection to PostgreSQL was lost: {said}", "It is tried again.")
    if "42501" in states:
        return NotReady("missing-grant", f"PostgreSQL refused: {said}", f'Grant it to the user "{options.username}".')
    return Halt(
        "capture-failed",
        f"the capture engine ended: {said}",
        "Nothing was acknowledged beyond the stored position. If it ends so again, report it with this message.",
    )
