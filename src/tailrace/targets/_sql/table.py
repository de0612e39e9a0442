"""One table of ours in a SQL database: how a batch becomes one transaction of rows, tombstones and mark.

    lock the control row  ->  stage the rows  ->  truncate, delete, update, insert, bury  ->  move the mark  ->  commit

All of it happens or none. If the answer to the commit is lost, the control row is asked. A start takes no lock
that outlives it: the first commit of a writer takes the next epoch, and only if the table is as the writer saw
it when it read the mark; from then on no other can commit. See ADR 8.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import pyarrow as pa
from py4j.protocol import Py4JNetworkError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tailrace.apply.ranges import Ranges
from tailrace.apply.target import ANYONE, NOWHERE, Applied, Batch, Mark
from tailrace.core.errors import Halt, Retryable, TailraceError
from tailrace.core.failpoint import failpoint
from tailrace.core.table import Column, Fit, Table
from tailrace.spark.frame import frame
from tailrace.targets._columns import POSITION
from tailrace.targets._sql import shape
from tailrace.targets._sql.control import Control, Entry, Owner
from tailrace.targets._sql.crossing import incoming, one_value, outgoing, with_kept
from tailrace.targets._sql.dialect import NATIVE, Database, Session, in_spark
from tailrace.targets._sql.fill import fill
from tailrace.targets._sql.shape import NUMBER
from tailrace.targets._sql.statements import DAY, KEPT, OP, STAGE, Statements

Mode = Literal["scd1", "scd2", "append"]

_NEVER = (0, None)


class SqlTable:
    """A table that one source table is kept current in; used by one thread at a time."""

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        database: Database,
        name: str,
        owner: Owner,
        mode: Mode,
        *,
        adopts: bool = False,
    ) -> None:
        self._spark = spark
        self._database = database
        self._dialect = database.dialect
        self._control = Control(database.dialect)
        self._name = name
        self._place = shape.Place(self._dialect, name)
        self._table, self._beside = self._place.table, self._place.beside
        self._stage = self._dialect.quote(STAGE)
        self._owner = owner
        self._mode: Mode = mode
        self._adopts = adopts and mode == "scd1" and self._dialect.reflect is not None
        self._epoch: int | None = None
        self._seen: tuple[int, Mark | None] | None = None

    # -- reading

    def mark(self) -> Mark | None:
        """Return what the rows include, and take note of it: a first commit finds the table so, or is refused."""
        with self._session("reading the mark") as session:
            entry = self._entry(session)
        self._seen = (entry.epoch, entry.mark) if entry else _NEVER
        return entry.mark if entry else None

    def have(self) -> Table | None:
        """Return the shape of the stored table."""
        with self._session("reading the schema") as session:
            entry = self._entry(session)
            return entry.shape if entry else None

    def notes(self) -> dict[str, str]:
        """Return what was to be remembered with the table when it was created."""
        with self._session("reading the notes") as session:
            entry = self._entry(session)
            return dict(entry.notes) if entry else {}

    def known(self, near: Ranges = NOWHERE) -> DataFrame:
        """Return position and liveness of each key within `near`, deleted ones included: one row per key."""
        with self._session("reading the known keys") as session:
            entry = self._existing(session)
            types = {key: entry.kinds()[key] for key in entry.shape.keys} | {POSITION: "string"}
            rows = self._read(session, self._table, types, near, entry).withColumn("_cdc_alive", F.lit(True))
            if entry.mode != "scd1":
                return rows.limit(0)
            graves = self._read(session, self._beside, types, near, entry)
            return rows.unionByName(graves.withColumn("_cdc_alive", F.lit(False)))

    def current(self, near: Ranges = NOWHERE) -> DataFrame:
        """Return the rows with keys within `near` as they are stored."""
        with self._session("reading the rows") as session:
            entry = self._existing(session)
            return self._read(session, self._table, shape.stored(entry), near, entry)

    def records(self, near: Ranges = NOWHERE) -> tuple[DataFrame, DataFrame | None]:
        """Return the records with keys within `near`, and what is hidden beside them."""
        with self._session("reading the records") as session:
            entry = self._existing(session)
            visible = self._read(session, self._table, shape.stored(entry), near, entry)
            if not self._any(session, self._beside):
                return visible, None
            hidden = {name: kind for name, kind in shape.beside(entry).items() if name != DAY}
            return visible, self._read(session, self._beside, hidden, near, entry, or_=f"{OP} = 't'")

    # -- writing

    def evolve(self, change: Fit) -> None:
        """Create or alter the table, in one transaction if the database can; a step that was done is not done again."""
        failpoint("C20")
        if self._settled(change):
            return
        with self._session("changing the table", write=True) as session:
            if self._dialect.before is not None:
                self._dialect.before(session)
            self._control.create(session)
            entry = self._entry(session)
            if entry is None:
                entry = shape.planned(self._dialect, self._owner, self._mode, change)
                shape.create_beside(session, self._place, entry)
                self._control.put(session, self._name, entry)
                # The table comes last: until it is there, the others count for nothing and are made again.
                shape.create(session, self._place, entry)
            else:
                self._refuse_other_mode(entry)
                if not entry.claimed:
                    # First, or a claim that breaks off would leave the mark of a table that is gone to this one.
                    self._control.put(session, self._name, entry)
                    shape.claim(session, self._place, entry)
                if (noted := shape.noted(session, self._place, entry, change)) != entry:
                    self._control.reshape(session, self._name, noted)
                    session.commit()
                    entry = noted
                altered = shape.alter(session, self._place, entry, change, self._stored)
                self._control.reshape(session, self._name, altered)
            session.commit()
        failpoint("C21")

    def apply(self, batch: Batch) -> Applied:
        """Write the rows and the mark in one transaction, unless the table includes them already."""
        with self._session("applying a batch", write=True) as session:
            entry = self._existing(session, lock=True)
            self._refuse_other_mode(entry)
            if batch.after and entry.mark and entry.mark != batch.after:
                raise self._conflict()
            if entry.mark and entry.mark.includes(batch.mark):
                return Applied()
            epoch = self._claimed(entry)
            failpoint("C19")
            done = self._fold(session, entry, batch)
            if not self._control.move(session, self._name, entry, epoch, batch.mark):
                raise self._conflict()
            failpoint("C22")
            self._commit(session, epoch, batch.mark)
        self._epoch = epoch
        failpoint("C23")
        failpoint("C25")
        return done

    def collect_tombstones(self, before: datetime.date) -> None:
        """Drop what is remembered from days before `before`; truncates stay."""
        if self._mode == "append":
            return
        old = f"{DAY} < {self._dialect.parameter(1)} AND {OP} <> 't'"
        with self._session("collecting tombstones", write=True) as session:
            entry = self._entry(session)
            if entry and entry.claimed:
                session.run(f"DELETE FROM {self._beside} WHERE {old}", [before.isoformat()])
                session.commit()

    # -- the batch

    def _fold(self, session: Session, entry: Entry, batch: Batch) -> Applied:
        if entry.mode == "append":
            return self._append(session, entry, batch)
        return (
            self._fold_records(session, entry, batch)
            if entry.mode == "scd2"
            else self._fold_rows(session, entry, batch)
        )

    def _fold_rows(self, session: Session, entry: Entry, batch: Batch) -> Applied:
        carried = [name for name in entry.shape.names() if name in batch.rows.columns]
        values = [name for name in carried if name not in entry.shape.keys]
        types = {name: kind for name, kind in entry.kinds().items() if name in carried}
        buried, there = (self._any(session, table) for table in (self._beside, self._table))
        if not buried and not there and not batch.truncate:
            places, today = (self._table, self._beside), _today().isoformat()
            return Applied(fill(session, self._dialect, places, batch.rows, types, entry.shape.keys, today))
        partial = [name for name in values if name in batch.partial]
        rows = with_kept(batch.rows, partial) if partial else batch.rows
        ours = {POSITION: "string", OP: "string"} | ({KEPT: "string"} if partial else {})
        self._load_stage(session, rows, types | ours, entry)
        do = self._statements(entry.shape.keys)
        if buried:
            session.run(do.drop_stale(ties=batch.ties))
        gone = again = updated = 0
        hard = [batch.truncate] if batch.truncate and not batch.soft else []
        if hard:
            again = session.ask(do.replaced(), hard)[0][0]
            gone = session.run(do.truncate(self._table), hard)
            session.run(do.truncate(self._beside), hard)
        if there:
            gone += session.run(do.delete())
            updated = self._last(session, do.update(values, partial, ties=batch.ties))
        inserted = session.run(do.insert(carried))
        if batch.truncate and batch.soft:
            updated += self._mark_truncated(session, entry, batch, do)
        if buried:
            session.run(do.forget())
        session.run(do.bury(), [_today().isoformat()])
        return Applied(inserted - again, updated + again, gone - again)

    def _mark_truncated(self, session: Session, entry: Entry, batch: Batch, do: Statements) -> int:
        if entry.shape.column(batch.soft).type == "boolean":
            value = "true"
        else:
            value = f"coalesce(_cdc_t.{self._dialect.column(batch.soft)}, {self._dialect.now})"
        return session.run(do.mark_truncated(batch.soft, value), [batch.truncate, batch.truncate])

    def _fold_records(self, session: Session, entry: Entry, batch: Batch) -> Applied:
        types = shape.stored(entry)
        self._load_stage(session, batch.rows, {**types, OP: "string"}, entry)
        told = (*entry.shape.keys, POSITION)
        do = self._statements(told)
        names = [name for name in types if name not in told]
        gone = updated = 0
        if self._any(session, self._table):
            gone = session.run(do.remove_records())
            updated = self._last(session, do.update_records(names))
        inserted = session.run(do.insert([name for name in types if name != POSITION]))
        if batch.hidden is not None:
            stamp = {NUMBER: F.lit(entry.commits + 1).cast("bigint"), DAY: F.lit(_today().isoformat())}
            hidden = batch.hidden.withColumns(stamp)
            beside = shape.beside(entry)
            self._load(session, self._beside, hidden, beside)
        return Applied(inserted, updated, gone)

    def _append(self, session: Session, entry: Entry, batch: Batch) -> Applied:
        carried = {name: kind for name, kind in shape.stored(entry).items() if name in batch.rows.columns}
        return Applied(inserted=self._load(session, self._table, batch.rows, carried))

    def _load_stage(self, session: Session, rows: DataFrame, types: dict[str, str], entry: Entry) -> None:
        told = shape.told(entry)
        columns = shape.columns(self._dialect, types, told)
        keys = ", ".join(map(self._dialect.column, told))
        session.run(self._dialect.stage.format(name=self._stage, columns=columns, keys=keys))
        self._load(session, self._stage, rows, types, entry.shape.keys)
        for statement in self._dialect.staged:
            session.run(statement.format(name=self._stage))

    def _load(
        self, session: Session, table: str, rows: DataFrame, types: dict[str, str], keys: tuple[str, ...] = ()
    ) -> int:
        count = 0

        def counted(chunks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            nonlocal count
            for chunk in chunks:
                count += chunk.num_rows
                yield chunk

        with outgoing(rows, types, self._dialect, keys) as chunks:
            session.load(table, [self._dialect.column(name) for name in types], counted(chunks))
        return count

    # -- parts

    def _last(self, session: Session, statements: list[str]) -> int:
        """Run the statements; return the rows that the last one counted."""
        return [session.run(statement) for statement in statements][-1]

    def _settled(self, change: Fit) -> bool:
        """Say whether there is nothing to do, as in most slices."""
        if change.create or change.add or change.widen:
            return False
        with self._session("reading the schema") as session:
            entry = self._entry(session)
            return entry is not None and entry.claimed

    def _stored(self, column: Column) -> object:
        """Return the default of `column` as it is stored."""
        value = self._dialect.kind(column.type).out(F.lit(column.default).cast(column.type))
        return one_value(self._spark().range(1).select(value.alias("value")).toArrow().column(0))

    def _statements(self, keys: tuple[str, ...]) -> Statements:
        return Statements(self._dialect, self._table, self._beside, self._stage, keys)

    def _read(
        self, session: Session, table: str, types: dict[str, str], near: Ranges, entry: Entry, or_: str = ""
    ) -> DataFrame:
        kinds = {name: self._dialect.kind(kind) for name, kind in types.items()}
        if not entry.claimed:
            listed = ", ".join(f"`{name.replace('`', '``')}` {in_spark(kind)}" for name, kind in types.items())
            return frame(self._spark(), [], listed)
        names = ", ".join(kind.read.format(self._dialect.column(name)) for name, kind in kinds.items())
        conditions, values = [], list[object]()
        for key, (low, high) in near.items():
            kind = entry.kinds()[key]
            if self._dialect.kind(kind).ranged:
                column = self._dialect.column(key) + (self._dialect.collate if in_spark(kind) == "string" else "")
                conditions.append(f"{column} >= {self._value(values, low)} AND {column} <= {self._value(values, high)}")
        where = " AND ".join(conditions)
        if where:
            where = f" WHERE ({where})" + (f" OR {or_}" if or_ else "")
        return incoming(self._spark(), session.fetch(f"SELECT {names} FROM {table}{where}", values, kinds), kinds)

    def _value(self, values: list[object], value: object) -> str:
        if self._dialect.literal is not None:
            return self._dialect.literal(value)
        values.append(value)
        return self._dialect.parameter(len(values))

    def _any(self, session: Session, table: str) -> bool:
        return bool(session.ask(f"SELECT 1 FROM {table} LIMIT 1"))

    def _entry(self, session: Session, *, lock: bool = False) -> Entry | None:
        entry = self._control.load(session, self._name, self._owner.table, lock=lock)
        if entry is None and self._control.exists(session, self._name):
            return self._adopted(session)
        if entry is not None and self._owner.pipeline != ANYONE and entry.owner != self._owner.text():
            raise self._foreign(f"belongs to pipeline, target and table {entry.owner}")
        return entry

    def _adopted(self, session: Session) -> Entry:
        """Return the entry of an empty table that was made for us: its columns and keys are taken as they are."""
        if not self._adopts or self._dialect.reflect is None:
            raise self._foreign("was not made by Tailrace")
        found = self._dialect.reflect(session, self._name)
        if isinstance(found, str) or self._any(session, self._table):
            why = found if isinstance(found, str) else "it has rows"
            raise self._foreign(f"was not made by Tailrace, and cannot be taken over: {why}")
        columns = tuple(replace(column, type=in_spark(column.type)) for column in found.columns)
        natives = {column.name: column.type for column in found.columns if column.type in NATIVE}
        keyed = Table(self._owner.table, columns, found.keys)
        return Entry(self._owner.text(), self._mode, keyed, claimed=False, natives=natives, given=True)

    def _existing(self, session: Session, *, lock: bool = False) -> Entry:
        entry = self._entry(session, lock=lock)
        if entry is None or (lock and not entry.claimed):
            raise Halt(
                "table-missing",
                f'table "{self._owner.table}" is not in target "{self._owner.target}"',
                "It was there or was to be created first. If it was removed, start the target again.",
            )
        return entry

    def _claimed(self, entry: Entry) -> int:
        """Return the epoch to commit with; refuse if somebody else has the table, or may have."""
        if self._epoch is not None:
            if entry.epoch == self._epoch:
                return self._epoch
            raise Halt(
                "owner-replaced",
                f'table "{self._name}" was taken over by another writer, which has epoch {entry.epoch} '
                f"and not {self._epoch}",
                "Another process runs this pipeline, or has run it since this one stopped answering. Nothing was "
                "written. Leave the other one running, or stop it and start this one again.",
            )
        # One that was not there was made since, and has what epoch the making gave it.
        new = self._seen == _NEVER and not entry.commits
        if self._seen is not None and self._seen != (entry.epoch, entry.mark) and not new:
            raise self._conflict()
        return entry.epoch + 1

    def _commit(self, session: Session, epoch: int, mark: Mark) -> None:
        try:
            session.commit()
        except self._database.errors as error:
            # The outcome is unknown until the control row has been asked, in a session of its own.
            if not self._landed(epoch, mark):
                raise self._database.translate(error, f'committing to table "{self._name}"') from error

    def _landed(self, epoch: int, mark: Mark) -> bool:
        try:
            with self._database.connect(write=False) as session:
                entry = self._entry(session)
        except self._database.errors:
            return False
        return entry is not None and (entry.epoch, entry.mark) == (epoch, mark)

    def _refuse_other_mode(self, entry: Entry) -> None:
        if entry.mode != self._mode:
            raise Halt(
                "mode-changed",
                f'table "{self._name}" was made in mode {entry.mode} and is now to be kept in mode {self._mode}',
                "Set the mode back, or give the table another name under tables.",
            )

    def _conflict(self) -> Retryable:
        return Retryable(
            "write-conflict",
            f'another writer committed to table "{self._name}" in the meantime',
            "Nothing was written. Apply the batch again, one call at a time.",
        )

    def _foreign(self, what: str) -> Halt:
        return Halt(
            "foreign-table",
            f'the table "{self._name}" {what}',
            "Nothing was written to it. Give the target another place, or the table another name under tables.",
        )

    @contextmanager
    def _session(self, what: str, *, write: bool = False) -> Iterator[Session]:
        try:
            with self._database.connect(write=write) as session:
                yield session
        except TailraceError:
            raise
        except self._database.errors as error:
            raise self._database.translate(error, f'{what} of table "{self._name}"') from error
        except (Py4JNetworkError, ConnectionError) as error:
            raise Retryable(
                "spark-lost", f'Spark went away while {what} of table "{self._name}"', "It is started again."
            ) from error


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()
