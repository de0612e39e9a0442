"""What a Delta table holds after each way a batch can break off, and what the target refuses to write to."""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.apply.target import Batch, Mark
from tailrace.core import failpoint
from tailrace.core.change import Change, Op
from tailrace.core.errors import Halt, Retryable
from tailrace.core.table import Column, Evolution, Table, fit
from tailrace.targets.delta import DeltaTarget, Options, shape, table
from tailrace.targets.delta.log import DeltaLog
from tailrace.targets.delta.place import Place
from tailrace.targets.delta.tombstones import Tombstones
from tests.contracts.target import ITEMS, LOG, at, batch, drop, events, put, truncate

Opener = Callable[[], DeltaTarget]


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Opener:
    """Return how the target is opened; each call is a restart."""

    def opened() -> DeltaTarget:
        names = {"public.items": "items"}
        return DeltaTarget(
            "lake", Options(path=str(tmp_path)), spark_session=lambda: spark, pipeline_id="shop", tables=names
        )

    return opened


@pytest.fixture
def armed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return how a failpoint is armed for this test alone."""
    monkeypatch.setattr(failpoint, "_armed", {})
    return lambda name: failpoint.arm({"TAILRACE_TEST_MODE": "1", "TAILRACE_FAILPOINTS": f"{name}=raise"})


def created(lake: Opener, spark: SparkSession) -> DeltaTarget:
    target = lake()
    target.evolve(ITEMS.name, fit(None, ITEMS, Evolution.ALTER))
    target.apply(batch(spark, [put(1, 1), put(1, 2)], 1))
    return target


def ids(spark: SparkSession, path: Path) -> list[int]:
    return sorted(row["id"] for row in spark.read.format("delta").load(str(path / "items")).collect())


def positions(target: DeltaTarget) -> dict[int, tuple[str, bool]]:
    return {row["id"]: (row["_cdc_position"], row["_cdc_alive"]) for row in target.known(ITEMS.name).collect()}


def test_rows_and_mark_are_one_commit(lake: Opener, spark: SparkSession, tmp_path: Path) -> None:
    created(lake, spark).apply(batch(spark, [put(2, 2, "y"), put(3, 3)], 2))
    history = spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path}/items`").orderBy("version").collect()
    assert [row["operation"] for row in history] == ["CREATE TABLE", "WRITE", "MERGE"]
    assert json.loads(history[2]["userMetadata"])["mark"] == {"log": LOG, "offset": 2, "high": at(3), "floor": ""}
    actions = (tmp_path / "items" / "_delta_log" / f"{2:020}.json").read_text().splitlines()
    txn = next(json.loads(line)["txn"] for line in actions if "txn" in json.loads(line))
    assert (txn["appId"], txn["version"]) == (f"tailrace/shop/lake/{LOG}/public.items", 2)


@pytest.mark.parametrize("name", ["C19", "C22"])
def test_a_batch_that_breaks_off_before_its_commit_leaves_nothing_that_counts(
    name: str, lake: Opener, spark: SparkSession, tmp_path: Path, armed: Callable[[str], None]
) -> None:
    target = created(lake, spark)
    armed(name)
    with pytest.raises(Retryable):
        target.apply(batch(spark, [drop(5, 1), put(6, 3)], 2))
    again = lake()
    assert again.mark(ITEMS.name) == Mark(LOG, 1, at(1))
    assert positions(again) == {1: (at(1), True), 2: (at(1), True)}
    again.apply(batch(spark, [drop(5, 1), put(6, 3)], 2))
    assert positions(again) == {1: (at(5), False), 2: (at(1), True), 3: (at(6), True)}
    graves = spark.read.format("delta").load(f"{tmp_path}/_tailrace/items.tombstones")
    assert graves.count() == 1


@pytest.mark.parametrize("name", ["C23", "C25"])
def test_a_commit_whose_answer_was_lost_is_recognised(
    name: str, lake: Opener, spark: SparkSession, tmp_path: Path, armed: Callable[[str], None]
) -> None:
    target = created(lake, spark)
    armed(name)
    lost = batch(spark, [drop(5, 1), put(6, 3)], 2)
    with pytest.raises(Retryable):
        target.apply(lost)
    for opened in (target, lake()):
        assert opened.mark(ITEMS.name) == Mark(LOG, 2, at(6))
        assert opened.apply(lost).inserted == 0
    assert ids(spark, tmp_path) == [2, 3]


def test_a_commit_that_landed_before_the_error_is_done(lake: Opener, spark: SparkSession, tmp_path: Path) -> None:
    target = created(lake, spark)
    inner = target._table(ITEMS.name)
    merge = inner._merge

    def landed_then_lost(*args: object) -> None:
        merge(*args)  # type: ignore[arg-type]
        raise ConnectionResetError

    inner._merge = landed_then_lost  # type: ignore[assignment]
    assert target.apply(batch(spark, [put(6, 3)], 2)).inserted == 1
    assert target.mark(ITEMS.name) == Mark(LOG, 2, at(6))
    assert ids(spark, tmp_path) == [1, 2, 3]


def test_an_offset_of_a_log_that_began_again_halts_instead_of_being_skipped(lake: Opener, spark: SparkSession) -> None:
    target = created(lake, spark)
    target.apply(batch(spark, [put(2, 2)], 1, log="log-2"))
    with pytest.raises(Halt) as halted:
        target.apply(batch(spark, [put(3, 3)], 1))
    assert halted.value.code == "commit-not-seen"


def test_a_writer_that_was_stopped_right_before_its_append_does_not_append_behind_another(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened() -> DeltaTarget:
        options, names = Options(path=str(tmp_path)), {"public.items": "items"}
        return DeltaTarget("l", options, spark_session=spark, pipeline_id="p", tables=names, mode="append")

    slow, quick = opened(), opened()
    slow.evolve(ITEMS.name, fit(None, ITEMS, Evolution.ALTER))
    for target in (slow, quick):
        target.mark(ITEMS.name)
    append = DeltaLog.append

    def late(log: DeltaLog, *rest: Any) -> None:
        monkeypatch.setattr(DeltaLog, "append", append)
        assert quick.apply(events(spark, 1, 3)).inserted == 3
        append(log, *rest)

    monkeypatch.setattr(DeltaLog, "append", late)
    with pytest.raises(Retryable) as refused:
        slow.apply(events(spark, 1, 5))
    assert refused.value.code == "write-conflict"
    rows = spark.read.format("delta").load(f"{tmp_path}/items").select("_cdc_offset").collect()
    assert sorted(row[0] for row in rows) == [1, 2, 3]


@pytest.mark.parametrize(("step", "upto"), [("bury", 10), ("_merge", 10), ("bury", 30)])
def test_a_writer_that_was_stopped_loses_no_tombstones_and_takes_none_away(
    step: str, upto: int, lake: Opener, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is held up before its tombstones or behind them, while another one commits a part of its slice, or more."""
    created(lake, spark)
    slow, quick = lake(), lake()
    for target in (slow, quick):
        target.mark(ITEMS.name)
    log = [drop(5, 2), put(15, 3), drop(20, 1), put(30, 4), drop(30, 5)]
    owner: Any = Tombstones if step == "bury" else table.DeltaTable
    original = getattr(owner, step)

    def held_up(*args: Any) -> Any:
        monkeypatch.setattr(owner, step, original)
        quick.apply(batch(spark, [change for change in log if change.position <= at(upto)], upto))
        return original(*args)

    monkeypatch.setattr(owner, step, held_up)
    slice_of_20 = batch(spark, [change for change in log if change.position <= at(20)], 20)
    if upto > 20:
        with pytest.raises(Retryable) as refused:
            slow.apply(slice_of_20)
        assert refused.value.code == "write-conflict"
    else:
        slow.apply(slice_of_20)
    there = {1: (at(20), False), 2: (at(5), False), 3: (at(15), True)}
    if upto > 20:
        there |= {4: (at(30), True), 5: (at(30), False)}
    for target in (slow, lake()):
        assert target.mark(ITEMS.name) == Mark(LOG, max(upto, 20), at(max(upto, 20)))
        assert positions(target) == there


def test_tombstones_are_looked_at_only_where_the_log_leaves_a_doubt(
    lake: Opener, spark: SparkSession, tmp_path: Path, armed: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    look = Tombstones._any
    monkeypatch.setattr(Tombstones, "_any", lambda self, which: looks.append(which) or look(self, which))
    created(lake, spark).apply(batch(spark, [drop(2, 1)], 2))
    lake().apply(batch(spark, [drop(3, 7)], 3))
    spark.sql(f"OPTIMIZE delta.`{tmp_path}/_tailrace/items.tombstones`")
    lake().apply(batch(spark, [drop(4, 8)], 4))
    assert looks == []
    armed("C22")
    with pytest.raises(Retryable):
        lake().apply(batch(spark, [drop(5, 2)], 5))
    # Another attempt at the same place, of which the one that broke off knew nothing.
    lake().apply(batch(spark, [drop(6, 9)], 5))
    assert looks
    lake().apply(batch(spark, [drop(7, 10)], 7))
    assert positions(lake()) == {key: (at(n), False) for n, key in ((2, 1), (3, 7), (4, 8), (6, 9), (7, 10))} | {
        2: (at(1), True)
    }
    looks.clear()
    lake().apply(batch(spark, [put(8, 1)], 8))
    assert looks == []


@pytest.mark.parametrize("first", [[], [drop(2, 8)]], ids=["nothing buried", "something buried"])
@pytest.mark.parametrize("then", [[put(30, 3)], [put(30, 3), drop(31, 9)]], ids=["no deletes", "deletes"])
def test_what_an_attempt_buried_that_broke_off_counts_with_no_other(
    first: list[Change], then: list[Change], lake: Opener, spark: SparkSession, armed: Callable[[str], None]
) -> None:
    """A slice of several partitions may be cut in another way: the next commit need not include what that one had."""
    created(lake, spark).apply(batch(spark, [put(2, 4), *first], 2))
    armed("C22")
    with pytest.raises(Retryable):
        lake().apply(batch(spark, [drop(20, 1)], 20))
    alive = {1: (at(1), True), 2: (at(1), True), 3: (at(30), True), 4: (at(2), True)}
    buried = {change.key[0]: (change.position, False) for change in [*first, *then] if change.op is Op.DELETE}
    lake().apply(batch(spark, then, 50))
    assert positions(lake()) == alive | buried
    lake().apply(batch(spark, [drop(60, 10)], 60))
    assert positions(lake()) == alive | buried | {10: (at(60), False)}


def test_what_a_replay_buried_that_broke_off_counts_with_no_other(
    lake: Opener, spark: SparkSession, armed: Callable[[str], None]
) -> None:
    def replayed(change: Change) -> Batch:
        made = batch(spark, [change], 1)
        return replace(made, mark=replace(made.mark, high=at(20), replays=1), replay=True)

    created(lake, spark)
    armed("C22")
    with pytest.raises(Retryable):
        lake().apply(replayed(drop(20, 1)))
    lake().apply(replayed(drop(10, 2)))
    assert positions(lake()) == {1: (at(1), True), 2: (at(10), False)}


def test_a_table_that_is_made_anew_knows_nothing_of_what_the_one_before_it_buried(
    lake: Opener, spark: SparkSession, tmp_path: Path
) -> None:
    created(lake, spark).apply(batch(spark, [drop(5, 1)], 2))
    shutil.rmtree(tmp_path / "items")
    created(lake, spark).apply(batch(spark, [put(3, 3)], 3))
    alive = {1: (at(1), True), 2: (at(1), True), 3: (at(3), True)}
    assert positions(lake()) == alive
    lake().apply(batch(spark, [drop(9, 9)], 4))
    assert positions(lake()) == alive | {9: (at(9), False)}


def test_commits_of_others_do_not_hide_the_mark(lake: Opener, spark: SparkSession, tmp_path: Path) -> None:
    target = created(lake, spark)
    spark.sql(f"OPTIMIZE delta.`{tmp_path}/items`")
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/items` SET TBLPROPERTIES ('note' = 'x')")
    for opened in (target, lake()):
        assert opened.mark(ITEMS.name) == Mark(LOG, 1, at(1))


def test_the_mark_outlives_the_log_that_delta_keeps(lake: Opener, spark: SparkSession, tmp_path: Path) -> None:
    target = created(lake, spark)
    target.apply(batch(spark, [truncate(4), put(6, 3), drop(5, 9)], 2))
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/items` SET TBLPROPERTIES ('note' = 'x')")
    jvm = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, f"{tmp_path}/items").checkpoint()
    for old in sorted((tmp_path / "items" / "_delta_log").glob("*.json"))[:-1]:
        old.unlink()
    assert lake().mark(ITEMS.name) == Mark(LOG, 2, at(6), at(4))


def test_a_rollback_outlives_the_log_that_delta_keeps(lake: Opener, spark: SparkSession, tmp_path: Path) -> None:
    target = created(lake, spark)
    target.apply(batch(spark, [drop(2, 1), put(3, 3)], 2))
    running, again = lake(), lake()
    assert running.mark(ITEMS.name) == Mark(LOG, 2, at(3))
    again.take_back(ITEMS.name, 1)
    with pytest.raises(Halt) as halted:
        running.mark(ITEMS.name)
    assert halted.value.code == "table-restored"
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/items` SET TBLPROPERTIES ('note' = 'x')")
    jvm = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, f"{tmp_path}/items").checkpoint()
    for old in sorted((tmp_path / "items" / "_delta_log").glob("*.json"))[:-1]:
        old.unlink()
    assert lake().mark(ITEMS.name) == Mark(LOG, 1, at(1))
    assert positions(lake()) == {1: (at(1), True), 2: (at(1), True)}
    again = lake()
    again.apply(batch(spark, [drop(2, 1), put(3, 3)], 2))
    assert (ids(spark, tmp_path), lake().mark(ITEMS.name)) == ([2, 3], Mark(LOG, 2, at(3)))


def test_a_restored_table_halts(lake: Opener, spark: SparkSession, tmp_path: Path) -> None:
    target = created(lake, spark)
    target.apply(batch(spark, [put(2, 2, "y")], 2))
    spark.sql(f"RESTORE TABLE delta.`{tmp_path}/items` TO VERSION AS OF 1")
    for opened in (target, lake()):
        with pytest.raises(Halt) as halted:
            opened.mark(ITEMS.name)
        assert halted.value.code == "table-restored"


def test_a_folder_with_other_files_is_left_alone(lake: Opener, tmp_path: Path) -> None:
    (tmp_path / "items").mkdir()
    (tmp_path / "items" / "notes.txt").write_text("mine")
    for look in (lake().have, lake().mark, lambda name: lake().evolve(name, fit(None, ITEMS, Evolution.ALTER))):
        with pytest.raises(Halt) as halted:
            look(ITEMS.name)
        assert halted.value.code == "foreign-table"
    assert [path.name for path in tmp_path.rglob("*")] == ["items", "notes.txt"]


def cut_off(folder: Path) -> None:
    """Leave in `folder` what a process leaves that is killed while it creates a table there."""
    (folder / "_delta_log" / "_staged_commits").mkdir(parents=True)
    (folder / "_delta_log" / ".00000000000000000000.json.1f0c.tmp").write_text('{"commitInfo"')


def test_a_table_whose_creation_was_cut_off_is_created_again(lake: Opener, spark: SparkSession, tmp_path: Path) -> None:
    cut_off(tmp_path / "items")
    assert (lake().have(ITEMS.name), lake().mark(ITEMS.name)) == (None, None)
    created(lake, spark)
    assert ids(spark, tmp_path) == [1, 2]


def test_so_is_one_in_a_catalog(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql(f"CREATE DATABASE cut_off LOCATION '{tmp_path}/lake'")
    try:
        cut_off(tmp_path / "lake" / "items")
        place = Place.in_catalog("cut_off", "items")
        shape.create(spark, place, ITEMS, [("id", "int")], {})
        assert spark.table(place.sql).columns == ["id"]
    finally:
        spark.sql("DROP DATABASE cut_off CASCADE")


@pytest.mark.parametrize("left", ["notes.txt", "_staged_commits/notes.txt"])
def test_a_log_of_delta_without_its_beginning_is_left_alone(left: str, lake: Opener, tmp_path: Path) -> None:
    file = tmp_path / "items" / "_delta_log" / left
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(Halt) as halted:
        lake().have(ITEMS.name)
    assert halted.value.code == "foreign-table"


def test_a_delta_table_that_is_not_ours_is_left_alone(lake: Opener, spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.format("delta").save(f"{tmp_path}/items")
    with pytest.raises(Halt) as halted:
        lake().evolve(ITEMS.name, fit(None, ITEMS, Evolution.ALTER))
    assert halted.value.code == "foreign-table"


@pytest.mark.parametrize("step", ["_add", "set_properties", "_finish"])
def test_a_fill_that_broke_off_is_finished_before_the_next_batch(
    step: str, lake: Opener, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = created(lake, spark)
    grown = Table(ITEMS.name, (*ITEMS.columns, Column("stock", "int", default=5)), ITEMS.keys)
    original = getattr(table.shape, step)

    def broken(*args: object) -> None:
        original(*args)
        raise Retryable("failpoint", f"broke off after {step}")

    with monkeypatch.context() as patched:
        patched.setattr(table.shape, step, broken)
        with pytest.raises(Retryable):
            target.evolve(ITEMS.name, fit(target.have(ITEMS.name), grown, Evolution.ALTER))
    again = lake()
    change = fit(again.have(ITEMS.name), grown, Evolution.ALTER)
    if change.add:
        again.evolve(ITEMS.name, change)
    made = batch(spark, [put(9, 2, "y")], 2, grown)
    again.apply(Batch(grown, made.rows, made.mark, partial=frozenset({"stock"})))
    stored = spark.read.format("delta").load(f"{tmp_path}/items")
    assert {row["id"]: row["stock"] for row in stored.collect()} == {1: 5, 2: None}
    assert stored.columns == ["id", "name", "size", "stock", "_cdc_position"]


def test_a_full_disk_is_worth_another_try() -> None:
    error = table.translate(OSError(28, "No space left on device"), "applying a batch")
    assert isinstance(error, Retryable)
    assert error.code == "disk-full"


def test_a_widening_that_delta_lacks_halts(lake: Opener, spark: SparkSession) -> None:
    tiny = Table(ITEMS.name, (Column("id", "bigint"), Column("n", "tinyint")), ("id",))
    target = lake()
    target.evolve(ITEMS.name, fit(None, tiny, Evolution.ALTER))
    wide = Table(ITEMS.name, (Column("id", "bigint"), Column("n", "float")), ("id",))
    with pytest.raises(Halt) as halted:
        target.evolve(ITEMS.name, fit(tiny, wide, Evolution.ALTER))
    assert halted.value.code == "type-changed"
    assert target.have(ITEMS.name) == tiny


def test_old_tombstones_are_collected_and_the_floor_stays(lake: Opener, spark: SparkSession, tmp_path: Path) -> None:
    target = created(lake, spark)
    target.apply(batch(spark, [drop(5, 1), truncate(2)], 2))
    target.collect_tombstones()
    assert positions(target)[1] == (at(5), False)
    later = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=1)
    target._table(ITEMS.name).collect_tombstones(later)
    graves = spark.read.format("delta").load(f"{tmp_path}/_tailrace/items.tombstones")
    assert [row["_cdc_op"] for row in graves.collect()] == ["t"]
    assert 1 not in positions(target)


def test_a_grown_table_gets_deletion_vectors(
    lake: Opener, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = created(lake, spark)
    monkeypatch.setattr(table, "DELETION_VECTORS_FROM", 1)
    target.apply(batch(spark, [drop(2, 2)], 3))
    log = "".join(path.read_text() for path in (tmp_path / "items" / "_delta_log").glob("*.json"))
    assert '"deletionVector"' in log
    assert ids(spark, tmp_path) == [1]
    assert lake().mark(ITEMS.name) == Mark(LOG, 3, at(2))


def test_a_table_of_which_a_batch_wrote_many_rows_again_gets_deletion_vectors(
    lake: Opener, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = created(lake, spark)
    monkeypatch.setattr(table, "COPIED_MANY", 1)
    for count, (changes, chosen) in enumerate([([put(2, n) for n in range(2, 20)], False), ([drop(3, 2)], True)], 2):
        target.apply(batch(spark, changes, count))
        log = "".join(path.read_text() for path in (tmp_path / "items" / "_delta_log").glob("*.json"))
        assert ('"deletionVector"' in log) is chosen
    assert ids(spark, tmp_path) == [1, *range(3, 20)]
    assert lake().mark(ITEMS.name) == Mark(LOG, 3, at(3))


def test_a_compaction_behind_a_batch_does_not_pass_for_it(
    lake: Opener, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = created(lake, spark)
    monkeypatch.setattr(table, "DELETION_VECTORS_FROM", 1)
    target._table(ITEMS.name)._session.conf.set("spark.databricks.delta.autoCompact.minNumFiles", "2")
    assert target.apply(batch(spark, [put(2, 2, "y"), put(2, 3)], 2)).inserted == 1
    assert target.apply(batch(spark, [put(3, 4), drop(3, 3)], 3)).deleted == 1
    history = spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path}/items`").collect()
    assert "OPTIMIZE" in {row["operation"] for row in history}
    for opened in (target, lake()):
        assert opened.mark(ITEMS.name) == Mark(LOG, 3, at(3))
    assert ids(spark, tmp_path) == [1, 2, 4]


def test_tables_can_live_in_the_metastore(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql(f"CREATE DATABASE shelf LOCATION '{tmp_path}'")
    try:
        options = Options(catalog="shelf")
        names = {"public.items": "items"}
        target = DeltaTarget("lake", options, spark_session=spark, pipeline_id="shop", tables=names)
        assert target.have(ITEMS.name) is None
        target.evolve(ITEMS.name, fit(None, ITEMS, Evolution.ALTER))
        target.apply(batch(spark, [put(1, 1), put(1, 2)], 1))
        target.apply(batch(spark, [drop(2, 1), put(2, 2, "y")], 2))
        assert [(row["id"], row["name"]) for row in spark.table("shelf.items").collect()] == [(2, "y")]
        assert positions(target) == {1: (at(2), False), 2: (at(2), True)}
        assert target.mark(ITEMS.name) == Mark(LOG, 2, at(2))
    finally:
        spark.sql("DROP DATABASE shelf CASCADE")


def test_exactly_one_place_is_chosen() -> None:
    for wrong in ({}, {"path": "a", "catalog": "b"}):
        with pytest.raises(ValueError, match="either path or catalog"):
            Options(**wrong)
