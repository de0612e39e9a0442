"""How often a slice is read on its way into a table."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.apply import engine
from tailrace.apply.flow import Flow
from tailrace.apply.target import Mark
from tailrace.core.table import Column, Evolution, Table, fit
from tailrace.targets.memory import MemoryTarget

ITEMS = Table("public.items", (Column("id", "int"), Column("name", "string")), ("id",))
EVENTS = (
    "_cdc_op string, _cdc_position string, _cdc_changed_at timestamp, _cdc_topic string, _cdc_partition int, "
    "_cdc_offset bigint, _cdc_unchanged array<string>, _cdc_problem string, _cdc_old_key struct<id:int>, "
    "id int, name string"
)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_slice_with_a_truncate_is_read_once(spark: SparkSession, ordered: bool) -> None:
    counter = spark.sparkContext.accumulator(0)

    def seen(row: tuple[Any, ...]) -> tuple[Any, ...]:
        counter.add(1)
        return row

    given: list[tuple[Any, ...]] = [
        ("c", "1", None, "t", 0, 1, [], None, None, 1, "a"),
        ("t", "2", None, "t", 0, 2, [], None, None, None, None),
        ("c", "3", None, "t", 0, 3, [], None, None, 2, "b"),
        ("c", "4", None, "t", 0, 4, [], "bad-value: a test", None, 3, "c"),
    ]
    target = MemoryTarget("t", spark_session=spark, pipeline_id="p")
    rejected: list[int] = []
    flow = Flow(
        target,
        "scd1",
        fit(None, ITEMS, Evolution.ALTER),
        ITEMS,
        exists=False,
        before=Mark("log", -1),
        order=engine.in_log_order(),
        reject=lambda rows: rejected.append(rows.count()),
        ordered=ordered,
        truncates=True,
    )
    events = spark.createDataFrame(spark.sparkContext.parallelize(given, 2).map(seen), EVENTS)
    done = flow.apply(events, lambda high, floor: Mark("log", 4, high, floor))
    assert ([row["id"] for row in target.rows(ITEMS.name)], done.tally.applied, rejected) == ([2], 3, [1])
    assert counter.value == len(given)
