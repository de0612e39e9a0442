"""What real connectors wrote, folded: the tables that their statements left, whatever the format and the slices."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.core.errors import Retryable
from tailrace.core.table import Column, Table
from tailrace.envelopes import message
from tailrace.envelopes.custom import Custom
from tailrace.envelopes.debezium_avro import DebeziumAvro
from tailrace.envelopes.debezium_either import DebeziumEither, Written
from tailrace.envelopes.debezium_json import DebeziumJson
from tailrace.envelopes.maxwell import Maxwell
from tailrace.log._memory_cluster import MemoryCluster
from tailrace.runtime.fold import Counts
from tailrace.runtime.look import changes
from tailrace.spark.frame import frame
from tests.topics_in_memory import Pipeline, total

Whole = tuple[Pipeline, list[Counts]]

VECTORS = Path(__file__).parents[1] / "vectors" / "kafka"

JSON = ["postgres-json", "postgres-json-schema", "postgres-json-modes", "mariadb-json", "mariadb-json-schema"]

_FIRST_DAY, _FIRST_YEAR_ENDS = b'"0001-01-01T00:00:00.000000Z"', b'"0001-12-31T00:00:00.000000Z"'
"""A moment that Spark holds and Python's `fromtimestamp`, through which a target in memory collects, does not."""


def opened(name: str, spark: SparkSession, folder: Path, only: str = "") -> Pipeline:
    vector = json.loads((VECTORS / f"{name}.json").read_text())
    cluster = MemoryCluster()
    prefix = vector["connector"]["topic.prefix"]
    tables = [table for table in vector["connector"]["table.include.list"].split(",") if only in table]
    for table in tables:
        cluster.create(f"{prefix}.{table}")
    for sent in vector["messages"]:
        if sent["topic"].removeprefix(f"{prefix}.") in tables:
            key, value = (text and base64.b64decode(text) for text in (sent["key_base64"], sent["value_base64"]))
            headers = tuple((name, content and base64.b64decode(content)) for name, content in sent["headers"])
            cluster.put(sent["topic"], 0, key, value and value.replace(_FIRST_DAY, _FIRST_YEAR_ENDS), headers)
    return Pipeline(spark, folder, cluster, [f"{prefix}.{table}" for table in tables], tables)


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Whole]:
    """Return a function that drains a vector in one slice, once for all tests that only look at the outcome."""

    @functools.cache
    def drained(name: str) -> Whole:
        folder = tmp_path_factory.mktemp(name)
        pipeline = avro(spark, folder) if name == "postgres-avro" else opened(name, spark, folder)
        return pipeline, pipeline.drain()

    return drained


def schema_of(name: str) -> str:
    return "public" if name.startswith("postgres") else "test"


def agree(name: str, pipeline: Pipeline, counts: list[Counts]) -> None:
    for count in counts:
        assert count.read == count.applied + count.superseded + count.filtered + count.rejected
    assert total(counts, "read") == pipeline.log.head() + 1
    # Connect's JSON converter wrote the default in place of NULL.
    ann = {"id": 1, "name": "Ann, again", "email": None, "visits": 0, "phone": "none"}
    assert pipeline.rows(f"{schema_of(name)}.customers") == [ann]
    assert [row["id"] for row in pipeline.rows(f"{schema_of(name)}.types")][:2] == [1, 2]


@pytest.mark.parametrize("name", JSON)
def test_the_tables_become_what_the_statements_left(name: str, whole: Callable[[str], Whole]) -> None:
    agree(name, *whole(name))


@pytest.mark.parametrize("name", ["postgres-json-schema", "mariadb-json"])
def test_small_slices_leave_the_same(name: str, spark: SparkSession, tmp_path: Path) -> None:
    pipeline = opened(name, spark, tmp_path)
    agree(name, pipeline, pipeline.drain(20))


@pytest.mark.parametrize("max_rows", [3, 100_000])
def test_long_values_stay_when_they_are_not_sent(max_rows: int, spark: SparkSession, tmp_path: Path) -> None:
    pipeline = opened("postgres-json-schema", spark, tmp_path, only="documents")
    pipeline.drain(max_rows)
    body = "tailrace " * 400
    first, second = (
        {"id": 1, "title": "first", "body": body},
        {"id": 20, "title": "second, again", "body": body + "end"},
    )
    orphans = [one for one in pipeline.rejects.letters("box") if one["dlq.error_type"] == "unchanged-without-row"]
    # If the delete of the old key came in an earlier slice, it took the value with it: a dead letter, no guess.
    split = max_rows == 3 and len(orphans) == 1
    assert pipeline.rows("public.documents") == ([first] if split else [first, second])
    assert len(orphans) == split


def test_a_second_drain_finds_nothing_and_a_lost_progress_supersedes(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = opened("postgres-json-schema", spark, tmp_path)
    first = pipeline.drain()
    rows = pipeline.rows("public.types")
    assert pipeline.drain() == []
    for file in (tmp_path / "progress").iterdir():
        file.unlink()
    again = pipeline.drain(60)
    assert total(again, "applied") == 0
    assert total(again, "read") == total(first, "read")
    assert pipeline.rows("public.types") == rows


def seen(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Return what the engine sees of every message, in the order of topics and offsets."""
    log = pipeline.log
    piece = log.slice(-1, 100_000)
    assert piece is not None
    found = [dict(row) for row in changes(piece, log, pipeline.spark, prefix="", limit=9999, max_bytes=1 << 20)]
    piece.release()
    return found


def said(row: dict[str, Any]) -> dict[str, Any]:
    """Return a change as a vector writes it."""
    at = row["changed_at"]
    told = {name: row[name] for name in ("table", "op", "position", "status")}
    return {**told, "row": row["row"] and json.loads(row["row"]), "changed_at": at and int(at.timestamp())}


def written(name: str, spark: SparkSession, folder: Path) -> tuple[Pipeline, dict[str, Any]]:
    vector = json.loads((VECTORS / f"{name}.json").read_text())
    cluster = MemoryCluster()
    topics = {sent["topic"] for sent in vector["messages"]}
    for topic in topics:
        cluster.create(topic)
    for sent in vector["messages"]:
        key, value = (sent[part] and json.dumps(sent[part], ensure_ascii=False).encode() for part in ("key", "value"))
        cluster.put(sent["topic"], 0, key, value)
    envelope = Maxwell() if vector["envelope"] == "maxwell" else Custom(**vector["cdc"])
    return Pipeline(spark, folder, cluster, sorted(topics), vector["tables_asked"], envelope), vector


@pytest.mark.parametrize("name", ["maxwell", "custom", "custom-maxwell"])
def test_each_message_becomes_the_change_beside_it(name: str, spark: SparkSession, tmp_path: Path) -> None:
    pipeline, vector = written(name, spark, tmp_path)
    for sent, row in zip(vector["messages"], seen(pipeline), strict=True):
        wanted = {"status": "change", **sent["becomes"]}
        assert {part: said(row)[part] for part in wanted} == wanted, sent["about"]
    counts = pipeline.drain()
    assert {table: pipeline.rows(table) for table in vector["tables"]} == vector["tables"]
    statuses = [sent["becomes"].get("status", "change") for sent in vector["messages"]]
    assert total(counts, "filtered") == statuses.count("filtered")
    assert total(counts, "rejected") == sum(": " in status for status in statuses)


@pytest.mark.parametrize("name", ["postgres-json", "mariadb-json"])
def test_each_captured_message_becomes_the_change_it_tells(name: str, spark: SparkSession, tmp_path: Path) -> None:
    pipeline = opened(name, spark, tmp_path)
    for row in seen(pipeline):
        _, text = pipeline.cluster.message(row["topic"], row["partition"], row["offset"])
        told = json.loads(text or b"{}")
        if not told:
            assert row["status"] == "filtered"
            continue
        source = told["source"]
        assert row["table"] == f"{source.get('schema') or source['db']}.{source['table']}"
        assert row["op"] == told["op"]
        image = told["before"] if told["op"] == "d" else told["after"]
        if image and row["status"] == "change":
            # An object without a schema is kept as its text.
            image = {
                column: json.dumps(value, separators=(",", ":")) if isinstance(value, dict) else value
                for column, value in image.items()
                if value != message.PLACEHOLDER
            }
            shown = json.loads(row["row"])
            assert {column: shown.get(column) for column in image} == image


POSTGRES_TYPES: dict[str, Any] = {
    "id": 1, "a_bool": True, "a_smallint": 7, "a_int": 42, "a_bigint": 9007199254740993, "a_real": 1.5, "a_double": 0.1,
    "a_numeric": Decimal("0.0001"), "a_free_numeric": "10000000000", "a_whole_numeric": Decimal(123456789012),
    "a_text": "text", "a_varchar": "varchar", "a_char": "abc  ", "a_bytea": b"\x00\xff\x10",
    "a_uuid": "11111111-2222-3333-4444-555555555555", "a_json": '{"a": 1}', "a_jsonb": '{"b": [1, 2.5, null]}',
    "a_date": date(1969, 12, 31), "a_time": "23:59:59.123456", "a_timetz": "08:20:30.5Z",
    "a_timestamp": datetime(2024, 2, 29, 12, 34, 56, 789012), "a_timestamp3": datetime(2024, 2, 29, 12, 34, 56, 789000),
    "a_timestamptz": datetime(2024, 2, 29, 10, 34, 56, 789012, UTC), "a_interval": 37091106700000,
    "a_texts": ["a", None, "c,d"], "a_ints": [1, 2, None], "a_mood": "happy", "a_inet": "10.0.0.1",
}  # fmt: skip


def plain(row: dict[str, Any]) -> dict[str, Any]:
    zoned = row["a_timestamptz"]
    return {**row, "a_timestamptz": zoned and zoned.astimezone(UTC)}


def test_the_schema_block_gives_types(whole: Callable[[str], Whole]) -> None:
    pipeline, counts = whole("postgres-json-schema")
    rows = {row["id"]: row for row in pipeline.rows("public.types")}
    assert plain(rows[1]) == POSTGRES_TYPES
    assert {value for name, value in rows[2].items() if name != "id"} == {None}
    # The third holds a number of 41 digits, the fourth a time of infinity: no table here can hold them.
    assert set(rows) == {1, 2}
    assert total(counts, "rejected") == 2


def test_other_ways_of_writing_give_the_same(whole: Callable[[str], Whole]) -> None:
    pipeline, _ = whole("postgres-json-modes")
    row = next(row for row in pipeline.rows("public.types") if row["id"] == 1)
    same = ["a_date", "a_timestamp3", "a_bigint", "a_texts", "a_uuid", "a_mood"]
    assert {name: row[name] for name in same} == {name: POSTGRES_TYPES[name] for name in same}


MARIADB_TYPES: dict[str, Any] = {
    "id": 1, "a_bool": 1, "a_tinyint": 7, "a_smallint": 300, "a_int": 42, "a_unsigned": 4294967295,
    "a_bigint": 9007199254740993, "a_float": 1.5, "a_double": 0.1, "a_decimal": Decimal("0.0001"),
    "a_whole": Decimal(123456789012), "a_varchar": "varchar", "a_char": "abc", "a_text": "text",
    "a_blob": b"\x00\xff\x10", "a_binary": b"\x01\x02\x03\x04", "a_bit": True, "a_json": '{"a": 1}',
    "a_date": date(2024, 2, 29), "a_time": "23:59:59", "a_time6": "23:59:59.123456",
    "a_datetime": datetime(2024, 2, 29, 12, 34, 56), "a_datetime6": datetime(2024, 2, 29, 12, 34, 56, 789012),
    "a_year": 2024, "an_enum": "ok", "a_set": "b",
}  # fmt: skip


def test_mariadb_s_schema_block_gives_types(whole: Callable[[str], Whole]) -> None:
    pipeline, _ = whole("mariadb-json-schema")
    row = next(row for row in pipeline.rows("test.types") if row["id"] == 1)
    assert {name: row[name] for name in MARIADB_TYPES} == MARIADB_TYPES
    least = next(row for row in pipeline.rows("test.types") if row["id"] == 3)
    assert (least["a_time"], least["a_time6"]) == ("-838:59:59", "-00:00:00.000001")
    assert least["a_decimal"] == Decimal("-9999999999999999.9999")


def avro(spark: SparkSession, folder: Path) -> Pipeline:
    schemas = json.loads((VECTORS / "postgres-avro.json").read_text())["schemas"]
    pipeline = opened("postgres-avro", spark, folder)
    pipeline.envelope = DebeziumAvro(lambda number: schemas[str(number)])
    return pipeline


@pytest.mark.parametrize("max_rows", [20, 100_000])
def test_avro_is_read_with_the_schema_it_was_written_with(max_rows: int, spark: SparkSession, tmp_path: Path) -> None:
    pipeline = avro(spark, tmp_path)
    counts = pipeline.drain(max_rows)
    assert total(counts, "read") == pipeline.log.head() + 1
    (customer,) = pipeline.rows("public.customers")
    assert {**customer, "phone": ""} == {"id": 1, "name": "Ann, again", "email": None, "visits": 0, "phone": ""}
    rows = {row["id"]: row for row in pipeline.rows("public.types")}
    assert plain(rows[1]) == POSTGRES_TYPES
    assert {value for name, value in rows[2].items() if name != "id"} == {None}
    assert set(rows) == {1, 2}


def test_avro_that_is_cut_off_or_wrongly_framed_is_put_aside(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = avro(spark, tmp_path)
    topic = "pg_avro.public.documents"
    whole = pipeline.cluster.message(topic, 0, 0)[1] or b""
    no_text = whole.replace(b"first", b"fi\xffst")
    assert no_text != whole
    for value in (b"\x01" + whole[1:], whole[:5], whole[:3], whole[:7], whole[: len(whole) // 2], b"{}", b"", no_text):
        pipeline.cluster.put(topic, 0, None, value)
    counts = pipeline.drain()
    assert sum(count.rejected for count in counts if count.table in (topic, "public.documents")) == 8


def test_a_length_that_avro_only_claims_ends_nothing(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = avro(spark, tmp_path)
    topic = "pg_avro.public.documents"
    whole = pipeline.cluster.message(topic, 0, 0)[1] or b""
    claims = whole.replace(b"\x0afirst", b"\x80\xd0\xac\xf3\x0efirst")  # 2,000,000,000 letters
    assert claims != whole
    pipeline.cluster.put(topic, 0, None, claims)
    pipeline.drain()
    assert claims in [letter.event.value for letter in pipeline.rejects.kept("box")]


@pytest.mark.parametrize(("name", "kind"), [("postgres-avro", "avro"), ("postgres-json-schema", "json")])
@pytest.mark.parametrize("max_rows", [20, 100_000])
def test_how_messages_are_written_is_found_out_once(
    name: str, kind: str, max_rows: int, whole: Callable[[str], Whole], spark: SparkSession, tmp_path: Path
) -> None:
    schemas = json.loads((VECTORS / "postgres-avro.json").read_text())["schemas"]
    noted: list[Written] = []

    def either() -> DebeziumEither:
        known = noted[0] if noted else None
        return DebeziumEither(DebeziumJson(), DebeziumAvro(lambda number: schemas[str(number)]), known, noted.append)

    pipeline = opened(name, spark, tmp_path)
    topic = min(pipeline.topics)
    pipeline.envelope = either()
    counts = pipeline.drain(max_rows)
    assert noted == [kind]
    assert total(counts, "rejected") == total(whole(name)[1], "rejected")
    assert pipeline.rows("public.customers") == whole(name)[0].rows("public.customers")
    # In the next process, one that is written otherwise is nothing to go by.
    pipeline.envelope = either()
    pipeline.cluster.put(topic, 0, None, b"{}" if kind == "avro" else b"\0\0\0\0\7\2")
    assert total(pipeline.drain(), "rejected") == 1
    assert noted == [kind]


def test_what_says_nothing_of_how_it_is_written_decides_nothing(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = opened("postgres-json", spark, tmp_path)
    vector = {topic: pipeline.cluster._topics[topic].partitions[0] for topic in pipeline.topics}
    sent = {topic: list(messages) for topic, messages in vector.items()}
    for messages in vector.values():
        messages[:] = [(b"{}", None, ()), (None, b"\xff", ()), (None, b"oops", ())]
    pipeline.envelope = DebeziumEither(DebeziumJson(), DebeziumAvro(lambda _: {}))
    counts = pipeline.drain()
    assert (total(counts, "filtered"), total(counts, "rejected")) == (len(vector), 2 * len(vector))
    for topic, messages in sent.items():
        vector[topic].extend(messages)
    pipeline.drain()
    assert pipeline.rows("public.customers")[0]["name"] == "Ann, again"


@pytest.mark.parametrize("name", ["postgres-avro", "postgres-json"])
def test_an_onlooker_sees_rows_opened_and_why_others_are_none(name: str, spark: SparkSession, tmp_path: Path) -> None:
    pipeline = avro(spark, tmp_path) if name == "postgres-avro" else opened(name, spark, tmp_path)
    topic = min(pipeline.topics)
    pipeline.cluster.put(topic, 0, None, b"{}")
    log = pipeline.log
    piece = log.slice(-1, 100_000)
    assert piece is not None
    seen = list(changes(piece, log, spark, prefix="", limit=100_000, max_bytes=100_000))
    piece.release()
    assert len(seen) == log.head() + 1
    told = [row for row in seen if row["status"] == "change" and row["op"] in ("c", "u", "r")]
    assert all(json.loads(row["row"]) for row in told)
    assert len(told) > 1
    assert topic in [row["topic"] for row in seen if ": " in str(row["status"]) and row["row"] is None]


class Growing(list[int]):
    """Ids of schemas, of which another slice, looked into meanwhile, always learns one more."""

    def __iter__(self) -> Iterator[int]:
        yield from range(1, len(self) + 1)
        self.append(len(self) + 1)


def test_a_schema_that_is_learned_while_rows_are_opened_is_not_theirs(spark: SparkSession) -> None:
    row = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "long"}]}
    images = [{"name": "before", "type": ["null", row]}, {"name": "after", "type": ["null", "Value"]}]
    envelope = DebeziumAvro(lambda _: {"type": "record", "name": "Envelope", "fields": images})
    table = Table("public.items", (Column("id", "bigint"),), ("id",))
    envelope._ids[table] = Growing([1])
    kinds = {"partition": "int", "offset": "bigint", "changed_at": "timestamp", "row": "binary", "partial": "boolean"}
    peeked = frame(spark, [], ", ".join(f"`{name}` {kinds.get(name, 'string')}" for name in message.COLUMNS))
    assert "id" in envelope.open_rows(peeked, table, 1, 1 << 20).columns


def test_an_id_that_the_registry_does_not_know_pauses(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = avro(spark, tmp_path)

    def unknown(number: int) -> Any:
        raise Retryable("registry-unreachable", f"schema {number} gave status 404")

    pipeline.envelope = DebeziumAvro(unknown)
    with pytest.raises(Retryable):
        pipeline.drain()
    assert pipeline.progress.load("box", "log") == -1
