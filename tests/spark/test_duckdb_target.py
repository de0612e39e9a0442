"""The DuckDB target passes the contract, and its tables are plain tables to anyone else."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from tailrace.apply.target import Target
from tailrace.core.errors import NotReady, Unreachable
from tailrace.core.table import Table
from tailrace.targets.duckdb import Options, open_target
from tests.contracts.sql import SqlContract
from tests.contracts.target import ITEMS, TABLES, Image
from tests.every_type import KINDS, VALUES, write_every_type


class TestDuckdbTarget(SqlContract):
    adopts = False
    documents = "SELECT CAST(name AS VARCHAR) FROM items WHERE typeof(name) = 'JSON'"

    @pytest.fixture(autouse=True)
    def _store(self, spark: SparkSession, tmp_path: Path) -> None:
        self.spark = spark
        self.path = tmp_path / "a folder" / "lake.db"

    def open(self, *, pipeline: str = "shop", name: str = "lake", mode: str = "scd1") -> Target:
        options = Options(path=str(self.path))
        return open_target(name, options, spark=lambda: self.spark, pipeline_id=pipeline, tables=TABLES, mode=mode)

    def read(self, target: Target, table: Table) -> list[Image]:
        return self.visible(target.current(table.name))

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with duckdb.connect(str(self.path)) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            return connection.execute(statement).fetchall()

    def address(self, table: str) -> str:
        return f"duckdb:{self.path}#{table}"

    def test_values_are_what_another_client_expects(self) -> None:
        write_every_type(self.spark, self.open())
        # DuckDB's client needs one more package to show a time with its zone.
        names = ", ".join(f'"{name}"' if name != "moment" else "moment AT TIME ZONE 'UTC'" for name in KINDS)
        first, second = self.sql(f'SELECT {names} FROM "all" ORDER BY id')
        found = dict(zip(KINDS, first, strict=True))
        assert math.isnan(found.pop("nan"))
        a, b, c = VALUES["nested"]
        expected = {**VALUES, "nested": {"a": a, "b": b, "c": c}, "moment": VALUES["moment"].replace(tzinfo=None)}
        expected.pop("nan")
        assert found == expected
        assert second == (2, *[None] * (len(KINDS) - 1))
        kinds = {name: kind for name, kind, *_ in self.sql('DESCRIBE "all"')}
        assert kinds["amount"] == "DECIMAL(38,10)"
        assert (kinds["moment"], kinds["local"]) == ("TIMESTAMP WITH TIME ZONE", "TIMESTAMP")
        assert (kinds["tags"], kinds["pairs"]) == ("VARCHAR[]", "MAP(VARCHAR, INTEGER)")

    def test_a_file_that_is_no_database_is_told_so(self) -> None:
        self.path.parent.mkdir()
        self.path.write_text("this is a text file" * 9)
        with pytest.raises(NotReady) as halted:
            self.open().have(ITEMS.name)
        assert halted.value.code == "target-not-ready"

    def test_another_process_that_has_the_file_is_told(self) -> None:
        target = self.filled()
        hold = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
        with subprocess.Popen(
            [sys.executable, "-c", hold, str(self.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other:
            assert other.stdout
            assert other.stdout.readline() == b"open\n"
            with pytest.raises(Unreachable) as refused:
                target.mark(ITEMS.name)
            assert refused.value.code == "target-locked"
        assert target.mark(ITEMS.name) is not None

    def test_asking_makes_no_file(self) -> None:
        assert self.open().have(ITEMS.name) is None
        assert not self.path.exists()
