"""Whatever the cut into slices, the replays and the order across keys, Spark and the model agree."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tailrace.control.progress import Progress
from tailrace.core.change import Change, Op, fold
from tailrace.core.position import Phase, position
from tailrace.log.memory import MemoryLog
from tailrace.sources.memory import MemorySource
from tests.spark.drains import drained, lake, logged
from tests.spark.histories import TABLE, packed

HISTORIES, EVENTS = 400, 12


def rows_in(spark: SparkSession, folder: Path) -> dict[tuple[object, ...], tuple[str, dict[str, object]]]:
    rows = spark.read.format("delta").load(str(folder / "lake" / "packed")).toLocalIterator()
    return {(r["history"], r["key"]): (r["_cdc_position"], {"value": r["value"], "bio": r["bio"]}) for r in rows}


@pytest.mark.parametrize("slices", [1, 3, 5])
def test_any_cut_into_slices_gives_the_model_s_table(spark: SparkSession, tmp_path: Path, slices: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    changes = packed(seed, HISTORIES, EVENTS)
    log = logged(changes, page_rows=len(changes) // (slices * 2) + 1)
    counts = drained(spark, log, lake(spark, tmp_path), tmp_path, max_rows=len(changes) // slices + 1)
    assert sum(c.read for c in counts) == sum(c.applied for c in counts) == len(changes)
    assert rows_in(spark, tmp_path) == fold(changes).rows, f"seed {seed}"


def test_a_drain_that_lost_its_progress_repeats_without_effect(spark: SparkSession, tmp_path: Path) -> None:
    changes = packed(3, 50, EVENTS)
    log = logged(changes, page_rows=len(changes) // 5 + 1)
    drained(spark, log, lake(spark, tmp_path), tmp_path / "one", max_rows=len(changes) // 2)
    again = drained(spark, log, lake(spark, tmp_path), tmp_path / "two", max_rows=len(changes) // 3)
    assert sum(c.superseded for c in again) == len(changes)
    assert rows_in(spark, tmp_path) == fold(changes).rows


def test_a_changed_key_that_was_applied_already_is_not_rejected_by_a_larger_slice(
    spark: SparkSession, tmp_path: Path
) -> None:
    created = Change(TABLE.name, Op.CREATE, position(1, Phase.CHANGE, 10), (0, 0), {"value": "a", "bio": "x"})
    deleted = Change(TABLE.name, Op.DELETE, position(1, Phase.CHANGE, 20), (0, 0))
    left_out = frozenset({"bio"})
    moved = Change(TABLE.name, Op.CREATE, position(1, Phase.CHANGE, 20), (0, 1), {"value": "a"}, left_out, (0, 0))
    later = Change(TABLE.name, Op.CREATE, position(1, Phase.CHANGE, 30), (0, 2), {"value": "b", "bio": "y"})
    changes = [created, deleted, moved, later]
    log = MemoryLog()
    log.recover(None)
    pages = MemorySource([TABLE], changes, page_rows=1).pages(None)
    log.append(next(pages))
    drained(spark, log, lake(spark, tmp_path), tmp_path / "zero", max_rows=9)
    log.append(next(pages))
    drained(spark, log, lake(spark, tmp_path), tmp_path / "zero", max_rows=9)
    log.append(next(pages))
    target = lake(spark, tmp_path)
    Progress(tmp_path / "one" / "progress").save("t", log.name, 0, {})
    counts = drained(spark, log, target, tmp_path / "one", max_rows=9)
    assert [(c.read, c.applied, c.superseded, c.rejected) for c in counts] == [(3, 1, 2, 0)]
    assert rows_in(spark, tmp_path) == fold(changes).rows


def test_a_value_is_carried_over_from_the_life_that_moved_and_not_from_an_older_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    def at(lsn: int, op: Op, key: int, value: str = "a", bio: str | None = None, old: int | None = None) -> Change:
        after = {"value": value} | ({"bio": bio} if bio else {})
        left_out = frozenset[str]() if bio or op is Op.DELETE else frozenset({"bio"})
        moved = None if old is None else (0, old)
        return Change(TABLE.name, op, position(1, Phase.CHANGE, lsn), (0, key), after, left_out, moved)

    changes = [
        at(10, Op.CREATE, 0, bio="older life"),
        at(20, Op.CREATE, 1, bio="mine"),
        at(30, Op.DELETE, 0),
        at(40, Op.DELETE, 1),
        at(40, Op.CREATE, 0, old=1),
        at(50, Op.DELETE, 0),
        at(50, Op.CREATE, 2, old=0),
    ]
    log = logged(changes, page_rows=len(changes))
    drained(spark, log, lake(spark, tmp_path), tmp_path, max_rows=len(changes))
    assert [row["bio"] for _, row in rows_in(spark, tmp_path).values()] == ["mine"]
    assert rows_in(spark, tmp_path) == fold(changes).rows


def test_late_and_repeated_events_in_any_order_give_the_model_s_table(spark: SparkSession, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    changes = [c for c in packed(seed, HISTORIES, EVENTS) if not c.unchanged]
    shuffled = [*changes, *chance.sample(changes, len(changes) // 5)]
    chance.shuffle(shuffled)
    log = logged(shuffled, page_rows=len(shuffled) // 6 + 1, ordered=False)
    counts = drained(spark, log, lake(spark, tmp_path), tmp_path, max_rows=len(shuffled) // 4 + 1)
    assert sum(c.applied + c.superseded for c in counts) == len(shuffled)
    assert rows_in(spark, tmp_path) == fold(changes).rows, f"seed {seed}"


def test_a_deleted_row_is_not_brought_back_by_an_older_change(spark: SparkSession, tmp_path: Path) -> None:
    created = Change(TABLE.name, Op.CREATE, position(1, Phase.CHANGE, 10), (0, 0), {"value": "a", "bio": "x"})
    deleted = Change(TABLE.name, Op.DELETE, position(1, Phase.CHANGE, 20), (0, 0))
    log = logged([deleted, created], page_rows=1, ordered=False)
    drained(spark, log, lake(spark, tmp_path), tmp_path, max_rows=1)
    assert rows_in(spark, tmp_path) == {}
