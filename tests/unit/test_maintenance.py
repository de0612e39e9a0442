"""When maintenance is done: in its turn, across runs, and without ever stopping a target."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tailrace.apply.versions import Upkeep
from tailrace.core.errors import Halt
from tailrace.core.table import Evolution, fit
from tailrace.runtime.maintenance import Maintenance, NowAndThen
from tailrace.runtime.report import Silent
from tailrace.targets._maintenance import Maintenance as Settings
from tailrace.targets.memory import MemoryTarget
from tests.contracts.log import ITEMS, NOTES


class Versions(MemoryTarget):
    """A target in memory whose past is as long as it is asked for; `broken` tables cannot be tidied up."""

    broken: tuple[str, ...] = ()

    def versions(self, table: str, most: int) -> list[Any]:
        return []

    def version_at(self, table: str, moment: datetime) -> int | None:
        return None

    def rows_at(self, table: str, version: int | None = None) -> Any:
        raise AssertionError("nobody reads here")

    mark_at = take_back = rows_at

    def compact(self, table: str, upkeep: Upkeep) -> Mapping[str, int]:
        if table in self.broken:
            raise Halt("delta-failed", "the disk is on fire")
        return {"files_removed": upkeep.files, "files_added": 1}

    def expire(self, table: str, before: datetime) -> Mapping[str, int]:
        return {"files_removed": 0}


class Told(Silent):
    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def event(self, name: str, **fields: object) -> None:
        self.events.append((name, fields["table"]))


@pytest.fixture
def target() -> Versions:
    made = Versions("t", spark_session=lambda: None, pipeline_id="p")  # type: ignore[arg-type]
    for table in (ITEMS, NOTES):
        made.evolve(table.name, fit(None, table, Evolution.ALTER))
    return made


def test_it_is_done_when_it_is_time_also_by_another_run_and_what_fails_is_told(
    target: Versions, tmp_path: Path
) -> None:
    told, now, path = Told(), [1000.0], tmp_path / "t.json"

    def run() -> list[tuple[str, Any]]:
        told.events.clear()
        settings = Settings(enabled=True, compaction_interval_seconds=60, expire_snapshots_interval_seconds=10)
        tables = (ITEMS.name, NOTES.name, "public.not_there")
        Maintenance(lambda: target, lambda: tables, settings, path, told, lambda: now[0])()
        return list(told.events)

    assert run() == []
    now[0] += 59
    # What changed nothing is not told.
    assert run() == []
    now[0] += 1
    done = [("maintenance.compacted", ITEMS.name), ("maintenance.compacted", NOTES.name)]
    assert (run(), run()) == (done, [])
    target.broken = (ITEMS.name,)
    now[0] += 60
    assert run() == [("maintenance.failed", ITEMS.name), done[1]]
    # A note that is torn is begun anew.
    path.write_text("torn")
    assert run() == []
    now[0] += 60
    assert run() != []


def test_now_and_then_is_neither_at_once_nor_always() -> None:
    moments, done = iter([0.0, 9.0, 10.0, 10.0, 19.0, 20.0, 20.0]), []
    tidy = NowAndThen(10.0, lambda: done.append(len(done)), clock=lambda: next(moments))
    for count in (0, 1, 1, 2):
        tidy()
        assert len(done) == count
