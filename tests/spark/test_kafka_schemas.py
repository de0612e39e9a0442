"""What is learned of a table from its messages: from which of them, in which order, and what stays open."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.sql import SparkSession

from tailrace.core.errors import Halt
from tailrace.core.table import Evolution
from tailrace.log._memory_cluster import MemoryCluster
from tests.topics_in_memory import Pipeline, total

TOPIC, TABLE = "cdc.public.orders", "public.orders"


@pytest.fixture
def cluster() -> MemoryCluster:
    made = MemoryCluster()
    made.create(TOPIC, 2)
    return made


@pytest.fixture
def pipeline(cluster: MemoryCluster, spark: SparkSession, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, tmp_path, cluster, [TOPIC], [TABLE])


def put(
    cluster: MemoryCluster, partition: int, lsn: int, row: dict[str, Any], key: Any, *fields: Any, op: str = "c"
) -> None:
    """Send a create, or what else `op` says, with a schema block of `fields` if there are any."""
    source = {"connector": "postgresql", "schema": "public", "table": "orders", "lsn": lsn, "ts_ms": 1}
    body: dict[str, Any] = {"before": None, "after": row, "source": source, "op": op, "ts_ms": 1}
    if fields:
        image = {"type": "struct", "fields": list(fields), "optional": True}
        block = {"type": "struct", "fields": [{**image, "field": "before"}, {**image, "field": "after"}]}
        body = {"schema": block, "payload": body}
    text = json.dumps(body, separators=(",", ":")).encode()
    cluster.put(TOPIC, partition, None if key is None else json.dumps(key).encode(), text)


ID = {"field": "id", "type": "int64"}
SIZE = {"field": "size", "type": "int64", "optional": True, "default": 7}


def test_of_two_new_schemas_the_one_that_the_source_wrote_first_is_the_older(
    pipeline: Pipeline, cluster: MemoryCluster
) -> None:
    put(cluster, 0, 20, {"id": 2, "size": 1}, {"id": 2}, ID, SIZE)
    put(cluster, 1, 10, {"id": 1}, {"id": 1}, ID)
    pipeline.drain()
    assert pipeline.rows(TABLE) == [{"id": 1, "size": 7}, {"id": 2, "size": 1}]


@pytest.mark.parametrize(("fields", "key"), [((), None), ((ID,), None), ((), "no columns")])
def test_the_key_is_learned_from_a_message_that_has_one(
    fields: tuple[Any, ...], key: str | None, pipeline: Pipeline, cluster: MemoryCluster
) -> None:
    put(cluster, 0, 10, {"id": 1}, key, *fields)
    put(cluster, 1, 11, {"id": 2}, {"id": 2}, *fields)
    pipeline.drain()
    assert [row["id"] for row in pipeline.rows(TABLE)] == [1, 2]


@pytest.mark.parametrize("fields", [(), (ID,)])
def test_a_schema_that_was_learned_without_a_key_is_learned_again(
    fields: tuple[Any, ...], pipeline: Pipeline, cluster: MemoryCluster
) -> None:
    put(cluster, 0, 10, {"id": 1}, None, *fields)
    with pytest.raises(Halt) as found:
        pipeline.drain()
    assert found.value.code == "no-key"
    put(cluster, 1, 11, {"id": 2}, {"id": 2}, *fields)
    pipeline.drain()
    assert [row["id"] for row in pipeline.rows(TABLE)] == [1, 2]


def send(cluster: MemoryCluster, lsn: int, op: str, **row: Any) -> None:
    source = {"connector": "postgresql", "schema": "public", "table": "orders", "lsn": lsn, "ts_ms": 1}
    body = {"before": row if op == "d" else None, "after": None if op == "d" else row, "source": source, "op": op}
    cluster.put(TOPIC, 0, json.dumps({"id": row["id"]}).encode(), json.dumps(body).encode())


def test_of_a_deleted_row_only_the_key_must_be_of_its_type(pipeline: Pipeline, cluster: MemoryCluster) -> None:
    send(cluster, 10, "c", id=1, size=10, tags=[1])
    send(cluster, 11, "c", id=2, size=10, tags=[1])
    pipeline.drain()
    send(cluster, 12, "d", id=1, size="ten", tags=None)
    send(cluster, 13, "d", id="two", size=10, tags=None)
    send(cluster, 14, "u", id=2, size=11, tags=["one"])
    counts = pipeline.drain()
    assert pipeline.rows(TABLE) == [{"id": 2, "size": 10, "tags": [1]}]
    assert (total(counts, "applied"), total(counts, "rejected")) == (1, 2)
    assert [letter["dlq.error_message"] for letter in pipeline.rejects.letters("box")] == [
        'bad-value: column "id" is not a bigint',
        'bad-value: column "tags" is not a array<bigint>',
    ]


@pytest.mark.parametrize("row", ["5", '"text"', "{}", "[1]"])
def test_what_is_no_row_may_come_first(row: str, pipeline: Pipeline, cluster: MemoryCluster) -> None:
    place = '{"connector":"postgresql","schema":"public","table":"orders","lsn":9}'
    cluster.put(TOPIC, 0, b'{"id": 1}', f'{{"op":"c","after":{row},"source":{place}}}'.encode())
    assert total(pipeline.drain(), "rejected") == 1
    send(cluster, 10, "c", id=1, size=2)
    assert total(pipeline.drain(), "applied") == 1
    assert pipeline.rows(TABLE) == [{"id": 1, "size": 2}]


def test_what_is_nested_a_thousand_levels_deep_ends_nothing(pipeline: Pipeline, cluster: MemoryCluster) -> None:
    def nested(levels: int, opened: str, closed: str) -> bytes:
        place = f'{{"connector":"postgresql","schema":"public","table":"orders","lsn":{levels}}}'
        row = f'{{"id":{levels},"size":{opened * levels}1{closed * levels}}}'
        return f'{{"op":"c","after":{row},"source":{place}}}'.encode()

    for levels in (3, 900, 10_000):
        cluster.put(TOPIC, 0, b'{"id": 1}', nested(levels, '{"a":', "}"))
        cluster.put(TOPIC, 0, b'{"id": 1}', nested(levels + 1, "[", "]"))
    counts = pipeline.drain()
    assert (total(counts, "applied"), total(counts, "rejected")) == (4, 2)
    rows = {row["id"]: row["size"] for row in pipeline.rows(TABLE)}
    assert rows[900] == '{"a":' * 900 + "1" + "}" * 900
    assert rows[901] == "[" * 901 + "1" + "]" * 901


@pytest.mark.parametrize(
    ("mode", "columns"), [("scd1", ()), ("scd2", ()), ("append", ()), ("scd1", ("id", "note", "unseen"))]
)
def test_a_column_that_was_null_at_first_is_no_evolution(
    mode: Literal["scd1", "scd2", "append"],
    columns: tuple[str, ...],
    cluster: MemoryCluster,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    pipeline = Pipeline(
        spark, tmp_path, cluster, [TOPIC], [TABLE], columns=columns, evolution=Evolution.SKIP, mode=mode
    )
    send(cluster, 10, "c", id=1, note=None)
    pipeline.drain()
    send(cluster, 11, "c", id=2, note="now", unseen=7, new=True)
    pipeline.drain()
    target = pipeline.target
    have = target.have(TABLE)
    assert have is not None
    # What was neither there at first nor asked for is evolution, and left out.
    wanted = {"id": "bigint", "note": "string"} | ({"unseen": "bigint"} if columns else {})
    assert {column.name: column.type for column in have.columns} == wanted
    rows = target.rows(TABLE) if mode == "append" else [row.asDict() for row in target.current(TABLE).collect()]
    told = sorted((row["id"], row.get("note"), row.get("unseen")) for row in rows)
    assert told == [(1, None, None), (2, "now", 7 if columns else None)]


def test_deletes_that_came_first_tell_no_columns(cluster: MemoryCluster, spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline(spark, tmp_path, cluster, [TOPIC], [TABLE], evolution=Evolution.SKIP)
    cluster.put(TOPIC, 0, b'{"id":9}', b'{"op":"d","source":{"lsn":9,"schema":"public","table":"orders"}}')
    pipeline.drain()
    send(cluster, 8, "c", id=9, note="deleted since", size=None)
    send(cluster, 10, "c", id=1, note="first", size=None)
    pipeline.drain()
    assert pipeline.rows(TABLE) == [{"id": 1, "note": "first"}]
    send(cluster, 11, "c", id=2, note="second", size=7, new=True)
    pipeline.drain()
    first, second = {"id": 1, "note": "first", "size": None}, {"id": 2, "note": "second", "size": 7}
    assert pipeline.rows(TABLE) == [first, second]


UNSENT = "__debezium_unavailable_value"
UNSENT_UUID = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
"""What `UUID.nameUUIDFromBytes` of Java makes of it."""
LONG: tuple[tuple[dict[str, Any], Any], ...] = (
    ({"field": "uuids", "type": "array", "items": {"type": "string", "name": "io.debezium.data.Uuid"}}, [UNSENT_UUID]),
    ({"field": "texts", "type": "array", "items": {"type": "string"}}, [UNSENT]),
    ({"field": "blob", "type": "bytes"}, b64encode(UNSENT.encode()).decode()),
    ({"field": "blobs", "type": "array", "items": {"type": "bytes"}}, [b64encode(UNSENT.encode()).decode()]),
    ({"field": "pairs", "type": "string", "name": "io.debezium.data.Json"}, f'{{"{UNSENT}":"{UNSENT}"}}'),
    ({"field": "map", "type": "map", "keys": {"type": "string"}, "values": {"type": "string"}}, {UNSENT: UNSENT}),
)
SENT = {
    "uuids": ["u"],
    "texts": ["t", "u"],
    "blob": "AP8=",
    "blobs": ["AP8=", "AA=="],
    "pairs": '{"a":"1"}',
    "map": {"a": "1"},
}


@pytest.mark.parametrize("told", [True, False])
def test_a_long_value_that_was_not_sent_is_kept_whatever_its_type(
    *, told: bool, pipeline: Pipeline, cluster: MemoryCluster
) -> None:
    fields = (ID, *(field for field, _ in LONG)) if told else ()
    put(cluster, 0, 10, {"id": 1, **SENT}, {"id": 1}, *fields)
    pipeline.drain()
    before = pipeline.rows(TABLE)
    put(cluster, 0, 11, {"id": 1, **{field["field"]: value for field, value in LONG}}, {"id": 1}, *fields, op="u")
    assert total(pipeline.drain(), "applied") == 1
    assert pipeline.rows(TABLE) == before
