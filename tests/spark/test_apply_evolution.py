"""The columns of the source change within a run: what each policy does about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tailrace
from tailrace.core.errors import Halt
from tests.spark.applied import SCHEMA, apply, feed, rows

POLICIES = ["alter", "skip", "fail"]
NESTED = "id int, parts {}, seq bigint, op string"
ITEMS = "array<struct<a:int,b:int>>"


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"delta:{tmp_path}/table"


def nested(spark: SparkSession, target: str, kind: str, row: tuple[Any, ...], **options: Any) -> tailrace.ApplyResult:
    return apply(feed(spark, row, schema=NESTED.format(kind)), target, **options)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_column_that_is_gone_keeps_its_values_under_every_policy(
    spark: SparkSession, target: str, policy: str
) -> None:
    apply(feed(spark, (1, "a", 1, 10, "u")), target)
    less = SCHEMA.replace(" size int,", "")
    source = feed(spark, (1, "b", 20, "u"), (2, "c", 20, "u"), schema=less)
    apply(source, target, schema_evolution=policy)
    assert rows(target) == [(1, "b", 1), (2, "c", None)]


def test_a_new_column_that_is_skipped_is_not_tracked_unless_it_is_listed(spark: SparkSession, target: str) -> None:
    history = {"stored_as_scd_type": 2, "schema_evolution": "skip"}
    apply(feed(spark, (1, "a", 1, 10, "u")), target, **history)
    new = feed(spark, (1, "a", 1, 20, "u", "x"), (1, "b", 1, 30, "u", "x"), schema=f"{SCHEMA}, more string")
    with pytest.warns(UserWarning, match='column "more" string is new and left out'):
        apply(new, target, **history)
    assert rows(target) == [(1, "a", 1, 10, 30), (1, "b", 1, 30, None)]
    with pytest.raises(Halt) as refused:
        apply(new, target, track_history_column_list=["name", "size", "more"], **history)
    assert refused.value.code == "tracking-changed"


@pytest.mark.parametrize("scd_type", [1, 2])
def test_a_field_is_added_within_an_array(spark: SparkSession, target: str, scd_type: int) -> None:
    tracked = {"track_history_column_list": ["parts"]} if scd_type == 2 else {}
    nested(spark, target, ITEMS, (1, [(1, 2)], 10, "u"), stored_as_scd_type=scd_type, **tracked)
    more = ITEMS.replace("b:int", "b:int,c:string")
    nested(spark, target, more, (2, [(3, 4, "x"), None], 20, "u"), stored_as_scd_type=scd_type, **tracked)
    assert rows(target, "id", "parts") == [(1, [(1, 2, None)]), (2, [(3, 4, "x"), None])]


def test_a_new_field_is_left_out_with_a_warning_or_refused(spark: SparkSession, target: str) -> None:
    nested(spark, target, ITEMS, (1, [(1, 2)], 10, "u"))
    more = ITEMS.replace("b:int", "b:int,c:string")
    with pytest.warns(UserWarning, match='column "parts" became'):
        nested(spark, target, more, (2, [(3, 4, "x")], 20, "u"), schema_evolution="skip")
    assert rows(target, "parts") == [([(1, 2)],), ([(3, 4)],)]
    with pytest.raises(Halt) as refused:
        nested(spark, target, more, (3, [(5, 6, "x")], 30, "u"), schema_evolution="fail")
    assert refused.value.code == "schema-refused"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_field_that_is_gone_is_refused_or_null_from_then_on(spark: SparkSession, tmp_path: Path, policy: str) -> None:
    current, past = f"delta:{tmp_path}/current", f"delta:{tmp_path}/past"
    nested(spark, current, ITEMS, (1, [(1, 2)], 10, "u"))
    nested(spark, past, ITEMS, (1, [(1, 2)], 10, "u"), stored_as_scd_type=2)
    less = ITEMS.replace(",b:int", "")
    with pytest.raises(Halt) as refused:
        nested(spark, current, less, (1, [(3,)], 20, "u"), schema_evolution=policy)
    assert refused.value.code == "type-changed"
    nested(spark, past, less, (1, [(3,)], 20, "u"), schema_evolution=policy, stored_as_scd_type=2)
    assert rows(past, "parts", "__START_AT") == [([(1, 2)], 10), ([(3, None)], 20)]


@pytest.mark.parametrize("policy", POLICIES)
def test_fields_in_another_order_are_the_same_fields(spark: SparkSession, target: str, policy: str) -> None:
    nested(spark, target, ITEMS, (1, [(1, 2)], 10, "u"))
    nested(spark, target, "array<struct<b:int,a:int>>", (1, [(20, 10)], 20, "u"), schema_evolution=policy)
    assert rows(target, "parts") == [([(10, 20)],)]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_narrower_field_is_refused_also_beside_a_new_one(spark: SparkSession, target: str, policy: str) -> None:
    nested(spark, target, "struct<a:bigint>", (1, (1,), 10, "u"))
    with pytest.raises(Halt) as refused:
        nested(spark, target, "struct<a:int,b:int>", (1, (1, 2), 20, "u"), schema_evolution=policy)
    assert refused.value.code == "type-changed"


def test_a_history_widens(spark: SparkSession, target: str) -> None:
    options = {"stored_as_scd_type": 2, "track_history_column_list": ["size"]}
    apply(feed(spark, (1, "a", 1, 10, "u"), (1, "b", 1, 20, "u")), target, **options)
    wide = SCHEMA.replace("size int", "size bigint")
    apply(feed(spark, (1, "c", 1 << 40, 30, "u"), (1, "late", 1, 15, "u"), schema=wide), target, **options)
    assert rows(target) == [(1, "b", 1, 10, 30), (1, "c", 1 << 40, 30, None)]


def test_a_widening_that_delta_has_no_rule_for_leaves_no_new_column(spark: SparkSession, target: str) -> None:
    apply(feed(spark, (1, "a", 1, 10, "u"), schema=SCHEMA.replace("size int", "size smallint")), target)
    wide = SCHEMA.replace("size int", "size float, more int")
    with pytest.raises(Halt, match="Delta cannot widen"):
        apply(feed(spark, (1, "b", 0.5, 5, 20, "u"), schema=wide), target)
    assert tailrace.read(target).columns == ["id", "name", "size"]
