"""The Iceberg target passes the contract, and its tables are plain Iceberg tables to anyone else."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

import tailrace
from tailrace.apply.target import Mark
from tailrace.core import failpoint
from tailrace.core.errors import Halt, Misconfigured, Retryable
from tailrace.core.table import Column, Evolution, Table, fit
from tailrace.targets.iceberg import IcebergTarget, Options, open_table, open_target
from tailrace.targets.iceberg.metadata import Metadata
from tailrace.targets.iceberg.table import IcebergTable
from tests.contracts.target import ITEMS, LOG, TABLES, Image, TargetContract, at, batch, drop, events, put

Opener = Callable[..., IcebergTarget]


def opened(spark: SparkSession, path: Path, pipeline: str, name: str, mode: str, **options: Any) -> IcebergTarget:
    settings = Options(catalog_uri=f"sqlite:///{path}/catalog.db", warehouse=str(path), **options)
    return open_target(name, settings, spark=lambda: spark, pipeline_id=pipeline, tables=TABLES, mode=mode)


class TestIcebergTarget(TargetContract):
    @pytest.fixture(autouse=True)
    def _store(self, spark: SparkSession, tmp_path: Path) -> None:
        self.spark = spark
        self.path = tmp_path / "a lake"

    def open(self, *, pipeline: str = "shop", name: str = "lake", mode: str = "scd1") -> IcebergTarget:
        return opened(self.spark, self.path, pipeline, name, mode)

    def read(self, target: IcebergTarget, table: Table) -> list[Image]:
        return self.visible(target.current(table.name))


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Opener:
    return lambda mode="scd1", **options: opened(spark, tmp_path, "shop", "lake", mode, **options)


@pytest.fixture
def armed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    monkeypatch.setattr(failpoint, "_armed", {})
    return lambda name: failpoint.arm({"TAILRACE_TEST_MODE": "1", "TAILRACE_FAILPOINTS": f"{name}=raise"})


def created(target: IcebergTarget, table: Table = ITEMS) -> IcebergTarget:
    target.evolve(table.name, fit(None, table, Evolution.ALTER))
    return target


def positions(target: IcebergTarget) -> dict[int, tuple[str, bool]]:
    return {row["id"]: (row["_cdc_position"], row["_cdc_alive"]) for row in target.known(ITEMS.name).collect()}


def metadata(target: IcebergTarget) -> Metadata:
    return target._table(ITEMS.name)._existing()


@pytest.mark.parametrize("version", [2, 3])
def test_another_reader_sees_the_rows_and_no_partition_keeps_one_that_left(
    lake: Opener, spark: SparkSession, tmp_path: Path, version: int
) -> None:
    target = created(lake(partition_by=("size", "bucket(4, name)"), format_version=version))
    target.apply(batch(spark, [put(1, 1, "a", 1), put(1, 2, "b", 2), put(1, 3, "c", 3)], 1))
    target.apply(batch(spark, [put(2, 1, "moved", 9), drop(3, 2)], 2))
    catalog = SqlCatalog("default", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path))
    try:
        table = catalog.load_table("default.items")
        rows = table.scan().to_arrow().to_pylist()
    finally:
        catalog.engine.dispose()
    assert {(row["id"], row["name"], row["size"]) for row in rows} == {(1, "moved", 9), (3, "c", 3)}
    assert table.format_version == version
    assert [field.name for field in table.spec().fields] == ["size", "name_bucket"]
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert json.loads(snapshot.summary["tailrace.stamp"])["mark"] == Mark(LOG, 2, at(3)).to_json()
    assert (snapshot.summary["added-dvs"] is not None) == (version == 3)
    assert int(snapshot.summary["total-equality-deletes"] or 0) == 0


def test_of_two_writers_with_the_same_events_one_commits(
    lake: Opener, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = created(lake("append")), lake("append")
    for target in (slow, quick):
        assert target.mark(ITEMS.name) is None
    publish = IcebergTable._publish

    def late(table: IcebergTable, *rest: Any) -> Any:
        monkeypatch.setattr(IcebergTable, "_publish", publish)
        assert quick.apply(events(spark, 1, 3)).inserted == 3
        return publish(table, *rest)

    monkeypatch.setattr(IcebergTable, "_publish", late)
    with pytest.raises(Retryable) as refused:
        slow.apply(events(spark, 1, 5))
    assert refused.value.code == "write-conflict"
    with pytest.raises(Retryable):
        # It was made for a table without any row.
        slow.apply(events(spark, 1, 5))
    assert slow.mark(ITEMS.name) == Mark(LOG, 3, at(3))
    assert slow.apply(events(spark, 1, 3)).inserted == 0
    assert slow.apply(events(spark, 4, 5)).inserted == 2
    assert sorted(row["_cdc_offset"] for row in quick.current(ITEMS.name).collect()) == [1, 2, 3, 4, 5]


def test_a_publication_whose_answer_was_lost_is_recognised(
    lake: Opener, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = created(lake("append"))
    publish = Metadata.publish

    def lost(found: Metadata, *rest: Any) -> None:
        publish(found, *rest)
        raise ConnectionError("the answer was lost")

    monkeypatch.setattr(Metadata, "publish", lost)
    assert target.apply(events(spark, 1, 3)).inserted == 3
    assert target.mark(ITEMS.name) == Mark(LOG, 3, at(3))


def test_what_is_buried_counts_exactly_if_the_rows_do(
    lake: Opener, spark: SparkSession, armed: Callable[[str], None]
) -> None:
    target = created(lake())
    target.apply(batch(spark, [put(1, 1), put(1, 2), put(1, 3)], 1))
    armed("C22")
    with pytest.raises(Retryable):
        target.apply(batch(spark, [drop(5, 1)], 2))
    assert positions(lake()) == {n: (at(1), True) for n in (1, 2, 3)}
    armed("C23")
    with pytest.raises(Retryable):
        target.apply(batch(spark, [drop(6, 2)], 2))
    again = lake()
    assert positions(again) == {1: (at(1), True), 2: (at(6), False), 3: (at(1), True)}
    again.apply(batch(spark, [drop(7, 3)], 3))
    found = {1: (at(1), True), 2: (at(6), False), 3: (at(7), False)}
    assert positions(again) == found
    again._table(ITEMS.name).collect_tombstones(datetime.date(2020, 1, 1))
    assert positions(lake()) == found
    again._table(ITEMS.name).collect_tombstones(datetime.date(9999, 1, 1))
    assert positions(lake()) == {1: (at(1), True)}


def test_a_table_that_was_taken_back_takes_its_mark_and_its_tombstones_back(lake: Opener, spark: SparkSession) -> None:
    target = created(lake())
    target.apply(batch(spark, [put(1, 1), put(1, 2), drop(1, 3)], 1))
    before = metadata(target).current()
    target.apply(batch(spark, [drop(5, 1)], 2))
    assert before is not None
    metadata(target).publish(before.id)
    with pytest.raises(Halt) as halted:
        target.mark(ITEMS.name)
    assert halted.value.code == "table-restored"
    again = lake()
    assert again.mark(ITEMS.name) == Mark(LOG, 1, at(1))
    assert positions(again) == {1: (at(1), True), 2: (at(1), True), 3: (at(1), False)}
    again.apply(batch(spark, [drop(5, 2)], 2))
    assert positions(again) == {1: (at(1), True), 2: (at(5), False), 3: (at(1), False)}


def test_a_mark_outlives_the_snapshot_that_carried_it(lake: Opener, spark: SparkSession) -> None:
    target = created(lake("append"))
    target.apply(events(spark, 1, 3))
    table = metadata(target).table
    table.newFastAppend().commit()
    table.expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()
    assert [snapshot.summary.get("tailrace.stamp") for snapshot in metadata(target).ancestors()] == [None]
    assert lake("append").mark(ITEMS.name) == Mark(LOG, 3, at(3))


def test_small_integers_keep_their_type_and_other_widenings_replace_the_column(lake: Opener) -> None:
    def shaped(kind: str, *more: Column) -> Table:
        return Table(ITEMS.name, (Column("id", "bigint"), Column("n", kind), *more), ("id",))

    target = created(lake(), shaped("tinyint"))
    assert lake().have(ITEMS.name) == shaped("tinyint")
    for table in (shaped("smallint"), shaped("double"), shaped("double", Column("later", "smallint"))):
        target.evolve(ITEMS.name, fit(target.have(ITEMS.name), table, Evolution.ALTER))
        assert lake().have(ITEMS.name) == table
    assert target.current(ITEMS.name).dtypes[1:3] == [("n", "double"), ("later", "smallint")]


def test_read_returns_what_a_pipeline_keeps(spark: SparkSession, tmp_path: Path) -> None:
    options = Options(catalog="hadoop", warehouse=str(tmp_path))
    target = open_target("lake", options, spark=lambda: spark, pipeline_id="shop", tables=TABLES, mode="scd1")
    created(target).apply(batch(spark, [put(1, 1)], 1))
    catalog = "spark.sql.catalog.of_a_pipeline"
    spark.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set(f"{catalog}.type", "hadoop")
    spark.conf.set(f"{catalog}.warehouse", str(tmp_path))
    assert [tuple(row) for row in tailrace.read("iceberg:of_a_pipeline.default.items").collect()] == [(1, "x", 1)]


def test_what_cannot_be_made_is_refused_and_leaves_no_trace(lake: Opener, spark: SparkSession) -> None:
    for target, table, code in (
        (lake(partition_by=("day(nowhere)",)), ITEMS, "unknown-column"),
        (lake(), Table(ITEMS.name, (Column("id", "bigint"), Column("_file", "string")), ("id",)), "reserved-column"),
        (lake(auto_create_table=False), ITEMS, "table-missing"),
    ):
        with pytest.raises(Halt) as halted:
            created(target, table)
        assert halted.value.code == code
        assert target.have(ITEMS.name) is None
    lake()._table(ITEMS.name)._session.sql("CREATE TABLE default.default.items (id bigint) USING iceberg")
    with pytest.raises(Halt) as halted:
        lake().mark(ITEMS.name)
    assert halted.value.code == "foreign-table"
    for where, code in (("alone", "unknown-target"), ("nowhere.a.b", "unknown-catalog")):
        with pytest.raises(Halt) as halted:
            open_table(where, "t", spark, "scd1").mark("t")
        assert halted.value.code == code


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"catalog_uri": "mysql://db/x"},
        {"catalog_uri": "postgresql://me:pw@db/x"},
        {"catalog": "hadoop", "catalog_uri": "x"},
    ],
)
def test_a_catalog_is_named_without_its_secrets(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="catalog"):
        Options(warehouse="w", **wrong)


def test_one_name_is_for_one_table(lake: Opener) -> None:
    with pytest.raises(Misconfigured):
        lake(table_name="all_of_them")
