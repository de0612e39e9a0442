"""Tables as Parquet files below a folder or a prefix of an object store, each with manifests that say what it is."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Mapping
from typing import Any, Self

from pydantic import Field, model_validator
from pyspark.sql import DataFrame, SparkSession

from tailrace.apply.ranges import Ranges
from tailrace.apply.target import ANYONE, NOWHERE, Applied, Batch, Mark
from tailrace.config.model import Model, Secret
from tailrace.core.errors import Misconfigured
from tailrace.core.table import Fit, Table, file_name
from tailrace.targets import _place
from tailrace.targets._tables import refuse_reserved
from tailrace.targets.parquet.store import Store
from tailrace.targets.parquet.table import ParquetTable

MODES = ("scd1", "append")


class Options(Model):
    """The keys under `parquet` of a sink."""

    path: str = Field(min_length=1)
    """A folder, or `s3://<bucket>/<prefix>`; each table has a folder of its own below it."""
    s3_endpoint: str | None = None
    """The address of the object store, if it is not AWS."""
    s3_access_key_id: Secret | None = None
    """The access key; if unset, whatever AWS clients find in the environment."""
    s3_secret_access_key: Secret | None = None
    """The secret of the access key."""
    s3_region: str = "us-east-1"
    """The region of the bucket."""
    tombstone_days: int = Field(default=7, ge=1)
    """How many days a deleted row is remembered, so that no late event brings it back."""

    @model_validator(mode="after")
    def _one_storage(self) -> Self:
        if (self.s3_access_key_id is None) is not (self.s3_secret_access_key is None):
            raise ValueError("s3_access_key_id and s3_secret_access_key belong together")
        if (self.s3_endpoint or self.s3_access_key_id) and not self.path.startswith("s3://"):
            raise ValueError("the s3_ keys have no meaning unless path is s3://<bucket>/<prefix>")
        return self

    def store(self) -> Store:
        """Return the place that these settings name."""
        if not self.path.startswith("s3://"):
            return Store(self.path, {})
        settings: dict[str, Any] = {"region": self.s3_region}
        if self.s3_endpoint:
            settings |= {
                "endpoint": self.s3_endpoint,
                "client_options": {"allow_http": self.s3_endpoint.startswith("http:")},
            }
        if self.s3_access_key_id and self.s3_secret_access_key:
            settings["access_key_id"] = self.s3_access_key_id.get_secret_value()
            settings["secret_access_key"] = self.s3_secret_access_key.get_secret_value()
        return Store(self.path, settings)


def folds_case(options: Options) -> bool:
    """Say whether tables whose names differ only in case are one table there."""
    return _place.folds_case(options.path)


def open_target(
    name: str,
    options: Options,
    *,
    spark: Callable[[], SparkSession],
    pipeline_id: str,
    tables: Mapping[str, str],
    mode: str,
) -> ParquetTarget:
    """Return the target that `options` describe; nothing is opened yet."""
    if mode not in MODES:
        raise Misconfigured(
            "not-available", f'target "{name}" keeps Parquet files and has no mode "{mode}"', "Use scd1."
        )
    return ParquetTarget(
        name,
        options.store(),
        spark=spark,
        pipeline_id=pipeline_id,
        tables=tables,
        mode=mode,
        tombstone_days=options.tombstone_days,
    )


def open_table(
    where: str, table: str, spark: SparkSession, mode: str, pipeline_id: str = "apply_changes"
) -> ParquetTarget:
    """Return a target of one `table`; `where` is its folder. Keys of an object store come from the environment."""
    above, _, name = where.rstrip("/").rpartition("/")
    if not above or not name or above in ("s3:", "s3:/"):
        raise Misconfigured("unknown-target", f'"parquet:{where}" names no folder', 'Write "parquet:<path>/<table>".')
    options, names = Options(path=above), {table: name}
    return open_target("table", options, spark=lambda: spark, pipeline_id=pipeline_id, tables=names, mode=mode)


class ParquetTarget:
    """Tables as files; see `apply.target.Target` for what each method promises."""

    def __init__(
        self,
        name: str,
        store: Store,
        *,
        spark: Callable[[], SparkSession],
        pipeline_id: str,
        tables: Mapping[str, str],
        mode: str = "scd1",
        tombstone_days: int = 7,
    ) -> None:
        refuse_reserved(name, tables)
        self.name = name
        self._store = store
        self._spark = spark
        self._pipeline_id = pipeline_id
        self._names = dict(tables)
        self._mode = mode
        self._retention = datetime.timedelta(days=tombstone_days)
        self._opened: dict[str, ParquetTable] = {}
        self._lock = threading.Lock()

    def mark(self, table: str) -> Mark | None:
        return self._table(table).mark()

    def have(self, table: str) -> Table | None:
        found = self._table(table).look()
        return found.table if found else None

    def notes(self, table: str) -> dict[str, str]:
        found = self._table(table).look()
        return dict(found.notes) if found else {}

    def known(self, table: str, near: Ranges = NOWHERE) -> DataFrame:
        return self._table(table).known()

    def current(self, table: str, near: Ranges = NOWHERE) -> DataFrame:
        return self._table(table).current()

    def evolve(self, table: str, change: Fit) -> None:
        self._table(table).evolve(change)

    def apply(self, batch: Batch) -> Applied:
        return self._table(batch.table.name).apply(batch)

    def collect_tombstones(self) -> None:
        """Drop tombstones past their retention."""
        today = datetime.datetime.now(datetime.UTC).date()
        for table in self._names:
            self._table(table).collect(today - self._retention)

    def remove_old(self) -> None:
        """Remove versions and files that nobody needs any more."""
        for table in self._names:
            self._table(table).remove_old()

    def _table(self, table: str) -> ParquetTable:
        with self._lock:
            if table not in self._opened:
                owner = "/".join((self._pipeline_id, self.name, table)) if self._pipeline_id != ANYONE else ANYONE
                folder = file_name(self._names[table])
                self._opened[table] = ParquetTable(self._spark, self._store, folder, owner, self._mode, table)
            return self._opened[table]
