"""Which row a message is about, where the message itself does not say it plainly: keys that change, keys beside the row."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tailrace.envelopes import message
from tailrace.envelopes.custom import Custom
from tailrace.envelopes.debezium_avro import DebeziumAvro
from tailrace.envelopes.debezium_json import OLD_KEY
from tailrace.envelopes.maxwell import Maxwell
from tailrace.envelopes.message import Format
from tailrace.log._memory_cluster import MemoryCluster
from tailrace.spark.frame import frame
from tests.topics_in_memory import Pipeline, total

TOPIC, TABLE = "cdc.public.orders", "public.orders"
UNSENT = "__debezium_unavailable_value"


@pytest.fixture
def cluster() -> MemoryCluster:
    made = MemoryCluster()
    made.create(TOPIC, 1)
    return made


def put(cluster: MemoryCluster, key: Any, op: str, lsn: int, before: Any, after: Any) -> None:
    source = {"connector": "postgresql", "schema": "public", "table": "orders", "lsn": lsn, "ts_ms": 1}
    body = {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1}
    cluster.put(TOPIC, 0, None if key is None else json.dumps(key).encode(), json.dumps(body).encode())


@pytest.mark.parametrize(("keyed", "max_rows"), [(True, 2), (False, 1000)])
def test_an_update_that_changes_the_key_leaves_no_row_behind(
    *, keyed: bool, max_rows: int, cluster: MemoryCluster, spark: SparkSession, tmp_path: Path
) -> None:
    def key(number: int) -> dict[str, int] | None:
        return {"id": number} if keyed else None

    put(cluster, key(1), "c", 10, None, {"id": 1, "name": "a", "long": "x"})
    put(cluster, key(2), "c", 11, None, {"id": 2, "name": "b", "long": "y"})
    put(cluster, key(9), "u", 12, {"id": 1, "name": "a"}, {"id": 9, "name": "moved", "long": UNSENT})
    put(cluster, key(2), "u", 13, {"id": 2, "name": "b", "long": "y"}, {"id": 2, "name": "stayed", "long": "y"})
    put(cluster, key(3), "u", 14, {"id": None, "name": "c"}, {"id": 3, "name": "nothing known of before", "long": "z"})
    pipeline = Pipeline(spark, tmp_path, cluster, [TOPIC], [TABLE], keys={TABLE: ("id",)})
    counts = pipeline.drain(max_rows)
    assert pipeline.rows(TABLE) == [
        {"id": 2, "long": "y", "name": "stayed"},
        {"id": 3, "long": "z", "name": "nothing known of before"},
        {"id": 9, "long": "x", "name": "moved"},
    ]
    # The one that moved is two changes: a delete and a create.
    assert (total(counts, "read"), total(counts, "applied")) == (6, 6)
    put(cluster, key(9), "u", 12, {"id": 1, "name": "a"}, {"id": 9, "name": "moved", "long": "x"})
    again = pipeline.drain(max_rows)
    assert (total(again, "read"), total(again, "superseded")) == (2, 2)


def test_a_late_change_of_key_takes_no_row_that_came_after_it(
    cluster: MemoryCluster, spark: SparkSession, tmp_path: Path
) -> None:
    put(cluster, {"id": 1}, "c", 10, None, {"id": 1, "name": "a"})
    put(cluster, {"id": 1}, "c", 20, None, {"id": 1, "name": "anew"})
    pipeline = Pipeline(spark, tmp_path, cluster, [TOPIC], [TABLE], keys={TABLE: ("id",)})
    pipeline.drain()
    put(cluster, {"id": 9}, "u", 15, {"id": 1, "name": "a"}, {"id": 9, "name": "moved"})
    put(cluster, {"id": 7}, "c", 30, None, {"id": 7, "name": "news"})
    counts = pipeline.drain()
    assert [(row["id"], row["name"]) for row in pipeline.rows(TABLE)] == [(1, "anew"), (7, "news"), (9, "moved")]
    assert (total(counts, "read"), total(counts, "applied"), total(counts, "superseded")) == (3, 2, 1)


def test_the_key_that_the_sink_names_may_change_as_well(
    cluster: MemoryCluster, spark: SparkSession, tmp_path: Path
) -> None:
    put(cluster, {"id": 1}, "c", 10, None, {"id": 1, "mail": "a"})
    put(cluster, {"id": 1}, "u", 11, {"id": 1, "mail": "a"}, {"id": 1, "mail": "b"})
    pipeline = Pipeline(spark, tmp_path, cluster, [TOPIC], [TABLE], keys={TABLE: ("mail",)})
    pipeline.drain()
    assert pipeline.rows(TABLE) == [{"id": 1, "mail": "b"}]


ROW: dict[str, Any] = {
    "type": "record",
    "name": "Value",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
}
SOURCE = [{"name": name, "type": "string"} for name in ("connector", "schema", "table")] + [
    {"name": "lsn", "type": "long"}
]
ENVELOPE: dict[str, Any] = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": {"type": "record", "name": "Source", "fields": SOURCE}},
        {"name": "op", "type": "string"},
    ],
}


def test_a_changed_key_is_seen_in_avro(cluster: MemoryCluster, spark: SparkSession, tmp_path: Path) -> None:
    def text(value: str) -> bytes:
        return bytes([2 * len(value)]) + value.encode()

    def image(row: tuple[int, str] | None) -> bytes:
        return b"\0" if row is None else b"\2" + bytes([2 * row[0]]) + text(row[1])

    def send(lsn: int, op: str, before: tuple[int, str] | None, after: tuple[int, str] | None) -> None:
        source = text("postgresql") + text("public") + text("orders") + bytes([2 * lsn])
        body = image(before) + image(after) + source + text(op)
        cluster.put(TOPIC, 0, b'{"id": 0}', b"\0\0\0\0\7" + body)

    send(1, "c", None, (1, "a"))
    send(2, "c", None, (2, "b"))
    send(3, "u", None, (2, "stayed"))
    send(4, "u", (1, "a"), (9, "moved"))
    pipeline = Pipeline(spark, tmp_path, cluster, [TOPIC], [TABLE], DebeziumAvro(lambda _: ENVELOPE))
    assert total(pipeline.drain(), "applied") == 5
    assert pipeline.rows(TABLE) == [{"id": 2, "name": "stayed"}, {"id": 9, "name": "moved"}]


def test_a_long_value_that_was_not_sent_is_kept_in_avro_whatever_its_type(
    cluster: MemoryCluster, spark: SparkSession, tmp_path: Path
) -> None:
    """An array is a count of elements, the elements, and a zero; a text or a count is its length, twice."""

    def text(value: bytes) -> bytes:
        return bytes([2 * len(value)]) + value

    def array(*elements: bytes) -> bytes:
        return bytes([2 * len(elements)]) + b"".join(elements) + b"\0" if elements else b"\0"

    def send(lsn: int, op: str, *values: bytes) -> None:
        source = text(b"postgresql") + text(b"public") + text(b"orders") + bytes([2 * lsn])
        body = b"\0\2\2" + b"".join(values) + source + text(op.encode())
        cluster.put(TOPIC, 0, b'{"id": 0}', b"\0\0\0\0\7" + body)

    day = {"type": "int", "connect.name": "io.debezium.time.Date"}
    kinds: dict[str, Any] = {
        "uuids": {"type": "array", "items": "string"},
        "days": {"type": "array", "items": day},
        "blobs": {"type": "array", "items": "bytes"},
        "pairs": "string",
        "map": {"type": "map", "values": "string"},
    }
    row = {**ROW, "fields": [ROW["fields"][0], *({"name": name, "type": kind} for name, kind in kinds.items())]}
    fields = ENVELOPE["fields"]
    envelope = {**ENVELOPE, "fields": [{**fields[0], "type": ["null", row]}, *fields[1:]]}
    word = UNSENT.encode()
    # A number of seven bits or more takes two bytes.
    numbers = b"".join(bytes([2 * n]) if n < 64 else bytes([2 * n & 0x7F | 0x80, n >> 6]) for n in word)
    send(1, "c", array(text(b"u")), array(b"\4"), array(text(b"b")), text(b'{"a":"1"}'), array(text(b"a") + text(b"1")))
    send(
        2,
        "u",
        array(text(b"b68a35a7-17ad-35b3-af2a-ae46edb4545a")),
        bytes([2 * len(word)]) + numbers + b"\0",
        array(text(word)),
        text(b'{"%s":"%s"}' % (word, word)),
        array(text(word) + text(word)),
    )
    pipeline = Pipeline(spark, tmp_path, cluster, [TOPIC], [TABLE], DebeziumAvro(lambda _: envelope))
    assert total(pipeline.drain(1), "applied") == 2
    (found,) = pipeline.rows(TABLE)
    assert found == {
        "id": 1,
        "uuids": ["u"],
        "days": [date(1970, 1, 3)],
        "blobs": [b"b"],
        "pairs": '{"a":"1"}',
        "map": {"a": "1"},
    }


def test_a_table_of_events_has_one_row_for_each(cluster: MemoryCluster, spark: SparkSession, tmp_path: Path) -> None:
    put(cluster, {"id": 1}, "c", 10, None, {"id": 1, "name": "a"})
    put(cluster, {"id": 2}, "u", 11, {"id": 1, "name": "a"}, {"id": 2, "name": "b"})
    pipeline = Pipeline(spark, tmp_path, cluster, [TOPIC], [TABLE], mode="append")
    assert total(pipeline.drain(), "applied") == 2
    assert [row["id"] for row in pipeline.rows(TABLE)] == [1, 2]


def test_the_key_of_a_custom_message_may_stand_beside_its_row(
    cluster: MemoryCluster, spark: SparkSession, tmp_path: Path
) -> None:
    def send(pk: str, op: str, row: Any) -> None:
        cluster.put(TOPIC, 0, None, json.dumps({"meta": {"pk": pk}, "op": op, "row": row}).encode())

    send("007", "c", {"name": "a"})
    send('b"c', "c", {"name": "b"})
    send("d", "c", {})
    send("e", "c", {"pk": "its own", "name": "e"})
    send("f", "c", {"name": "f"})
    send("f", "d", None)
    send("007", "u", {"name": "a2"})
    pipeline = Pipeline(spark, tmp_path, cluster, [TOPIC], [TOPIC], Custom("op", "row", "meta.pk"))
    counts = pipeline.drain()
    assert pipeline.rows(TOPIC) == [
        {"name": "a2", "pk": "007"},
        {"name": "b", "pk": 'b"c'},
        {"name": None, "pk": "d"},
        {"name": "e", "pk": "its own"},
    ]
    assert total(counts, "rejected") == 0


@pytest.mark.parametrize("envelope", [Maxwell(), Custom("type", "data", "a", "before", "xid", {"update": "u"})])
def test_a_key_of_several_columns_that_only_the_sink_names_may_change(
    envelope: Format, cluster: MemoryCluster, spark: SparkSession, tmp_path: Path
) -> None:
    def send(xid: int, kind: str, data: dict[str, Any], old: dict[str, Any]) -> None:
        told = {"database": "public", "table": "orders", "type": kind, "ts": 1, "xid": xid, "commit": True}
        images = {"data": data, "old": old, "before": {**data, **old}}
        cluster.put(TOPIC, 0, None, json.dumps({**told, **images}).encode())

    send(1, "update", {"a": 1, "b": 1, "name": "moves"}, {})
    send(2, "update", {"a": 2, "b": 1, "name": "stays"}, {})
    send(3, "update", {"a": 1, "b": 2, "name": "moved"}, {"b": 1})
    send(4, "update", {"a": 2, "b": 1, "name": "stayed"}, {"name": "stays"})
    name = TABLE if isinstance(envelope, Maxwell) else TOPIC
    pipeline = Pipeline(spark, tmp_path, cluster, [TOPIC], [name], envelope, keys={name: ("a", "b")})
    counts = pipeline.drain()
    assert pipeline.rows(name) == [{"a": 1, "b": 2, "name": "moved"}, {"a": 2, "b": 1, "name": "stayed"}]
    assert (total(counts, "read"), total(counts, "applied")) == (5, 5)


def test_the_key_of_a_custom_message_may_stand_deeper_in_its_row(
    cluster: MemoryCluster, spark: SparkSession, tmp_path: Path
) -> None:
    def send(op: str, before: Any, after: Any) -> None:
        cluster.put(TOPIC, 0, None, json.dumps({"op": op, "was": before, "new_state": after}).encode())

    def row(number: int, name: str) -> dict[str, Any]:
        return {"meta": {"id": number}, "name": name}

    send("c", None, row(1, "a"))
    send("c", None, row(2, "b"))
    send("c", None, row(3, "c"))
    send("u", row(1, "a"), row(9, "moved"))
    send("d", row(2, "b"), None)
    pipeline = Pipeline(
        spark, tmp_path, cluster, [TOPIC], [TOPIC], Custom("op", "new_state", "new_state.meta.id", "was")
    )
    pipeline.drain()
    assert [(row["id"], row["name"]) for row in pipeline.rows(TOPIC)] == [(3, "c"), (9, "moved")]


def test_keys_that_are_long_numbers_stay_numbers(cluster: MemoryCluster, spark: SparkSession, tmp_path: Path) -> None:
    longest = [10**17, 1_234_567_890_123_456_789, 2**63 - 1]
    for op in ("c", "d"):
        for n in longest if op == "c" else longest[:2]:
            row = {"id": n, "name": "a"} if op == "c" else None
            cluster.put(TOPIC, 0, None, json.dumps({"op": op, "id": n, "row": row}).encode())
    pipeline = Pipeline(spark, tmp_path, cluster, [TOPIC], [TOPIC], Custom("op", "row", "id"))
    assert total(pipeline.drain(3), "applied") == 5
    assert pipeline.rows(TOPIC) == [{"id": 2**63 - 1, "name": "a"}]


def test_the_old_key_is_found_behind_other_headers_and_only_there(spark: SparkSession) -> None:
    headers = [
        [("a", b"1"), (OLD_KEY, b"2"), (OLD_KEY, b"3")],
        [("a", b"1"), ("b", None)],
        [(OLD_KEY, None), (OLD_KEY, b"3")],
        [],
        None,
    ]
    kind = "array<struct<key: string, value: binary>>"
    rows = frame(spark, list(enumerate(headers)), f"n int, headers {kind}").select("n", message.header(OLD_KEY))
    assert [row[1] for row in sorted(rows.collect())] == [b"2", None, None, None, None]


def test_a_key_is_taken_out_of_its_block_and_left_alone_without_one(spark: SparkSession) -> None:
    told = {
        '{"schema":{"type":"struct"},"payload":{"id":1}}': '{"id":1}',
        '{ "payload": {"id": 2}, "schema": null }': '{"id":2}',
        '{"schema":"public","table":"orders"}': '{"schema":"public","table":"orders"}',
        '{"payload":3}': '{"payload":3}',
        "no JSON": "no JSON",
    }
    keys = frame(spark, [(text.encode(),) for text in told], "key binary")
    found = keys.select(F.col("key").cast("string"), message.key_text(F.col("key"))).collect()
    assert {row[0]: row[1] for row in found} == told
