"""What is remembered of deleted rows, and of records that do not show: a Delta table beside each table.

Tombstones are appended before the rows of their batch, with the change log and offset of the mark that
batch will set, and with the name of the attempt. One counts only if that very attempt was committed, so the
commit of the rows stays the one commit point: a crash between the two, or another writer that was quicker,
leaves tombstones that do not count. The mark names the newest attempt that buried anything, and the number behind
which it began: from there on only its own count. Below that lies nothing dead, for who appends removes that first.
See ADR 5, ADR 18, ADR 28 and ADR 31.

A truncate leaves one row too, with its position, so that the floor of a table outlives the Delta log.
In mode scd2 whole events are remembered so: deletes, and earlier events of a run. See ADR 7.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from tailrace.apply.ranges import Ranges, inside
from tailrace.apply.target import Batch, is_log
from tailrace.core.errors import Retryable
from tailrace.core.table import Column as TableColumn
from tailrace.spark.kinds import kind_of
from tailrace.targets._merge import OP, POSITION, literal, quote
from tailrace.targets.delta import shape
from tailrace.targets.delta.log import Commit, DeltaLog, Snapshot
from tailrace.targets.delta.place import Place

_LOG, _OFFSET, _DAY, _ATTEMPT = "_cdc_log", "_cdc_offset", "_cdc_day", "_cdc_attempt"
_APP = "tailrace/tombstones"
"""Under this name appends are numbered, where several writers may meet: of two with one number, Delta takes one."""

_WHOLE = "whole"
"""Says of an append, in its commit, that everything counted which lay there at the version that follows this word."""
_LOOKED_AT = 5
"""Behind an append lie few commits that are none; further back it is quicker to look at the tombstones."""


class Grave(NamedTuple):
    """A commit that buried something: the log and number of its mark, its attempt, and the number it began behind."""

    log: str
    number: int
    attempt: str
    since: int


NOTHING = Grave("", -1, "", -1)
"""In the life of the table nothing was buried yet: what lies here is of attempts that broke off, or of one before."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What of the tombstones has been committed: how far each change log, and the newest that buried anything."""

    offsets: dict[str, int]
    current: str = ""
    """The change log of the mark."""
    grave: Grave | None = None
    """`None` if the log of the table no longer tells."""

    def counts(self) -> str:
        """Return, in SQL, which tombstones count."""
        each = (f"({_LOG} = {literal(log)} AND {upto})" for log in sorted(self.offsets) if (upto := self._upto(log)))
        return " OR ".join(each) or "false"

    def _upto(self, log: str) -> str:
        grave = self.grave
        # Replays are numbered one by one, and leave the grave of the log as it is.
        if grave is not None and is_log(log):
            if log == grave.log:
                own = f"({_OFFSET} <= {grave.number} AND {_ATTEMPT} = {literal(grave.attempt)})"
                return f"({_OFFSET} <= {grave.since} OR {own})"
            if log == self.current or grave == NOTHING:
                return ""
        return f"{_OFFSET} <= {self.offsets[log]}"

    def and_then(self, step: tuple[str, int], current: str, grave: Grave | None) -> Committed:
        """Return what has been committed once a batch with this step is."""
        return Committed({**self.offsets, step[0]: step[1]}, current, grave)

    def reached(self) -> str:
        """Return, in SQL, which tombstones lie where the table has committed: those that do not count never will."""
        each = (f"({_LOG} = {literal(log)} AND {_OFFSET} <= {n})" for log, n in sorted(self.offsets.items()))
        return " OR ".join(each) or "false"


@dataclass(frozen=True, slots=True)
class Ticket:
    """How the tombstones stood before the mark was read: nobody may have appended since."""

    version: int
    number: int


class Tombstones:
    """The tombstones of one table."""

    def __init__(self, session: SparkSession, place: Place) -> None:
        self._session = session
        self._place = place
        self._exists = False
        self._doubt = False

    def ticket(self) -> Ticket:
        """Return what an append needs where several may write; to be asked for before the mark is read."""
        log = self._place.log(self._session)
        snapshot = log.snapshot() if log else None
        if snapshot is None:
            return Ticket(-1, -1)
        return Ticket(snapshot.version, dict(snapshot.transactions()).get(_APP, -1))

    def bury(
        self, batch: Batch, committed: Callable[[], Committed], deletes: int, attempt: str, ticket: Ticket | None
    ) -> bool:
        """Append the deletes and the truncate of `batch`, which count once `attempt` is committed; say if any are.

        What is dead at or below the mark, and could count with that commit, is removed first. With a `ticket`, others
        may write for the same mark, and an append behind theirs is refused.
        """
        if not deletes and not batch.truncate and batch.hidden is None:
            return False
        known = committed()
        if batch.replay:
            # Who replays has the pipeline alone: nobody is about to commit another.
            self._remove(f"{_LOG} = {literal(batch.step[0])} AND NOT ({known.counts()})")
        whole = self._whole_at(known)
        self._doubt = whole is None
        if self._doubt:
            self._tidy_up(known)
        self._append(batch, attempt, ticket, attempt if whole is None else f"{attempt} {_WHOLE} {whole}")
        self._exists = True
        return True

    def settle(self, committed: Callable[[], Committed]) -> None:
        """Take note that the last batch is committed, and remove what attempts before it have left."""
        if self._doubt:
            self._tidy_up(committed())
            self._doubt = False

    def of_keys(self, keys: tuple[str, ...], committed: Committed, near: Ranges) -> DataFrame | None:
        """Return key columns and position of every tombstone that counts; `None` if there never was one."""
        graves = self.events(committed, near)
        return graves and graves.where(F.col(OP) == "d").select(*(F.col(quote(key)) for key in keys), POSITION)

    def events(self, committed: Committed, near: Ranges) -> DataFrame | None:
        """Return what counts and has a key within `near`, and truncates; `None` if there never was anything."""
        if not self._there():
            return None
        return (
            self._read()
            .where(F.expr(committed.counts()) & ((F.col(OP) == "t") | inside(near)))
            .drop(_LOG, _DAY, _ATTEMPT)
        )

    def floor(self, committed: Committed) -> str:
        """Return the position of the newest truncate that counts, empty if there was none."""
        if not self._there():
            return ""
        truncates = self._read().where((F.col(OP) == "t") & F.expr(committed.counts()))
        return truncates.agg(F.max(POSITION)).collect()[0][0] or ""

    def clear(self, committed: Committed) -> None:
        """Remove everything that does not count: for who takes the table back, and has it alone."""
        self._remove(f"NOT ({committed.counts()})")

    def place(self) -> Place | None:
        """Return where they lie; `None` if there never was one."""
        return self._place if self._there() else None

    def widen(self, columns: tuple[TableColumn, ...]) -> None:
        """Follow the key columns of the table to their new types."""
        log = self._place.log(self._session)
        snapshot = log.snapshot() if log else None
        if snapshot:
            keys = [column for column in columns if column.name in snapshot.schema().names]
            shape.widen(self._session, self._place, snapshot, keys)

    def collect(self, before: datetime.date) -> None:
        """Drop what is remembered from days before `before`; truncates stay."""
        if not self._there():
            return
        old = f"{_DAY} < {literal(before)} AND {OP} <> 't'"
        if self._read().where(old).limit(1).count():
            self._session.sql(f"DELETE FROM {self._place.sql} WHERE {old}")

    def _append(self, batch: Batch, attempt: str, ticket: Ticket | None, note: str) -> None:
        today = F.lit(datetime.datetime.now(datetime.UTC).date())
        sequence, number = batch.step
        stamp = [
            F.lit(sequence).alias(_LOG),
            F.lit(number).cast("bigint").alias(_OFFSET),
            today.alias(_DAY),
            F.lit(attempt).alias(_ATTEMPT),
        ]
        if batch.hidden is None:
            keys = [F.col(quote(key)).cast(batch.table.column(key).type).alias(key) for key in batch.table.keys]
            rows = batch.rows.where(F.col(OP) == "d").select(*keys, POSITION, OP, *stamp)
        else:
            rows = batch.hidden.select("*", *stamp)
        if batch.truncate:
            nulls = [F.lit(None).cast(batch.table.column(key).type).alias(key) for key in batch.table.keys]
            one = self._session.range(1).select(
                *nulls, F.lit(batch.truncate).alias(POSITION), F.lit("t").alias(OP), *stamp
            )
            rows = rows.unionByName(one)
        self._write(rows.coalesce(1), ticket, note)
        if ticket is not None and not self._landed(ticket, attempt):
            raise Retryable(
                "write-conflict",
                f'another writer was quicker to write beside table "{batch.table.name}"',
                "Nothing was written. Apply the batch again, one call at a time.",
            )

    def _write(self, rows: DataFrame, ticket: Ticket | None, note: str) -> None:
        numbered = None if ticket is None else (_APP, ticket.number + 1)
        log = self._place.log(self._session)
        now = log.snapshot() if log else None
        if log and now and _kinds(now.schema()) == _kinds(rows.schema):
            log.append(rows, now, numbered, note)
            return
        # The first one makes the table, in the same commit.
        mapping = shape.needed((field.name, kind_of(field.dataType)) for field in rows.schema)
        if now:
            shape.ensure(self._session, self._place, mapping)
            options = {"mergeSchema": "true"}
        else:
            options = {"delta.autoOptimize.autoCompact": "true", **mapping}
        if numbered is not None:
            options |= {"txnAppId": numbered[0], "txnVersion": str(numbered[1])}
        self._place.append(rows, [_DAY], **options, userMetadata=note)

    def _landed(self, ticket: Ticket, attempt: str) -> bool:
        log = self._place.log(self._session)
        now = log.snapshot() if log else None
        if log is None or now is None:
            return False
        return any(attempt in commit.metadata.split() for commit in log.commits(now.version, ticket.version + 1))

    def _tidy_up(self, known: Committed) -> None:
        """Remove what can never count. What lies above the mark may be of a writer that is about to commit it."""
        self._remove(f"NOT ({known.counts()}) AND ({known.reached()})")

    def _whole_at(self, committed: Committed) -> int | None:
        """Return the version as of which everything here counts; `None` if something does not."""
        log = self._place.log(self._session)
        now = log.snapshot() if log else None
        if log is None or now is None:
            return -1
        told = committed.grave is not None and _told_whole(log, now, committed.grave)
        return now.version if told or not self._any(f"NOT ({committed.counts()})") else None

    def _any(self, which: str) -> bool:
        return bool(self._read().where(which).limit(1).count())

    def _remove(self, dead: str) -> None:
        if self._there() and self._any(dead):
            self._session.sql(f"DELETE FROM {self._place.sql} WHERE {dead}")

    def _there(self) -> bool:
        if not self._exists:
            log = self._place.log(self._session)
            self._exists = log is not None and log.snapshot() is not None
        return self._exists

    def _read(self) -> DataFrame:
        return self._place.read(self._session)


def _kinds(schema: StructType) -> list[tuple[str, DataType]]:
    return [(field.name, field.dataType) for field in schema]


def _told_whole(log: DeltaLog, now: Snapshot, grave: Grave) -> bool:
    """Say whether the log alone shows that everything counts, which spares a look at the tombstones.

    It does if the newest append is the newest that was committed, and everything counted when it came. What is no
    append, such as a compaction, leaves rows as they were or removes them.
    """
    commits = itertools.islice(log.commits(now.version), _LOOKED_AT)
    newest = next((commit for commit in commits if _appends(commit)), None)
    told = newest.metadata.split() if newest else []
    if newest is None or told[:2] != [grave.attempt, _WHOLE]:
        return False
    between = list(log.commits(newest.version - 1, int(told[2]) + 1))
    return len(between) == newest.version - 1 - int(told[2]) and not any(map(_appends, between))


def _appends(commit: Commit) -> bool:
    return commit.operation.startswith(("WRITE", "CREATE TABLE AS SELECT"))
