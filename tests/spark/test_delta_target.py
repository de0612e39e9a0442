"""The Delta target passes the contract, and its tables are plain Delta tables to anyone else."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tailrace.apply.target import Target
from tailrace.core.table import Table
from tailrace.targets.delta import DeltaTarget, Options
from tests.contracts.target import TABLES, Image, TargetContract


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
