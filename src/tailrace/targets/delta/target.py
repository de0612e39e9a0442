"""The Delta target: its options, and which table of it lies where.

    <path>/orders                            the rows
    <path>/_tailrace/orders.tombstones       what is remembered of deleted ones

One writer per table: a place that belongs to another pipeline, target or source table is refused.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import cast

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pyspark.sql import DataFrame, SparkSession

from tailrace.apply.target import Mark
from tailrace.apply.versions import Upkeep, Version
from tailrace.core.table import file_name
from tailrace.targets import _place
from tailrace.targets._maintenance import Maintenance
from tailrace.targets._merge import quote
from tailrace.targets._place import rooted
from tailrace.targets._tables import Tables
from tailrace.targets.delta.place import Owner, Place
from tailrace.targets.delta.table import DeltaTable, Mode
from tailrace.targets.delta.versions import DeltaVersions


class Options(BaseModel):
    """The keys under `delta` of a sink: exactly one of `path` and `catalog`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    path: str = ""
    """A folder or object-store prefix: each table is a folder in it."""
    catalog: str = ""
    """A schema of the metastore (`schema` or `catalog.schema`) to hold the tables, instead of `path`."""
    tombstone_days: int = Field(default=7, ge=1)
    """How many days a deleted row is remembered, so that no late event brings it back."""
    maintenance: Maintenance = Maintenance()
    """Compaction and expiry, between slices."""

    @model_validator(mode="after")
    def _one_place(self) -> Options:
        if bool(self.path) == bool(self.catalog):
            raise ValueError("give either path or catalog")
        return self


def folds_case(options: Options) -> bool:
    """Say whether tables whose names differ only in case are one table there."""
    return bool(options.catalog) or _place.folds_case(options.path)


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


def open_table(
    where: str, table: str, spark: SparkSession, mode: Mode, pipeline_id: str = "apply_changes"
) -> DeltaTarget:
    """Return a target of one `table`; `where` is a folder if there is a slash in it, else a name in the metastore."""
    if "/" in where:
        path = rooted(where.rstrip("/") or "/")
        parent, base = path.rsplit("/", 1)
        places = Place(f"delta.{quote(path)}", path), Place.in_folder(parent, f"_tailrace/{base}.tombstones")
    else:
        *schema, base = where.split(".")
        within = ".".join(schema or ["default"])
        places = Place.in_catalog(within, base), Place.in_catalog(within, f"_tailrace_tombstones_{base}")
    options = Options(path=places[0].path) if places[0].path else Options(catalog=within)
    names = {table: base}
    return DeltaTarget(
        "table",
        options,
        spark_session=spark,
        pipeline_id=pipeline_id,
        tables=names,
        mode=mode,
        places={table: places},
    )


class DeltaTarget(Tables):
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
        places: Mapping[str, tuple[Place, Place]] | None = None,
    ) -> None:
        super().__init__(name, tables, self._open, tombstone_days=options.tombstone_days)
        self._places = dict(places or {})
        self._options = options
        self._spark_session = spark_session
        self._pipeline_id = pipeline_id
        self._names = dict(tables)
        self._mode: Mode = mode

    def versions(self, table: str, most: int) -> list[Version]:
        return self._versions(table).every(most)

    def version_at(self, table: str, moment: datetime.datetime) -> int | None:
        return self._versions(table).at(moment)

    def rows_at(self, table: str, version: int | None = None) -> DataFrame:
        return self._versions(table).rows(version)

    def mark_at(self, table: str, version: int) -> Mark | None:
        return self._versions(table).stamp(version).mark

    def take_back(self, table: str, version: int) -> None:
        self._versions(table).take_back(version)

    def compact(self, table: str, upkeep: Upkeep) -> Mapping[str, int]:
        return self._versions(table).compact(upkeep)

    def expire(self, table: str, before: datetime.datetime) -> Mapping[str, int]:
        return self._versions(table).expire(before)

    def _versions(self, table: str) -> DeltaVersions:
        return cast(DeltaTable, self._table(table)).versions

    def place(self, table: str) -> Place:
        """Return where the rows of `table` lie."""
        if table in self._places:
            return self._places[table][0]
        return self._placed(file_name(self._names[table]), self._names[table])

    def _open(self, table: str) -> DeltaTable:
        given = self._spark_session
        session = given if isinstance(given, SparkSession) else given()
        owner = Owner(self._pipeline_id, self.name, table)
        return DeltaTable(session, self.place(table), self._graves(table), owner, self._mode)

    def _graves(self, table: str) -> Place:
        if table in self._places:
            return self._places[table][1]
        name = self._names[table]
        return self._placed(f"_tailrace/{file_name(name)}.tombstones", f"_tailrace_tombstones_{name}")

    def _placed(self, segment: str, name: str) -> Place:
        if self._options.catalog:
            return Place.in_catalog(self._options.catalog, name)
        root = self._options.path
        return Place.in_folder(rooted(root), segment)
