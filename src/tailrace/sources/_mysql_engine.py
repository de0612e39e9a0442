"""How the engine is set up for MariaDB, and what its failures mean to us.

Values reach the log exactly: numbers of any size as text, times as whole microseconds, nothing rounded. The engine
never retries and never takes a second snapshot by itself; the runtime decides what to do.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace.core.errors import Halt, NotReady, ResyncRequired, Retryable, TailraceError
from tailrace.sources._binlog_stand import Stand
from tailrace.sources._debezium.engine import Cause
from tailrace.sources._debezium.log_rows import reset_rows

if TYPE_CHECKING:
    from tailrace.sources.mysql import Options

_EXACT = {
    "decimal.handling.mode": "string",
    "bigint.unsigned.handling.mode": "precise",
    "time.precision.mode": "microseconds",
    # It would take the year 1 for 2001.
    "enable.time.adjuster": "false",
    "binary.handling.mode": "bytes",
    "include.unknown.datatypes": "true",
    "column.propagate.source.type": ".*",
    "schema.name.adjustment.mode": "none",
    "field.name.adjustment.mode": "none",
    "tombstones.on.delete": "false",
    "skipped.operations": "none",
}

_CAREFUL = {
    "include.schema.changes": "false",
    "event.processing.failure.handling.mode": "fail",
    "event.converting.failure.handling.mode": "fail",
    "inconsistent.schema.handling.mode": "fail",
    "event.deserialization.failure.handling.mode": "fail",
    "retriable.restart.connector.wait.ms": "100",
    "connect.timeout.ms": "10000",
    # The runtime tries again, from the checkpoint.
    "connect.keep.alive": "false",
}


def engine_config(
    options: Options,
    pipeline_id: str,
    tables: Iterable[str],
    batch_rows: int,
    heartbeat_seconds: float,
    history: Path,
    *,
    fresh: bool,
) -> dict[str, str]:
    """Return the engine's settings; `fresh` means that it reads the rows that are there."""
    chosen = list(tables)
    return {
        **_EXACT,
        **_CAREFUL,
        **database_config(options, pipeline_id, chosen),
        "name": "tailrace",
        "topic.prefix": "tailrace",
        "snapshot.mode": "initial" if fresh else "no_data",
        "snapshot.locking.mode": "minimal",
        "snapshot.fetch.size": "10000",
        "schema.history.internal": "tailrace.History",
        "schema.history.internal.tailrace.file": str(history.absolute()),
        "schema.history.internal.tailrace.tables": "\n".join(chosen),
        "schema.history.internal.skip.unparseable.ddl": "false",
        "max.batch.size": str(batch_rows),
        "max.queue.size": str(4 * batch_rows),
        "max.queue.size.in.bytes": str(128 << 20),
        # A batch is a page is a file: wait a little for company, unless the batch is full already.
        "poll.interval.ms": "300",
        "heartbeat.interval.ms": str(int(heartbeat_seconds * 1000)),
        # How often an idle server says that it is there; without that a reader would not know that it has all.
        "connect.keep.alive.interval.ms": str(int(heartbeat_seconds * 1000)),
        # Asked for by a class of Kafka's that this engine brings, and never connected to.
        "bootstrap.servers": "none:0",
    }


def database_config(options: Options, pipeline_id: str, tables: Iterable[str]) -> dict[str, str]:
    """Return what a connector must know of the database."""
    return {
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "database.hostname": options.host,
        "database.port": str(options.port),
        "database.user": options.username,
        "database.password": options.password.get_secret_value(),
        "database.server.id": str(options.server_id or own_server_id(pipeline_id)),
        "table.include.list": ",".join(re.sub(r"([^A-Za-z0-9_])", r"\\\1", table) for table in tables),
    }


def own_server_id(pipeline_id: str) -> int:
    """Return a number that the pipeline has every time, and that other replicas hardly have."""
    return 1_000_000_000 + zlib.crc32(pipeline_id.encode()) % 1_000_000_000


def void_rows(topic_prefix: str, tables: Mapping[str, object]) -> pa.Table:
    """Return one row per table that says: what the target has of it is void, the snapshot starts it anew."""
    return reset_rows(topic_prefix, tables, {"place": "0" * 40})


_GONE = re.compile(
    r"Could not find first log file|binary log index|has been purged|required binary logs|no longer available"
    r"|GTID state requested|error reading log|Client requested master to start replication from"
    r"|came behind|does not tell its rows",
    re.DOTALL,
)


def failed(causes: list[Cause], options: Options, resync: str) -> TailraceError:
    """Return our error for the chain of errors that ended the engine."""
    said = _said(causes, options)
    states = [cause.state for cause in causes if cause.state]
    if any("same server_uuid/server_id" in cause.message for cause in causes):
        return NotReady(
            "server-id-in-use",
            f"another replica has the server id of this pipeline: {said}",
            "Set server_id of the source to a number that no other replica has.",
        )
    if any(_GONE.search(cause.message) for cause in causes):
        return ResyncRequired(f"MariaDB can no longer give the changes that are missing: {said}", resync)
    if "28000" in states or any("Access denied" in cause.message for cause in causes):
        return NotReady("missing-grant", f"MariaDB refused: {said}", f'Grant it to the user "{options.username}".')
    broken = any(state.startswith("08") for state in states)
    if broken or any(cause.kind.startswith(("java.io.", "java.net.")) for cause in causes):
        return Retryable("connection-lost", f"the connection to MariaDB was lost: {said}", "It is tried again.")
    return Halt(
        "capture-failed",
        f"the capture engine ended: {said}",
        "Nothing was passed over. If it ends so again, report it with this message.",
    )


def _said(causes: list[Cause], options: Options) -> str:
    # The innermost message is the server's own; what wraps it says where in the engine it happened.
    text = next((cause.message for cause in reversed(causes) if cause.message), "no reason given")
    secret = options.password.get_secret_value()
    if secret:
        text = text.replace(secret, "***")
    return " ".join(text.split())[:400]


def engine_offset(stand: Stand) -> str:
    """Return the engine's own offset for the end of the transactions that `stand` has whole.

    With GTIDs: by file and place alone this engine does not start on a server that has them.
    """
    return json.dumps({"file": stand.file, "pos": stand.pos, "gtids": stand.gtids, "ts_sec": 0}, separators=(",", ":"))
