"""Change rows that leave columns out: what they keep, what they lean on, and what becomes of them in a tie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tailrace
from tests.spark.applied import PARTIAL, apply, feed, rows


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"delta:{tmp_path}/table"


@pytest.mark.parametrize("scd_type", [1, 2])
def test_a_partial_image_without_its_row_is_rejected_by_name(spark: SparkSession, target: str, scd_type: int) -> None:
    first = feed(spark, (1, "a", 1, 10, "u", []), (2, None, 5, 10, "u", ["name"]), schema=PARTIAL)
    done = apply(first, target, stored_as_scd_type=scd_type)
    assert (done.applied, done.rejected) == (1, 1)
    assert done.rejects is not None
    assert [row["_cdc_problem"] for row in done.rejects.collect()] == ["unchanged-without-row: no value for name"]
    more = feed(
        spark, (1, None, 2, 20, "u", ["name"]), (3, "c", 1, 1, "u", []), (3, None, 2, 2, "u", ["name"]), schema=PARTIAL
    )
    assert apply(more, target, stored_as_scd_type=scd_type).rejected == 0
    current = tailrace.read(target) if scd_type == 1 else tailrace.read(target).where("__END_AT IS NULL")
    assert sorted(tuple(row) for row in current.select("id", "name", "size").collect()) == [(1, "a", 2), (3, "c", 2)]


@pytest.mark.parametrize("scd_type", [1, 2])
@pytest.mark.parametrize("turn", [1, -1])
def test_a_whole_row_wins_a_tie_with_one_that_leaves_columns_out(
    spark: SparkSession, target: str, scd_type: int, turn: int
) -> None:
    """Of the first key NULL beats what is left out; of the second nothing stands that would complete the greater name."""
    apply(feed(spark, (1, "a", 0, 5, "u", []), schema=PARTIAL), target, stored_as_scd_type=scd_type)
    tied = [
        (1, None, 1, 10, "u", ["name"]),
        (1, None, 1, 10, "u", []),
        (2, "z", None, 10, "u", ["size"]),
        (2, "b", 5, 10, "u", []),
    ]
    done = apply(feed(spark, *tied[::turn], schema=PARTIAL), target, stored_as_scd_type=scd_type)
    assert done.read == done.applied + done.superseded + done.rejected
    assert done.rejected <= 1
    current = tailrace.read(target) if scd_type == 1 else tailrace.read(target).where("__END_AT IS NULL")
    assert sorted(tuple(row) for row in current.select("id", "name", "size").collect()) == [(1, None, 1), (2, "b", 5)]


def test_what_stands_in_a_column_that_is_left_out_does_not_decide_a_tie(spark: SparkSession, target: str) -> None:
    apply(feed(spark, (1, "a", 0, 5, "u", []), schema=PARTIAL), target)
    tied = [(1, "junk", 1, 10, "u", ["name"]), (1, "a", 2, 10, "u", ["name"])]
    apply(feed(spark, *tied, schema=PARTIAL), target)
    assert rows(target) == [(1, "a", 2)]


@pytest.mark.parametrize("scd_type", [1, 2])
def test_columns_that_are_left_out_are_found_in_any_case_and_unknown_ones_are_rejected(
    spark: SparkSession, target: str, scd_type: int
) -> None:
    options = {"stored_as_scd_type": scd_type, "track_history_column_list": ["name", "size"] if scd_type == 2 else None}
    apply(feed(spark, (1, "a", 0, 5, "u", []), (2, "b", 0, 5, "u", None), schema=PARTIAL), target, **options)
    odd = [
        (1, None, 1, 10, "u", ["NAME", None, "op"]),
        (2, None, 1, 10, "u", ["nam"]),
        (2, None, 1, 11, "d", ["nobody"]),
    ]
    done = apply(feed(spark, *odd, schema=PARTIAL), target, **options)
    assert (done.applied, done.rejected) == (2, 1)
    assert done.rejects is not None
    reasons = [row["_cdc_problem"] for row in done.rejects.collect()]
    assert reasons == ['unknown-column: _cdc_unchanged names "nam", which is not there']
    current = tailrace.read(target) if scd_type == 1 else tailrace.read(target).where("__END_AT IS NULL")
    assert [tuple(row) for row in current.select("id", "name", "size").collect()] == [(1, "a", 1)]


@pytest.mark.parametrize("scd_type", [1, 2])
def test_a_column_that_the_source_has_lost_may_be_left_out(spark: SparkSession, target: str, scd_type: int) -> None:
    options = {"stored_as_scd_type": scd_type, "track_history_column_list": ["name"] if scd_type == 2 else None}
    apply(feed(spark, (1, "a", 7, 10, "u", []), (2, "b", 8, 10, "u", []), schema=PARTIAL), target, **options)
    lost = PARTIAL.replace("size int, ", "")
    news = [(1, "c", 20, "u", ["SIZE"]), (3, "d", 20, "u", ["size"]), (4, "e", 20, "u", [])]
    done = apply(feed(spark, *news, schema=lost), target, **options)
    assert (done.applied, done.rejected) == (2, 1)
    assert done.rejects is not None
    assert [row["_cdc_problem"] for row in done.rejects.collect()] == ["unchanged-without-row: no value for size"]
    current = tailrace.read(target) if scd_type == 1 else tailrace.read(target).where("__END_AT IS NULL")
    found = sorted(tuple(row) for row in current.select("id", "name", "size").collect())
    assert found == [(1, "c", 7), (2, "b", 8), (4, "e", None)]


@pytest.mark.parametrize("scd_type", [1, 2])
def test_a_new_column_that_is_skipped_may_be_left_out_of_a_new_row(
    spark: SparkSession, target: str, scd_type: int
) -> None:
    options = {"stored_as_scd_type": scd_type, "track_history_column_list": ["name"] if scd_type == 2 else None}
    apply(feed(spark, (1, "a", 7, 10, "u", []), schema=PARTIAL), target, **options)
    wider = feed(spark, (2, "b", 8, 20, "u", ["extra"], None), schema=f"{PARTIAL}, extra string")
    with pytest.warns(UserWarning, match="extra"):
        done = apply(wider, target, schema_evolution="skip", **options)
    assert (done.applied, done.rejected) == (1, 0)
    assert rows(target, "id", "name", "size") == [(1, "a", 7), (2, "b", 8)]


def test_a_late_delete_takes_what_leaned_on_the_row_out_of_sight(spark: SparkSession, target: str) -> None:
    def put(*given: tuple[Any, ...]) -> tailrace.ApplyResult:
        return apply(feed(spark, *given, schema=PARTIAL), target, stored_as_scd_type=2)

    leaning = (1, None, 2, 30, "u", ["name"])
    put((1, "a", 1, 10, "u", []), leaning)
    put((1, None, None, 20, "d", []))
    told = ["name", "size", "__START_AT", "__END_AT"]
    assert rows(target, *told) == [("a", 1, 10, 20)]
    again = put(leaning)
    assert (again.superseded, rows(target, *told)) == (1, [("a", 1, 10, 20)])
    put((1, "b", 7, 25, "u", []))
    assert rows(target, *told) == [("a", 1, 10, 20), ("b", 2, 30, None), ("b", 7, 25, 30)]
