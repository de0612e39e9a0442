"""What `apply_changes` does beyond Spark's AUTO CDC, and what it refuses."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tailrace
from tailrace.apply.order import sortable
from tailrace.apply.target import Batch, Mark
from tailrace.core.errors import Halt, Misconfigured, Retryable
from tailrace.core.table import Table
from tailrace.spark.frame import frame
from tailrace.targets.delta import open_table
from tailrace.targets.delta.table import DeltaTable
from tailrace.targets.delta.tombstones import Tombstones
from tests.contracts.target import ITEMS, put, rows_of
from tests.spark import scans
from tests.spark.applied import SCHEMA, apply, feed, rows

NINES = "9" * 37


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"delta:{tmp_path}/table"


def test_every_row_is_accounted_for(spark: SparkSession, target: str) -> None:
    first = apply(feed(spark, (1, "a", 1, 10, "u"), (1, "b", 1, 20, "u"), (2, "c", 1, 10, "u")), target)
    assert (first.read, first.applied, first.superseded, first.rejected) == (3, 3, 0, 0)
    assert (first.rows_inserted, first.rows_updated, first.rows_deleted) == (2, 0, 0)
    late = feed(spark, (1, "late", 1, 15, "u"), (2, None, None, 30, "d"), (3, "d", 1, 5, "u"), (None, "x", 1, 5, "u"))
    second = apply(late, target)
    assert (second.read, second.applied, second.superseded, second.rejected) == (4, 2, 1, 1)
    assert (second.rows_inserted, second.rows_updated, second.rows_deleted) == (1, 0, 1)
    assert rows(target) == [(1, "b", 1), (3, "d", 1)]


def test_what_comes_again_is_superseded_and_leaves_no_commit(spark: SparkSession, target: str, tmp_path: Path) -> None:
    given = [(1, "a", 1, 10, "u"), (2, None, None, 10, "u"), (3, None, None, 10, "d")]
    apply(feed(spark, *given), target)
    again = apply(feed(spark, *given, *given), target)
    assert (again.read, again.superseded, again.rows_updated) == (6, 6, 0)
    assert spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path}/table`").where("operation = 'MERGE'").count() == 0
    # Another row at the same sequence is no repeat; beside a greater one, neither is what the table has.
    other = apply(feed(spark, (1, "a", 1, 10, "u"), (1, "b", 0, 10, "u"), (2, None, 5, 10, "u")), target)
    assert (other.applied, other.superseded) == (3, 0)
    assert rows(target) == [(1, "b", 0), (2, None, 5)]


def test_a_table_of_the_metastore_is_made_with_its_schema(spark: SparkSession) -> None:
    try:
        apply(feed(spark, (1, "a", 1, 10, "u")), "delta:shop_of_a_test.items")
        assert rows("delta:shop_of_a_test.items") == [(1, "a", 1)]
    finally:
        spark.sql("DROP SCHEMA IF EXISTS shop_of_a_test CASCADE")


def test_a_folder_may_name_its_file_system(spark: SparkSession, tmp_path: Path) -> None:
    apply(feed(spark, (1, "a", 1, 10, "u")), f"delta:file:{tmp_path}/table")
    assert rows(f"delta:{tmp_path}/table") == [(1, "a", 1)]


def test_rejected_rows_come_back_with_their_reason(spark: SparkSession, target: str) -> None:
    done = apply(feed(spark, (1, "a", 1, 10, "u"), (None, "x", 1, 5, "u"), (2, "y", 1, None, "u")), target)
    assert done.rejects is not None
    reasons = {row["name"]: row["_cdc_problem"] for row in done.rejects.collect()}
    assert reasons == {
        "x": 'missing-key: key column "id" is null',
        "y": "missing-sequence: sequence_by is null",
    }
    assert rows(target) == [(1, "a", 1)]


def test_the_source_is_read_once(spark: SparkSession, target: str) -> None:
    apply(feed(spark, (1, "a", 1, 10, "u")), target)
    counter = spark.sparkContext.accumulator(0)

    def seen(row: tuple[Any, ...]) -> tuple[Any, ...]:
        counter.add(1)
        return row

    for scd_type, place in ((1, target), (2, f"{target}2")):
        before = counter.value
        given = [(1, "b", 1, 20, "u"), (2, "c", 1, 10, "d"), (None, "bad", 1, 1, "u")]
        counted = spark.sparkContext.parallelize(given, 2).map(seen)
        apply(spark.createDataFrame(counted, SCHEMA), place, stored_as_scd_type=scd_type)
        assert counter.value - before == len(given)


@pytest.mark.parametrize("scd_type", [1, 2])
def test_files_that_cannot_match_are_not_read(spark: SparkSession, tmp_path: Path, scd_type: int) -> None:
    scans.check(spark, tmp_path, scd_type)


def test_the_table_is_asked_only_of_what_may_be_late(
    spark: SparkSession, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(feed(spark, (1, "a", 1, 10, "u"), (2, "b", 1, 20, "u"), (3, None, None, 15, "d")), target)
    asked, known = [0], DeltaTable.known

    def counted(*given: Any) -> DataFrame:
        asked[0] += 1
        return known(*given)

    monkeypatch.setattr(DeltaTable, "known", counted)
    newer = apply(feed(spark, (1, "newer", 1, 21, "u"), (4, "new", 1, 22, "u")), target)
    assert (newer.applied, newer.superseded, asked) == (2, 0, [0])
    # One late change of a row, one of a deleted row, and beside them what is newer than all that there is.
    mixed = apply(
        feed(
            spark, (2, "late", 1, 19, "u"), (3, "late", 1, 14, "u"), (2, "newest", 1, 30, "u"), (5, "late", 1, 1, "u")
        ),
        target,
    )
    assert (mixed.applied, mixed.superseded, asked) == (2, 2, [1])
    assert rows(target, "id", "name") == [(1, "newer"), (2, "newest"), (4, "new"), (5, "late")]


def test_a_truncate_empties_the_table_and_what_is_older_stays_gone(spark: SparkSession, target: str) -> None:
    options = {"apply_as_truncates": "op = 't'"}
    apply(feed(spark, (1, "a", 1, 10, "u"), (2, "b", 1, 30, "u")), target, **options)
    apply(feed(spark, (None, None, None, 20, "t"), (3, "c", 1, 15, "u"), (4, "d", 1, 25, "u")), target, **options)
    assert rows(target, "id") == [(2,), (4,)]
    late = apply(feed(spark, (5, "late", 1, 20, "u"), (6, "new", 1, 21, "u")), target, **options)
    assert (late.applied, late.superseded) == (1, 1)
    assert rows(target, "id") == [(2,), (4,), (6,)]


def test_a_truncate_ends_every_record_that_stood(spark: SparkSession, target: str) -> None:
    options = {"apply_as_truncates": "op = 't'", "stored_as_scd_type": 2}
    apply(feed(spark, (1, "a", 1, 10, "u"), (2, "b", 1, 30, "u")), target, **options)
    apply(feed(spark, (None, None, None, 20, "t"), (3, "c", 1, 15, "u")), target, **options)
    apply(feed(spark, (4, "late", 1, 5, "u")), target, **options)
    told = [(1, 10, 20), (2, 30, None), (3, 15, 20), (4, 5, 20)]
    assert rows(target, "id", "__START_AT", "__END_AT") == told
    again = apply(feed(spark, (None, None, None, 20, "t"), (None, None, None, 20, "t")), target, **options)
    assert (again.applied, again.superseded) == (0, 2)
    version = spark.sql(f"DESCRIBE HISTORY delta.`{target.removeprefix('delta:')}` LIMIT 1").collect()[0]["version"]
    apply(feed(spark, (None, None, None, 20, "t")), target, **options)
    now = spark.sql(f"DESCRIBE HISTORY delta.`{target.removeprefix('delta:')}` LIMIT 1").collect()[0]["version"]
    assert (now, rows(target, "id", "__START_AT", "__END_AT")) == (version, told)


def test_a_soft_delete_keeps_the_row_and_says_when(spark: SparkSession, target: str) -> None:
    apply(feed(spark, (1, "a", 1, 10, "u"), (2, "b", 1, 10, "u")), target, soft_delete_column="deleted_at")
    done = apply(feed(spark, (1, None, None, 20, "d")), target, soft_delete_column="deleted_at")
    assert (done.rows_updated, done.rows_deleted) == (1, 0)
    found = {row["id"]: row for row in tailrace.read(target).collect()}
    assert (found[1]["name"], found[1]["size"]) == ("a", 1)
    assert isinstance(found[1]["deleted_at"], datetime.datetime)
    assert found[2]["deleted_at"] is None
    apply(feed(spark, (1, "late", 1, 15, "u"), (2, "again", 2, 30, "u")), target, soft_delete_column="deleted_at")
    apply(feed(spark, (1, "back", 3, 40, "u")), target, soft_delete_column="deleted_at")
    assert rows(target, "id", "name", "deleted_at") == [(1, "back", None), (2, "again", None)]


@pytest.mark.parametrize("batches", [[[1, 3, 20]], [[1], [3], [20]], [[1], [20], [3]], [[20], [1, 3]]], ids=str)
def test_a_truncate_marks_a_row_whenever_it_comes(spark: SparkSession, target: str, batches: list[list[int]]) -> None:
    """With a soft delete, the row of key 1 at 10 and that of key 3 at 15 stay, marked by the truncate at 20."""
    events = {1: (1, "a", 1, 10, "u"), 3: (3, "c", 1, 15, "u"), 20: (None, None, None, 20, "t")}
    for batch in batches:
        source = feed(spark, *(events[n] for n in batch))
        apply(source, target, soft_delete_column="gone", apply_as_truncates="op = 't'")
    assert rows(target, "id", "name", "gone IS NOT NULL") == [(1, "a", True), (3, "c", True)]


def test_null_updates_keep_what_the_row_has(spark: SparkSession, target: str) -> None:
    apply(feed(spark, (1, "a", 1, 10, "u"), (1, None, 2, 20, "u")), target, ignore_null_updates=True)
    assert rows(target) == [(1, "a", 2)]
    apply(feed(spark, (1, "b", None, 30, "u"), (2, None, None, 5, "u")), target, ignore_null_updates=True)
    assert rows(target) == [(1, "b", 2), (2, None, None)]
    apply(feed(spark, (1, None, None, 40, "d"), (1, None, 9, 50, "u")), target, ignore_null_updates=True)
    assert rows(target) == [(1, None, 9), (2, None, None)]
    apply(feed(spark, (1, None, None, 60, "u")), target, ignore_null_updates_column_list=["size"])
    assert rows(target) == [(1, None, 9), (2, None, None)]


def test_a_batch_that_was_applied_is_not_read_again(spark: SparkSession, target: str) -> None:
    apply(feed(spark, (1, "a", 1, 10, "u")), target, batch_id=7)
    again = apply(feed(spark, (1, "other", 1, 99, "u")), target, batch_id=7)
    assert again == tailrace.ApplyResult()
    apply(feed(spark, (2, "b", 1, 1, "u")), target, batch_id="run-2/0")
    assert rows(target) == [(1, "a", 1), (2, "b", 1)]


@pytest.mark.parametrize("scd_type", [1, 2])
def test_the_winner_of_a_tie_does_not_depend_on_the_order_of_rows(
    spark: SparkSession, tmp_path: Path, scd_type: int
) -> None:
    tied = [(1, "a", 2, 10, "u"), (1, "b", 1, 10, "u"), (2, "x", 1, 10, "u"), (2, None, None, 10, "d")]
    for n, given in enumerate((tied, tied[::-1])):
        place = f"delta:{tmp_path}/{n}"
        apply(feed(spark, *given).repartition(2), place, stored_as_scd_type=scd_type)
        assert rows(place, "id", "name", "size") == [(1, "b", 1)]


@pytest.mark.parametrize("scd_type", [1, 2])
def test_maps_with_equal_entries_are_equal_in_any_order_and_at_any_depth(
    spark: SparkSession, target: str, scd_type: int
) -> None:
    def put(sequence: int, pairs: str, second: str = "0.000001") -> tailrace.ApplyResult:
        held = f"array(struct(map({pairs}) AS m, timestamp_ntz '2024-02-29 12:00:0{second}' AS at))"
        source = spark.sql(f"SELECT 1 AS id, map('x', {held}) AS deep, {held} AS flat, {sequence} AS seq, 'u' AS op")
        return apply(source, target, stored_as_scd_type=scd_type)

    put(10, "'aa', 1, 'b', 2")
    assert put(10, "'b', 2, 'aa', 1").superseded == 1
    put(20, "'b', 2, 'aa', 1")
    assert tailrace.read(target).count() == 1
    assert put(20, "'b', 2, 'aa', 1", "0.000002").applied == 1
    if scd_type == 2:
        assert put(15, "'b', 2, 'aa', 1").applied == 1
        assert rows(target, "__START_AT", "flat[0].at") == [
            (10, datetime.datetime(2024, 2, 29, 12, 0, 0, 1)),
            (20, datetime.datetime(2024, 2, 29, 12, 0, 0, 2)),
        ]


def test_columns_come_and_types_widen_within_a_run(spark: SparkSession, target: str) -> None:
    apply(feed(spark, (1, "a", 1, 10, "u")), target)
    wider = "ID int, name string, size bigint, seq bigint, op string, tags struct<`x y`:int>"
    apply(feed(spark, (1, "b", 1 << 40, 20, "u", (5,)), schema=wider), target)
    deeper = "id int, name string, size bigint, seq bigint, op string, tags struct<`x y`:int,`y.z``-`:string>"
    apply(feed(spark, (2, "c", 3, 20, "u", (6, "z")), schema=deeper), target)
    assert rows(target) == [(1, "b", 1 << 40, (5, None)), (2, "c", 3, (6, "z"))]
    with pytest.raises(Halt) as narrowed:
        apply(feed(spark, (3, "d", 1, 30, "u")), target)
    assert narrowed.value.code == "type-changed"
    with pytest.raises(Halt) as refused:
        apply(
            feed(spark, (3, "d", 1, 30, "u", 1), schema=f"{SCHEMA.replace('size int', 'size bigint')}, z int"),
            target,
            schema_evolution="fail",
        )
    assert refused.value.code == "schema-refused"


def test_days_and_times_long_ago_and_without_a_zone(spark: SparkSession, target: str) -> None:
    """Names may come as columns, as in Spark; a day of the year 1 is a key like any other."""
    first, later = datetime.date(1, 1, 1), datetime.date(2024, 2, 29)
    kept = {"apply_as_deletes": F.expr("op = 'd'"), "except_column_list": [F.col("seq"), F.col("op")]}

    def put(kind: str, *given: tuple[Any, ...]) -> None:
        source = feed(spark, *given, schema=f"id date, seq int, op string, size {kind}")
        tailrace.apply_changes(source, target, [F.col("id")], F.col("seq"), **kept)

    put("date", (first, 1, "u", first), (later, 1, "u", later))
    put("timestamp_ntz", (first, 2, "u", datetime.datetime(1, 1, 1, 5)), (later, 3, "d", None))
    put("timestamp_ntz", (later, 2, "u", None))
    assert rows(target) == [(first, datetime.datetime(1, 1, 1, 5))]
    source = feed(spark, (1, "a", 1, 10, "u")).withColumn("place", F.struct(F.lit(2).alias("id")))
    for key in (F.col("id") + 1, F.col("place.id"), F.col("size").alias("id")):
        with pytest.raises(Misconfigured, match="keys "):
            tailrace.apply_changes(source, target, [key], "seq")


def test_a_new_column_is_left_out_with_a_warning_if_so_asked(spark: SparkSession, target: str) -> None:
    apply(feed(spark, (1, "a", 1, 10, "u")), target)
    with pytest.warns(UserWarning, match='column "extra" int is new and left out'):
        apply(feed(spark, (1, "b", 1, 20, "u", 9), schema=f"{SCHEMA}, extra int"), target, schema_evolution="skip")
    assert rows(target) == [(1, "b", 1)]


def test_a_value_inside_a_struct_that_does_not_fit_is_rejected_and_not_lost(spark: SparkSession, target: str) -> None:
    schema = "id int, size struct<cm:{0},all:array<{0}>>, seq bigint, op string"
    apply(feed(spark, (1, (5, [1]), 10, "u"), schema=schema.format("int")), target)
    wide = feed(
        spark,
        (1, (1 << 40, [1]), 20, "u"),
        (2, (7, [1 << 40]), 20, "u"),
        (3, (8, [2]), 20, "u"),
        schema=schema.format("bigint"),
    )
    with pytest.warns(UserWarning, match="stays struct<cm:int"):
        done = apply(wide, target, schema_evolution="skip")
    assert (done.applied, done.rejected) == (1, 2)
    assert [row[0] for row in rows(target, "size.cm")] == [5, 8]


def test_names_that_differ_only_in_case_are_refused_with_both(spark: SparkSession, target: str) -> None:
    twins = spark.range(1).select(
        F.lit(1).alias("id"),
        F.lit("a").alias("name"),
        F.lit("b").alias("NAME"),
        F.lit(1).alias("seq"),
        F.lit("u").alias("op"),
    )
    with pytest.raises(Halt, match='"name" and "NAME"') as refused:
        apply(twins, target)
    assert refused.value.code == "case-collision"


def test_fields_that_have_one_name_are_refused(spark: SparkSession, target: str) -> None:
    twice = feed(spark, (1, "a", 5, 10, "u")).withColumn("place", F.array(F.struct("size", "name", "size")))
    with pytest.raises(Halt, match='"size" and "size" inside column "place"') as refused:
        apply(twice, target)
    assert refused.value.code == "case-collision"


@pytest.mark.parametrize("value", ["NULL", "array()", "named_struct('a', 1, 'b', map('c', NULL))"])
def test_a_column_that_has_no_type_is_refused_unless_it_is_left_out(
    spark: SparkSession, target: str, value: str
) -> None:
    source = feed(spark, (1, "a", 1, 10, "u")).withColumn("nothing", F.expr(value))
    with pytest.raises(Halt, match='"nothing" of the source') as refused:
        apply(source, target)
    assert refused.value.code == "unsupported-type"
    apply(source, target, except_column_list=["seq", "op", "nothing"])
    assert rows(target) == [(1, "a", 1)]


def test_a_column_without_a_type_is_null_in_the_column_that_the_table_has(spark: SparkSession, target: str) -> None:
    source = feed(spark, (1, "a", 1, 10, "u")).withColumn("tags", F.expr("array('x')"))
    apply(source, target)
    typeless = {"size": F.lit(None), "tags": F.array()}
    apply(feed(spark, (1, "b", 1, 20, "u"), (2, "c", 1, 20, "u")).withColumns(typeless), target)
    assert sorted(map(tuple, tailrace.read(target).collect())) == [(1, "b", None, []), (2, "c", None, [])]


@pytest.mark.parametrize(
    "options",
    [
        {"keys": []},
        {"keys": ["nothing"]},
        {"keys": "id"},
        {"keys": [5]},
        {"sequence_by": None},
        {"sequence_by": "seq +"},
        {"sequence_by": "nothing + 1"},
        {"sequence_by": "max(seq)"},
        {"sequence_by": "struct(seq, seq)", "stored_as_scd_type": 2},
        {"apply_as_deletes": "explode(array(true))"},
        {"apply_as_deletes": "seq"},
        {"apply_as_truncates": "op = = 't'"},
        {"except_column_list": ["id"]},
        {"column_list": ["id"], "except_column_list": ["op"]},
        {"stored_as_scd_type": 3},
        {"track_history_column_list": ["name"]},
        {"track_history_column_list": ["name"], "except_column_list": ["name"], "stored_as_scd_type": 2},
        {"soft_delete_column": "gone", "stored_as_scd_type": 2},
        {"soft_delete_column": "name"},
        {"soft_delete_column": 5},
        {"soft_delete_column": "old", "keys": ["id", "old"]},
        {"ignore_null_updates_column_list": ["id"]},
        {"on_invalid": "ignore"},
        {"schema_evolution": "guess"},
    ],
    ids=str,
)
def test_arguments_that_cannot_be_meant_are_refused(spark: SparkSession, target: str, options: dict[str, Any]) -> None:
    source = feed(spark, (1, "a", 1, 10, "u", False), schema=f"{SCHEMA}, old boolean")
    with pytest.raises(Misconfigured) as refused:
        tailrace.apply_changes(source, target, **{"keys": ["id"], "sequence_by": "seq"} | options)
    assert refused.value.code == "bad-argument"


@pytest.mark.parametrize("name", ["_cdc_x", "__spark_autocdc_metadata", "__Spark_AutoCDC_x"])
def test_a_reserved_name_is_refused_though_it_is_not_stored(spark: SparkSession, target: str, name: str) -> None:
    source = feed(spark, (1, "a", 1, 10, "u", 5), schema=f"{SCHEMA}, {name} int")
    with pytest.raises(Halt) as refused:
        apply(source, target, except_column_list=["seq", "op", name])
    assert refused.value.code == "reserved-column"


def test_fields_of_a_sequence_may_have_any_name(spark: SparkSession, target: str) -> None:
    source = feed(spark, (1, "a", 5, 10, "u"), (1, "b", 6, 10, "u")).withColumnRenamed("seq", "event.ts")
    ordered = {"sequence_by": "struct(`event.ts`, size)", "except_column_list": ["event.ts", "op", "size"]}
    apply(source, target, stored_as_scd_type=2, **ordered)
    assert rows(target, "name", "__START_AT") == [("a", (10, 5)), ("b", (10, 6))]


def test_two_fields_of_a_sequence_may_have_one_name(spark: SparkSession, target: str) -> None:
    named = feed(spark, (1, "b", 6, 10, "u"), (1, "a", 5, 10, "u")).withColumn("source", F.struct("size", "seq"))
    ordered = {"sequence_by": "struct(source.seq, source.size, seq)", "except_column_list": ["seq", "op", "source"]}
    apply(named, target, **ordered)
    assert apply(named.where("size = 5"), target, **ordered).superseded == 1
    assert rows(target, "name") == [("b",)]


def test_a_key_may_have_any_name_of_the_user_s(spark: SparkSession, target: str) -> None:
    schema = SCHEMA.replace("id int", "newest int")
    apply(feed(spark, (1, None, None, 20, "d"), schema=schema), target, keys=["newest"])
    assert apply(feed(spark, (1, "a", 1, 10, "u"), schema=schema), target, keys=["newest"]).superseded == 1


def test_a_first_batch_that_fails_leaves_an_empty_table(spark: SparkSession, target: str) -> None:
    with pytest.raises(Halt) as refused:
        apply(feed(spark, (1, "a", 1, 10, "u"), (None, "b", 1, 10, "u")), target, on_invalid="fail")
    assert (refused.value.code, rows(target)) == ("null-key", [])
    assert apply(feed(spark, (1, "a", 1, 10, "u")), target, on_invalid="fail").rows_inserted == 1


def test_what_is_no_source_and_no_target_is_refused(spark: SparkSession, target: str) -> None:
    stream: Any = spark.readStream.format("rate").load().selectExpr("value AS id", "value AS seq")
    nothing: Any = None
    for source, where in [(nothing, target), (stream, target), (feed(spark, (1, "a", 1, 10, "u")), nothing)]:
        with pytest.raises(Misconfigured) as refused:
            tailrace.apply_changes(source, where, keys=["id"], sequence_by="seq")
        assert refused.value.code in ("bad-argument", "unknown-target")


def test_a_source_that_fails_is_told_of_as_such(spark: SparkSession, target: str) -> None:
    with pytest.raises(Halt, match="CAST_INVALID_INPUT") as refused:
        apply(feed(spark, (1, "a", 1, 10, "u")), target, apply_as_deletes="cast(name AS int) = 1")
    assert refused.value.code == "source-failed"


def test_a_missing_sequence_is_told_of_before_a_missing_key(spark: SparkSession, target: str) -> None:
    bad = feed(spark, (None, "a", 1, 10, "u"), (1, "b", 1, None, "u"))
    with pytest.raises(Halt) as refused:
        apply(bad, target, on_invalid="fail")
    assert refused.value.code == "null-sequence"


def test_a_batch_computed_before_another_writer_s_commit_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    apply(feed(spark, (1, "a", 1, 10, "u")), f"delta:{tmp_path}/table")
    opened = open_table(str(tmp_path / "table"), "changes", spark, "scd1")
    table = Table("changes", ITEMS.columns, ITEMS.keys)
    late = rows_of(spark, table, [put(1, 1)])
    with pytest.raises(Retryable) as refused:
        opened.apply(Batch(table, late, Mark("apply_changes", 1), after=Mark("apply_changes", -1)))
    assert refused.value.code == "write-conflict"
    assert rows(f"delta:{tmp_path}/table") == [(1, "a", 1)]


@pytest.mark.parametrize("step", ["bury", "_commit"])
def test_of_two_calls_that_overlap_only_the_deletes_of_the_winner_count(
    spark: SparkSession, target: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The loser is held up before it writes its tombstones, or between them and its rows."""
    apply(feed(spark, (1, "a", 1, 1, "u"), (2, "b", 1, 1, "u"), (3, "c", 1, 1, "u"), (4, "d", 1, 9, "d")), target)
    owner: Any = Tombstones if step == "bury" else DeltaTable
    original = getattr(owner, step)

    def held_up(*args: Any) -> Any:
        monkeypatch.setattr(owner, step, original)
        won = apply(feed(spark, (2, "B", 1, 5, "u"), (3, None, None, 10, "d")), target)
        assert (won.rows_updated, won.rows_deleted) == (1, 1)
        return original(*args)

    loser = feed(spark, (1, None, None, 10, "d"), (2, None, None, 10, "d"))
    monkeypatch.setattr(owner, step, held_up)
    with pytest.raises(Retryable) as refused:
        apply(loser, target)
    assert refused.value.code == "write-conflict"
    assert rows(target, "id", "name") == [(1, "a"), (2, "B")]
    # Older than the deletes of both, newer than the rows: what the loser deleted is there, what the winner did is not.
    late = feed(spark, *((key, "late", 1, 7, "u") for key in (1, 2, 3, 4)))
    assert (apply(late, target).applied, rows(target, "id", "name")) == (2, [(1, "late"), (2, "late")])
    # The first delete buries anew, and by that clears away what the loser left.
    assert apply(feed(spark, (5, None, None, 7, "d")), target).superseded == 0
    assert apply(loser, target).rows_deleted == 2
    again = feed(spark, *((key, "again", 1, 8, "u") for key in (1, 2, 3, 4)))
    assert (apply(again, target).applied, rows(target)) == (0, [])


def test_an_event_older_than_a_forgotten_delete_comes_back(
    spark: SparkSession, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(feed(spark, (1, "a", 1, 10, "u"), (2, "b", 1, 10, "u")), target)
    apply(feed(spark, (1, None, None, 20, "d")), target)
    apply(feed(spark, (1, "late", 1, 15, "u")), target)
    assert rows(target, "id") == [(2,)]
    graves = f"delta.`{tmp_path}/_tailrace/table.tombstones`"
    spark.sql(f"UPDATE {graves} SET _cdc_day = _cdc_day - INTERVAL 8 DAYS")
    monkeypatch.setattr("tailrace.runtime.changes._COLLECT_EVERY", 1)
    apply(feed(spark, (2, "c", 1, 30, "u")), target)
    assert spark.sql(f"SELECT * FROM {graves}").count() == 0
    apply(feed(spark, (1, "late", 1, 15, "u")), target)
    assert rows(target, "id", "name") == [(1, "late"), (2, "c")]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bigint", [-(1 << 63), -5, -1, 0, 1, 9, 10, (1 << 63) - 1]),
        ("double", [float("-inf"), -2.5, -1e-300, 0.0, 1e-300, 2.5, 1e300, float("inf"), float("nan")]),
        ("decimal(10,3)", [Decimal("-99.5"), Decimal("-1.001"), Decimal(0), Decimal("0.001"), Decimal("10.5")]),
        ("decimal(38,0)", [Decimal(f"-{NINES}9"), Decimal(f"-{NINES}8"), Decimal(f"{NINES}8"), Decimal(f"{NINES}9")]),
        ("string", ["", "A", "Z", "a", "aa", "é", "😀"]),
        ("date", [datetime.date(1, 1, 1), datetime.date(1969, 12, 31), datetime.date(2026, 1, 1)]),
        (
            "timestamp_ntz",
            [datetime.datetime(1900, 1, 1), *(datetime.datetime(2026, 1, 1, 1, 2, 3, n) for n in (0, 4))],
        ),
        (
            "struct<a:string,b:int>",
            [None, (None, 5), ("", 1), ("a", None), ("a", -1), ("a", 2), *((f"a{c}", 0) for c in "\0\1\2\3 b")],
        ),
        (
            "struct<a:binary,b:struct<c:date>>",
            [(None, None), (b"", None), (b"", (None,)), (b"\0", None), (b"\1", None)],
        ),
        ("array<int>", [None, [], [None], [None, 1], [-1], [1], [1, None], [1, 1], [1, 2], [2], [10]]),
        (
            "struct<a:array<string>,b:int>",
            [
                (None, 9),
                ([], 1),
                ([None], 1),
                ([""], 1),
                (["", ""], 1),
                (["a"], 1),
                (["a"], 2),
                (["aa"], 0),
                (["b"], 0),
            ],
        ),
        (
            "array<struct<a:date,b:double>>",
            [[(None, 1.0)], [(datetime.date(1969, 1, 1), None)], [(datetime.date(1969, 1, 1), float("nan"))]],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_sequence_as_text_has_the_order_of_the_sequence(spark: SparkSession, kind: str, values: list[Any]) -> None:
    made = frame(spark, list(enumerate(values)), f"n int, s {kind}")
    text = made.select("n", sortable(F.col("s"), made.schema["s"].dataType).alias("text"))
    ordered = text.orderBy("text").collect()
    assert [row["n"] for row in ordered] == list(range(len(values)))
    assert not any("\0" in (row["text"] or "") for row in ordered), "PostgreSQL has no room for it"


@pytest.mark.parametrize("scd_type", [1, 2])
@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("double", 1e300, float("nan")),
        ("string", "10", "9"),
        ("date", datetime.date(1969, 12, 31), datetime.date(1970, 1, 2)),
        ("decimal(38,2)", Decimal("-1.50"), Decimal("-1.49")),
        ("array<int>", [1], [1, None]),
    ],
    ids=["NaN", "text", "date", "decimal", "array"],
)
def test_a_sequence_of_any_type_orders_what_comes_late(
    spark: SparkSession, target: str, scd_type: int, kind: str, low: Any, high: Any
) -> None:
    schema = SCHEMA.replace("seq bigint", f"seq {kind}")
    for name, sequence in (("new", high), ("old", low)):
        apply(feed(spark, (1, name, 1, sequence, "u"), schema=schema), target, stored_as_scd_type=scd_type)
    if scd_type == 1:
        assert rows(target, "name") == [("new",)]
    else:
        told = [("new", str(high), None), ("old", str(low), str(high))]
        found = [
            (name, str(start), end and str(end)) for name, start, end in rows(target, "name", "__START_AT", "__END_AT")
        ]
        assert found == told
