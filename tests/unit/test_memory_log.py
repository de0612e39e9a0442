"""The log and the source in memory keep the promises that real ones must keep."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tailrace.core.change import Change
from tailrace.core.checkpoint import Tailing
from tailrace.log.memory import MemoryLog
from tailrace.runtime.pump import Source
from tailrace.sources.memory import MemorySource
from tests.contracts.log import ITEMS, Log, LogContract, put
from tests.contracts.source import SourceContract


def rows_in(log: MemoryLog) -> list[Mapping[str, object]]:
    """Return what a reader may see, without the Spark that a slice needs to be read."""
    rows = [row for part in log._appended for row in part.rows]
    return [row for row in rows if row["offset"] <= log.head()]


class TestMemoryLog(LogContract):
    @pytest.fixture
    def log(self) -> Log:
        return MemoryLog()

    def reopened(self, log: Log) -> Log:
        return log

    def stored(self, log: Log) -> list[Mapping[str, object]]:
        assert isinstance(log, MemoryLog)
        return rows_in(log)


class TestMemorySource(SourceContract):
    @pytest.fixture(autouse=True)
    def changes(self) -> list[Change]:
        self._changes: list[Change] = []
        return self._changes

    def open(self) -> Source:
        return MemorySource([ITEMS], self._changes, page_rows=3)

    def write(self, changes: int) -> None:
        self._changes += [put(len(self._changes) + n + 1) for n in range(changes)]


def test_a_memory_source_does_not_promise_changes_it_does_not_have() -> None:
    source = MemorySource([ITEMS], [put(1), put(2)], page_rows=5)
    assert [page.checkpoint for page in source.pages(None, "9")] == [Tailing("memory", "2")]
