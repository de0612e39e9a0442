"""How often a slice is read on its way into a table."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType

from tailrace.apply import engine
from tailrace.apply.engine import OFFSET, POSITION
from tailrace.apply.flow import Flow
from tailrace.apply.history import Tracking
from tailrace.apply.target import Mark
from tailrace.core.table import Column, Evolution, Table, fit
from tailrace.targets.memory import MemoryTarget

ITEMS = Table("public.items", (Column("id", "int"), Column("name", "string")), ("id",))
EVENTS = (
    "_cdc_op string, _cdc_position string, _cdc_changed_at timestamp, _cdc_topic string, _cdc_partition int, "
    "_cdc_offset bigint, _cdc_unchanged array<string>, _cdc_problem string, _cdc_old_key struct<id:int>, "
    "id int, name string"
)


GIVEN: list[tuple[Any, ...]] = [
    ("c", "1", None, "t", 0, 1, [], None, None, 1, "a"),
    ("t", "2", None, "t", 0, 2, [], None, None, None, None),
    ("c", "3", None, "t", 0, 3, [], None, None, 2, "b"),
    ("c", "4", None, "t", 0, 4, [], "bad-value: a test", None, 2, "c"),
    ("c", "5", None, "t", 0, 5, [], "bad-value: a test", None, None, None),
    ("u", "6", None, "t", 0, 6, [], None, None, 2, "d"),
]


@pytest.mark.parametrize("mode", ["scd1", "scd2", "append"])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("truncates", [True, False])
def test_a_slice_is_read_once(spark: SparkSession, mode: Any, ordered: bool, truncates: bool) -> None:
    """Also one with rejects, where a truncate came before, and where it is to be counted by file."""
    counter = spark.sparkContext.accumulator(0)

    def seen(row: tuple[Any, ...]) -> tuple[Any, ...]:
        counter.add(1)
        return row

    given = [row for row in GIVEN if truncates or row[0] != "t"]
    target = MemoryTarget("t", spark_session=spark, pipeline_id="p", mode=mode)
    rejected: list[int] = []
    told: list[int] = []

    def reject(rows: DataFrame) -> None:
        rejected.extend(row[OFFSET] for row in rows.collect())

    flow = Flow(
        target,
        mode,
        fit(None, ITEMS, Evolution.ALTER),
        ITEMS,
        exists=False,
        before=Mark("log", -1, floor="0"),
        order=engine.in_log_order(),
        reject=reject,
        ordered=ordered,
        truncates=truncates,
        tracking=Tracking(("name",), StringType()) if mode == "scd2" else None,
        told=lambda tally, rejects, _: told.extend([tally.rejected, rejects.select(POSITION).count()]),
    )
    events = spark.createDataFrame(spark.sparkContext.parallelize(given, 2).map(seen), EVENTS)
    done = flow.apply(events, lambda high, floor: Mark("log", 6, high, floor))
    assert (sorted(rejected), told, done.tally.rejected) == ([4, 5], [2, 2], 2)
    assert (done.tally.applied, counter.value) == (len(given) - 2, len(given))
    if mode == "scd1":
        rows = sorted((row["id"], row["name"]) for row in target.rows(ITEMS.name))
        assert rows == ([(2, "d")] if truncates else [(1, "a"), (2, "d")])
