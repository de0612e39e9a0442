"""Dead letters applied again: what is newer is applied, what is older is superseded, what is bad stays; once each."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tailrace.control.progress import Progress
from tailrace.control.rejects import Kept, Rejects
from tailrace.core import failpoint
from tailrace.core.change import Change, Op
from tailrace.core.errors import Retryable
from tailrace.core.table import Evolution
from tailrace.log._memory_cluster import MemoryCluster
from tailrace.log.landed import LandedLog
from tailrace.log.slice import Slice
from tailrace.runtime.drain import Drain, Pace
from tailrace.runtime.fold import Fold
from tailrace.runtime.replay import Replay, StillBad
from tailrace.runtime.report import Silent
from tailrace.runtime.rules import Choice, Rules
from tailrace.sources.memory import MemorySource
from tailrace.targets import sqlite
from tests.contracts.target import ITEMS, at, put
from tests.spark.test_kafka_log import TABLE, TOPIC, event
from tests.topics_in_memory import Pipeline, total

OTHER = "public.lines"


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoint._armed.clear()


def crash() -> None:
    failpoint.arm({"TAILRACE_TEST_MODE": "1", "TAILRACE_FAILPOINTS": "C29=raise"})


@pytest.fixture
def pipeline(spark: SparkSession, tmp_path: Path) -> Pipeline:
    """Orders are known; of lines, which nobody named, three events are dead letters, and one cannot be read at all."""
    cluster = MemoryCluster()
    cluster.create(TOPIC, 1)
    cluster.put(TOPIC, 0, *event(1, "c", 100, name="one"))
    cluster.put(TOPIC, 0, *event(1, "c", 10, table="lines", name="old"))
    cluster.put(TOPIC, 0, b"key", b"{no message")
    cluster.put(TOPIC, 0, *event(2, "c", 20, table="lines", name="two"))
    cluster.put(TOPIC, 0, *event(1, "u", 30, table="lines", name="new"))
    return Pipeline(spark, tmp_path, cluster, [TOPIC], [TABLE])


def test_letters_of_a_table_that_is_named_now_are_applied_and_an_older_one_is_superseded(pipeline: Pipeline) -> None:
    assert total(pipeline.drain(), "rejected") == 4
    pipeline.tables = [TABLE, OTHER]
    pipeline.cluster.put(TOPIC, 0, *event(2, "d", 25, table="lines"))
    pipeline.drain()
    before = pipeline.target.mark(OTHER)
    counts = pipeline.replay()
    assert (total(counts, "applied"), total(counts, "superseded"), total(counts, "rejected")) == (2, 1, 1)
    assert pipeline.rows(OTHER) == [{"id": 1, "name": "new"}]
    after = pipeline.target.mark(OTHER)
    assert before
    assert after
    assert (after.offset, after.replays > before.replays) == (before.offset, True)
    assert [letter["value"] for letter in pipeline.rejects.letters("box")] == ["{no message"]
    pipeline.cluster.put(TOPIC, 0, *event(1, "u", 40, table="lines", name="newest"))
    assert total(pipeline.drain(), "applied") == 1
    assert pipeline.rows(OTHER) == [{"id": 1, "name": "newest"}]


def test_a_crash_before_the_letters_are_off_the_list_doubles_no_event(pipeline: Pipeline) -> None:
    pipeline.mode = "append"
    pipeline.drain()
    pipeline.tables = [TABLE, OTHER]
    crash()
    with pytest.raises(Retryable):
        pipeline.replay()
    assert pipeline.rejects.count("box") == 4
    pipeline.cluster.put(TOPIC, 0, *event(3, "c", 50, table="lines", name="between"))
    pipeline.drain()
    assert total(pipeline.replay(), "applied") == 0
    assert sorted(row["name"] for row in pipeline.target.rows(OTHER)) == ["between", "new", "old", "two"]
    assert pipeline.rejects.count("box") == 1
    for file in (pipeline.folder / "progress").iterdir():
        file.unlink()
    assert total(pipeline.drain(), "applied") == 0


def test_rows_of_a_landed_log_are_read_from_it_again(spark: SparkSession, tmp_path: Path) -> None:
    gone = Change(ITEMS.name, Op.DELETE, at(4), (2,))
    log = LandedLog(tmp_path, "log", 1)
    log.recover(None)
    for page in MemorySource([ITEMS], [put(1, 1, "x" * 5000), put(2, 2, "y" * 5000), put(3, 3), gone]).pages(None):
        log.append(page)
    topic = f"cdc.{ITEMS.name}"
    rejects, progress = Rejects(tmp_path / "rejects", enabled=True, limit=9), Progress(tmp_path / "progress")

    def work(max_bytes: int, aside: Rejects | StillBad) -> Drain:
        options = sqlite.Options(path=str(tmp_path / "box.db"))
        target = sqlite.open_target(
            "box", options, spark=lambda: spark, pipeline_id="p", tables={ITEMS.name: "items"}, mode="scd1"
        )
        fold = Fold(lambda: spark, log, target, Rules("scd1", Evolution.ALTER, max_bytes), aside, Silent())
        return Drain("box", log, fold, {topic: Choice(ITEMS.name)}, progress, Pace(100, 0.0, 1), Silent())

    def again(letters: list[Kept]) -> Slice:
        return log.again([letter.event.offset for letter in letters], spark)

    first = work(2000, rejects)
    piece = first.next_slice(-1)
    assert piece is not None
    assert first.apply(piece)[0].rejected == 2
    bad = StillBad()
    (counts,) = Replay(work(10_000, bad), bad, rejects, tmp_path / "replays", again, lambda: spark).run()  # type: ignore[arg-type]
    assert (counts.applied, counts.superseded, counts.rejected) == (1, 1, 0)
    assert list(rejects.letters("box")) == []
    with closing(sqlite3.connect(tmp_path / "box.db")) as db:
        assert db.execute("SELECT id, length(name) FROM items ORDER BY id").fetchall() == [(1, 5000), (3, 1)]
