"""The Delta target passes the contract, and its tables are plain Delta tables to anyone else."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tailrace
from tailrace.apply.target import Target
from tailrace.core.errors import Halt
from tailrace.core.table import Table
from tailrace.spark.frame import frame
from tailrace.targets.delta import DeltaTarget, Options
from tests.contracts.target import TABLES, Image, TargetContract, batch, put


class TestDeltaTarget(TargetContract):
    @pytest.fixture(autouse=True)
    def _store(self, spark: SparkSession, tmp_path: Path) -> None:
        self.spark = spark
        self.path = tmp_path / "a lake"

    def open(self, *, pipeline: str = "shop", name: str = "lake", mode: str = "scd1") -> Target:
        options = Options(path=str(self.path))
        return DeltaTarget(name, options, spark_session=self.spark, pipeline_id=pipeline, tables=TABLES, mode=mode)

    def read(self, target: Target, table: Table) -> list[Image]:
        return self.visible(self.spark.read.format("delta").load(target.place(table.name).path))

    def test_read_returns_what_a_pipeline_keeps_and_apply_changes_leaves_it_alone(self) -> None:
        self.opened().apply(batch(self.spark, [put(1, 1)], 1))
        place = f"delta:{self.path}/items"
        assert [tuple(row) for row in tailrace.read(place).collect()] == [(1, "x", 1)]
        with pytest.raises(Halt) as halted:
            tailrace.apply_changes(frame(self.spark, [(1, 9)], "id bigint, seq int"), place, ["id"], "seq")
        assert halted.value.code == "foreign-table"
