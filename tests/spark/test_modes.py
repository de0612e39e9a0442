"""A drain in mode scd2, and with soft deletes: the same histories, told as records and as marked rows."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb as duckdb_client
import pytest
from pyspark.sql import SparkSession

from tailrace.apply.target import Target
from tailrace.core import checkpoint
from tailrace.core.change import Change, Folded, Op, fold
from tailrace.core.errors import Halt
from tailrace.core.page import Page
from tailrace.core.position import Phase, position
from tailrace.log.memory import MemoryLog
from tailrace.sources.memory import MemorySource
from tailrace.targets import delta, duckdb, iceberg, sqlite
from tailrace.targets.memory import MemoryTarget
from tests.oracle import Event, Scd2
from tests.spark.drains import drained, lake, logged
from tests.spark.histories import TABLE, packed

HISTORIES, EVENTS, SLICES = 300, 10, 2
DATABASES: dict[str, Any] = {"sqlite": sqlite, "duckdb": duckdb}

Rows = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def opened(spark: SparkSession, tmp_path: Path) -> Callable[[str, delta.Mode], tuple[Target, Rows]]:
    """Return a function that opens the target, and one that reads what its readers see."""

    def open_it(kind: str, mode: delta.Mode) -> tuple[Target, Rows]:
        if kind == "delta":
            place = str(tmp_path / "lake" / "packed")
            return lake(spark, tmp_path, mode), lambda: [
                row.asDict() for row in spark.read.format("delta").load(place).toLocalIterator()
            ]
        if kind == "iceberg":
            options = iceberg.Options(catalog="hadoop", warehouse=str(tmp_path / "lake"))
            tables = {TABLE.name: "packed"}
            target = iceberg.open_target("t", options, spark=lambda: spark, pipeline_id="p", tables=tables, mode=mode)
            return target, lambda: [row.asDict() for row in target.current(TABLE.name).toLocalIterator()]
        if kind in DATABASES:
            file = tmp_path / "db"
            return _database(spark, file, kind, mode), lambda: _read(file, kind)
        memory = MemoryTarget("t", spark_session=spark, pipeline_id="p", tables={TABLE.name: "packed"}, mode=mode)
        return memory, lambda: memory.rows(TABLE.name)

    return open_it


def _database(spark: SparkSession, file: Path, kind: str, mode: delta.Mode) -> Target:
    module, tables = DATABASES[kind], {TABLE.name: "packed"}
    options = module.Options(path=str(file))
    opened: Target = module.open_target("t", options, spark=lambda: spark, pipeline_id="p", tables=tables, mode=mode)
    return opened


def _read(file: Path, kind: str) -> list[dict[str, Any]]:
    """Return the rows as the database's own client has them."""
    query = "SELECT * FROM packed"
    if kind == "duckdb":
        with closing(duckdb_client.connect(str(file))) as client:
            rows: list[dict[str, Any]] = client.sql(query).to_arrow_table().to_pylist()
            return rows
    with closing(sqlite3.connect(file)) as client:
        client.row_factory = sqlite3.Row
        return [dict(row) for row in client.execute(query)]


def told(changes: Iterable[Change]) -> Iterator[Event]:
    """Say what each change did, with whole rows; a truncate is a delete of every row that was there."""
    state = Folded()
    for change in changes:
        before = dict(state.rows)
        fold([change], state)
        if change.op is Op.TRUNCATE:
            yield from (Event(key, change.position, {}, delete=True) for key in before)
        elif change.op is Op.DELETE:
            yield Event(change.key, change.position, {}, delete=True)
        else:
            row = state.rows[change.key][1]
            yield Event(change.key, change.position, {"value": row["value"], "bio": row["bio"]})


def shown(records: Iterable[dict[str, Any]]) -> list[tuple[object, ...]]:
    names = ("history", "key", "value", "bio", "__START_AT", "__END_AT")
    return sorted((tuple(record[name] for name in names) for record in records), key=repr)


@pytest.mark.parametrize(
    ("kind", "tracked"),
    [("memory", ()), ("delta", ("value",)), ("iceberg", ("value",)), ("sqlite", ("value",)), ("duckdb", ())],
)
def test_a_drain_in_scd2_tells_the_history_of_every_key(
    spark: SparkSession, tmp_path: Path, opened: Any, kind: str, tracked: tuple[str, ...]
) -> None:
    seed = random.randrange(1 << 32)
    changes = packed(seed, HISTORIES, EVENTS)
    log = logged(changes, page_rows=len(changes) // (SLICES * 2) + 1)
    target, rows = opened(kind, "scd2")
    counts = drained(spark, log, target, tmp_path, len(changes) // SLICES + 1, mode="scd2", tracked=tracked)
    assert sum(c.read for c in counts) == sum(c.applied for c in counts) == len(changes), f"seed {seed}"
    model = Scd2(list(tracked) or None)
    model.apply(list(told(changes)))
    expected = [(*key, row["value"], row["bio"], start, end) for key, row, start, end in model.rows()]
    assert shown(rows()) == sorted(expected, key=repr), f"seed {seed}"


@pytest.mark.parametrize("kind", ["memory", "delta", "iceberg", "sqlite", "duckdb"])
def test_a_soft_delete_keeps_the_row_and_says_when(spark: SparkSession, tmp_path: Path, opened: Any, kind: str) -> None:
    seed = random.randrange(1 << 32)
    changes = packed(seed, HISTORIES, EVENTS)
    log = logged(changes, page_rows=len(changes) // (SLICES * 2) + 1)
    target, rows = opened(kind, "scd1")
    counts = drained(spark, log, target, tmp_path, len(changes) // SLICES + 1, soft="deleted_at")
    assert sum(c.read for c in counts) == sum(c.applied for c in counts) == len(changes), f"seed {seed}"
    expected: dict[tuple[Any, ...], tuple[object, ...]] = {}
    for event in told(changes):
        value = expected[event.key][:2] if event.delete else (event.values["value"], event.values["bio"])
        expected[event.key] = (*value, event.delete)
    found = {(row["history"], row["key"]): (row["value"], row["bio"], row["deleted_at"] is not None) for row in rows()}
    assert found == expected, f"seed {seed}"


def test_a_truncate_alone_marks_every_row(spark: SparkSession, tmp_path: Path, opened: Any) -> None:
    whole = {"value": "a", "bio": "x"}
    created = [Change(TABLE.name, Op.CREATE, position(1, Phase.CHANGE, n), (0, n), whole) for n in (10, 20)]
    log = logged([*created, Change(TABLE.name, Op.TRUNCATE, position(1, Phase.CHANGE, 30))], page_rows=2)
    target, rows = opened("memory", "scd1")
    counts = drained(spark, log, target, tmp_path, 2, soft="deleted_at")
    assert [c.applied for c in counts] == [2, 1]
    assert [row["deleted_at"] is not None for row in rows()] == [True, True]


def test_a_truncate_and_a_row_that_leaves_a_column_out_share_a_slice(
    spark: SparkSession, tmp_path: Path, opened: Any
) -> None:
    whole = {"value": "a", "bio": "x"}
    changes = [
        Change(TABLE.name, Op.CREATE, position(1, Phase.CHANGE, 10), (0, 1), whole),
        Change(TABLE.name, Op.UPDATE, position(1, Phase.CHANGE, 20), (0, 1), {"value": "b"}, frozenset({"bio"})),
        Change(TABLE.name, Op.TRUNCATE, position(1, Phase.CHANGE, 30)),
        Change(TABLE.name, Op.CREATE, position(1, Phase.CHANGE, 40), (0, 2), whole),
    ]
    target, rows = opened("memory", "scd1")
    drained(spark, logged(changes, page_rows=1), target, tmp_path, 1)
    again, marked = opened("memory", "scd1")
    drained(spark, logged(changes[:1], page_rows=1), again, tmp_path / "soft", 1, soft="deleted_at")
    drained(spark, logged(changes, page_rows=1), again, tmp_path / "soft", 3, soft="deleted_at")
    assert [row["key"] for row in rows()] == [2]
    found = {row["key"]: (row["value"], row["bio"], row["deleted_at"] is not None) for row in marked()}
    assert found == {1: ("b", "x", True), 2: ("a", "x", False)}


def test_a_table_that_was_restored_is_filled_again(spark: SparkSession, tmp_path: Path) -> None:
    whole = {"value": "a", "bio": "x"}
    changes = [Change(TABLE.name, Op.CREATE, position(1, Phase.CHANGE, n), (0, n), whole) for n in range(10, 16)]
    log = logged(changes, page_rows=2)
    one = MemoryTarget("t", spark_session=spark, pipeline_id="p", tables={TABLE.name: "packed"})
    drained(spark, log, one, tmp_path, 2)
    assert len(one.rows(TABLE.name)) == 6
    restored = MemoryTarget("t", spark_session=spark, pipeline_id="p", tables={TABLE.name: "packed"})
    drained(spark, log, restored, tmp_path, 4)
    assert sorted(map(repr, restored.rows(TABLE.name))) == sorted(map(repr, one.rows(TABLE.name)))


@pytest.mark.parametrize("kind", ["memory", "delta"])
def test_a_table_keeps_the_mode_it_was_made_with(spark: SparkSession, tmp_path: Path, opened: Any, kind: str) -> None:
    whole = {"value": "a", "bio": "x"}
    changes = [Change(TABLE.name, Op.CREATE, position(1, Phase.CHANGE, n), (0, n), whole) for n in (10, 20)]
    log = logged(changes, page_rows=1)
    target, rows = opened(kind, "scd1")
    drained(spark, log, target, tmp_path / "one", 1)
    before = rows()
    for wanted in ({"mode": "scd2"}, {"soft": "deleted_at"}):
        with pytest.raises(Halt) as refused:
            drained(spark, logged([*changes, *changes], page_rows=9), target, tmp_path / "two", 9, **wanted)
        assert refused.value.code in ("scd-type-changed", "soft-delete-changed")
        assert rows() == before


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("delta", "scd1"),
        ("delta", "scd2"),
        ("delta", "append"),
        ("sqlite", "scd2"),
        ("duckdb", "scd1"),
        ("memory", "scd1"),
    ],
)
def test_a_table_without_rows_is_made_all_the_same_and_filled_later(
    spark: SparkSession, tmp_path: Path, kind: str, mode: delta.Mode
) -> None:
    state = MemoryTarget("t", spark_session=spark, pipeline_id="p").state

    def target() -> Target:
        to: dict[str, Any] = {"pipeline_id": "p", "tables": {TABLE.name: "packed"}, "mode": mode}
        if kind == "delta":
            return delta.open_target("t", delta.Options(path=str(tmp_path / "lake")), spark=lambda: spark, **to)
        if kind == "memory":
            return MemoryTarget("t", spark_session=spark, state=state, **to)
        return _database(spark, tmp_path / "db", kind, mode)

    changes: list[Change] = []
    source, log = MemorySource([TABLE], changes), MemoryLog()
    begun = checkpoint.Tailing("memory", "0")
    log.recover(None)
    log.append(Page(source._rows([]), None, begun, empty={f"cdc.{TABLE.name}": TABLE}))
    for _ in range(2):
        assert drained(spark, log, target(), tmp_path, 9, mode=mode) == []
    have = target().have(TABLE.name)
    assert have is not None
    assert have.names() == TABLE.names()
    assert target().current(TABLE.name).count() == 0
    changes.append(Change(TABLE.name, Op.CREATE, position(1, Phase.CHANGE, 10), (0, 1), {"value": "a", "bio": "x"}))
    for page in source.pages(begun):
        log.append(page)
    assert [c.applied for c in drained(spark, log, target(), tmp_path, 9, mode=mode)] == [1]
    assert target().current(TABLE.name).count() == 1
