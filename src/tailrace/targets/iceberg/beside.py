"""What is remembered of deleted rows, and of records that do not show: an Iceberg table beside each table.

What a batch buries is staged: a snapshot that no reader sees. The commit of the rows names it in its stamp, and so it
counts if and only if they do; a batch that was not committed leaves a snapshot that nobody names. Afterwards it is
published, so that expiry keeps it; a crash before that is made good by the next batch. See ADR 13.
"""

from __future__ import annotations

import datetime
import uuid

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tailrace.apply.ranges import Ranges, inside
from tailrace.apply.target import Batch
from tailrace.apply.view import shared_view
from tailrace.core.errors import Halt, Retryable
from tailrace.core.table import Column as TableColumn
from tailrace.spark.kinds import kind_of
from tailrace.targets._merge import OP, POSITION, literal, quote
from tailrace.targets.iceberg import shape
from tailrace.targets.iceberg.catalog import Catalog, Place
from tailrace.targets.iceberg.metadata import Metadata
from tailrace.targets.iceberg.staging import noted, stage

BURIED = "tailrace.buried"
_DAY, _OFFSET = "_cdc_day", "_cdc_offset"


class Beside:
    """What lies beside one table; `named` is always the snapshot that the table's stamp names."""

    def __init__(self, session: SparkSession, catalog: Catalog, place: Place, properties: dict[str, str]) -> None:
        self._session = session
        self._catalog = catalog
        self._place = place
        self._properties = properties

    def bury(self, batch: Batch, named: int | None, deletes: int) -> int | None:
        """Stage what `batch` deletes or hides; return the snapshot for its stamp to name."""
        if not deletes and batch.hidden is None:
            return named
        rows = self._rows(batch)
        found = self._settled(named)
        if found is None:
            columns = [(field.name, kind_of(field.dataType)) for field in rows.schema]
            shape.create(self._session, self._place, columns, self._properties, (_DAY,))
            found = self._loaded()
        missing = [f for f in rows.schema if f.name not in found.schema().names]
        if missing:
            shape.add(self._session, self._place, found, [TableColumn(f.name, kind_of(f.dataType)) for f in missing])
        name = uuid.uuid4().hex
        with shared_view(rows) as view, stage(self._session, name, {BURIED: name}):
            buried = shape.padded(self._session.table(view), self._loaded())
            buried.coalesce(1).writeTo(self._place.sql).append()
        staged, before = self._loaded().staged(name), found.current()
        if staged is None:
            raise _lost(self._place)
        if staged.parent != (before and before.id):
            raise Retryable(
                "write-conflict",
                f'another writer committed to table "{self._place.shown}" in the meantime',
                "Nothing was written. Apply the batch again, one call at a time.",
            )
        return staged.id

    def publish(self, named: int | None) -> None:
        """Let what the committed stamp names be the table's own state."""
        found = self._catalog.load(self._place) if named is not None else None
        if found is not None and named is not None and self._view(found, named) == named:
            current = found.current()
            if current is None or current.id != named:
                found.publish(named)

    def events(self, named: int | None, near: Ranges) -> DataFrame | None:
        """Return what counts and has a key within `near`, and truncates; `None` if there never was anything."""
        found = self._catalog.load(self._place) if named is not None else None
        if found is None or named is None:
            return None
        view, current = self._view(found, named), found.current()
        reader = self._session.read
        if current is None or view != current.id:
            reader = reader.option("versionAsOf", str(view))
        rows = reader.table(self._place.sql)
        return rows.where((F.col(OP) == "t") | inside(near)).drop(_DAY)

    def of_keys(self, keys: tuple[str, ...], named: int | None, near: Ranges) -> DataFrame | None:
        """Return key columns and position of every tombstone that counts; `None` if there never was one."""
        graves = self.events(named, near)
        return graves and graves.where(F.col(OP) == "d").select(*(F.col(quote(key)) for key in keys), POSITION)

    def widen(self, columns: tuple[TableColumn, ...]) -> None:
        """Follow the columns of the table to their new types."""
        found = self._catalog.load(self._place)
        if found is not None:
            have = found.schema().names
            shape.widen(self._session, self._catalog, self._place, [c for c in columns if c.name in have])

    def collect(self, named: int | None, before: datetime.date) -> None:
        """Drop what is remembered from days before `before`; truncates stay."""
        found = self._settled(named)
        if found is None or found.current() is None:
            return
        old = f"{_DAY} < {literal(before)} AND {OP} <> 't'"
        if self._session.table(self._place.sql).where(old).limit(1).count():
            self._session.sql(f"DELETE FROM {self._place.sql} WHERE {old}")

    def needed(self, named: set[int]) -> tuple[Place, Metadata, set[int]] | None:
        """Return the place, the table, and its snapshots that must stay for those that stamps name to count."""
        found = self._catalog.load(self._place)
        if found is None:
            return None
        keep = set(named)
        for snapshot in found.ancestors():
            keep.add(snapshot.id)
            if snapshot.summary.get(BURIED):
                break
        return self._place, found, keep

    def drop(self) -> None:
        """Forget everything: the table that it belongs to is a new one."""
        if self._catalog.load(self._place) is not None:
            self._catalog.drop(self._place)

    def _settled(self, named: int | None) -> Metadata | None:
        """Return the table, taken to what counts; `None` if there is none."""
        found = self._catalog.load(self._place)
        if found is None:
            return None
        if named is None:
            if (current := found.current()) and current.summary.get("total-records") != "0":
                # The rows were taken back to before anything was deleted. Noted like a burial, so that a stamp that
                # another writer has just set does not take this for tidying up.
                with noted(self._session, {BURIED: uuid.uuid4().hex}):
                    self._session.sql(f"DELETE FROM {self._place.sql}")
            return self._loaded()
        view, current = self._view(found, named), found.current()
        if current is None or current.id != view:
            found.publish(view)
            return self._loaded()
        return found

    def _view(self, found: Metadata, named: int) -> int:
        """Return the snapshot to read: the newest that buries no more than `named` does."""
        current = found.current()
        for snapshot in found.ancestors():
            if snapshot.id == named and current is not None:
                # What came since has only tidied up.
                return current.id
            if snapshot.summary.get(BURIED):
                break
        else:
            if current is not None and found.snapshot(named) is None:
                return current.id
        if found.snapshot(named) is None:
            raise _lost(self._place)
        return named

    def _loaded(self) -> Metadata:
        found = self._catalog.load(self._place)
        if found is None:
            raise _lost(self._place)
        return found

    def _rows(self, batch: Batch) -> DataFrame:
        day = F.lit(datetime.datetime.now(datetime.UTC).date()).alias(_DAY)
        if batch.hidden is not None:
            # Of what is hidden twice, the later counts.
            rows = batch.hidden.select("*", F.lit(batch.step[1]).cast("bigint").alias(_OFFSET), day)
        else:
            keys = [F.col(quote(key)).cast(batch.table.column(key).type).alias(key) for key in batch.table.keys]
            rows = batch.rows.where(F.col(OP) == "d").select(*keys, POSITION, OP, day)
        return rows


def _lost(place: Place) -> Halt:
    return Halt(
        "tombstones-lost",
        f'table "{place.shown}" no longer has the snapshot that its table names',
        "It remembers what was deleted, and others must not change it. Drop both tables, so that they are built again.",
    )
