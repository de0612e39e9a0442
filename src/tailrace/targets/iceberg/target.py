"""The Iceberg target: which table of it lies where.

    <catalog>.<namespace>.orders                         the rows
    <catalog>.<namespace>._tailrace_tombstones_orders    what is remembered of deleted ones

One writer per table: a place that belongs to another pipeline, target or source table is refused.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from tailrace.apply.ranges import Ranges
from tailrace.apply.target import NOWHERE, Applied, Batch, Mark
from tailrace.apply.versions import Upkeep, Version
from tailrace.core.errors import Misconfigured
from tailrace.core.table import Fit, Table, file_name
from tailrace.spark.start import ICEBERG_CATALOG
from tailrace.targets._tables import refuse_reserved
from tailrace.targets.iceberg.catalog import Place, require_s3
from tailrace.targets.iceberg.marks import Owner
from tailrace.targets.iceberg.options import Options
from tailrace.targets.iceberg.table import IcebergTable, Making, Mode

_DAYS = 7
_S3_JARS = "tailrace.targets.iceberg"


def jars(options: Options) -> tuple[str, ...]:
    """Return the packages whose locked jars a session needs for `options`."""
    return (_S3_JARS,) if options.on_s3 else ()


def table_names(options: Options, tables: Sequence[str]) -> dict[str, str]:
    """Return what `options` call the table, where the pipeline has one."""
    if options.table_name is None:
        return {}
    if len(tables) > 1:
        raise Misconfigured(
            "wrong-value",
            f'table_name "{options.table_name}" names one table, and the pipeline has {len(tables)}',
            "Remove it, and name single tables under tables.",
        )
    return dict.fromkeys(tables, options.table_name)


def open_target(
    name: str,
    options: Options,
    *,
    spark: Callable[[], SparkSession],
    pipeline_id: str,
    tables: Mapping[str, str],
    mode: Mode,
) -> IcebergTarget:
    """Return the target that `options` describe; nothing is started yet."""
    names = {**table_names(options, tuple(tables)), **tables}
    namespace = tuple(options.table_namespace.split("."))

    def opened() -> SparkSession:
        options.make_room()
        session = spark()
        if options.on_s3:
            require_s3(session)
        return session

    return IcebergTarget(
        name,
        opened,
        {table: Place(options.catalog_name, namespace, file_name(own)) for table, own in names.items()},
        pipeline_id=pipeline_id,
        mode=mode,
        settings=options.settings(),
        making=Making(options.format_version, options.partition_by, options.auto_create_table),
        tombstone_days=options.tombstone_days,
    )


def open_table(
    where: str, table: str, spark: SparkSession, mode: Mode, pipeline_id: str = "apply_changes"
) -> IcebergTarget:
    """Return a target of one `table`; `where` is `[catalog.]namespace.table`, in a catalog that `spark` has."""
    catalog, *within = where.split(".")
    if len(within) == 1:
        catalog, within = ICEBERG_CATALOG, [catalog, *within]
    if len(within) < 2 or not all((catalog, *within)):
        raise Misconfigured(
            "unknown-target", f'"iceberg:{where}" names no table', 'Write "iceberg:[catalog.]namespace.table".'
        )
    place = Place(catalog, tuple(within[:-1]), within[-1])
    return IcebergTarget("table", lambda: spark, {table: place}, pipeline_id=pipeline_id, mode=mode)


class IcebergTarget:
    """Tables in Apache Iceberg; see `apply.target.Target` for what each method promises."""

    def __init__(
        self,
        name: str,
        spark: Callable[[], SparkSession],
        places: Mapping[str, Place],
        *,
        pipeline_id: str,
        mode: Mode,
        settings: Mapping[str, str] | None = None,
        making: Making | None = None,
        tombstone_days: int = _DAYS,
    ) -> None:
        refuse_reserved(name, {table: place.name for table, place in places.items()})
        self.name = name
        self._spark = spark
        self._places = dict(places)
        self._pipeline_id = pipeline_id
        self._mode: Mode = mode
        self._settings = dict(settings or {})
        self._making = making or Making()
        self._retention = datetime.timedelta(days=tombstone_days)
        self._opened: dict[str, IcebergTable] = {}
        self._reader: SparkSession | None = None
        self._lock = threading.Lock()

    def mark(self, table: str) -> Mark | None:
        return self._table(table).mark()

    def have(self, table: str) -> Table | None:
        return self._table(table).have()

    def notes(self, table: str) -> dict[str, str]:
        return self._table(table).notes()

    def known(self, table: str, near: Ranges = NOWHERE) -> DataFrame:
        return self._table(table).known(near)

    def current(self, table: str, near: Ranges = NOWHERE) -> DataFrame:
        return self._table(table).current(near)

    def records(self, table: str, near: Ranges = NOWHERE) -> tuple[DataFrame, DataFrame | None]:
        return self._table(table).records(near)

    def evolve(self, table: str, change: Fit) -> None:
        self._table(table).evolve(change)

    def apply(self, batch: Batch) -> Applied:
        return self._table(batch.table.name).apply(batch)

    def collect_tombstones(self) -> None:
        """Drop tombstones past their retention; for the end of a run, and now and then in a long one."""
        today = datetime.datetime.now(datetime.UTC).date()
        for table in self._places:
            self._table(table).collect_tombstones(today - self._retention)

    def versions(self, table: str, most: int) -> list[Version]:
        return self._table(table).versions.every(most)

    def version_at(self, table: str, moment: datetime.datetime) -> int | None:
        return self._table(table).versions.at(moment)

    def rows_at(self, table: str, version: int | None = None) -> DataFrame:
        return self._table(table).versions.rows(version)

    def mark_at(self, table: str, version: int) -> Mark | None:
        return self._table(table).versions.mark(version)

    def take_back(self, table: str, version: int) -> None:
        self._table(table).take_back(version)

    def compact(self, table: str, upkeep: Upkeep) -> Mapping[str, int]:
        return self._table(table).versions.compact(upkeep)

    def expire(self, table: str, before: datetime.datetime) -> Mapping[str, int]:
        return self._table(table).versions.expire(before)

    def place(self, table: str) -> Place:
        """Return where the rows of `table` lie."""
        return self._places[table]

    def _table(self, table: str) -> IcebergTable:
        with self._lock:
            if table not in self._opened:
                owner, base = Owner(self._pipeline_id, self.name, table), self._spark()
                if self._reader is None:
                    # A session that has the catalog itself is read from as it is.
                    self._reader = base.newSession() if self._settings else base
                self._opened[table] = IcebergTable(
                    base, self._reader, self._settings, self._places[table], owner, self._mode, self._making
                )
            return self._opened[table]
