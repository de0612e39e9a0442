"""A table of events in PostgreSQL: every message of the log once, as JSON, whoever made the table."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from tailrace.core.change import Change, Op
from tailrace.core.errors import Halt
from tailrace.core.position import Phase, position
from tailrace.core.table import Evolution, fit
from tailrace.demo.postgres import EmbeddedPostgres
from tailrace.envelopes.maxwell import Maxwell
from tailrace.log._memory_cluster import MemoryCluster
from tailrace.spark.frame import frame
from tailrace.targets._sql.events import events
from tailrace.targets.postgres import Options, open_target
from tests.service.reading import Database
from tests.spark.drains import drained, logged
from tests.spark.histories import TABLE
from tests.topics_in_memory import Pipeline


def at(lsn: int) -> str:
    return position(1, Phase.CHANGE, lsn)


def row(op: Op, lsn: int, key: int, value: str, **more: Any) -> Change:
    return Change(TABLE.name, op, at(lsn), (1, key), {"value": value, "bio": "x"}, **more)


CHANGES = [
    row(Op.CREATE, 1, 1, "a"),
    row(Op.UPDATE, 2, 1, "b"),
    Change(TABLE.name, Op.DELETE, at(3), (1, 1)),
    row(Op.CREATE, 3, 2, "c", old_key=(1, 1)),
    Change(TABLE.name, Op.TRUNCATE, at(4)),
]
COLUMNS = "event_key jsonb, event_value text, source_topic text, source_partition int, source_offset bigint"


@pytest.mark.parametrize("upsert", [False, True])
def test_every_message_is_a_row_once(
    upsert: bool, spark: SparkSession, database: Database, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    login = {"host": "127.0.0.1", "port": postgres.port, "database": database.name}
    options = Options(
        **login, username=postgres.user, password=postgres.password, target_table="in.events", upsert=upsert
    )

    def opened() -> Any:
        return open_target(
            "t",
            options,
            spark=lambda: spark,
            pipeline_id="p",
            tables={TABLE.name: "packed", "other": "x"},
            mode="append",
        )

    def stored() -> list[tuple[Any, ...]]:
        with psycopg.connect(postgres.dsn(database.name), autocommit=True) as connection:
            return connection.execute(
                "SELECT event_key->>'key', v->>'op', v->'before'->>'value', v->'after'->>'value', source_topic, "
                "source_partition, source_offset, v->'source'->>'table' "
                'FROM (SELECT *, event_value::jsonb AS v FROM "in".events) e ORDER BY source_offset'
            ).fetchall()

    def sql(statement: str) -> None:
        with psycopg.connect(postgres.dsn(database.name), autocommit=True) as connection:
            connection.execute(statement.encode())

    if upsert:
        # As somebody makes it who follows the example, with more in it than we know of.
        unique = "UNIQUE (source_topic, source_partition, source_offset)"
        sql(f'CREATE SCHEMA "in"; CREATE TABLE "in".events (id bigserial, {COLUMNS}, {unique})')
    log = logged(CHANGES, 100)
    drained(spark, log, opened(), tmp_path, 100, mode="append")
    ops = [(found[0], *found[1:4]) for found in stored()]
    alone = [("1", "d", None, None), ("2", "c", None, "c")]
    assert ops == [("1", "c", None, "a"), ("1", "u", None, "b"), *alone, (None, "t", None, None)]
    assert {found[4:6] + found[7:] for found in stored()} == {(f"cdc.{TABLE.name}", 0, TABLE.name)}
    before = stored()
    # A process that lost its progress finds the mark; a replay of the log changes nothing.
    drained(spark, log, opened(), tmp_path / "anew", 100, mode="append")
    assert stored() == before
    sql('ALTER TABLE "in".events RENAME COLUMN event_value TO other')
    with pytest.raises(Halt) as refused:
        opened().evolve("other", fit(None, TABLE, Evolution.ALTER))
    assert refused.value.code == "foreign-table"


@pytest.fixture
def events_in(spark: SparkSession, database: Database, postgres: EmbeddedPostgres) -> Callable[..., Any]:
    """Return how a target that upserts is opened for the tables that are named."""
    login = {"host": "127.0.0.1", "port": postgres.port, "database": database.name}
    options = Options(
        **login, username=postgres.user, password=postgres.password, target_table="in.events", upsert=True
    )
    return lambda *tables: open_target(
        "t", options, spark=lambda: spark, pipeline_id="p", tables=dict.fromkeys(tables, "packed"), mode="append"
    )


@pytest.fixture
def opened(events_in: Callable[..., Any]) -> Callable[[], Any]:
    """Return how a target that upserts is opened."""
    return lambda: events_in(TABLE.name)


def test_events_of_another_life_of_the_log_replace_none(
    spark: SparkSession, database: Database, tmp_path: Path, opened: Callable[[], Any]
) -> None:
    drained(spark, logged(CHANGES, 100), opened(), tmp_path / "before", 100, mode="append")
    stored = 'SELECT event_value, source_offset FROM "in".events ORDER BY source_offset'
    before = database.sql.execute(stored).fetchall()
    anew = logged([row(Op.CREATE, 1, 7, "new")], 100, life=2)
    with pytest.raises(Halt) as halted:
        drained(spark, anew, opened(), tmp_path / "after", 100, mode="append")
    assert halted.value.code == "events-of-another-log"
    assert database.sql.execute(stored).fetchall() == before
    database.sql.execute('CREATE TABLE "in".old AS TABLE "in".events; DELETE FROM "in".events')
    drained(spark, anew, opened(), tmp_path / "after", 100, mode="append")
    ((value, offset),) = database.sql.execute(stored).fetchall()
    assert (value["after"]["value"], offset) == ("new", 0)


@dataclass
class Shared:
    """Two tables on one topic, into a table of events; every drain is a process without progress."""

    spark: SparkSession
    folder: Path
    target: Callable[[], Any]
    cluster: MemoryCluster

    def put(self, table: str, **data: Any) -> None:
        body = {"database": "shop", "table": table, "type": "insert", "ts": 1700000000, "data": data}
        self.cluster.put("maxwell", 0, json.dumps({"pk.id": data["id"]}).encode(), json.dumps(body).encode())

    def drain(self, life: int, max_rows: int) -> None:
        folder = self.folder / str(len(list(self.folder.iterdir())))
        pipeline = Pipeline(self.spark, folder, self.cluster, ["maxwell"], ["shop.items", "shop.orders"], Maxwell())
        pipeline.life, pipeline.mode, pipeline.elsewhere = (f"log{life}", life), "append", self.target()
        pipeline.drain(max_rows)


@pytest.fixture
def shared(spark: SparkSession, tmp_path: Path, events_in: Callable[..., Any]) -> Shared:
    cluster = MemoryCluster()
    cluster.create("maxwell", 1)
    return Shared(spark, tmp_path, lambda: events_in("shop.items", "shop.orders"), cluster)


EPOCHS = """SELECT source_offset, event_value::json->'source'->>'table', left(event_value::json->'source'->>'position', 4)
FROM "in".events ORDER BY source_offset"""


def test_tables_that_share_a_topic_halt_for_no_event_but_an_old_one(database: Database, shared: Shared) -> None:
    for number in range(4):
        shared.put(("items", "orders")[number % 2], id=number)
    shared.drain(1, 100)
    database.sql.execute('CREATE TABLE "in".old AS TABLE "in".events; DELETE FROM "in".events')
    shared.drain(2, 100)
    tables = ["shop.items", "shop.orders"] * 2
    assert database.sql.execute(EPOCHS).fetchall() == [(n, table, "0002") for n, table in enumerate(tables)]
    # One that was forgotten is met in a later batch than the first of its table.
    database.sql.execute('DELETE FROM "in".events WHERE source_offset <> 3')
    for _ in range(2):
        with pytest.raises(Halt) as halted:
            shared.drain(3, 1)
        assert (halted.value.code, "offset 3" in str(halted.value)) == ("events-of-another-log", True)
    assert [epoch for _, _, epoch in database.sql.execute(EPOCHS).fetchall()] == ["0003"] * 3 + ["0002"]
    database.sql.execute('DELETE FROM "in".events WHERE source_offset = 3')
    shared.drain(3, 1)
    assert [epoch for _, _, epoch in database.sql.execute(EPOCHS).fetchall()] == ["0003"] * 4


@pytest.mark.parametrize("kind", ["jsonb", "json", "text"])
def test_an_event_that_comes_again_replaces_itself_however_it_is_told(
    kind: str, database: Database, shared: Shared
) -> None:
    columns = COLUMNS.replace("event_value text", f"event_value {kind}")
    unique = "UNIQUE (source_topic, source_partition, source_offset)"
    database.sql.execute(f'CREATE SCHEMA "in"; CREATE TABLE "in".events ({columns}, {unique})')
    shared.put("items", id=1)
    shared.put("items", id=2, later="x")
    shared.drain(1, 1)
    afters = "SELECT (event_value::json->'after')::jsonb FROM \"in\".events ORDER BY source_offset"
    assert database.sql.execute(afters).fetchall() == [({"id": 1},), ({"id": 2, "later": "x"},)]
    database.sql.execute('DELETE FROM "in"._tailrace_tables')
    shared.drain(1, 100)
    assert database.sql.execute(afters).fetchall() == [({"id": 1, "later": None},), ({"id": 2, "later": "x"},)]


@pytest.mark.parametrize(
    "unique", ["", ", UNIQUE (source_topic, source_partition)", ", UNIQUE (source_topic, source_partition, id)"]
)
def test_a_table_that_cannot_be_upserted_into_is_told_before_anything_is_written(
    unique: str, database: Database, opened: Callable[[], Any]
) -> None:
    sql = database.sql.execute
    sql(f'CREATE SCHEMA "in"; CREATE TABLE "in".events (id bigserial, {COLUMNS}{unique})')
    for _ in range(2):
        with pytest.raises(Halt) as halted:
            opened().evolve(TABLE.name, fit(None, TABLE, Evolution.ALTER))
        assert halted.value.code == "constraint-missing"
    sql('CREATE UNIQUE INDEX ON "in".events (source_offset, source_topic, source_partition) INCLUDE (id)')
    target = opened()
    target.evolve(TABLE.name, fit(None, TABLE, Evolution.ALTER))
    sql('DROP TABLE "in".events; CREATE TABLE "in".events (' + COLUMNS + ")")
    target.evolve(TABLE.name, fit(None, TABLE, Evolution.ALTER))
    with pytest.raises(Halt):
        opened().evolve(TABLE.name, fit(None, TABLE, Evolution.ALTER))


def test_both_halves_of_a_changed_key_are_one_update(spark: SparkSession) -> None:
    columns = "_cdc_op string, _cdc_position string, _cdc_changed_at timestamp, _cdc_topic string, _cdc_partition int, "
    columns += "_cdc_offset bigint, _cdc_unchanged array<string>, history int, key int, value string, bio string"
    origin = (datetime.datetime(2024, 1, 1), "t", 0, 7, [], 1)
    halves = [("d", at(3), *origin, 1, "old", "x"), ("c", at(3), *origin, 2, "new", "x")]
    for order in (halves, halves[::-1]):
        (found,) = events(frame(spark, order, columns), TABLE).collect()
        value = json.loads(found["event_value"])
        assert (json.loads(found["event_key"]), found["source_offset"]) == ({"history": 1, "key": 2}, 7)
        assert (value["op"], value["before"]["value"], value["after"]["value"]) == ("u", "old", "new")
