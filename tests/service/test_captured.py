"""Rows of PostgreSQL and MariaDB, through connectors that Tailrace deploys, in JSON and in Avro, into Delta: equal to their source."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import AnalysisException

from dev.services import http
from dev.services.connect import Connect, avro_converters
from dev.services.kafka import Kafka
from dev.services.registry import Registry
from tailrace.config.load import load_pipeline, load_platform
from tailrace.core.errors import Halt
from tailrace.runtime.build import Pipeline, open_pipeline
from tailrace.runtime.report import JsonLines
from tailrace.runtime.run import RunReport
from tests.service.maria import Maria
from tests.service.reading import Database
from tests.service.running import Running, running
from tests.service.topics import patiently, read
from tests.sessions import SMALL

_numbers = itertools.count(1)

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, total numeric(10,2), note varchar(200), size smallint)"
SNAPSHOT = ["INSERT INTO orders VALUES (1, 9.99, 'one', 1), (2, 0.01, NULL, 2), (3, -3, 'three', 3)"]
CHANGES = [
    "INSERT INTO orders VALUES (4, 4, 'four', 4), (5, 5, 'five', 5)",
    "UPDATE orders SET note = 'two' WHERE id = 2",
    "DELETE FROM orders WHERE id = 3",
    "BEGIN",
    "INSERT INTO orders VALUES (6, 6, 'six', 6)",
    "UPDATE orders SET total = total + 1 WHERE id IN (1, 6)",
    "UPDATE orders SET total = total * 2, note = 'twice' WHERE id IN (1, 6)",
    "DELETE FROM orders WHERE id = 5",
    "INSERT INTO orders VALUES (5, 55, 'again', 5)",
    "COMMIT",
    "UPDATE orders SET id = 40 WHERE id = 4",
]
WIDER = [
    "ALTER TABLE orders ADD COLUMN extra int DEFAULT 7",
    "INSERT INTO orders VALUES (7, 7, 'seven', 3000000000, 8)",
]
TRUNCATED = ["TRUNCATE TABLE orders", "INSERT INTO orders VALUES (1, 1, 'anew', 1, 1)"]


@dataclass
class Capture:
    """A pipeline from one table to Delta, through a connector, and its run."""

    folder: Path
    source: dict[str, Any]
    platform: dict[str, Any]
    prefix: str = field(default_factory=lambda: f"captured{next(_numbers)}")
    log: io.StringIO = field(default_factory=io.StringIO)
    running: Running | None = None

    def open(self) -> Pipeline:
        place = self.folder / self.prefix
        place.mkdir(exist_ok=True)
        sink = {
            "sink_id": "lake",
            "sink_type": "delta",
            "schema_evolution": "alter",
            "delta": {"path": str(place / "lake")},
        }
        pipeline = {"pipeline_id": "shop", "topic_prefix": self.prefix, "source": self.source, "sinks": [sink]}
        (place / "pipeline.yaml").write_text(json.dumps(pipeline))
        (place / "platform.yaml").write_text(json.dumps({**self.platform, "control": {"root": str(place / "state")}}))
        return open_pipeline(
            load_pipeline(place / "pipeline.yaml").config, load_platform(place / "platform.yaml").config
        )

    @property
    def topic(self) -> str:
        return f"{self.prefix}.{self.source['tables'][0]}"

    @property
    def reports(self) -> list[RunReport]:
        return self.running.reports if self.running else []

    def rows(self, pipeline: Pipeline) -> list[tuple[Any, ...]]:
        try:
            lake = pipeline._spark().read.format("delta").load(str(self.folder / self.prefix / "lake" / "orders"))
        except AnalysisException:
            return []
        names = [name for name in ("id", "total", "note", "size", "extra") if name in lake.columns]
        return sorted(map(tuple, lake.select(*names).collect()))

    def read(self) -> int:
        return sum(line["read"] for line in self.events("slice applied"))

    def watched(self) -> set[str]:
        """Return the topics of whose values the registry has told."""
        (noted,) = [*(self.folder / self.prefix).rglob("*.subjects.json"), None][:1]
        text = noted.read_text() if noted else ""
        return {self.topic} if f"{self.topic}-value" in text else set()

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = map(json.loads, self.log.getvalue().splitlines())
        return [line for line in lines if line["event"] == name]


Capturing = Callable[[dict[str, Any], str], Capture]


@pytest.fixture
def capturing(kafka: Kafka, registry: Registry, connect: Connect, tmp_path: Path) -> Capturing:
    def made(source: dict[str, Any], value_format: str) -> Capture:
        settings = avro_converters(registry) if value_format == "avro" else {}
        platform = {
            "transport_mode": "kafka",
            "kafka": {"bootstrap_servers": kafka.bootstrap, "topic_num_partitions": 2, "schema_registry_url": registry.url},
            "connector": {"connect_url": connect.url, "timeout_seconds": 120, "value_format": value_format, "settings": settings},
            "spark": {"master": "local[2]", "conf": {name: value for name, value in SMALL.items() if name != "spark.master"}},
            "slice": {"interval_seconds": 1},
            "schema_monitor_interval_seconds": 0.3, "stop_on_incompatible_schema": True,
        }  # fmt: skip
        return Capture(tmp_path, source, platform)

    return made


def of_postgres(database: Database, number: int = 0) -> dict[str, Any]:
    server, name = database.server, f"{database.name}_{number}"
    return {
        "database": database.name, "host": "127.0.0.1", "port": server.port, "username": server.user, "password": server.password,
        "slot_name": f"slot_{name}", "publication_name": f"pub_{name}", "tables": ["public.orders"],
    }  # fmt: skip


def of_mariadb(maria: Maria, number: int = 0) -> dict[str, Any]:
    return {"source_type": "mysql", **maria.settings(), "tables": [f"{maria.name}.orders"], "server_id": 7000 + number}


def left(capture: Capture, kafka: Kafka, connect: Connect) -> list[str]:
    """Return what there is of the deployment."""
    # Dead letters outlive a deployment.
    every = [name for name in kafka.topics() if not name.endswith(".dlq")]
    topics = [name for name in every if name.startswith((f"{capture.prefix}.", f"{capture.prefix}-"))]
    return topics + [name for name in http.call("GET", f"{connect.url}/connectors") if name == f"{capture.prefix}-shop"]


def equal(pairs: Sequence[tuple[Capture, Pipeline, Callable[[], Any]]], messages: int) -> None:
    """Wait until each target has read so many messages, and hold its rows against its source's."""
    for capture, _, _ in pairs:
        patiently(lambda: capture.read() >= messages or bool(capture.reports), 120)  # noqa: B023
    for capture, pipeline, source in pairs:
        assert capture.rows(pipeline) == sorted(source()), [report.to_json() for report in capture.reports]


def register_without(registry: Registry, subject: str, column: str) -> None:
    """Give the subject a version whose rows lack `column`."""
    versions = f"{registry.url}/subjects/{subject}/versions"
    schema = json.loads(http.call("GET", f"{versions}/latest")["schema"])
    row = next(part for part in schema["fields"][0]["type"] if isinstance(part, dict))
    row["fields"] = [one for one in row["fields"] if one["name"] != column]
    http.call("POST", versions, {"schema": json.dumps(schema)})


def test_targets_equal_their_sources_through_connectors(
    capturing: Capturing, database: Database, maria: Maria, kafka: Kafka, connect: Connect, registry: Registry
) -> None:
    database.run(ORDERS, *SNAPSHOT)
    maria.run(ORDERS, *SNAPSHOT)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    formats = random.Random(seed).sample(["json", "avro"], 2)
    captures = [capturing(of_postgres(database), formats[0]), capturing(of_mariadb(maria), formats[1])]
    sources = [
        lambda: database.sql.execute("SELECT * FROM orders").fetchall(),
        lambda: maria.rows("SELECT * FROM orders"),
    ]
    with ExitStack() as opened:
        pipelines = [opened.enter_context(capture.open()) for capture in captures]
        made = [pipeline.deploy() for pipeline in pipelines]
        assert [len(names) for names in made] == [4, 4]
        assert all(f'topic "{capture.topic}.dlq"' in names for capture, names in zip(captures, made, strict=True))
        assert [pipeline.deploy() for pipeline in pipelines] == [[], []]
        pairs = list(zip(captures, pipelines, sources, strict=True))
        runs = [
            opened.enter_context(running(one, JsonLines(of.log, "shop")))
            for one, of in zip(pipelines, captures, strict=True)
        ]
        for capture, run in zip(captures, runs, strict=True):
            capture.running = run
        equal(pairs, 3)
        avro, others = pairs[formats.index("avro")], pairs[formats.index("json")]
        patiently(lambda: avro[0].topic in avro[0].watched())
        for write, widen in ((database.run, "ALTER COLUMN size TYPE bigint"), (maria.run, "MODIFY COLUMN size bigint")):
            write(*CHANGES, f"ALTER TABLE orders {widen}", *WIDER)
        equal(pairs, 17)
        for write in (database.run, maria.run):
            write(*TRUNCATED)
        equal(pairs, 19)
        register_without(registry, f"{avro[0].topic}-value", "note")
        error = runs[formats.index("avro")].ended().first_error()
        others[1].stop()
        assert error is not None
        assert (error.code, 'column "note" is gone' in str(error)) == ("schema-incompatible", True)
        assert {event["compatible"] for event in avro[0].events("schema.version_changed") if "subject" in event} == {
            True,
            False,
        }
        assert runs[formats.index("json")].ended().first_error() is None
        (message,) = read({"bootstrap.servers": kafka.bootstrap}, avro[0].topic, 1)
        assert (message.value() or b"")[:1] == b"\0"
        history = f"{captures[1].prefix}-shop-schema-history"
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        admin.delete_topics([history])[history].result(30)
        patiently(lambda: history not in kafka.topics())
        with pytest.raises(Halt, match="is gone"):
            pipelines[1].deploy()
        for pipeline in pipelines:
            pipeline.undeploy()
    for capture in captures:
        with contextlib.suppress(AssertionError):
            patiently(lambda: left(capture, kafka, connect) == [], 30)  # noqa: B023
        assert left(capture, kafka, connect) == []
