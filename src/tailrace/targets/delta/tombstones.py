"""What is remembered of deleted rows, and of records that do not show: a Delta table beside each table.

Tombstones are appended before the rows of their batch, with the change log and offset of the mark that
batch will set. One counts only if the table has committed that far in that log, so the commit of the
rows stays the one commit point: a crash between the two leaves tombstones that do not count. See ADR 5.

A truncate leaves one row too, with its position, so that the floor of a table outlives the Delta log.
In mode scd2 whole events are remembered so: deletes, and earlier events of a run. See ADR 7.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tailrace.apply.ranges import Ranges, inside
from tailrace.apply.target import Batch
from tailrace.core.table import Column as TableColumn
from tailrace.targets._merge import OP, POSITION, literal, quote
from tailrace.targets.delta import shape
from tailrace.targets.delta.place import Place

_LOG, _OFFSET, _DAY = "_cdc_log", "_cdc_offset", "_cdc_day"

Committed = dict[str, int]
"""How far a table has committed, by change log."""


class Tombstones:
    """The tombstones of one table."""

    def __init__(self, session: SparkSession, place: Place) -> None:
        self._session = session
        self._place = place
        self._exists = False
        self._clean = False

    def bury(self, batch: Batch, committed: Callable[[], Committed], deletes: int) -> None:
        """Append the deletes and the truncate of `batch`, which count once its mark is committed.

        On a repeat after a crash the ones it left are removed first, so they do not pile up.
        """
        if not self._clean:
            self._remove_uncounted(committed())
        if not deletes and not batch.truncate and batch.hidden is None:
            return
        self._clean = False
        self._append(batch)
        self._exists = True

    def settle(self) -> None:
        """Take note that the last batch was committed, so that there is nothing to remove before the next."""
        self._clean = True

    def of_keys(self, keys: tuple[str, ...], committed: Committed, near: Ranges) -> DataFrame | None:
        """Return key columns and position of every tombstone that counts; `None` if there never was one."""
        graves = self.events(committed, near)
        return graves and graves.where(F.col(OP) == "d").select(*(F.col(quote(key)) for key in keys), POSITION)

    def events(self, committed: Committed, near: Ranges) -> DataFrame | None:
        """Return what counts and has a key within `near`, and truncates; `None` if there never was anything."""
        if not self._there():
            return None
        return self._read().where(_counts(committed) & ((F.col(OP) == "t") | inside(near))).drop(_LOG, _DAY)

    def floor(self, committed: Committed) -> str:
        """Return the position of the newest truncate that counts, empty if there was none."""
        if not self._there():
            return ""
        truncates = self._read().where((F.col(OP) == "t") & _counts(committed))
        return truncates.agg(F.max(POSITION)).collect()[0][0] or ""

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

    def _append(self, batch: Batch) -> None:
        today = F.lit(datetime.datetime.now(datetime.UTC).date())
        sequence, number = batch.step
        stamp = [
            F.lit(sequence).alias(_LOG),
            F.lit(number).cast("bigint").alias(_OFFSET),
            today.alias(_DAY),
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
        # The first one makes the table, in the same commit.
        mapping = shape.mapping(rows.columns)
        if self._there():
            shape.ensure(self._session, self._place, mapping)
            options = {"mergeSchema": "true"}
        else:
            options = {"delta.autoOptimize.autoCompact": "true", **mapping}
        self._place.append(rows.coalesce(1), [_DAY], **options)

    def _remove_uncounted(self, committed: Committed) -> None:
        if self._there() and self._read().where(~_counts(committed)).limit(1).count():
            self._session.sql(f"DELETE FROM {self._place.sql} WHERE NOT ({_counts_sql(committed)})")
        self._clean = True

    def _there(self) -> bool:
        if not self._exists:
            log = self._place.log(self._session)
            self._exists = log is not None and log.snapshot() is not None
        return self._exists

    def _read(self) -> DataFrame:
        return self._place.read(self._session)


def _counts(committed: Committed) -> Column:
    return F.expr(_counts_sql(committed))


def _counts_sql(committed: Committed) -> str:
    each = [f"({_LOG} = {literal(log)} AND {_OFFSET} <= {offset})" for log, offset in sorted(committed.items())]
    return " OR ".join(each) or "false"
