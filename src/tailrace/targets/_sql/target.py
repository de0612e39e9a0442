"""The tables of one target in a SQL database; what is the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession

from tailrace.core.errors import Misconfigured
from tailrace.targets._sql.control import Owner
from tailrace.targets._sql.dialect import Database
from tailrace.targets._sql.table import Mode, SqlTable
from tailrace.targets._tables import Tables, refuse_reserved

TOMBSTONE_DAYS = 7
"""How many days a deleted row is remembered if nothing else is said."""


class SqlTarget(Tables):
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
        super().__init__(name, tables, self._open, tombstone_days=tombstone_days)
        if database.dialect.reserved:
            refuse_reserved(name, tables, database.dialect.reserved, f"those of {database.dialect.name}")
        self._database = database
        self._spark = spark
        self._pipeline_id = pipeline_id
        self._names = dict(tables)
        self._mode: Mode = mode
        self._adopts = adopts

    def _open(self, table: str) -> SqlTable:
        owner = Owner(self._pipeline_id, self.name, table)
        return SqlTable(self._spark, self._database, self._names[table], owner, self._mode, adopts=self._adopts)


def one_table(
    name: str, table: str, database: Database, spark: SparkSession, mode: Mode, pipeline_id: str
) -> SqlTarget:
    """Return the target that `apply_changes` writes to: the table called `name` in `database`."""
    names = {table: name}
    return SqlTarget(
        "table", database, spark=lambda: spark, pipeline_id=pipeline_id, tables=names, mode=mode, adopts=False
    )


def file_and_table(kind: str, where: str) -> tuple[str, str]:
    """Return what `where` names for a database in a file: `<file>#<table>`."""
    path, _, name = where.partition("#")
    if not path or not name:
        raise Misconfigured("unknown-target", f'"{kind}:{where}" names no table', f'Write "{kind}:<file>#<table>".')
    return path, name
