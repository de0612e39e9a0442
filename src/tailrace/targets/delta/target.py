"""The Delta target: its options, and which table of it lies where.

    <path>/orders                            the rows
    <path>/_tailrace/orders.tombstones       what is remembered of deleted ones

One writer per table: a place that belongs to another pipeline, target or source table is refused.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pyspark.sql import DataFrame, SparkSession

from tailrace.apply.target import Applied, Batch, Mark
from tailrace.core.table import Fit, Table, file_name
from tailrace.targets.delta.place import Owner, Place, in_catalog, in_folder
from tailrace.targets.delta.table import DeltaTable, Mode


class Options(BaseModel):
    """The keys under `delta` of a sink: exactly one of `path` and `catalog`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    path: str = ""
    """A folder or object-store prefix: each table is a folder in it."""
    catalog: str = ""
    """A schema of the metastore (`schema` or `catalog.schema`) to hold the tables, instead of `path`."""
    tombstone_days: int = Field(default=7, ge=1)
    """How many days a deleted row is remembered, so that no late event brings it back."""

    @model_validator(mode="after")
    def _one_place(self) -> Options:
        if bool(self.path) == bool(self.catalog):
            raise ValueError("give either path or catalog")
        return self


def open_target(
    name: str,
    options: Options,
    *,
    spark: Callable[[], SparkSession],
    pipeline_id: str,
    tables: Mapping[str, str],
    mode: Mode,
) -> DeltaTarget:
    """Return the target that `options` describe; nothing is started yet."""
    return DeltaTarget(name, options, spark_session=spark, pipeline_id=pipeline_id, tables=tables, mode=mode)


class DeltaTarget:
    """Tables in Delta Lake; see `apply.target.Target` for what each method promises."""

    def __init__(
        self,
        name: str,
        options: Options,
        *,
        spark_session: SparkSession | Callable[[], SparkSession],
        pipeline_id: str,
        tables: Mapping[str, str],
        mode: Mode = "scd1",
    ) -> None:
        self.name = name
        self._options = options
        self._spark_session = spark_session
        self._pipeline_id = pipeline_id
        self._names = dict(tables)
        self._mode: Mode = mode
        self._opened: dict[str, DeltaTable] = {}
        self._lock = threading.Lock()

    def mark(self, table: str) -> Mark | None:
        return self._table(table).mark()

    def have(self, table: str) -> Table | None:
        return self._table(table).have()

    def known(self, table: str) -> DataFrame:
        return self._table(table).known()

    def current(self, table: str) -> DataFrame:
        return self._table(table).current()

    def evolve(self, table: str, change: Fit) -> None:
        self._table(table).evolve(change)

    def apply(self, batch: Batch) -> Applied:
        return self._table(batch.table.name).apply(batch)

    def collect_tombstones(self) -> None:
        """Drop tombstones past their retention; for the end of a run, and now and then in a long one."""
        today = datetime.datetime.now(datetime.UTC).date()
        for table in self._names:
            self._table(table).collect_tombstones(today - datetime.timedelta(days=self._options.tombstone_days))

    def place(self, table: str) -> Place:
        """Return where the rows of `table` lie."""
        return self._placed(file_name(self._names[table]), self._names[table])

    def _table(self, table: str) -> DeltaTable:
        with self._lock:
            if table not in self._opened:
                given = self._spark_session
                session = given if isinstance(given, SparkSession) else given()
                name = self._names[table]
                graves = self._placed(f"_tailrace/{file_name(name)}.tombstones", f"_tailrace_tombstones_{name}")
                owner = Owner(self._pipeline_id, self.name, table)
                self._opened[table] = DeltaTable(session, self.place(table), graves, owner, self._mode)
            return self._opened[table]

    def _placed(self, segment: str, name: str) -> Place:
        if self._options.catalog:
            return in_catalog(self._options.catalog, name)
        root = self._options.path
        return in_folder(root if "://" in root else str(Path(root).absolute()), segment)
