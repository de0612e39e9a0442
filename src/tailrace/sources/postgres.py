"""PostgreSQL, read by the Debezium engine inside this process: a snapshot, then every change after it.

A page is a batch of the engine. Its checkpoint says which transactions it completes and how far it goes into
the next one, so a reader that starts again gets the rest of that transaction and nothing twice. The slot moves
to the last whole transaction that was acknowledged, never beyond. See `_debezium/stand.py` for the notation.

    None ──▶ Snapshotting (slot and snapshot are one; interrupted, both are made anew) ──▶ Tailing
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from tailrace.core.checkpoint import Checkpoint, Place, Scope, Snapshotting, Tailing
from tailrace.core.errors import Halt, Misconfigured, NotReady, ResyncRequired, Unreachable
from tailrace.core.failpoint import failpoint
from tailrace.core.page import Page
from tailrace.core.table import Table
from tailrace.sources import _postgres_server as server
from tailrace.sources._debezium.engine import Batch, Engine, Resume
from tailrace.sources._debezium.jvm import POSTGRES
from tailrace.sources._debezium.log_rows import no_rows, reset_rows
from tailrace.sources._debezium.stand import Stand, lsn_text, stand_at
from tailrace.sources._postgres_defaults import with_given
from tailrace.sources._postgres_engine import connector_config, engine_config, failed

Name = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,62}$")]
Qualified = Annotated[str, Field(pattern=r"^[^.]+\..+$")]

_PATIENCE = 10.0
"""Seconds to wait for a slot that the server still counts as ours, after a reader was killed."""

_RESYNC = "Run cdc run <file> --resync, which takes a new snapshot of every table."


class Options(BaseModel):
    """The `source:` section of a pipeline file, for `source_type: postgres`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: str = "localhost"
    """Where the server is."""
    port: int = Field(5432, ge=1, le=65535)
    """The server's port."""
    database: str = Field(min_length=1)
    """The database to read."""
    username: str = Field("cdc_user", min_length=1)
    """The user to log in as: it needs REPLICATION, and SELECT on the tables."""
    password: SecretStr = SecretStr("cdc_password")
    """The user's password."""
    tables: tuple[Qualified, ...] = ()
    """The tables to read, each with its schema (`public.orders`); all that exist at the first run if empty."""
    slot_name: Name = "cdc_slot"
    """The replication slot, made at the first run and dropped by `cdc undeploy`."""
    publication_name: Name = "cdc_publication"
    """The publication, made at the first run and dropped by `cdc undeploy`."""
    snapshot_mode: Literal["initial", "never", "no_data"] = "initial"
    """`initial` reads the rows that are there first; `never` and `no_data` begin with the next change."""


def open_source(options: Options, *, pipeline_id: str, topic_prefix: str, epoch: int) -> PostgresSource:
    """Return the source that `options` describe; nothing is connected yet."""
    return PostgresSource(options, pipeline_id=pipeline_id, topic_prefix=topic_prefix, epoch=epoch)


class PostgresSource:
    """The changes of some tables of one database; one reader at a time."""

    remembers = False
    """A connector learns from the server what its tables look like."""

    def __init__(
        self,
        options: Options,
        *,
        pipeline_id: str,
        topic_prefix: str,
        epoch: int,
        batch_rows: int = 16_384,
        heartbeat_seconds: float = 10.0,
    ) -> None:
        self.name = pipeline_id
        self._options = options
        self._topic_prefix = topic_prefix
        self._epoch = epoch
        self._batch_rows = batch_rows
        self._heartbeat_seconds = heartbeat_seconds
        self._acknowledged: int | None = None
        self._closing = threading.Event()
        self._dsn: dict[str, str | int] = {
            "host": options.host,
            "port": options.port,
            "dbname": options.database,
            "user": options.username,
            "password": options.password.get_secret_value(),
        }

    def check(self) -> None:
        """Raise the first thing that would keep this source from being read; change nothing."""
        user, publication = self._options.username, self._options.publication_name
        with server.connection(self._dsn) as database:
            server.refuse_unready(database, user)
            tables = server.chosen_tables(database, self._options.tables, publication)
            server.refuse_tables(tables, user)
            server.refuse_unpublishable(database, publication, tables, user)
            if server.slot(database, self._options.slot_name) is None:
                server.refuse_full(database)

    def tables(self) -> dict[str, tuple[str, ...]]:
        """Return the tables to read, each with its primary key, which is empty for a table that has none."""
        with server.connection(self._dsn) as database:
            found = server.chosen_tables(database, self._options.tables, self._options.publication_name)
            return {name: table.keys for name, table in found.items()}

    def plan(self) -> list[str]:
        """Return what a run would create in the database."""
        with server.connection(self._dsn) as database:
            lines = []
            if server.published(database, self._options.publication_name) is None:
                lines.append(f'create publication "{self._options.publication_name}"')
            if server.slot(database, self._options.slot_name) is None:
                lines.append(f'create replication slot "{self._options.slot_name}"')
            return lines

    def pages(self, since: Checkpoint | None, until: Place | None = None) -> Iterator[Page[pa.Table]]:
        """Yield what is new since `since`, up to `until` or until closed; each page follows the one before.

        A page that was not acknowledged when the next is asked for does not move the slot.
        """
        goal = stand_at(until).commit if until is not None else None
        try:
            yield from (self._resume(since, goal) if isinstance(since, Tailing) else self._begin(since, goal))
        except NotReady as error:
            if error.code == "postgres-unreachable" and self._closing.is_set():
                return
            if error.code == "postgres-unreachable":
                raise Unreachable("connection-lost", str(error), error.hint) from error
            raise

    def acknowledge(self, checkpoint: Checkpoint) -> None:
        """Let the server forget the transactions that `checkpoint` completes, once the next page is asked for."""
        if isinstance(checkpoint, Tailing):
            self._acknowledged = max(self._acknowledged or 0, stand_at(checkpoint.at).commit)

    def head(self) -> Place:
        """Return the newest place; a message of ours behind it makes sure that a reader sees it pass."""
        with server.connection(self._dsn) as database:
            place = server.head(database)
            database.execute(server.MESSAGE)
            return lsn_text(place)

    def close(self) -> None:
        """Make `pages` end after the page in hand; may be called from another thread or a signal handler."""
        self._closing.set()

    def lag(self, checkpoint: Checkpoint | None) -> dict[str, object]:
        """Return how many bytes of the server's log lie behind `checkpoint`, and how many the slot retains."""
        with server.connection(self._dsn) as database:
            newest = server.head(database)
            slot = server.slot(database, self._options.slot_name)
        at = stand_at(checkpoint.at).commit if isinstance(checkpoint, Tailing) else None
        return {
            "head": lsn_text(newest),
            "at": lsn_text(at) if at is not None else None,
            "lag_bytes": max(0, newest - at) if at is not None else None,
            "slot": self._options.slot_name if slot else None,
            "slot_active": bool(slot and slot.active_pid),
            "slot_retained_bytes": max(0, newest - slot.restart) if slot and slot.restart is not None else None,
        }

    def prepare(self, *, fresh: bool) -> list[str]:
        """Make the publication for a connector; with `fresh`, halt if there is a slot already. Return what was made."""
        with server.connection(self._dsn) as database:
            if fresh:
                self._refuse_or_drop_slot(database, None)
            made = server.published(database, self._options.publication_name) is None
            found = server.chosen_tables(database, self._options.tables, self._options.publication_name)
            server.publish(database, self._options.publication_name, found)
            return [f'publication "{self._options.publication_name}"'] if made else []

    def connector_settings(self, tables: Sequence[str], *, avro: bool) -> dict[str, str]:
        """Return the settings of a connector in Kafka Connect, apart from topics and converters."""
        with server.connection(self._dsn) as database:
            found = server.all_tables(database)
        left_out = _generated({name: found[name] for name in tables if name in found})
        return connector_config(self._options, tables, self._heartbeat_seconds, avro=avro, left_out=left_out)

    def undeploy(self, *, publication: bool = True) -> list[str]:
        """Drop slot and publication; return what was there. Repeating it does nothing."""
        removed = []
        with server.connection(self._dsn) as database:
            self._idle_slot(database)
            if server.drop_slot(database, self._options.slot_name):
                removed.append(f'replication slot "{self._options.slot_name}"')
            if publication and server.drop_publication(database, self._options.publication_name):
                removed.append(f'publication "{self._options.publication_name}"')
        return removed

    # -- the two beginnings

    def _begin(self, since: Snapshotting | None, goal: int | None) -> Iterator[Page[pa.Table]]:
        """Begin with a snapshot, or with the next change where none is wanted.

        That a snapshot begins is noted before its slot is made: a kill in between finds a snapshot to take
        again, and not a stranger's slot.
        """
        snapshot = self._options.snapshot_mode == "initial"
        with server.connection(self._dsn, self._closing) as database:
            found = server.chosen_tables(database, self._options.tables, self._options.publication_name)
            origin = server.origin(database)
            if snapshot:
                self._refuse_or_drop_slot(database, since)
            server.publish(database, self._options.publication_name, found)
            start = None if snapshot else Stand(self._own_slot(database))
            scope = self._scope(database, found)
        noted = Tailing(origin, start.place(), scope) if start else Snapshotting(origin, lsn_text(0), "0")
        if noted != since:
            yield Page(no_rows(), since, noted)
        yield from self._read(found, origin, scope, noted, start, goal, waiting=frozenset(found))

    def _resume(self, since: Tailing, goal: int | None) -> Iterator[Page[pa.Table]]:
        stand = stand_at(since.at)
        with server.connection(self._dsn) as database:
            self._idle_slot(database)
            found = server.chosen_tables(database, self._options.tables, self._options.publication_name)
            self._refuse_gap(database, since, stand)
            covered = server.published(database, self._options.publication_name)
            self._refuse_changed_tables(covered, set(found))
            # A checkpoint of an earlier release has no scope.
            scope = self._looked(database, found, since.scope or self._scope(database, found))
        if goal is None or stand.commit < goal:
            yield from self._read(found, since.origin, scope, since, stand, goal)

    def _refuse_or_drop_slot(self, database: server.Server, since: Snapshotting | None) -> None:
        name = self._options.slot_name
        self._idle_slot(database)
        if since is not None:
            # An exported snapshot dies with its reader, so the slot of an interrupted one leads nowhere.
            server.drop_slot(database, name)
        elif server.slot(database, name) is not None:
            raise Halt(
                "slot-exists",
                f'the replication slot "{name}" exists and this pipeline has no position in it',
                "Run cdc undeploy <file> if it is left from this pipeline; otherwise set slot_name to another name.",
            )

    def _own_slot(self, database: server.Server) -> int:
        name = self._options.slot_name
        self._idle_slot(database)
        if server.slot(database, name) is None:
            database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
        slot = server.slot(database, name)
        if (
            slot is None
            or slot.plugin != "pgoutput"
            or slot.confirmed is None
            or slot.database != self._options.database
        ):
            raise Misconfigured(
                "slot-differs",
                f'the replication slot "{name}" is not one of pgoutput for database "{self._options.database}"',
                "Set slot_name to a name of its own.",
            )
        return slot.confirmed

    def _idle_slot(self, database: server.Server) -> None:
        deadline = time.monotonic() + _PATIENCE
        while (slot := server.slot(database, self._options.slot_name)) and slot.active_pid:
            if self._closing.is_set() or time.monotonic() > deadline:
                raise server.slot_active(self._options.slot_name, slot.active_pid)
            time.sleep(0.1)

    def _refuse_gap(self, database: server.Server, since: Tailing, stand: Stand) -> None:
        name, here = self._options.slot_name, server.origin(database)
        slot = server.slot(database, name)
        if here != since.origin:
            what = f'the position belongs to system and timeline "{since.origin}" and the server is "{here}"'
        elif slot is None:
            what = f'the replication slot "{name}" is gone'
        elif slot.plugin != "pgoutput" or slot.database != self._options.database:
            what = f'the replication slot "{name}" is of plugin "{slot.plugin}" for database "{slot.database}"'
        elif slot.wal_status == "lost" or slot.restart is None or slot.confirmed is None:
            what = f'the replication slot "{name}" has lost its log (wal_status "{slot.wal_status}")'
        elif stand.commit > (head := server.head(database)):
            what = (
                f"the server's log ends at {lsn_text(head)}, before the stored position {lsn_text(stand.commit)}: "
                "it was taken back to an earlier state"
            )
        elif slot.confirmed > stand.commit:
            what = (
                f'the replication slot "{name}" stands at {lsn_text(slot.confirmed)}, beyond the stored position '
                f"{lsn_text(stand.commit)}: it was re-created or somebody else read from it"
            )
        else:
            return
        raise ResyncRequired(what, _RESYNC)

    def _refuse_changed_tables(self, published: Mapping[str, str] | None, wanted: set[str]) -> None:
        publication = self._options.publication_name
        if published is None:
            raise ResyncRequired(f'the publication "{publication}" is gone', _RESYNC)
        covered = set(published)
        if covered != wanted:
            added, gone = sorted(wanted - covered), sorted(covered - wanted)
            raise Halt(
                "tables-changed",
                f'the publication "{publication}" does not cover {added}'
                if added
                else f"tables {gone} are no longer read",
                f"A table added later would miss the rows it already has. {_RESYNC}",
            )

    def _scope(self, database: server.Server, tables: Collection[str]) -> Scope:
        """Return what the publication and `tables` in it are known by, and the columns of each by their numbers."""
        published = server.published(database, self._options.publication_name) or {}
        text = json.dumps({name: published.get(name) for name in tables}, sort_keys=True)
        columns = server.columns(database, tables)
        seen = ((name, json.dumps(columns[name], ensure_ascii=False)) for name in sorted(columns))
        return Scope(hashlib.sha256(text.encode()).hexdigest()[:16], tuple(seen))

    def _looked(self, database: server.Server, tables: Collection[str], scope: Scope) -> Scope:
        """Return the scope of now; halt if it differs from `scope` in what the server does not say a word of.

        That is what was changed while a table was not published, and that two names are of one column.
        """
        now = self._scope(database, tables)
        if now.selection != scope.selection:
            raise ResyncRequired(
                f'the publication "{self._options.publication_name}" or a table of it was dropped and made anew, '
                "renamed, or taken out and put back: what was changed in between was not sent",
                _RESYNC,
            )
        have = dict(now.tables)
        for table, columns in scope.tables:
            names = json.loads(have.get(table, "{}"))
            for number, name in json.loads(columns).items():
                if names.get(number, name) != name:
                    raise ResyncRequired(
                        f'the column "{name}" of table "{table}" was renamed to "{names[number]}": targets would take '
                        "them for two, and rows that exist would have nothing in the new one",
                        _RESYNC,
                    )
        return scope if now == scope else now

    def _look_again(self, tables: Collection[str], scope: Scope) -> Scope:
        # The engine says when the server is away; that none of its connections is left is no reason to stop reading.
        with contextlib.suppress(NotReady), server.connection(self._dsn) as database:
            return self._looked(database, tables, scope)
        return scope

    # -- the loop

    def _read(
        self,
        found: Mapping[str, server.Found],
        origin: str,
        scope: Scope,
        since: Checkpoint | None,
        resume: Stand | None,
        goal: int | None,
        waiting: frozenset[str] = frozenset(),
    ) -> Iterator[Page[pa.Table]]:
        """Read on from `resume`; of the tables that are `waiting`, tell what they look like even if no row comes."""
        self._acknowledged = None
        tables = {name: table.keys for name, table in found.items()}
        sent = {name: table.identity for name, table in found.items() if not table.identity_full}
        config = engine_config(
            self._options,
            list(tables),
            self._batch_rows,
            self._heartbeat_seconds,
            fresh=resume is None,
            left_out=_generated(found),
        )
        start_at = _resume(resume) if resume else None
        engine = Engine(POSTGRES, config, self._topic_prefix, tables, start_at, sent=sent, completed=self._completed)
        start: int | None = None
        look_at = time.monotonic() + self._heartbeat_seconds
        try:
            while not self._closing.is_set():
                if time.monotonic() > look_at:
                    scope = self._look_again(tables, scope)
                    look_at = time.monotonic() + self._heartbeat_seconds
                batch = engine.poll()
                if batch is None:
                    if engine.ended():
                        raise failed(engine.causes(), self._options, _RESYNC)
                    continue
                failpoint("C02")
                rows = batch.rows
                if start is None:
                    start = self._start_of(resume)
                    if resume is None and self._epoch > 1:
                        rows = pa.concat_tables([reset_rows(self._topic_prefix, tables, {"lsn": 0}), rows])
                checkpoint = _checkpoint(origin, scope, batch, start)
                waiting = waiting - {table.name for table in batch.schemas.values()}
                empty: dict[str, Table] = {}
                if waiting and isinstance(checkpoint, Tailing):
                    empty, waiting = self._empty(engine, waiting), frozenset()
                if rows.num_rows or empty or checkpoint != since:
                    yield Page(rows, since, checkpoint, batch.schemas, empty)
                    since = checkpoint
                engine.release(self._acknowledged)
                if goal is not None and isinstance(checkpoint, Tailing) and _passed(batch, start, goal):
                    self._await_slot()
                    return
        finally:
            engine.close()

    def _empty(self, engine: Engine, tables: frozenset[str]) -> dict[str, Table]:
        known = {name: engine.table(name) for name in sorted(tables)}
        return {f"{self._topic_prefix}.{name}": table for name, table in known.items() if table is not None}

    def _completed(self, tables: Sequence[Table]) -> Sequence[Table]:
        with server.connection(self._dsn) as database:
            return with_given(database, tables)

    def _start_of(self, resume: Stand | None) -> int:
        """Return where the stream begins; halt if the slot was replaced while the engine was starting."""
        with server.connection(self._dsn) as database:
            slot = server.slot(database, self._options.slot_name)
        if slot is None or slot.confirmed is None or (resume and slot.confirmed > resume.commit):
            raise ResyncRequired(f'the replication slot "{self._options.slot_name}" was replaced', _RESYNC)
        # Nothing has been acknowledged yet, so for a new slot this is its consistent point.
        return resume.commit if resume else slot.confirmed

    def _await_slot(self) -> None:
        # The engine flushes at its next poll; a short run would otherwise leave the slot one page behind.
        if self._acknowledged is None:
            return
        deadline = time.monotonic() + 2
        with server.connection(self._dsn) as database:
            while time.monotonic() < deadline:
                slot = server.slot(database, self._options.slot_name)
                if slot is None or (slot.confirmed or 0) >= self._acknowledged:
                    return
                time.sleep(0.02)


def _generated(found: Mapping[str, server.Found]) -> list[str]:
    return [f"{name}.{column}" for name, table in found.items() for column in table.generated]


def _checkpoint(origin: str, scope: Scope, batch: Batch, start: int) -> Checkpoint:
    if not batch.snapshot_done:
        return Snapshotting(origin, lsn_text(start), str(batch.snapshot_rows))
    stand = _stand(batch)
    return Tailing(origin, Stand(max(stand.commit, start), stand.xid, stand.lsn, stand.count).place(), scope)


def _passed(batch: Batch, start: int, goal: int) -> bool:
    return max(_stand(batch).commit, start) >= goal or batch.message >= goal


def _stand(batch: Batch) -> Stand:
    commit, xid, lsn, count = map(int, batch.stand.split())
    return Stand(commit, xid, lsn, count) if xid else Stand(commit)


def _resume(stand: Stand) -> Resume:
    place = stand.commit
    return Resume(
        f"{stand.commit} {stand.xid} {stand.lsn} {stand.count}",
        json.dumps({"lsn": place, "lsn_commit": place, "ts_usec": 0}, separators=(",", ":")),
    )
