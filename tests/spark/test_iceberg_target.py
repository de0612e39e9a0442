"""The Iceberg target passes the contract, and its tables are plain Iceberg tables to anyone else."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tailrace.apply.target import Target
from tailrace.core.table import Table
from tailrace.targets.iceberg import Options, open_target
from tests.contracts.target import TABLES, Image, TargetContract


class TestIcebergTarget(TargetContract):
    @pytest.fixture(autouse=True)
    def _store(self, spark: SparkSession, tmp_path: Path) -> None:
        self.spark = spark
        self.path = tmp_path / "a lake"

    def open(self, *, pipeline: str = "shop", name: str = "lake", mode: str = "scd1") -> Target:
        options = Options(catalog_uri=f"sqlite:///{self.path}/catalog.db", warehouse=str(self.path))
        return open_target(name, options, spark=lambda: self.spark, pipeline_id=pipeline, tables=TABLES, mode=mode)

    def read(self, target: Target, table: Table) -> list[Image]:
        return self.visible(target.current(table.name))
