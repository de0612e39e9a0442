"""Which tables a topic holds: the one it is called after, those that a sink names, or whatever its messages name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from dev.services.kafka import Kafka
from tailrace.config.load import load_pipeline, load_platform
from tailrace.runtime.build import open_pipeline
from tailrace.runtime.report import Silent
from tailrace.runtime.run import RunReport
from tests.service.topics import patiently


def put(kafka: Kafka, topic: str, table: str, key: int, lsn: int) -> None:
    source = {"connector": "postgresql", "schema": "public", "table": table, "lsn": lsn, "ts_ms": 1}
    body = {"before": None, "after": {"id": key, "of": table}, "source": source, "op": "c"}
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    producer.produce(topic, json.dumps(body).encode(), json.dumps({"id": key}).encode())
    assert producer.flush(30) == 0


def run(
    kafka: Kafka, folder: Path, topic: str, tables: dict[str, Any], pattern: str = ""
) -> tuple[RunReport, dict[str, list[int]]]:
    """Run up to the head; return the report, and the keys in each table of the lake."""
    read_from = {"topic_pattern": pattern} if pattern else {"topics": [topic]}
    sink = {"sink_id": "lake", "sink_type": "delta", "delta": {"path": str(folder / "lake")}, "tables": tables}
    pipeline = {"pipeline_id": "shop", "source": {"source_type": "kafka", **read_from}, "sinks": [sink]}
    platform = {
        "kafka": {"bootstrap_servers": kafka.bootstrap},
        "control": {"root": str(folder / "state")},
        "spark": {"master": "local[2]"},
    }
    (folder / "pipeline.yaml").write_text(json.dumps(pipeline))
    (folder / "platform.yaml").write_text(json.dumps(platform))
    loaded = load_pipeline(folder / "pipeline.yaml"), load_platform(folder / "platform.yaml")
    with open_pipeline(loaded[0].config, loaded[1].config) as opened:
        report = opened.run(once=True, report=Silent())
        names = sorted(path.name for path in (folder / "lake").iterdir() if not path.name.startswith("_"))
        spark = opened._spark()
        read = {name: spark.read.format("delta").load(str(folder / "lake" / name)).collect() for name in names}
    return report, {name: sorted(row["id"] for row in rows) for name, rows in read.items()}


def test_a_topic_not_called_after_a_table_holds_whatever_its_messages_name(kafka: Kafka, tmp_path: Path) -> None:
    kafka.create_topic("everything", 1)
    put(kafka, "everything", "orders", 1, 100)
    put(kafka, "everything", "customers", 2, 101)
    report, found = run(kafka, tmp_path, "everything", {})
    assert report.first_error() is None
    assert found == {"customers": [2], "orders": [1]}
    put(kafka, "everything", "parts", 3, 102)
    put(kafka, "everything", "orders", 4, 103)
    report, found = run(kafka, tmp_path, "everything", {})
    assert report.first_error() is None
    assert found == {"customers": [2], "orders": [1, 4], "parts": [3]}


@pytest.mark.parametrize("named", [{}, {"public.customers": {"name": "people"}}], ids=["none named", "one named"])
def test_a_topic_called_after_a_table_holds_that_one_and_those_that_a_sink_names(
    kafka: Kafka, tmp_path: Path, named: dict[str, Any]
) -> None:
    topic = f"tables{len(named)}.public.orders"
    kafka.create_topic(topic, 1)
    put(kafka, topic, "orders", 1, 100)
    put(kafka, topic, "customers", 2, 101)
    report, found = run(kafka, tmp_path, topic, named)
    assert report.first_error() is None
    assert found == {"orders": [1]} | ({"people": [2]} if named else {})
    assert sum(table.rejected for table in report.targets[0].tables.values()) == (0 if named else 1)


def test_a_topic_that_was_read_and_is_gone_is_not_forgotten_where_a_pattern_means_it(
    kafka: Kafka, tmp_path: Path
) -> None:
    for number, table in enumerate(("orders", "lines")):
        kafka.create_topic(f"gone.public.{table}", 1)
        put(kafka, f"gone.public.{table}", table, number, 100)
    whole = {"lines": [1], "orders": [0]}
    assert run(kafka, tmp_path, "", {}, r"gone\..*")[1] == whole
    put(kafka, "gone.public.lines", "lines", 2, 101)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    admin.delete_topics(["gone.public.lines"])["gone.public.lines"].result(30)
    patiently(lambda: "gone.public.lines" not in kafka.topics())
    report, found = run(kafka, tmp_path, "", {}, r"gone\..*")
    error = report.first_error()
    assert error is not None
    assert (error.code, found) == ("resync-required", whole)
    report, found = run(kafka, tmp_path, "", {}, r"gone\..*orders")
    assert (report.first_error(), found) == (None, whole)
