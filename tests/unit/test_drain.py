"""Where a drain begins: behind what the target says it has, and never in the middle of what it lacks."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tailrace.apply.target import Mark
from tailrace.config.load import load_pipeline
from tailrace.config.platform import PlatformConfig, RetryConfig
from tailrace.control.checkpoints import Checkpoints
from tailrace.control.progress import Progress
from tailrace.control.rejects import Rejects
from tailrace.core.errors import Halt, Misconfigured
from tailrace.core.offsets import Offsets
from tailrace.core.table import Evolution, fit
from tailrace.log.landed import LandedLog
from tailrace.log.slice import Contents, Slice
from tailrace.runtime.drain import Drain, Pace
from tailrace.runtime.drains import Drains
from tailrace.runtime.fold import Fold
from tailrace.runtime.report import Silent
from tailrace.runtime.rules import Choice, Rules
from tailrace.runtime.run import Job, run
from tailrace.targets.memory import MemoryTarget
from tests.contracts.log import ITEMS, NOTES, chain

CHOICES = {f"cdc.{table.name}": Choice(table.name) for table in (ITEMS, NOTES)}


def spark() -> Any:
    raise AssertionError("nothing is read to find out where to begin")


@pytest.fixture
def log(tmp_path: Path) -> LandedLog:
    """Ten events in three pages, of which the first, with two of them, is no longer there."""
    landed = LandedLog(tmp_path, "log", 1)
    landed.recover(None)
    chain(landed, 2, 3, 5)
    for path in (tmp_path / "log" / "pages").iterdir():
        os.utime(path, (1_000_000, 1_000_000))
    assert landed.expire(1, timedelta(0)) == 1
    return landed


def drain_into(folder: Path, log: LandedLog, **offsets: int) -> Drain:
    """Return a drain whose target has the tables named in `offsets`, each up to there."""
    target = MemoryTarget("t", spark_session=spark, pipeline_id="p")
    for table in (ITEMS, NOTES):
        if (short := table.name.removeprefix("public.")) in offsets:
            target.evolve(table.name, fit(None, table, Evolution.ALTER))
            target.state.tables[table.name].mark = Mark("log", offsets[short])
    rules = Rules("scd1", Evolution.ALTER, 1 << 20)
    rejects = Rejects(folder / "rejects", enabled=False, limit=0)
    fold = Fold(spark, log, target, rules, rejects, Silent())
    return Drain("t", log, fold, CHOICES, Progress(folder / "progress"), Pace(99, 0.1), Silent())


def test_lost_progress_is_found_again_in_the_marks(log: LandedLog, tmp_path: Path) -> None:
    work = drain_into(tmp_path, log, items=9, notes=4)
    assert work.at() == 4
    piece = work.next_slice(work.at())
    assert piece is not None
    assert (piece.after, piece.upto) == (4, 9)


@pytest.mark.parametrize("has", [{"items": 9}, {"items": 9, "notes": 0}, {}])
def test_lost_progress_and_an_expired_log_halt(log: LandedLog, tmp_path: Path, has: dict[str, int]) -> None:
    work = drain_into(tmp_path, log, **has)
    with pytest.raises(Halt) as halted:
        work.next_slice(work.at())
    assert halted.value.code == "log-gap"
    assert "--resync" in (halted.value.hint or "")


@pytest.mark.parametrize("has", [{"items": 9}, {"items": 9, "notes": 0}])
def test_a_table_that_was_dropped_or_restored_and_an_expired_log_halt(
    log: LandedLog, tmp_path: Path, has: dict[str, int]
) -> None:
    work = drain_into(tmp_path, log, **has)
    work.progress.save("t", "log", 9, {ITEMS.name: Mark("log", 9), NOTES.name: Mark("log", 7)})
    with pytest.raises(Halt) as halted:
        work.next_slice(work.at())
    assert halted.value.code == "log-gap"


def test_a_table_that_was_restored_is_read_again_from_what_it_has(log: LandedLog, tmp_path: Path) -> None:
    work = drain_into(tmp_path, log, items=9, notes=4)
    work.progress.save("t", "log", 9, {ITEMS.name: Mark("log", 9), NOTES.name: Mark("log", 7)})
    assert work.at() == 4
    # So that no other drain has the log forget what is read again.
    assert work.progress.load("t", "log") == 4
    assert work.at() == 4


def test_a_table_that_was_taken_back_is_read_again_from_what_it_has_of_every_partition(
    log: LandedLog, tmp_path: Path
) -> None:
    reached, then = Offsets({"a:0": 9, "a:1": 3}), Offsets({"a:0": 4, "a:1": 3})
    work = drain_into(tmp_path, log, items=reached, notes=then)
    work.progress.save("t", "log", reached, {ITEMS.name: Mark("log", reached), NOTES.name: Mark("log", reached)})
    assert work.at() == then
    # What a rollback notes, and what of it a target that was not taken back knows.
    work.progress.save("t", "log", reached, {ITEMS.name: Mark("log", reached), NOTES.name: Mark("log", reached)})
    work.progress.lower("t", "log", then, NOTES.name, Mark("log", then))
    assert (work.progress.load("t", "log"), work.at()) == (then, then)
    work.progress.lower("t", "log", -1, NOTES.name, Mark("another", 5))
    assert work.progress.noted("t", "log") == {ITEMS.name: reached, NOTES.name: -1}


def test_a_table_that_was_made_anew_and_is_empty_hides_no_gap(log: LandedLog, tmp_path: Path) -> None:
    work = drain_into(tmp_path, log, items=9)
    work.fold.target.evolve(NOTES.name, fit(None, NOTES, Evolution.ALTER))
    with pytest.raises(Halt) as halted:
        work.next_slice(work.at())
    assert halted.value.code == "log-gap"


def test_a_run_that_finds_nothing_new_says_what_the_target_has(log: LandedLog, tmp_path: Path) -> None:
    work = drain_into(tmp_path, log, items=9, notes=9)
    work.progress.save("t", "log", 9, {ITEMS.name: Mark("log", 9), NOTES.name: Mark("log", 9)})
    once = RetryConfig(max_attempts=1)
    nothing = Job("p", None, None, log.head, Checkpoints(tmp_path), [(work, once)], once, Silent(), lambda: None)
    done = run(nothing, threading.Event(), once=True).targets[0]
    assert (done.status, done.slices, done.upto) == ("done", 0, 9)


def test_what_the_only_table_has_is_noted_though_a_crash_kept_it_from_being_saved(
    log: LandedLog, tmp_path: Path
) -> None:
    log.only_topic = f"cdc.{ITEMS.name}"  # type: ignore[attr-defined]
    work = drain_into(tmp_path, log, items=9)
    work.progress.save("t", "log", 4, {})
    assert work.at() == 9
    assert work.progress.load("t", "log") == 9


def test_tables_that_come_together_and_share_a_name_are_told_apart(tmp_path: Path, log: LandedLog) -> None:
    """A topic whose messages name their tables: nobody knows of these before the first slice."""
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "pipeline_id: p\nsource: {source_type: kafka, topics: [maxwell]}\n"
        f"sinks: [{{sink_id: t, sink_type: sqlite, sqlite: {{path: {tmp_path}/t.db}}}}]\n"
    )
    config, checkpoints = load_pipeline(file).config, Checkpoints(tmp_path)
    aside = Rejects(tmp_path / "rejects", enabled=False, limit=0)
    made = Drains(
        config, PlatformConfig(), checkpoints, Progress(tmp_path / "progress"), aside, spark, threading.Event()
    )
    (sink,) = config.sinks
    work = made.drain(sink, made.begin((), growing=True), log, Silent(), growing=True)
    counts = {("crm.orders", "1"): 1, ("shop.orders", "1"): 1}
    work.make_room(Slice(-1, 1, Contents(counts), lambda _: spark()))
    assert sink.names(checkpoints.known()) == {"crm.orders": "crm_orders", "shop.orders": "shop_orders"}
    assert sorted(work.tables) == ["crm.orders", "shop.orders"]
    work.make_room(Slice(1, 2, Contents({("crm.items", "1"): 1}), lambda _: spark()))
    with pytest.raises(Misconfigured) as refused:
        # The rows of the other one would have to move.
        work.make_room(Slice(2, 3, Contents({("shop.items", "1"): 1}), lambda _: spark()))
    assert refused.value.code == "name-collision"
