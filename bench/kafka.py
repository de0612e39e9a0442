"""From a topic of a real Kafka: read, decode and newest per key; and six slices into Delta.

    python -m bench.kafka --events 500000 --keys 100000 --format json

A topic of four partitions with Debezium's messages of one table: updates and deletes, several per
millisecond, a tombstone after each delete. Beside each reading of ours stands a bare one: Spark's own reader, its own
decoder with the schema that it is told, and the newest per key, with nothing kept, counted or judged. Machines differ
from day to day, their ratio hardly. Every run is told, the first ones too; the last of its kind is warm. Each run ends
by comparing what it made with what it must be.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from dev.services import on_demand
from tailrace.apply import engine
from tailrace.control.progress import Progress
from tailrace.control.rejects import Rejects
from tailrace.core.table import Evolution
from tailrace.envelopes.debezium_avro import DebeziumAvro
from tailrace.envelopes.debezium_json import DebeziumJson
from tailrace.envelopes.message import Format
from tailrace.log._broker import Broker
from tailrace.log.kafka import KafkaLog
from tailrace.runtime.drain import Drain, Pace, drain
from tailrace.runtime.fold import Fold
from tailrace.runtime.report import Silent
from tailrace.runtime.rules import Choice, Rules
from tailrace.spark import session
from tailrace.targets import delta

TOPIC, TABLE, PARTITIONS = "bench.public.orders", "public.orders", 4
COLUMNS = ("id", "status", "quantity", "total", "note", "updated_at")

_ROW = {
    "type": "record", "name": "Value", "namespace": "bench.public.orders",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "status", "type": ["null", "string"], "default": None},
        {"name": "quantity", "type": ["null", "int"], "default": None},
        {"name": "total", "type": ["null", "double"], "default": None},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "updated_at", "type": ["null", "long"], "default": None},
    ],
}  # fmt: skip
AVRO: dict[str, Any] = {
    "type": "record", "name": "Envelope", "namespace": "bench.public.orders",
    "fields": [
        {"name": "before", "type": ["null", _ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": {
            "type": "record", "name": "Source", "namespace": "io.debezium.connector.postgresql",
            "fields": [
                {"name": "version", "type": "string"}, {"name": "connector", "type": "string"},
                {"name": "name", "type": "string"}, {"name": "ts_ms", "type": "long"},
                {"name": "snapshot", "type": "string"}, {"name": "db", "type": "string"},
                {"name": "schema", "type": "string"}, {"name": "table", "type": "string"},
                {"name": "txId", "type": "long"}, {"name": "lsn", "type": "long"},
            ],
        }},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}  # fmt: skip
KEY: dict[str, Any] = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}


@dataclass(frozen=True)
class Work:
    """The same changes from the same seed."""

    events: int
    keys: int
    seed: int = 7

    def changes(self) -> Iterator[tuple[int, str, dict[str, Any] | None, int]]:
        """Yield key, operation, row and LSN."""
        dice = random.Random(self.seed)
        for lsn in range(self.events):
            key = lsn if lsn < self.keys else dice.randrange(self.keys)
            if lsn >= self.keys and dice.random() < 0.1:
                yield key, "d", None, lsn + 1
            else:
                row = {
                    "id": key, "status": dice.choice(("open", "paid", "sent")), "quantity": dice.randrange(100),
                    "total": lsn / 4, "note": f"note {lsn} of an order that somebody made", "updated_at": lsn,
                }  # fmt: skip
                yield key, "c" if lsn < self.keys else "u", row, lsn + 1

    def expected(self) -> dict[int, int]:
        """Return `updated_at` of every row that is left."""
        rows: dict[int, int] = {}
        for key, _, row, _ in self.changes():
            if row is None:
                rows.pop(key, None)
            else:
                rows[key] = row["updated_at"]
        return rows


def as_json(key: int, op: str, row: dict[str, Any] | None, lsn: int) -> tuple[bytes, bytes]:
    source = {
        "version": "3.6.1.Final", "connector": "postgresql", "name": "bench", "ts_ms": 1700000000000 + lsn // 20,
        "snapshot": "false", "db": "shop", "sequence": f'["{lsn}","{lsn}"]', "schema": "public", "table": "orders",
        "txId": lsn // 5, "lsn": lsn, "xmin": None,
    }  # fmt: skip
    before = {name: key if name == "id" else None for name in COLUMNS} if op == "d" else None
    value = {"before": before, "after": row, "source": source, "transaction": None, "op": op, "ts_ms": 1700000000000}
    return json.dumps({"id": key}).encode(), json.dumps(value, separators=(",", ":")).encode()


def _long(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _text(text: str) -> bytes:
    return _long(len(text.encode())) + text.encode()


def _avro_row(row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    out.write(_long(row["id"]))
    for name in COLUMNS[1:]:
        value = row.get(name)
        if value is None:
            out.write(b"\0")
        else:
            out.write(b"\2")
            out.write(
                struct.pack("<d", value)
                if name == "total"
                else _text(value)
                if isinstance(value, str)
                else _long(value)
            )
    return out.getvalue()


def as_avro(key: int, op: str, row: dict[str, Any] | None, lsn: int) -> tuple[bytes, bytes]:
    before = b"\2" + _avro_row({"id": key}) if op == "d" else b"\0"
    after = b"\0" if row is None else b"\2" + _avro_row(row)
    source = b"".join(
        [_text("3.6.1.Final"), _text("postgresql"), _text("bench"), _long(1700000000000 + lsn // 20), _text("false"),
         _text("shop"), _text("public"), _text("orders"), _long(lsn // 5), _long(lsn)]
    )  # fmt: skip
    value = before + after + source + _text(op) + b"\2" + _long(1700000000000)
    return b"\0\0\0\0\2" + _long(key), b"\0\0\0\0\1" + value


def fill(bootstrap: str, work: Work, encode: Callable[..., tuple[bytes, bytes]]) -> int:
    """Write the topic; return how many messages it has, tombstones included."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    sent = 0
    for key, op, row, lsn in work.changes():
        name, value = encode(key, op, row, lsn)
        producer.produce(TOPIC, value, name, key % PARTITIONS)
        sent += 1
        if op == "d":
            producer.produce(TOPIC, None, name, key % PARTITIONS)
            sent += 1
        if sent % 10_000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise RuntimeError("the broker did not take all messages")
    return sent


IMAGE = "struct<id: bigint, status: string, quantity: bigint, total: double, note: string, updated_at: bigint>"
SOURCE = (
    "source struct<connector: string, snapshot: string, ts_ms: bigint, db: string, schema: string, table: string, "
    "lsn: bigint>"
)


class Memory:
    """What a log has learned, for as long as this process lives."""

    content: dict[str, Any] | None = None

    def load(self) -> dict[str, Any] | None:
        return self.content

    def save(self, content: dict[str, Any]) -> None:
        self.content = content


def envelope(form: str) -> Format:
    return DebeziumAvro(lambda number: AVRO if number == 1 else KEY) if form == "avro" else DebeziumJson()


def read_newest(spark: SparkSession, log: KafkaLog, work: Work) -> dict[str, Any]:
    """Read, decode and keep the newest change per key, for nobody."""
    started = time.monotonic()
    piece = log.slice(-1, 10 * work.events)
    if piece is None:
        raise RuntimeError("the topic is empty")
    (fingerprint,) = piece.fingerprints(TABLE)
    table = log.schema(fingerprint)
    opened = log.envelope.open_rows(piece.rows(spark, TABLE), table, 1, 1 << 24)
    newest = engine.newest_per_key(opened, table, engine.in_log_order())
    row = newest.agg(F.count_if(F.col("_cdc_op") == "u"), F.sum(F.hash(*map(engine.column, table.names())))).first()
    seconds = time.monotonic() - started
    piece.release()
    rows = row[0] if row else 0
    return {
        "seconds": round(seconds, 2),
        "events_per_second": round(work.events / seconds),
        "equal": rows == len(work.expected()),
    }


def read_bare(spark: SparkSession, broker: Broker, form: str, work: Work) -> dict[str, Any]:
    """Do the same with nothing but Spark, which is told what the messages look like."""
    started = time.monotonic()
    ends = broker.ends([(TOPIC, number) for number in range(PARTITIONS)])
    rows = broker.read(spark, {place: (0, end) for place, end in ends.items()}).where("value IS NOT NULL")
    if form == "avro":
        message = from_avro(F.expr("substring(value, 6)"), json.dumps(AVRO))
    else:
        message = F.from_json(F.col("value").cast("string"), f"op string, before {IMAGE}, after {IMAGE}, {SOURCE}")
    rows = rows.select(message.alias("m"), "offset").select(
        F.coalesce("m.after.id", "m.before.id").alias("id"), F.col("m.source.lsn").alias("lsn"), "offset",
        F.col("m.op").alias("op"), *(F.col(f"m.after.{name}").alias(name) for name in COLUMNS[1:]),
    )  # fmt: skip
    newest = F.max_by(F.struct("op", *COLUMNS[1:]), F.struct("lsn", "offset"))
    found = rows.groupBy("id").agg(newest.alias("n")).select("id", "n.*")
    row = found.agg(F.count_if(F.col("op") != "d"), F.sum(F.hash(*COLUMNS))).first()
    seconds = time.monotonic() - started
    return {
        "seconds": round(seconds, 2),
        "events_per_second": round(work.events / seconds),
        "equal": (row[0] if row else 0) == len(work.expected()),
    }


def into_delta(spark: SparkSession, log: KafkaLog, work: Work, max_rows: int, folder: Path) -> dict[str, Any]:
    """Drain the topic into Delta in slices of `max_rows`; compare the table."""
    target = delta.open_target(
        "lake", delta.Options(path=str(folder / "lake")), spark=lambda: spark, pipeline_id="bench",
        tables={TABLE: "orders"}, mode="scd1",
    )  # fmt: skip
    rejects = Rejects(folder / "rejects", enabled=False, limit=0)
    fold = Fold(lambda: spark, log, target, Rules("scd1", Evolution.ALTER, 1 << 24), rejects, Silent())
    pace = Pace(max_rows, 1.0)
    job = Drain("lake", log, fold, {TABLE: Choice(TABLE)}, Progress(folder / "progress"), pace, Silent())
    started = time.monotonic()
    count = sum(1 for _ in drain(job, threading.Event(), lambda step: step(), upto=log.head()))
    seconds = time.monotonic() - started
    rows = spark.read.format("delta").load(str(folder / "lake" / "orders")).select("id", "updated_at")
    found = {row[0]: row[1] for row in rows.toLocalIterator()}
    return {
        "slices": count, "seconds": round(seconds, 2), "events_per_second": round(work.events / seconds),
        "equal": found == work.expected(),
    }  # fmt: skip


def _told(figures: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps(figures), file=sys.stderr, flush=True)
    return figures


def run(events: int, keys: int, form: str, slices: int = 6) -> dict[str, Any]:
    """Measure one format; the last figure of each kind is that of a warm session."""
    work = Work(events, keys)
    spark = session(**{"spark.master": "local[2]"})
    with on_demand() as group, tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        group.start("kafka")
        bootstrap = group.kafka.bootstrap
        group.kafka.create_topic(TOPIC, PARTITIONS)
        messages = fill(bootstrap, work, as_avro if form == "avro" else as_json)
        broker = Broker({"bootstrap.servers": bootstrap}, {"kafka.bootstrap.servers": bootstrap})

        def opened() -> KafkaLog:
            return KafkaLog("bench", 1, broker, [TOPIC], [TABLE], envelope(form), Memory(), lambda: spark, 1 << 24)

        # One log for all rounds, as in a run: what it has learned in the first slice it knows in the next.
        log, newest, bare = opened(), [], []
        for _ in range(5):
            bare.append(_told({"bare": True, **read_bare(spark, broker, form, work)}))
            newest.append(_told(read_newest(spark, log, work)))
        ratio = sorted(a["seconds"] / b["seconds"] for a, b in zip(bare[1:], newest[1:], strict=True))[2]
        share, places = -(-messages // slices), [Path(folder) / name for name in ("cold", "second", "warm")]
        lake = [_told(into_delta(spark, opened(), work, share, place)) for place in places]
    return {
        "format": form, "events": events, "messages": messages, "newest": newest, "bare": bare,
        "newest_to_bare": round(ratio, 2), "delta": lake,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--format", choices=("json", "avro"), default="json")
    given = parser.parse_args()
    print(json.dumps(run(given.events, given.keys, given.format), indent=2))


if __name__ == "__main__":
    main()
