"""The tables of one target, each opened when it is first asked for and kept open for the thread that writes to it."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from pyspark.sql import DataFrame

from tailrace.apply.ranges import Ranges
from tailrace.apply.target import NOWHERE, Applied, Batch, Mark
from tailrace.core.errors import Misconfigured
from tailrace.core.table import Fit, Table

_OURS = "_tailrace"
"""Begins the names of what lies beside tables."""


def refuse_reserved(target: str, names: Mapping[str, str], begins: str = _OURS, whose: str = "ours") -> None:
    """Halt if a table would be called in `target` what we, or the target itself, call our own."""
    for table, own in names.items():
        if own.lower().startswith(begins):
            raise Misconfigured(
                "reserved-name",
                f'table "{table}" would be called "{own}" in target "{target}"',
                f"Names that start so are {whose}. Give it a name of its own under tables.",
            )


class OneTable(Protocol):
    """What a target does for a table, done by the table itself."""

    def mark(self) -> Mark | None: ...

    def have(self) -> Table | None: ...

    def notes(self) -> dict[str, str]: ...

    def known(self, near: Ranges = NOWHERE) -> DataFrame: ...

    def current(self, near: Ranges = NOWHERE) -> DataFrame: ...

    def records(self, near: Ranges = NOWHERE) -> tuple[DataFrame, DataFrame | None]: ...

    def evolve(self, change: Fit) -> None: ...

    def apply(self, batch: Batch) -> Applied: ...

    def collect_tombstones(self, before: datetime.date) -> None: ...


class Tables:
    """A target whose tables stand alone; see `apply.target.Target` for what each method promises."""

    def __init__(
        self, name: str, tables: Mapping[str, str], opens: Callable[[str], OneTable], *, tombstone_days: int
    ) -> None:
        refuse_reserved(name, tables)
        self.name = name
        self._all = tuple(tables)
        self._opens = opens
        self._retention = datetime.timedelta(days=tombstone_days)
        self._opened: dict[str, OneTable] = {}
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
        for table in self._all:
            self._table(table).collect_tombstones(today - self._retention)

    def _table(self, table: str) -> OneTable:
        with self._lock:
            if table not in self._opened:
                self._opened[table] = self._opens(table)
            return self._opened[table]
