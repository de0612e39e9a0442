"""MariaDB, read by the Debezium engine inside this process: a snapshot, then every change after it.

A page is a batch of the engine. Its checkpoint says which transactions it completes and how far it goes into the next
one, so a reader that starts again gets the rest of that transaction and nothing twice. See `_binlog_stand.py` for the
notation. The server keeps its binlog for as long as it was told to, whoever reads it: there is nothing to acknowledge.

    None ──▶ Snapshotting (interrupted, it is taken anew) ──▶ Tailing
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from tailrace.core.checkpoint import Checkpoint, Place, Snapshotting, Tailing
from tailrace.core.errors import Halt, NotReady, ResyncRequired, Unreachable
from tailrace.core.failpoint import failpoint
from tailrace.core.page import Page
from tailrace.sources import _mysql_server as server
from tailrace.sources._binlog_history import History
from tailrace.sources._binlog_stand import Stand, gtids_of, stand_at
from tailrace.sources._debezium.engine import Batch, Engine, Resume
from tailrace.sources._debezium.jvm import MARIADB
from tailrace.sources._debezium.log_rows import no_rows
from tailrace.sources._mysql_engine import connector_config, engine_config, engine_offset, failed, replacing, void_rows

Qualified = Annotated[str, Field(pattern=r"^[^.]+\..+$")]

ENVELOPE = "binlog"
"""How the rows are opened."""

_RESYNC = "Run cdc run <file> --resync, which takes a new snapshot of every table."
_QUIET_PAGES = 10.0
"""Seconds between two pages without rows."""
_SILENCE = 60.0
"""Seconds without a sign of the server, which gives one every second or so, until the connection counts as lost."""


class Options(BaseModel):
    """The `source:` section of a pipeline file, for `source_type: mysql`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: str = "localhost"
    """Where the server is."""
    port: int = Field(3306, ge=1, le=65535)
    """The server's port."""
    database: str = Field(min_length=1)
    """The database to read, if `tables` names none."""
    username: str = Field("cdc_user", min_length=1)
    """The user to log in as: it needs SELECT, RELOAD, SHOW DATABASES, REPLICATION SLAVE and BINLOG MONITOR."""
    password: SecretStr = SecretStr("cdc_password")
    """The user's password."""
    tables: tuple[Qualified, ...] = ()
    """The tables to read, each with its database (`shop.orders`); all of `database` at the first run if empty."""
    server_id: int = Field(0, ge=0, le=4_294_967_295)
    """The number that we have among the server's replicas; made from `pipeline_id` if 0."""
    snapshot_mode: Literal["initial", "never", "no_data"] = "initial"
    """`initial` reads the rows that are there first; `never` and `no_data` begin with the next change."""


def open_source(options: Options, *, pipeline_id: str, topic_prefix: str, epoch: int) -> MySqlSource:
    """Return the source that `options` describe; nothing is connected yet."""
    return MySqlSource(options, pipeline_id=pipeline_id, topic_prefix=topic_prefix, epoch=epoch)


class MySqlSource:
    """The changes of some tables of one server; `remember_in` comes before reading."""

    remembers = True
    """A connector must keep what its tables looked like at each place of the binlog."""

    def __init__(
        self,
        options: Options,
        *,
        pipeline_id: str,
        topic_prefix: str,
        epoch: int,
        batch_rows: int = 16_384,
        heartbeat_seconds: float = 1.0,
    ) -> None:
        self.name = pipeline_id
        self._options = options
        self._topic_prefix = topic_prefix
        self._epoch = epoch
        self._batch_rows = batch_rows
        self._heartbeat_seconds = heartbeat_seconds
        self._history: History | None = None
        self._closing = threading.Event()
        self._login: dict[str, Any] = {
            "host": options.host,
            "port": options.port,
            "user": options.username,
            "password": options.password.get_secret_value().encode(),
        }

    def remember_in(self, folder: Path) -> None:
        """Keep the schema history in `folder`."""
        self._history = History(folder / "schema-history.jsonl")

    def check(self) -> None:
        """Raise the first thing that would keep this source from being read; change nothing."""
        with server.connection(self._login) as opened:
            server.refuse_unready(opened)
            server.refuse_tables(opened, self._chosen(opened))

    def tables(self) -> dict[str, tuple[str, ...]]:
        """Return the tables to read, each with its primary key, which is empty for a table that has none."""
        with server.connection(self._login) as opened:
            return {name: table.keys for name, table in self._chosen(opened).items()}

    def plan(self) -> list[str]:
        """Return nothing: a run creates nothing on the server."""
        return []

    def pages(self, since: Checkpoint | None, until: Place | None = None) -> Iterator[Page[pa.Table]]:
        """Yield what is new since `since`, up to `until` or until closed; each page follows the one before."""
        goal = stand_at(until) if until is not None else None
        try:
            yield from (self._resume(since, goal) if isinstance(since, Tailing) else self._begin(since, goal))
        except NotReady as error:
            if error.code == "mysql-unreachable":
                raise Unreachable("connection-lost", str(error), error.hint) from error
            raise

    def acknowledge(self, checkpoint: Checkpoint) -> None:
        """Do nothing: the server forgets by itself."""

    def head(self) -> Place:
        """Return the newest place."""
        with server.connection(self._login) as opened:
            return server.head(opened).place()

    def close(self) -> None:
        """Make `pages` end after the page in hand; may be called from another thread or a signal handler."""
        self._closing.set()

    def lag(self, checkpoint: Checkpoint | None) -> dict[str, object]:
        """Return how many bytes of the server's binlog lie behind `checkpoint`."""
        at = stand_at(checkpoint.at) if isinstance(checkpoint, Tailing) else None
        with server.connection(self._login) as opened:
            return {
                "head": server.head(opened).place(),
                "at": f"{at.file}:{at.pos}" if at else None,
                "lag_bytes": server.distance(opened, at) if at else None,
            }

    def prepare(self, *, fresh: bool) -> list[str]:
        """Return nothing: on the server, a connector needs nothing but a user."""
        return []

    def connector_settings(self, tables: Sequence[str], *, avro: bool) -> dict[str, str]:
        """Return the settings of a connector in Kafka Connect, apart from topics and converters."""
        return connector_config(self._options, self.name, tables, avro=avro)

    def undeploy(self, *, publication: bool = True) -> list[str]:
        """Forget the schema history, if it is ours to keep; on the server there is nothing of ours."""
        return ["schema history"] if self._history and self._history.remove() else []

    def _kept(self) -> History:
        if self._history is None:
            raise RuntimeError("remember_in comes first")
        return self._history

    def _chosen(self, opened: server.Server) -> dict[str, server.Found]:
        begun = self._history.tables() if self._history else ()
        return server.chosen_tables(opened, self._options.tables or begun, self._options.database)

    # -- the two beginnings

    def _begin(self, since: Snapshotting | None, goal: Stand | None) -> Iterator[Page[pa.Table]]:
        """Begin with a snapshot, or with the next change where none is wanted; an interrupted one is taken anew."""
        with server.connection(self._login) as opened:
            tables = {name: found.keys for name, found in self._chosen(opened).items()}
            origin = server.origin(opened)
        self._kept().begin(self._epoch, tables)
        noted = Snapshotting(origin, "", "0")
        if noted != since:
            yield Page(no_rows(), since, noted)
        yield from self._read(tables, origin, noted, None, goal)

    def _resume(self, since: Tailing, goal: Stand | None) -> Iterator[Page[pa.Table]]:
        stand = stand_at(since.at)
        with server.connection(self._login) as opened:
            self._refuse_gap(opened, since, stand)
            tables = {name: found.keys for name, found in self._chosen(opened).items()}
        self._kept().resume(self._epoch, stand)
        self._refuse_changed_tables(set(tables))
        if goal is None or stand.order < goal.order:
            yield from self._read(tables, since.origin, since, stand, goal)

    def _refuse_gap(self, opened: server.Server, since: Tailing, stand: Stand) -> None:
        here, sizes = server.origin(opened), server.binlogs(opened)
        if here != since.origin:
            what = f'the position belongs to server "{since.origin}" and this one is "{here}"'
        elif stand.file not in sizes:
            what = f'the binlog "{stand.file}" is gone'
        elif sizes[stand.file] < stand.pos or not self._same_binlog(opened, stand):
            what = f'the binlog "{stand.file}" is not the one that was read: it was replaced'
        else:
            return
        raise ResyncRequired(what, _RESYNC)

    def _same_binlog(self, opened: server.Server, stand: Stand) -> bool:
        wanted, found = gtids_of(stand.gtids), server.gtids_at(opened, stand)
        return bool(wanted) and found is not None and wanted.items() <= gtids_of(found).items()

    def _refuse_changed_tables(self, wanted: set[str]) -> None:
        covered = set(self._kept().tables())
        if covered != wanted:
            added, gone = sorted(wanted - covered), sorted(covered - wanted)
            raise Halt(
                "tables-changed",
                f"the tables of this pipeline changed since its snapshot: added {added}, removed {gone}",
                f"A table added later would miss the rows it already has. {_RESYNC}",
            )

    # -- the loop

    def _read(
        self,
        tables: dict[str, tuple[str, ...]],
        origin: str,
        since: Checkpoint,
        resume: Stand | None,
        goal: Stand | None,
    ) -> Iterator[Page[pa.Table]]:
        engine = self._engine(tables, resume)
        begun = resume is not None or self._epoch == 1 or self._options.snapshot_mode != "initial"
        told = heard = time.monotonic()
        try:
            while not self._closing.is_set():
                batch = engine.poll()
                if batch is None:
                    if engine.ended():
                        raise failed(engine.causes(), self._options, _RESYNC)
                    self._refuse_silence(since, heard)
                    continue
                heard = time.monotonic()
                failpoint("C02")
                rows = batch.rows
                if not begun:
                    rows, begun = pa.concat_tables([void_rows(self._topic_prefix, tables), rows]), True
                checkpoint, done = self._checkpoint(origin, batch, goal)
                quiet = not rows.num_rows and isinstance(since, Tailing) and not done
                if rows.num_rows or (checkpoint != since and not (quiet and heard - told < _QUIET_PAGES)):
                    yield Page(rows, since, checkpoint, batch.schemas)
                    since, told = checkpoint, heard
                engine.release(None)
                if done:
                    return
        finally:
            engine.close()

    def _engine(self, tables: dict[str, tuple[str, ...]], resume: Stand | None) -> Engine:
        fresh = resume is None and self._options.snapshot_mode == "initial"
        config = engine_config(
            self._options,
            self.name,
            tables,
            self._batch_rows,
            self._heartbeat_seconds,
            self._kept().path,
            fresh=fresh,
        )
        start = _start(resume) if resume else None
        return Engine(MARIADB, config, self._topic_prefix, tables, start, replacing(tables))

    def _checkpoint(self, origin: str, batch: Batch, goal: Stand | None) -> tuple[Checkpoint, bool]:
        """Return the checkpoint that a batch earns, and whether the goal lies before it."""
        if not batch.snapshot_done:
            return Snapshotting(origin, "", str(batch.snapshot_rows)), False
        stand = _stand(batch)
        done = goal is not None and stand.order >= goal.order
        if goal is not None and not done and not batch.rows.num_rows:
            with server.connection(self._login) as opened:
                end = server.idle_end(opened, stand, batch.message)
                done = end.order >= goal.order
                if done and (gtids := server.gtids_at(opened, end)):
                    stand = Stand(end.file, end.pos, gtids=gtids)
        known = Stand(stand.file, stand.pos, self._kept().count(stand), stand.gtids, stand.event, stand.row)
        return Tailing(origin, known.place()), done

    def _refuse_silence(self, since: Checkpoint, heard: float) -> None:
        if isinstance(since, Tailing) and time.monotonic() - heard > _SILENCE:
            raise Unreachable(
                "connection-lost", f"MariaDB gave no sign for {_SILENCE:.0f} seconds", "The connection is made anew."
            )


def _stand(batch: Batch) -> Stand:
    file, pos, event, row, gtids = batch.stand.split(" ", 4)
    return Stand(file, int(pos), 0, gtids, int(event), int(row))


def _start(stand: Stand) -> Resume:
    return Resume(f"{stand.file} {stand.pos} {stand.event} {stand.row} {stand.gtids}", engine_offset(stand))
