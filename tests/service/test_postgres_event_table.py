"""A table of events in PostgreSQL: every message of the log once, as JSON, whoever made the table."""

from __future__ import annotations

import datetime
import json
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
from tailrace.spark.frame import frame
from tailrace.targets._sql.events import events
from tailrace.targets.postgres import Options, open_target
from tests.service.reading import Database
from tests.spark.drains import drained, logged
from tests.spark.histories import TABLE


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
