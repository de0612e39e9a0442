"""Topics of a real broker into Delta: partitions that are added, topics made anew, poison, crashes, a broker that restarts."""

from __future__ import annotations

import io
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from dev.services import http, on_demand
from dev.services.kafka import Kafka
from dev.services.oauth import TokenEndpoint
from dev.services.registry import Registry
from tailrace.config.load import load_pipeline, load_platform
from tailrace.config.platform import KafkaConfig
from tailrace.core.errors import NotReady
from tailrace.log._broker import Broker
from tailrace.log._settings import for_librdkafka, for_spark
from tailrace.runtime.build import Pipeline, open_pipeline
from tailrace.runtime.report import JsonLines, Silent
from tailrace.runtime.run import RunReport
from tests.service.running import running
from tests.service.topics import patiently, read

_numbers = itertools.count(1)


class Shop:
    """A topic of orders, and a pipeline that keeps them current in Delta."""

    def __init__(self, kafka: Kafka, folder: Path, partitions: int = 2, settings: dict[str, Any] | None = None) -> None:
        self.kafka, self.folder = kafka, folder
        self.topic = f"shop{next(_numbers)}.public.orders"
        kafka.create_topic(self.topic, partitions)
        patiently(lambda: self.topic in kafka.topics())
        self._producer = self._new_producer()
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        pipeline = {
            "pipeline_id": "shop",
            "source": {"source_type": "kafka", "topics": [self.topic]},
            "sinks": [{"sink_id": "lake", "sink_type": "delta", "delta": {"path": str(folder / "lake")}}],
        }
        platform = {
            "kafka": settings or {"bootstrap_servers": kafka.bootstrap},
            "control": {"root": str(folder / "state")},
            "spark": {"master": "local[2]"},
            "slice": {"interval_seconds": 0.2},
            "limits": {"max_event_bytes": 1_000_000},
        }
        (folder / "pipeline.yaml").write_text(json.dumps(pipeline))
        (folder / "platform.yaml").write_text(json.dumps(platform))

    def open(self) -> Pipeline:
        pipeline, platform = load_pipeline(self.folder / "pipeline.yaml"), load_platform(self.folder / "platform.yaml")
        return open_pipeline(pipeline.config, platform.config)

    def run(self) -> RunReport:
        with self.open() as pipeline:
            return pipeline.run(once=True, report=Silent())

    def put(self, key: int, op: str, lsn: int, name: str | None = None, partition: int | None = None) -> None:
        after = None if op == "d" else {"id": key, "name": name}
        source = {"connector": "postgresql", "schema": "public", "table": "orders", "lsn": lsn, "ts_ms": 1}
        body = {"before": {"id": key} if op == "d" else None, "after": after, "source": source, "op": op}
        self.send(json.dumps({"id": key}).encode(), json.dumps(body).encode(), partition)

    def send(self, key: bytes | None, value: bytes | None, partition: int | None = None) -> None:
        where = {} if partition is None else {"partition": partition}
        self._producer.produce(self.topic, value, key, **where)
        if self._producer.flush(30):
            raise AssertionError("the broker did not take a message")

    def grow(self, partitions: int) -> None:
        self._admin.create_partitions([NewPartitions(self.topic, partitions)])[self.topic].result(30)
        patiently(lambda: len(self._admin.list_topics(timeout=30).topics[self.topic].partitions) == partitions)
        # One that knows the topic as it was refuses a partition that is new.
        self._producer = self._new_producer()

    def _new_producer(self) -> Producer:
        settings = {"bootstrap.servers": self.kafka.bootstrap, "log_level": 0, "message.max.bytes": 20_000_000}
        return Producer(settings)

    def make_anew(self, partitions: int = 2) -> None:
        self._admin.delete_topics([self.topic])[self.topic].result(30)
        patiently(lambda: self.topic not in self.kafka.topics())
        self.kafka.create_topic(self.topic, partitions)
        patiently(lambda: self.topic in self.kafka.topics())

    def expire(self, partition: int, before: int) -> None:
        place = TopicPartition(self.topic, partition, before)
        self._admin.delete_records([place])[place].result(30)

    def rows(self) -> dict[int, str]:
        with self.open() as pipeline:
            lake = pipeline._spark().read.format("delta").load(str(self.folder / "lake" / "orders"))
            return {row["id"]: row["name"] for row in lake.collect()}


@pytest.fixture
def shop(kafka: Kafka, tmp_path: Path) -> Shop:
    return Shop(kafka, tmp_path)


def counted(report: RunReport) -> dict[str, int]:
    names = ("read", "applied", "superseded", "filtered", "rejected")
    tables = report.targets[0].tables.values()
    return {name: sum(getattr(table, name) for table in tables) for name in names}


def test_rows_partitions_redelivery_and_the_group(shop: Shop) -> None:
    for key in range(10):
        shop.put(key, "c", 100 + key, "old")
    shop.put(3, "d", 200)
    shop.send(b'{"id": 3}', None)
    first = shop.run()
    assert first.first_error() is None
    assert counted(first) == {"read": 12, "applied": 11, "superseded": 0, "filtered": 1, "rejected": 0}
    assert shop.rows() == {key: "old" for key in range(10) if key != 3}

    shop.grow(4)
    shop.put(50, "c", 300, "in a new partition", partition=3)
    shop.put(4, "u", 301, "new", partition=0)
    for key in (4, 5):
        shop.put(key, "c", 100 + key, "old", partition=2)
    second = shop.run()
    assert second.first_error() is None
    assert counted(second) == {"read": 4, "applied": 2, "superseded": 2, "filtered": 0, "rejected": 0}
    assert shop.rows() == {key: "old" for key in range(10) if key != 3} | {4: "new", 50: "in a new partition"}

    member = Consumer({"bootstrap.servers": shop.kafka.bootstrap, "group.id": "cdc-platform-shop", "log_level": 0})
    committed = member.committed([TopicPartition(shop.topic, number) for number in range(4)], timeout=30)
    member.close()
    assert sum(place.offset for place in committed if place.offset > 0) == 16
    with shop.open() as pipeline:
        assert [row["lag_events"] for row in pipeline.lag()] == [0, 0, 0, 0]


def test_partitions_that_are_added_while_it_runs_are_read(kafka: Kafka, tmp_path: Path) -> None:
    shop = Shop(kafka, tmp_path, partitions=4)
    for key in range(4):
        shop.put(key, "c", 100 + key, "old", partition=key)
    told = io.StringIO()
    with shop.open() as pipeline, running(pipeline, JsonLines(told, "shop")) as run:
        patiently(lambda: "slice applied" in told.getvalue())
        with pytest.raises(NotReady, match=f"process {os.getpid()} runs this pipeline already"):
            shop.run()
        shop.grow(6)
        for key in (4, 5):
            shop.put(key, "c", 200 + key, "new", partition=key)
        shop.put(0, "u", 300, "moved", partition=5)
        patiently(lambda: sum(json.loads(line).get("read", 0) for line in told.getvalue().splitlines()) == 7)
        pipeline.stop()
        assert run.ended().first_error() is None
    assert shop.rows() == {0: "moved", 1: "old", 2: "old", 3: "old", 4: "new", 5: "new"}


def test_who_only_looks_does_not_decide_which_topic_it_is(shop: Shop) -> None:
    shop.put(1, "c", 100, "before")
    with shop.open() as pipeline:
        assert [row["row"] for row in pipeline.consume(5)] == ['{"id":1,"name":"before"}']
        assert sum(int(str(row["lag_events"])) for row in pipeline.lag()) == 1
        assert pipeline.status()["epoch"] == 0
    assert not (shop.folder / "state" / "shop" / "topics").exists()
    shop.make_anew()
    shop.put(2, "c", 50, "y")
    assert shop.run().first_error() is None
    assert shop.rows() == {2: "y"}


def test_a_crash_between_commit_and_progress_repeats_without_effect(shop: Shop) -> None:
    for key in range(5):
        shop.put(key, "c", 100 + key, "x")
    shop.run()
    for file in (shop.folder / "state" / "shop" / "progress").iterdir():
        file.unlink()
    again = shop.run()
    assert counted(again) == {"read": 5, "applied": 0, "superseded": 5, "filtered": 0, "rejected": 0}
    assert shop.rows() == dict.fromkeys(range(5), "x")


def test_a_topic_made_anew_halts(shop: Shop) -> None:
    shop.put(1, "c", 100, "x")
    shop.run()
    shop.make_anew()
    shop.put(2, "c", 50, "y")
    error = shop.run().first_error()
    assert error is not None
    assert (error.code, "made anew" in str(error)) == ("resync-required", True)
    assert shop.rows() == {1: "x"}


def test_expired_offsets_halt(shop: Shop) -> None:
    shop.put(1, "c", 100, "x", partition=0)
    shop.run()
    for key in range(2, 6):
        shop.put(key, "c", 100 + key, "y", partition=0)
    shop.expire(0, 3)
    error = shop.run().first_error()
    assert error is not None
    assert (error.code, "begins at offset 3" in str(error)) == ("resync-required", True)


def test_avro_is_read_where_nothing_but_a_registry_is_named(kafka: Kafka, registry: Registry, tmp_path: Path) -> None:
    shop = Shop(kafka, tmp_path, settings={"bootstrap_servers": kafka.bootstrap, "schema_registry_url": registry.url})
    row = [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]
    texts = [{"name": name, "type": "string"} for name in ("connector", "schema", "table")]
    fields = [
        {"name": "before", "type": ["null", {"type": "record", "name": "Value", "fields": row}]},
        {"name": "after", "type": ["null", "Value"]},
        {
            "name": "source",
            "type": {"type": "record", "name": "Source", "fields": [*texts, {"name": "lsn", "type": "long"}]},
        },
        {"name": "op", "type": "string"},
    ]
    schema = json.dumps({"type": "record", "name": "Envelope", "namespace": shop.topic, "fields": fields})
    told = http.call("POST", f"{registry.url}/subjects/{shop.topic}-value/versions", {"schema": schema})

    def text(value: str) -> bytes:
        return bytes([2 * len(value)]) + value.encode()

    def put(key: int, lsn: int, name: str) -> None:
        source = text("postgresql") + text("public") + text("orders") + bytes([2 * lsn])
        body = b"\0\2" + bytes([2 * key]) + text(name) + source + text("c")
        shop.send(json.dumps({"id": key}).encode(), b"\0" + int(told["id"]).to_bytes(4, "big") + body)

    put(1, 10, "x")
    assert counted(shop.run()) == {"read": 1, "applied": 1, "superseded": 0, "filtered": 0, "rejected": 0}
    put(2, 11, "y")
    shop.send(b"key", b'{"op": "c"}')
    assert counted(shop.run())["rejected"] == 1
    assert shop.rows() == {1: "x", 2: "y"}


def test_poison_is_in_the_dead_letters_and_good_rows_are_applied(shop: Shop) -> None:
    poison = [b"{not json", b"\x00\x00\x00\x00\x07\x02", b'{"op":"\xff"}', b"x" * 1_000_001, b'{"op":"z","source":{}}']
    shop.put(1, "c", 100, "x")
    for value in poison:
        shop.send(b"key", value, partition=1)
    shop.put(2, "c", 101, "y", partition=1)
    first = shop.run()
    assert first.first_error() is None
    assert counted(first) == {"read": 7, "applied": 2, "superseded": 0, "filtered": 0, "rejected": 5}
    assert shop.rows() == {1: "x", 2: "y"}
    letters = read({"bootstrap.servers": shop.kafka.bootstrap}, f"{shop.topic}.dlq", 5)
    assert sorted(letter.value() or b"" for letter in letters) == sorted(poison)
    headers = dict(letters[0].headers() or [])
    assert headers["dlq.source_topic"] == shop.topic.encode()
    assert headers["dlq.source_partition"] == b"1"
    assert headers["dlq.sink_id"] == b"lake"
    assert {"dlq.source_offset", "dlq.error_type", "dlq.error_message", "dlq.timestamp"} <= set(headers)
    # Sent once: a repeat of the slice does not send them again.
    for file in (shop.folder / "state" / "shop" / "progress").iterdir():
        file.unlink()
    assert counted(shop.run())["rejected"] == 5
    place = TopicPartition(f"{shop.topic}.dlq", 0)
    member = Consumer({"bootstrap.servers": shop.kafka.bootstrap, "group.id": "test", "log_level": 0})
    assert member.get_watermark_offsets(place, timeout=30) == (0, 5)
    member.close()


def test_dead_letters_in_a_topic_are_replayed_and_purged(shop: Shop) -> None:
    shop.put(1, "c", 100, "x" * 1_000_001)
    shop.put(2, "c", 101, "y" * 1_000_001)
    shop.put(2, "u", 102, "newer")
    shop.send(b"key", b"{not json")
    assert counted(shop.run())["rejected"] == 3
    platform = json.loads((shop.folder / "platform.yaml").read_text())
    (shop.folder / "platform.yaml").write_text(json.dumps({**platform, "limits": {"max_event_bytes": 5_000_000}}))
    with shop.open() as pipeline:
        (table,) = pipeline.letters().replay()
        assert (table["applied"], table["superseded"], table["rejected"]) == (1, 1, 1)
        (left,) = pipeline.letters().every()
        assert left["value"] == "{not json"
        assert pipeline.letters().purge([str(left["id"])]) == [left["id"]]
        assert list(pipeline.letters().every()) == []
        assert pipeline.measure().targets[0].dead_letters == 0
    assert {key: len(name) for key, name in shop.rows().items()} == {1: 1_000_001, 2: 5}


def test_dead_letters_without_headers_are_shown_and_purged_and_not_replayed(shop: Shop) -> None:
    platform = json.loads((shop.folder / "platform.yaml").read_text())
    platform["dlq"] = {**platform.get("dlq", {}), "include_headers": False}
    (shop.folder / "platform.yaml").write_text(json.dumps(platform))
    shop.send(b"key", b"{not json")
    assert counted(shop.run())["rejected"] == 1
    with shop.open() as pipeline:
        (left,) = pipeline.letters().every()
        assert (left["id"], left["value"]) == (f"lake/{shop.topic}.dlq/0/0", "{not json")
        assert pipeline.letters().replay([str(left["id"])]) == []
        assert pipeline.letters().purge([str(left["id"])]) == [left["id"]]
        assert list(pipeline.letters().every()) == []


def test_a_broker_that_restarts_in_mid_run_is_waited_for(tmp_path: Path) -> None:
    with on_demand() as group:
        group.start("kafka")
        shop = Shop(group.kafka, tmp_path)
        file = tmp_path / "platform.yaml"
        file.write_text(
            json.dumps({**json.loads(file.read_text()), "retry": {"max_attempts": 1, "max_wait_seconds": 1}})
        )
        shop.put(1, "c", 100, "x")
        told = io.StringIO()
        with shop.open() as pipeline, running(pipeline, JsonLines(told, "shop")) as run:
            progress = tmp_path / "state" / "shop" / "progress"
            patiently(lambda: progress.is_dir() and any(progress.iterdir()))
            group.kafka.stop()
            # Nothing that is counted: a broker may be away for longer than any number of attempts.
            patiently(lambda: told.getvalue().count("until it is back") > 2)
            group.kafka.start()
            shop.put(2, "c", 101, "y")
            seen = progress / "lake.json"
            before = seen.read_text()
            patiently(lambda: seen.read_text() != before)
            assert shop.rows() == {1: "x", 2: "y"}
            waits = told.getvalue().count("until it is back")
            group.kafka.stop()
            patiently(lambda: told.getvalue().count("until it is back") > waits)
            pipeline.stop()
            ended = run.ended()
            assert (ended.status, ended.first_error()) == ("stopped", None)


def test_a_broker_that_wants_to_know_who_reads(secured: Kafka, tokens: TokenEndpoint, tmp_path: Path) -> None:
    known = secured.secured
    assert known is not None
    trusted = {"ssl_ca_location": str(known.files.ca)}
    mutual = {
        **trusted,
        "bootstrap_servers": known.mutual,
        "security_protocol": "SSL",
        "ssl_certificate_location": str(known.files.client_certificate),
        "ssl_key_location": str(known.files.client_key),
    }
    sasl = {
        **trusted,
        "bootstrap_servers": known.sasl,
        "security_protocol": "SASL_SSL",
        "sasl_username": known.username,
        "sasl_password": known.password,
        "sasl_oauth_token_endpoint_url": tokens.url,
    }
    shop = Shop(secured, tmp_path, settings={**sasl, "auth_mechanism": "sasl_oauthbearer"})
    shop.put(1, "c", 100, "x", partition=0)
    report = shop.run()
    assert report.first_error() is None
    assert shop.rows() == {1: "x"}
    ways = [mutual, *({**sasl, "auth_mechanism": f"sasl_{way}"} for way in ("plain", "scram_512", "oauthbearer"))]
    with shop.open() as pipeline:
        for way in ways:
            kafka = KafkaConfig.model_validate(way)
            rows = Broker(for_librdkafka(kafka), for_spark(kafka)).read(pipeline._spark(), {(shop.topic, 0): (0, 1)})
            assert rows.count() == 1
            assert known.password not in rows._jdf.queryExecution().toString()
        assert not [value for _, value in pipeline._spark().sparkContext.getConf().getAll() if known.password in value]
