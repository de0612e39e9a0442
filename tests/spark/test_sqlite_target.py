"""The SQLite target passes the contract, and its tables are plain tables to anyone else."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.apply.target import Target
from tailrace.core.errors import NotReady, Unreachable
from tailrace.core.table import Table
from tailrace.targets import sqlite
from tailrace.targets.sqlite import Options, open_target
from tests.contracts.sql import SqlContract
from tests.contracts.target import ITEMS, TABLES, Image, batch, put
from tests.every_type import KINDS, write_every_type


class TestSqliteTarget(SqlContract):
    bounds_text = False

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
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(statement).fetchall()

    def address(self, table: str) -> str:
        return f"sqlite:{self.path}#{table}"

    def test_values_are_what_another_client_expects(self) -> None:
        write_every_type(self.spark, self.open())
        names = ", ".join(f'"{name}"' for name in KINDS)
        first, second = self.sql(f'SELECT {names} FROM "all" ORDER BY id')
        assert dict(zip(KINDS, first, strict=True)) == {
            "id": 1,
            "flag": 1,
            "tiny": -128,
            "small": 32767,
            "whole": -(2**31),
            "big": 2**63 - 1,
            "single": 0.5,
            "real": 0.1,
            "nan": "NaN",
            "amount": "1234567890123456789012345678.0123456789",
            "cents": "-0.50",
            "text": "naïve 🐍 'quoted' \"twice\" \\ ,\n",
            "empty": "",
            "bytes": b"\x00\xff",
            "day": "0001-01-01",
            "moment": "2024-02-29 23:59:59.999999Z",
            "local": "1969-07-20 20:17:40.000001",
            "tags": '["a \\"b\\" \\\\",null,"","NULL"]',
            "numbers": "[1,null,3]",
            "nested": '{"a":1,"b":[1.50,null],"c":null}',
            "pairs": '{"k":1}',
        }
        assert second == (2, *[None] * (len(KINDS) - 1))
        kinds = {name: kind for _, name, kind, *_ in self.sql('PRAGMA table_info("all")')}
        assert (kinds["id"], kinds["amount"], kinds["bytes"], kinds["real"]) == ("INTEGER", "TEXT", "BLOB", "REAL")

    def test_a_file_that_is_no_database_is_told_so(self) -> None:
        self.path.parent.mkdir()
        self.path.write_text("this is a text file, and quite long enough to be looked at as if it were a database" * 9)
        with pytest.raises(NotReady) as halted:
            self.open().have(ITEMS.name)
        assert halted.value.code == "target-not-ready"

    def test_a_place_that_cannot_be_made_is_told_so(self) -> None:
        self.path.parent.parent.joinpath("a folder").write_text("in the way")
        with pytest.raises(NotReady):
            self.opened()

    def test_another_process_in_the_way_is_waited_for_and_then_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        target = self.filled()
        monkeypatch.setattr(sqlite, "_PATIENCE", 0.1)
        with closing(sqlite3.connect(self.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Unreachable) as refused:
                target.apply(batch(self.spark, [put(2, 2)], 2))
            assert refused.value.code == "target-locked"
        target.apply(batch(self.spark, [put(2, 2, "then")], 2))
        assert self.rows(target)[1]["name"] == "then"

    def test_asking_makes_no_file(self) -> None:
        assert self.open().have(ITEMS.name) is None
        assert not self.path.exists()

    def test_names_that_differ_in_case_are_one_table(self) -> None:
        self.filled()
        options = Options(path=str(self.path))
        other = open_target(
            "lake", options, spark=lambda: self.spark, pipeline_id="shop", tables={"b.x": "ITEMS"}, mode="scd1"
        )
        with pytest.raises(Exception, match="belongs to"):
            other.have("b.x")
