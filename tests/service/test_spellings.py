"""One pipeline, spelled three times, finds its topic and fills the same table; and its own brokers go before those of the platform."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from dev.services.kafka import Kafka

YAML = """\
pipeline_id: lines
source: {source_type: kafka, topics: [spelled.public.lines], bootstrap_servers: "${BROKERS}"}
cdc: {envelope: debezium}
sinks:
  - sink_id: sqlite
    sink_type: sqlite
    delete_mode: soft
    soft_delete_column: gone_at
    tables: {public.lines: {name: line, primary_key: [id], columns: [id, said]}}
    sqlite: {path: lines.db}
"""
TOML = """\
pipeline_name = "lines"
source_query = "spelled.public.lines"
source = { kind = "kafka", bootstrap_servers = "${BROKERS}" }
transform.cdc = { envelope = "debezium", delete_mode = "soft", soft_delete_column = "gone_at" }

[target]
kind = "sqlite"
path = "lines.db"
table = { name = "line", primary_key = ["id"], columns = ["id", "said", "gone_at"] }
"""
PYTHON = """\
import tailrace
from typing import Annotated, Any

@tailrace.connection
class brokers:
    kind = "kafka"
    bootstrap_servers = "${BROKERS}"

@tailrace.connection
class lines_db:
    kind = "sqlite"
    path = "lines.db"

@tailrace.table
class Line:
    id: Annotated[Any, tailrace.pk()]
    said: Any
    gone_at: Any

@tailrace.streaming_pipeline(
    source="brokers",
    source_query="spelled.public.lines",
    target=Line,
    target_connection="lines_db",
    cdc=tailrace.CDC("debezium", delete_mode="soft", soft_delete_column="gone_at"),
)
def lines(): ...
"""


SPELLINGS = {"lines.yaml": (YAML, "lines.yaml"), "lines.toml": (TOML, "lines.toml"), "shop.py": (PYTHON, "shop:lines")}
EVENTS = [("c", 1, "one"), ("c", 2, "two"), ("u", 1, "uno"), ("d", 2, "two")]


@pytest.fixture(scope="module")
def brokers(kafka: Kafka) -> str:
    """The address of brokers that have the topic."""
    kafka.create_topic("spelled.public.lines", 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for lsn, (op, key, said) in enumerate(EVENTS, 100):
        row = {"id": key, "said": said, "ignored": 1}
        source = {"connector": "postgresql", "schema": "public", "table": "lines", "lsn": lsn, "ts_ms": 1_700_000_000}
        body = {"before": row if op == "d" else None, "after": None if op == "d" else row, "source": source, "op": op}
        producer.produce("spelled.public.lines", json.dumps(body).encode(), json.dumps({"id": key}).encode())
    assert producer.flush(30) == 0
    return kafka.bootstrap


@pytest.fixture(params=SPELLINGS)
def cdc(request: pytest.FixtureRequest, brokers: str, tmp_path: Path) -> Callable[..., Any]:
    """A function that runs a command on one spelling of the pipeline, and returns what it printed."""
    text, spelled = SPELLINGS[request.param]
    (tmp_path / request.param).write_text(text)
    # Nobody listens there: what the pipeline says of its brokers must win.
    (tmp_path / "platform.toml").write_text('kafka.bootstrap_servers = "127.0.0.1:9"\nspark.master = "local[2]"\n')

    def run(command: str, *options: str) -> Any:
        start = [sys.executable, "-c", "from tailrace.cli.main import main; main()", command, spelled, *options]
        environ = {**os.environ, "PYTHONPATH": ":".join(sys.path), "BROKERS": brokers}
        done = subprocess.run(
            [*start, "--json", "--platform-config", "platform.toml"],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_every_spelling_finds_its_brokers_and_fills_the_same_table(cdc: Callable[..., Any], tmp_path: Path) -> None:
    place = {"part": "sqlite", "topic": "spelled.public.lines", "partition": 0}
    assert cdc("lag") == [{**place, "lag_events": 4, "upto": -1, "head": 3}]
    assert cdc("status")["pipeline_id"] == "lines"
    done = cdc("run", "--once")
    assert done["status"] == "done"
    (table,) = done["targets"][0]["tables"]
    assert (table["read"], table["applied"]) == (4, 4)
    with closing(sqlite3.connect(tmp_path / "lines.db")) as db:
        rows = db.execute("SELECT id, said, gone_at IS NOT NULL FROM line ORDER BY id").fetchall()
    assert rows == [(1, "uno", 0), (2, "two", 1)]
    assert cdc("lag") == [{**place, "lag_events": 0, "upto": 3, "head": 3}]
