"""The tables of one target in a SQL database; what is the same for all of them."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession

from tailrace.apply.ranges import Ranges
from tailrace.apply.target import NOWHERE, Applied, Batch, Mark
from tailrace.core.errors import Misconfigured
from tailrace.core.table import Fit, Table
from tailrace.targets._sql.control import Owner
from tailrace.targets._sql.dialect import Database
from tailrace.targets._sql.table import Mode, SqlTable

TOMBSTONE_DAYS = 7
"""How many days a deleted row is remembered if nothing else is said."""


class SqlTarget:
    """Tables in a SQL database; see `apply.target.Target` for what each method promises."""

    def __init__(
        self,
        name: str,
        database: Database,
        *,
        spark: Callable[[], SparkSession],
        pipeline_id: str,
        tables: Mapping[str, str],
        mode: Mode = "scd1",
        tombstone_days: int = TOMBSTONE_DAYS,
        adopts: bool = True,
    ) -> None:
        for table, own in tables.items():
            if own.lower().startswith("_tailrace_"):
                raise Misconfigured(
                    "reserved-name",
                    f'table "{table}" would be called "{own}" in target "{name}"',
                    "Names that start so are ours. Give it a name of its own under tables.",
                )
        self.name = name
        self._database = database
        self._spark = spark
        self._pipeline_id = pipeline_id
        self._names = dict(tables)
        self._mode: Mode = mode
        self._adopts = adopts
        self._retention = datetime.timedelta(days=tombstone_days)
        self._opened: dict[str, SqlTable] = {}
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
        for table in self._names:
            self._table(table).collect_tombstones(today - self._retention)

    def _table(self, table: str) -> SqlTable:
        with self._lock:
            if table not in self._opened:
                owner = Owner(self._pipeline_id, self.name, table)
                self._opened[table] = SqlTable(
                    self._spark, self._database, self._names[table], owner, self._mode, adopts=self._adopts
                )
            return self._opened[table]


def one_table(name: str, table: str, database: Database, spark: SparkSession, mode: Mode) -> SqlTarget:
    """Return the target that `apply_changes` writes to: the table called `name` in `database`."""
    names = {table: name}
    return SqlTarget(
        "table", database, spark=lambda: spark, pipeline_id="apply_changes", tables=names, mode=mode, adopts=False
    )


def file_and_table(kind: str, where: str) -> tuple[str, str]:
    """Return what `where` names for a database in a file: `<file>#<table>`."""
    path, _, name = where.partition("#")
    if not path or not name:
        raise Misconfigured("unknown-target", f'"{kind}:{where}" names no table', f'Write "{kind}:<file>#<table>".')
    return path, name
