"""A pipeline that deploys its own connector: PostgreSQL, Kafka Connect, Kafka, and back to nothing."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dev.services import http
from dev.services.connect import Connect
from dev.services.kafka import Kafka
from tailrace.config.load import load_pipeline, load_platform
from tailrace.core.errors import Misconfigured, NotReady
from tailrace.runtime.build import Pipeline, open_pipeline
from tailrace.runtime.probe import probed
from tailrace.runtime.report import Silent
from tests.service.reading import Database
from tests.service.topics import patiently

Opening = Callable[..., Pipeline]


@pytest.fixture
def opening(database: Database, kafka: Kafka, connect: Connect, tmp_path: Path) -> Opening:
    database.run("CREATE TABLE orders (id int PRIMARY KEY, total numeric(10,2), note text)")
    database.run("INSERT INTO orders VALUES (1, 9.99, 'one'), (2, 0.01, NULL)")
    server = database.server

    def opened(**connector: Any) -> Pipeline:
        source = {
            "database": database.name, "host": "127.0.0.1", "port": server.port, "username": server.user, "password": server.password,
            "slot_name": f"slot_{database.name}", "publication_name": f"pub_{database.name}", "tables": ["public.orders"],
        }  # fmt: skip
        sink = {"sink_id": "box", "sink_type": "sqlite", "sqlite": {"path": str(tmp_path / "box.db")}}
        platform = {
            "transport_mode": "kafka", "kafka": {"bootstrap_servers": kafka.bootstrap, "topic_num_partitions": 2},
            "connector": {"connect_url": connect.url, "timeout_seconds": 120, **connector},
            "control": {"root": str(tmp_path / "state")}, "spark": {"master": "local[2]"},
        }  # fmt: skip
        (tmp_path / "pipeline.yaml").write_text(
            json.dumps({"pipeline_id": "shop", "topic_prefix": database.name, "source": source, "sinks": [sink]})
        )
        (tmp_path / "platform.yaml").write_text(json.dumps(platform))
        return open_pipeline(
            load_pipeline(tmp_path / "pipeline.yaml").config, load_platform(tmp_path / "platform.yaml").config
        )

    return opened


def left(database: Database, kafka: Kafka, connect: Connect) -> list[str]:
    """Return what there is of a deployment."""
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    with psycopg.connect(database.server.dsn(database.name), autocommit=True) as asked:
        found = [row[0] for row in asked.execute(slots)]
        found += [row[0] for row in asked.execute("SELECT pubname FROM pg_publication")]
    found += [topic for topic in kafka.topics() if topic.startswith(f"{database.name}.") and not topic.endswith(".dlq")]
    # Its state outlives a connector that was stopped before it was removed.
    return found + [name for name in http.call("GET", f"{connect.url}/connectors") if name.startswith(database.name)]


def assert_nothing_left(database: Database, kafka: Kafka, connect: Connect) -> None:
    with contextlib.suppress(AssertionError):
        patiently(lambda: left(database, kafka, connect) == [], 30)
    assert left(database, kafka, connect) == []


def rows(tmp_path: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(tmp_path / "box.db")) as db:
        return db.execute("SELECT id, total, note FROM orders ORDER BY id").fetchall()


def test_a_deployment_fills_a_target_may_be_repeated_and_leaves_nothing(
    opening: Opening, database: Database, kafka: Kafka, connect: Connect, tmp_path: Path
) -> None:
    name, topic = f"{database.name}-shop", f"{database.name}.public.orders"
    with opening() as pipeline:
        with pytest.raises(NotReady) as early:
            pipeline.run(once=True, report=Silent())
        assert early.value.code == "not-deployed"
        made = [f'topic "{topic}"', f'topic "{topic}.dlq"', f'publication "pub_{database.name}"', f'connector "{name}"']
        assert pipeline.deploy() == made
        assert pipeline.deploy() == []
    with opening(settings={"max.batch.size": "1000"}) as pipeline:
        assert pipeline.deploy() == [f'connector "{name}"']
        database.run("UPDATE orders SET note = 'changed' WHERE id = 2", "DELETE FROM orders WHERE id = 1")
        patiently(lambda: sum(int(str(row["head"])) + 1 for row in pipeline.lag() if row["part"] == "box") == 4)
        report = pipeline.run(once=True, report=Silent())
        assert report.first_error() is None
        assert [(int(row[0]), str(row[1]), row[2]) for row in rows(tmp_path)] == [(2, "0.01", "changed")]
        assert pipeline.measure().source["connector"] == {"state": "RUNNING"}
        pipeline.connector("pause")
        patiently(lambda: pipeline.connector("status")["connector"] == {"state": "PAUSED"})
        pipeline.connector("resume")
        patiently(lambda: pipeline.connector("status")["connector"] == {"state": "RUNNING"})
        pipeline.connector("restart")
        patiently(lambda: pipeline.connector("status")["tasks"] == [{"state": "RUNNING"}])
        database.run("INSERT INTO orders VALUES (3, 3.00, 'after the restart')")
        patiently(lambda: sum(int(str(row["head"])) + 1 for row in pipeline.lag() if row["part"] == "box") == 5)
        servers = probed(load_platform(tmp_path / "platform.yaml").config)
        assert [(server.component, server.error) for server in servers] == [("kafka", None), ("connect", None)]
        removed = pipeline.undeploy()
        assert removed[:2] == [f'connector "{name}"', f'replication slot "slot_{database.name}"']
        assert pipeline.measure().source["connector"] == {"state": "MISSING"}
        assert_nothing_left(database, kafka, connect)
        # Dead letters outlive what they came from.
        assert f"{topic}.dlq" in kafka.topics()
        with pytest.raises(Misconfigured, match="from before cdc undeploy"):
            pipeline.deploy()


def test_a_step_that_fails_has_the_others_undone(
    opening: Opening, database: Database, kafka: Kafka, connect: Connect
) -> None:
    wrong = {"value.converter": "no.such.Converter"}
    with opening(settings=wrong) as pipeline:
        with pytest.raises(NotReady) as found:
            pipeline.deploy()
        assert found.value.code == "connect-refused"
        assert database.server.password not in str(found.value)
        assert_nothing_left(database, kafka, connect)
