"""Poison in the middle of a million good messages of a real Kafka, into Delta: put aside, counted, nobody else hurt.

    python -m bench.poison --events 1000000

The table must be what the good messages say, each poison a dead letter with its own reason, and what was read must be
what was applied, superseded, filtered and rejected.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from bench import kafka
from bench.kafka import PARTITIONS, TABLE, TOPIC, Work, as_json
from dev.services import on_demand
from tailrace.control.progress import Progress
from tailrace.control.rejects import Rejects
from tailrace.core.table import Evolution
from tailrace.envelopes.debezium_json import DebeziumJson
from tailrace.log._broker import Broker
from tailrace.log.kafka import KafkaLog
from tailrace.runtime.drain import Drain, Pace, drain
from tailrace.runtime.fold import Fold
from tailrace.runtime.report import Silent
from tailrace.runtime.rules import Choice, Rules
from tailrace.spark import session
from tailrace.targets import delta

LARGEST, LARGE = 1 << 20, 10_000_000
COUNTED = ("read", "applied", "superseded", "filtered", "rejected")


def poisons() -> dict[bytes, str]:
    """Return messages that can never be applied, and the code of the reason for each."""
    good = as_json(1, "u", dict.fromkeys(kafka.COLUMNS, 1), 1)[1]
    nothing = good.replace(b'"op":"u"', b'"op":"d"')
    return {
        b"{not json": "malformed",
        b'{"op":"u\xff"}': "malformed",
        b"\x00\x00\x00\x00\x01\x02": "malformed",
        good.replace(b'"op":"u"', b'"op":"z"'): "unknown-op",
        good.replace(b'"table":"orders"', b'"table":"strangers"'): "unknown-table",
        good.replace(b'"id":1', b'"id":null'): "missing-key",
        nothing: "missing-key",
        good.replace(b'"note":1', b'"note":"' + b"x" * LARGE + b'"'): "too-large",
    }


def fill(bootstrap: str, work: Work) -> int:
    """Write the good messages with the poison in their middle; return how many there are in all."""
    settings = {"linger.ms": 50, "queue.buffering.max.messages": 1_000_000, "message.max.bytes": 2 * LARGE}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    dice, sent = random.Random(work.seed), 0
    for key, op, row, lsn in work.changes():
        name, value = as_json(key, op, row, lsn)
        producer.produce(TOPIC, value, name, key % PARTITIONS)
        sent += 1
        for poison in poisons() if lsn == work.events // 2 else ():
            producer.produce(TOPIC, poison, None, dice.randrange(PARTITIONS))
            sent += 1
        if sent % 10_000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise RuntimeError("the broker did not take all messages")
    return sent


def run(events: int, keys: int, slices: int = 6) -> dict[str, Any]:
    """Drain them; say what was found."""
    work = Work(events, keys)
    spark = session(**{"spark.master": "local[2]"})
    with on_demand() as group, tempfile.TemporaryDirectory(prefix="tailrace-bench-") as made:
        folder = Path(made)
        group.start("kafka")
        bootstrap = group.kafka.bootstrap
        group.kafka.create_topic(TOPIC, PARTITIONS, {"max.message.bytes": str(2 * LARGE)})
        messages = fill(bootstrap, work)
        broker = Broker({"bootstrap.servers": bootstrap}, {"kafka.bootstrap.servers": bootstrap})
        memory = kafka.Memory()
        log = KafkaLog("bench", 1, broker, [TOPIC], [TABLE], DebeziumJson(), memory, lambda: spark, LARGEST)
        target = delta.open_target(
            "lake", delta.Options(path=str(folder / "lake")), spark=lambda: spark, pipeline_id="bench",
            tables={TABLE: "orders"}, mode="scd1",
        )  # fmt: skip
        rejects = Rejects(folder / "rejects", enabled=True, limit=100)
        fold = Fold(lambda: spark, log, target, Rules("scd1", Evolution.ALTER, LARGEST), rejects, Silent())
        pace = Pace(-(-messages // slices), 1.0)
        job = Drain("lake", log, fold, {TABLE: Choice(TABLE)}, Progress(folder / "progress"), pace, Silent())
        started = time.monotonic()
        counts = [c for _, done in drain(job, threading.Event(), lambda step: step(), upto=log.head()) for c in done]
        seconds = time.monotonic() - started
        rows = spark.read.format("delta").load(str(folder / "lake" / "orders")).select("id", "updated_at")
        found = {row[0]: row[1] for row in rows.toLocalIterator()}
        letters = Counter(str(letter["dlq.error_type"]) for letter in rejects.letters("lake"))
    figures = {name: sum(getattr(c, name) for c in counts) for name in COUNTED}
    whole = figures["read"] == messages == sum(figures[name] for name in COUNTED[1:])
    return {
        "events": events, "messages": messages, "seconds": round(seconds, 2), **figures, "letters": dict(letters),
        "equal": found == work.expected() and letters == Counter(poisons().values()) and whole,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    given = parser.parse_args()
    figures = run(given.events, given.keys)
    print(json.dumps(figures, indent=2))
    raise SystemExit(0 if figures["equal"] else 1)


if __name__ == "__main__":
    main()
