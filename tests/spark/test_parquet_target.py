"""The Parquet target passes the contract, and its files are plain Parquet to anyone else."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

import tailrace
from tailrace.apply.target import Batch, Mark, Target
from tailrace.core import failpoint
from tailrace.core.errors import Halt, Retryable
from tailrace.core.table import Column, Table
from tailrace.spark.frame import frame
from tailrace.targets._columns import EVENT_COLUMNS
from tailrace.targets.parquet import Options, open_target
from tests.contracts.target import ITEMS, LOG, TABLES, Image, TargetContract, at, batch, drop, put


class TestParquetTarget(TargetContract):
    @pytest.fixture(autouse=True)
    def _store(self, spark: SparkSession, tmp_path: Path) -> None:
        self.spark = spark
        self.path = tmp_path / "a folder"

    def open(self, *, pipeline: str = "shop", name: str = "lake", mode: str = "scd1") -> Target:
        options = Options(path=str(self.path))
        return open_target(name, options, spark=lambda: self.spark, pipeline_id=pipeline, tables=TABLES, mode=mode)

    def read(self, target: Target, table: Table) -> list[Image]:
        return self.visible(target.current(table.name))

    def manifest(self) -> dict[str, Any]:
        newest = max((self.path / "items" / "manifests").iterdir())
        content: dict[str, Any] = json.loads(newest.read_text())["content"]
        return content

    def test_a_plain_reader_finds_the_rows_in_the_files_that_the_manifest_lists(self) -> None:
        target = self.opened()
        target.apply(batch(self.spark, [put(n, n) for n in range(1, 40)], 1))
        target.apply(batch(self.spark, [put(50, 7, "seven"), drop(51, 8)], 2))
        files = [str(self.path / name) for name in self.manifest()["files"]]
        found = duckdb.sql(f"SELECT id, name FROM read_parquet({files}, union_by_name = true) ORDER BY id").fetchall()
        assert found == [(n, "seven" if n == 7 else "x") for n in range(1, 40) if n != 8]

    def test_a_batch_rewrites_the_buckets_that_it_touches_and_no_other(self) -> None:
        target = self.opened()
        target.apply(batch(self.spark, [put(n, n) for n in range(1, 100)], 1))
        before = set(self.manifest()["files"])
        target.apply(batch(self.spark, [put(200, 7, "seven")], 2))
        after = set(self.manifest()["files"])
        assert len(before) > 10
        assert (len(before - after), len(after - before)) == (1, 1)

    @pytest.mark.parametrize("name", ["C22", "C23"])
    def test_a_crash_leaves_the_table_as_it_was_or_as_it_is_to_be(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.opened().apply(batch(self.spark, [put(1, 1)], 1))
        monkeypatch.setattr(failpoint, "_armed", {})
        failpoint.arm({"TAILRACE_TEST_MODE": "1", "TAILRACE_FAILPOINTS": f"{name}=raise"})
        lost = batch(self.spark, [drop(2, 1), put(3, 2)], 3)
        with pytest.raises(Retryable):
            self.open().apply(lost)
        landed = name == "C23"
        assert [row["id"] for row in self.rows(self.open())] == ([2] if landed else [1])
        again = self.open()
        assert again.apply(lost).inserted == (0 if landed else 1)
        assert [row["id"] for row in self.rows(again)] == [2]

    def test_old_versions_and_tombstones_are_collected_and_nothing_that_is_needed(self) -> None:
        target = self.opened()
        for n in range(1, 6):
            target.apply(batch(self.spark, [put(2 * n, 1, f"v{n}"), drop(2 * n + 1, 9)], n))
        table = target._table(ITEMS.name)  # type: ignore[attr-defined]
        table.collect(datetime.date(1970, 1, 1))
        table.remove_old()
        assert len(list((self.path / "items" / "manifests").iterdir())) == 6
        table.collect(datetime.date(9999, 1, 1))
        table.remove_old(datetime.timedelta(0))
        assert len(list((self.path / "items" / "manifests").iterdir())) == 1
        assert {f"items/data/{path.name}" for path in (self.path / "items" / "data").iterdir()} == set(
            self.manifest()["files"]
        )
        again = self.open()
        assert [row["name"] for row in self.rows(again)] == ["v5"]
        assert [row["id"] for row in again.known(ITEMS.name).collect()] == [1]

    def test_a_key_within_another_type_is_refused_and_leaves_no_trace(self) -> None:
        target = self.open()
        nested = Table(ITEMS.name, (Column("id", "struct<a:int>"), Column("name", "string")), ("id",))
        with pytest.raises(Halt) as halted:
            self.reshape(target, nested)
        assert halted.value.code == "unsupported-type"
        assert target.have(ITEMS.name) is None

    def test_small_files_of_events_become_one(self) -> None:
        target = self.open(mode="append")
        self.reshape(target, ITEMS)
        columns = ", ".join(f"{name} {kind}" for name, kind in EVENT_COLUMNS.items())
        now = datetime.datetime(2024, 1, 1)
        for n in range(18):
            row = (ITEMS.name, "u", at(n), now, now, "t", 0, n, 1, f"v{n}", n)
            events = frame(self.spark, [row], f"{columns}, id bigint, name string, size int")
            target.apply(Batch(ITEMS, events, Mark(LOG, n, at(n))))
        assert len(self.manifest()["files"]) == 2
        assert sorted(row["_cdc_offset"] for row in self.read(target, ITEMS)) == list(range(18))

    def test_read_returns_what_a_pipeline_keeps(self) -> None:
        self.opened().apply(batch(self.spark, [put(1, 1)], 1))
        assert [tuple(row) for row in tailrace.read(f"parquet:{self.path}/items").collect()] == [(1, "x", 1)]

    def test_apply_changes_keeps_a_folder_and_read_returns_it(self) -> None:
        place = f"parquet:{self.path}/people"
        rows = frame(
            self.spark, [(1, "ann", 1, False), (2, "bo", 1, False)], "id int, name string, seq int, gone boolean"
        )
        tailrace.apply_changes(rows, place, ["id"], "seq", apply_as_deletes="gone", except_column_list=["gone"])
        late = frame(self.spark, [(1, None, 3, True), (2, "old", 0, False)], rows.schema)
        done = tailrace.apply_changes(late, place, ["id"], "seq", apply_as_deletes="gone", except_column_list=["gone"])
        assert (done.applied, done.superseded) == (1, 1)
        assert [tuple(row) for row in tailrace.read(place).collect()] == [(2, "bo", 1)]
