"""Topics that are read anew, in a life of their own: what the life before brought is gone, in one commit with the first rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.sql import SparkSession

from tailrace.apply.target import Target
from tailrace.core import failpoint
from tailrace.core.errors import Retryable
from tailrace.core.table import END
from tailrace.log._memory_cluster import MemoryCluster
from tailrace.targets import delta
from tests.topics_in_memory import Kept, Pipeline

ORDERS, LINES = "public.orders", "public.lines"
Mode = Literal["scd1", "scd2", "append"]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoint._armed.clear()


def put(cluster: MemoryCluster, table: str, lsn: int, key: int, name: str) -> None:
    source = {"connector": "postgresql", "schema": "public", "table": table[7:], "lsn": lsn, "ts_ms": 1}
    body = {"before": None, "after": {"id": key, "name": name}, "source": source, "op": "c", "ts_ms": 1}
    cluster.put(f"cdc.{table}", 0, json.dumps({"id": key}).encode(), json.dumps(body).encode())


def filled(*rows: tuple[str, int, int, str]) -> MemoryCluster:
    cluster = MemoryCluster()
    for table in (ORDERS, LINES):
        cluster.create(f"cdc.{table}")
    for row in rows:
        put(cluster, *row)
    return cluster


def opened(kind: str, spark: SparkSession, folder: Path, mode: Mode = "scd1", soft: str = "") -> Pipeline:
    """Return a pipeline whose first life has been drained."""
    cluster = filled((ORDERS, 50, 1, "stays"), (ORDERS, 51, 2, "goes"))
    lake: Target | None = None
    if kind == "delta":
        options = delta.Options(path=str(folder / "lake"))
        names = {ORDERS: "orders"}
        lake = delta.open_target("box", options, spark=lambda: spark, pipeline_id="p", tables=names, mode=mode)
    topics = [f"cdc.{table}" for table in (ORDERS, LINES)]
    made = Pipeline(spark, folder, cluster, topics, [ORDERS, LINES], mode=mode, soft=soft, elsewhere=lake)
    made.drain()
    return made


def begin_anew(pipeline: Pipeline) -> None:
    """Let the next life find other topics, as after a new snapshot in a database that was restored."""
    pipeline.cluster = filled((ORDERS, 10, 1, "still"), (ORDERS, 11, 3, "new"))
    pipeline.memory, pipeline.life = Kept(), ("next", 2)


def rows(pipeline: Pipeline, table: str) -> list[dict[str, Any]]:
    target = pipeline.elsewhere or pipeline.target
    return sorted((row.asDict() for row in target.current(table).collect()), key=lambda row: (row["id"], row["name"]))


def names(pipeline: Pipeline, table: str) -> list[tuple[int, str]]:
    return [(row["id"], row["name"]) for row in rows(pipeline, table)]


@pytest.mark.parametrize("kind", ["memory", "delta"])
def test_rows_of_an_earlier_life_go_with_the_first_rows_of_the_next(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = opened(kind, spark, tmp_path)
    begin_anew(pipeline)
    pipeline.drain(1)
    assert names(pipeline, ORDERS) == [(1, "still"), (3, "new")]


@pytest.mark.parametrize("kind", ["memory", "delta"])
def test_a_history_closes_what_an_earlier_life_left(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    pipeline = opened(kind, spark, tmp_path, "scd2")
    begin_anew(pipeline)
    pipeline.drain()
    told = [(row["id"], row["name"], row[END] is None) for row in rows(pipeline, ORDERS)]
    assert told == [(1, "stays", False), (1, "still", True), (2, "goes", False), (3, "new", True)]


@pytest.mark.parametrize("kind", ["memory", "delta"])
def test_rows_that_stay_are_marked(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    pipeline = opened(kind, spark, tmp_path, soft="gone_at")
    begin_anew(pipeline)
    pipeline.drain()
    marked = [(row["id"], row["name"], row["gone_at"] is None) for row in rows(pipeline, ORDERS)]
    assert marked == [(1, "still", True), (2, "goes", False), (3, "new", True)]


def test_events_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = opened("memory", spark, tmp_path, "append")
    begin_anew(pipeline)
    pipeline.drain()
    assert [row["name"] for row in pipeline.target.rows(ORDERS)] == ["stays", "goes", "still", "new"]


def test_a_table_of_which_nothing_was_said_yet_keeps_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = opened("memory", spark, tmp_path)
    put(pipeline.cluster, LINES, 52, 7, "line")
    pipeline.drain()
    begin_anew(pipeline)
    pipeline.drain()
    # A topic that is empty does not say that its table is: the connector may not have come to it.
    assert names(pipeline, LINES) == [(7, "line")]
    put(pipeline.cluster, LINES, 12, 8, "line of now")
    pipeline.drain()
    assert names(pipeline, LINES) == [(8, "line of now")]
    assert names(pipeline, ORDERS) == [(1, "still"), (3, "new")]


@pytest.mark.parametrize("point", ["C18", "C27"])
def test_a_crash_before_or_after_the_commit_changes_nothing(point: str, spark: SparkSession, tmp_path: Path) -> None:
    pipeline = opened("memory", spark, tmp_path)
    begin_anew(pipeline)
    failpoint.arm({"TAILRACE_TEST_MODE": "1", "TAILRACE_FAILPOINTS": f"{point}=raise"})
    with pytest.raises(Retryable):
        pipeline.drain(1)
    before = [(1, "stays"), (2, "goes")]
    assert names(pipeline, ORDERS) == (before if point == "C18" else [(1, "still")])
    pipeline.drain(1)
    assert names(pipeline, ORDERS) == [(1, "still"), (3, "new")]
