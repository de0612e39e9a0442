"""The bronze target: its options, and which table of it lies where.

    <path>/convex__app__users__cdc       the events of a table, one row each
    <path>/connector_checkpoint          how far the source had been read when they were landed

With `catalog` instead of `path`, the tables have these names in a schema, and the view `connector_checkpoint_latest`
is beside them.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pyspark.sql import DataFrame, SparkSession

from tailrace.apply.ranges import Ranges
from tailrace.apply.target import NOWHERE, Applied, Batch, Mark
from tailrace.core.checkpoint import Checkpoint
from tailrace.core.table import Fit, Table, file_name
from tailrace.targets._failures import LIBRARY_ERRORS
from tailrace.targets._place import rooted
from tailrace.targets.bronze.checkpoints import LATEST, NAME, CheckpointTable
from tailrace.targets.bronze.place import Place
from tailrace.targets.bronze.table import BronzeTable, translate


class Options(BaseModel):
    """The keys under `bronze` of a sink: exactly one of `path` and `catalog`; the others are for the bundle."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    path: str = ""
    """A folder or object-store prefix: each table is a folder in it."""
    catalog: str = ""
    """A schema (`schema` or `catalog.schema`) to hold the tables, instead of `path`."""
    silver_include: tuple[str, ...] = ()
    """Which tables `cdc databricks bundle` makes silver tables of: names or patterns with `*`; all if unset."""
    silver_exclude: tuple[str, ...] = ()
    """Which of them it leaves out."""
    silver_names: dict[str, str] = Field(default_factory=dict)
    """What silver tables are called, by the table's name in the source, where it is not their own name."""

    @model_validator(mode="after")
    def _one_place(self) -> Options:
        if bool(self.path) == bool(self.catalog):
            raise ValueError("give either path or catalog")
        return self

    def place(self, name: str) -> Place:
        """Return where the table called `name` lies."""
        if self.catalog:
            return Place.in_catalog(self.catalog, name)
        root = rooted(self.path)
        return Place.in_folder(root, file_name(name))


def open_target(
    name: str,
    options: Options,
    *,
    spark: Callable[[], SparkSession],
    pipeline_id: str,
    tables: Mapping[str, str],
    mode: str,  # noqa: ARG001
    run_id: str = "",
) -> BronzeTarget:
    """Return the target that `options` describe; nothing is started yet."""
    return BronzeTarget(name, options, spark=spark, source_id=pipeline_id, tables=tables, run_id=run_id)


class BronzeTarget:
    """Bronze tables and their control table; see `apply.target.Target` for what each method promises."""

    def __init__(
        self,
        name: str,
        options: Options,
        *,
        spark: Callable[[], SparkSession],
        source_id: str,
        tables: Mapping[str, str],
        run_id: str = "",
    ) -> None:
        self.name = name
        self.source_id = source_id
        self.run_id = run_id
        self._options = options
        self._spark = spark
        self._names = dict(tables)
        self._opened: dict[str, BronzeTable] = {}
        self._shapes: dict[str, Table | None] = {}
        """As last seen: nobody else changes a table of ours."""
        self._checkpoints: CheckpointTable | None = None
        self._lock = threading.Lock()

    def mark(self, table: str) -> Mark | None:
        return self._table(table).mark()

    def have(self, table: str) -> Table | None:
        self._shapes[table] = self._table(table).have()
        return self._shapes[table]

    def notes(self, table: str) -> dict[str, str]:
        return self._table(table).notes()

    def known(self, table: str, near: Ranges = NOWHERE) -> DataFrame:
        return self.current(table, near).limit(0)

    def current(self, table: str, near: Ranges = NOWHERE) -> DataFrame:
        """Return every event of `table`."""
        return self._table(table).rows()

    def evolve(self, table: str, change: Fit) -> None:
        self._table(table).evolve(change)
        self._shapes[table] = change.table

    def apply(self, batch: Batch) -> Applied:
        return self._table(batch.table.name).apply(batch)

    def note(self, checkpoint: Checkpoint) -> None:
        """Say in the control table that everything before `checkpoint` is landed."""
        shapes = {t: self._shapes[t] if self._shapes.get(t) else self.have(t) for t in sorted(self._names)}
        try:
            if self._checkpoints is None:
                view = self._options.place(LATEST) if self._options.catalog else None
                session = self._spark().newSession()
                self._checkpoints = CheckpointTable(session, self._options.place(NAME), view, self.source_id)
            self._checkpoints.add(checkpoint, _hash(shapes), self.run_id)
        except LIBRARY_ERRORS as error:
            raise translate(error, f'writing the checkpoint of "{self.source_id}"') from error

    def _table(self, table: str) -> BronzeTable:
        with self._lock:
            if table not in self._opened:
                place = self._options.place(self._names[table])
                self._opened[table] = BronzeTable(self._spark(), place, (self.source_id, self.name, table))
            return self._opened[table]


def _hash(shapes: Mapping[str, Table | None]) -> str:
    """Return a short text that differs when a table or a column comes, and with nothing else."""
    told = {name: [[c.name, c.type] for c in shape.columns] for name, shape in shapes.items() if shape}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
