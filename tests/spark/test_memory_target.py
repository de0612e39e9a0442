"""The in-memory target passes the contract it defines."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tailrace.apply.target import Target
from tailrace.core.table import Table
from tailrace.targets.memory import MemoryTarget, State
from tests.contracts.target import TABLES, Image, TargetContract


class TestMemoryTarget(TargetContract):
    @pytest.fixture(autouse=True)
    def _store(self, spark: SparkSession) -> None:
        self.spark = spark
        self.state = State()

    def open(self, *, pipeline: str = "shop", name: str = "lake", mode: str = "scd1") -> Target:
        return MemoryTarget(
            name, spark_session=self.spark, pipeline_id=pipeline, tables=TABLES, state=self.state, mode=mode
        )

    def read(self, target: Target, table: Table) -> list[Image]:
        return target.rows(table.name)
