"""Makes tests/vectors/kafka, or a folder given, again: what real Debezium connectors write to a real Kafka.

Each connector below captures the same tables in its own way. The steps run one after the other, and each waits until
every connector has written the messages it must cause: so every message knows the step it came from.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psycopg
from confluent_kafka import Consumer, Message, TopicPartition

from dev.capture_steps import MARIADB, MARIADB_TABLES, POSTGRES, POSTGRES_TABLES, Step
from dev.services import Group, http, running
from dev.services.connect import avro_converters, json_converters

VECTORS = Path(__file__).parents[1] / "tests" / "vectors" / "kafka"
UNSAID = ("hostname", "port", "password", "bootstrap.servers", "registry.url")
"""Ends of settings that belong to the run and not to the vectors."""


@dataclass(frozen=True, slots=True)
class Connector:
    """A connector to record, its name being that of the file; `tables` are topics without their prefix."""

    name: str
    about: str
    settings: dict[str, str]
    tables: tuple[str, ...]


class Recording:
    """The messages of one connector so far."""

    def __init__(self, connector: Connector, up: Group) -> None:
        self.connector = connector
        self.messages: list[dict[str, Any]] = []
        self._up = up
        self._topics = [f"{connector.settings['topic.prefix']}.{table}" for table in connector.tables]
        self._next = dict.fromkeys(self._topics, 0)
        self._consumer = Consumer({"bootstrap.servers": up.kafka.bootstrap, "group.id": connector.name})

    def take(self, step: str, count: int) -> None:
        """Wait for `count` more messages and keep them; more or fewer is an error of the step's author."""
        deadline = time.monotonic() + 90
        while (found := self._new()) < count:
            if time.monotonic() > deadline:
                status = self._up.connect.status(self.connector.name)
                raise TimeoutError(f"{self.connector.name}, {step}: {found} of {count} messages; {status}")
            time.sleep(0.2)
        if found > count:
            raise ValueError(f"{self.connector.name}, {step}: {found} messages instead of {count}")
        self.messages += [message_json(step, message) for message in self._read(count)]

    def close(self) -> None:
        self._consumer.close()

    def _there(self) -> list[str]:
        known = self._consumer.list_topics(timeout=10).topics
        return [topic for topic in self._topics if topic in known]

    def _new(self) -> int:
        return sum(self._end(topic) - self._next[topic] for topic in self._there())

    def _end(self, topic: str) -> int:
        return int(self._consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1])

    def _read(self, count: int) -> list[Message]:
        self._consumer.assign([TopicPartition(topic, 0, self._next[topic]) for topic in self._there()])
        read: list[Message] = []
        while len(read) < count:
            read += [message for message in self._consumer.consume(count - len(read), timeout=5) if not message.error()]
        for message in read:
            topic, offset = _at(message)
            self._next[topic] = offset + 1
        return sorted(read, key=lambda message: (self._topics.index(_at(message)[0]), _at(message)[1]))


def _at(message: Message) -> tuple[str, int]:
    """Return the topic and offset of a message that was read."""
    topic, offset = message.topic(), message.offset()
    assert topic is not None
    assert offset is not None
    return topic, offset


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    return cast("list[tuple[str, bytes | None]]", message.headers() or [])


def message_json(step: str, message: Message) -> dict[str, Any]:
    return {
        "step": step,
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
        "key_base64": _base64(message.key()),
        "value_base64": _base64(message.value()),
        "headers": [[name, _base64(value)] for name, value in _headers(message)],
    }


def vectors(recording: Recording, steps: Sequence[Step], registry_url: str) -> dict[str, Any]:
    """Return the file's content: how it was made, the writers' schemas by id if the messages name any, the messages."""
    connector = recording.connector
    settings = {k: v for k, v in connector.settings.items() if not k.endswith(UNSAID)}
    return {
        "about": connector.about,
        "connector": settings,
        "statements": {step.name: list(step.statements) for step in steps},
        "schemas": _schemas(recording.messages, registry_url) if "avro" in connector.name else {},
        "messages": recording.messages,
    }


def postgres_connectors(up: Group) -> list[Connector]:
    server = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": up.postgres.host,
        "database.port": str(up.postgres.port),
        "database.user": up.postgres.user,
        "database.password": up.postgres.password,
        "database.dbname": up.postgres.database,
        "plugin.name": "pgoutput",
        "publication.autocreate.mode": "filtered",
        "table.include.list": ",".join(POSTGRES_TABLES),
        "skipped.operations": "none",
    }

    def connector(kind: str, about: str, settings: dict[str, str]) -> Connector:
        own = {"topic.prefix": f"pg_{kind}", "slot.name": f"slot_{kind}", "publication.name": f"publication_{kind}"}
        return Connector(f"postgres-{kind.replace('_', '-')}", about, {**server, **own, **settings}, POSTGRES_TABLES)

    return [
        connector("json", "PostgreSQL, JSON without schema blocks, defaults", json_converters(schemas=False)),
        connector("json_schema", "PostgreSQL, JSON with schema blocks, defaults", json_converters(schemas=True)),
        connector(
            "avro",
            "PostgreSQL, Avro with the five-byte header, defaults",
            {**avro_converters(up.registry), "schema.name.adjustment.mode": "avro"},
        ),
        connector(
            "json_modes",
            "PostgreSQL, JSON with schema blocks, with every representation that has a switch switched",
            {
                **json_converters(schemas=True),
                "decimal.handling.mode": "string",
                "time.precision.mode": "connect",
                "binary.handling.mode": "hex",
                "interval.handling.mode": "string",
                "tombstones.on.delete": "false",
                "provide.transaction.metadata": "true",
            },
        ),
    ]


def mariadb_connectors(up: Group) -> list[Connector]:
    server = {
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "database.hostname": up.mariadb.host,
        "database.port": str(up.mariadb.port),
        "database.user": up.mariadb.replication_user,
        "database.password": up.mariadb.replication_password,
        "database.include.list": up.mariadb.database,
        "table.include.list": ",".join(MARIADB_TABLES),
        "schema.history.internal.kafka.bootstrap.servers": up.kafka.bootstrap,
        "include.schema.changes": "false",
        "skipped.operations": "none",
    }

    def connector(number: int, kind: str, about: str, settings: dict[str, str]) -> Connector:
        prefix = f"maria_{kind}"
        own = {
            "topic.prefix": prefix, "database.server.id": str(5400 + number),
            "schema.history.internal.kafka.topic": f"history_{prefix}",
        }  # fmt: skip
        return Connector(f"mariadb-{kind.replace('_', '-')}", about, {**server, **own, **settings}, MARIADB_TABLES)

    return [
        connector(1, "json", "MariaDB, JSON without schema blocks, defaults", json_converters(schemas=False)),
        connector(2, "json_schema", "MariaDB, JSON with schema blocks, defaults", json_converters(schemas=True)),
    ]


def record(
    up: Group, connectors: Sequence[Connector], steps: Sequence[Step], execute: Callable[[Step], None]
) -> list[Recording]:
    """Run the steps, the first before the connectors start so that they find its rows in their snapshot."""
    execute(steps[0])
    for connector in connectors:
        up.connect.put(connector.name, connector.settings)
    recordings = [Recording(connector, up) for connector in connectors]
    for step in steps:
        if step is not steps[0]:
            execute(step)
        for recording in recordings:
            recording.take(step.name, step.count(tombstones="tombstones.on.delete" not in recording.connector.settings))
        print(f"{step.name}: done", file=sys.stderr, flush=True)
    for recording in recordings:
        recording.close()
        up.connect.delete(recording.connector.name)
    return recordings


def main(into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    with running("kafka", "registry", "connect", "mariadb", "postgres") as up:
        with psycopg.connect(up.postgres.dsn(), autocommit=True) as postgres:
            recordings = record(up, postgres_connectors(up), POSTGRES, lambda step: _in_postgres(postgres, step))
            _write(into, up, recordings, POSTGRES)
        with up.mariadb.connect() as mariadb, mariadb.cursor() as cursor:
            recordings = record(up, mariadb_connectors(up), MARIADB, lambda step: _in_mariadb(cursor, step))
            _write(into, up, recordings, MARIADB)


def _in_postgres(connection: psycopg.Connection[Any], step: Step) -> None:
    for transaction in step.transactions:
        with connection.transaction():
            for statement in transaction:
                connection.execute(statement.encode())


def _in_mariadb(cursor: Any, step: Step) -> None:
    for transaction in step.transactions:
        cursor.execute("BEGIN")
        for statement in transaction:
            cursor.execute(statement)
        cursor.execute("COMMIT")


def _write(into: Path, up: Group, recordings: Sequence[Recording], steps: Sequence[Step]) -> None:
    for recording in recordings:
        path = into / f"{recording.connector.name}.json"
        content = vectors(recording, steps, up.registry.url)
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
        print(f"{path.name}: {len(recording.messages)} messages", file=sys.stderr, flush=True)


def _schemas(messages: Sequence[dict[str, Any]], registry_url: str) -> dict[str, Any]:
    written = [base64.b64decode(m[part]) for m in messages for part in ("key_base64", "value_base64") if m[part]]
    ids = sorted({int.from_bytes(each[1:5], "big") for each in written})
    return {str(id_): json.loads(http.call("GET", f"{registry_url}/schemas/ids/{id_}")["schema"]) for id_ in ids}


def _base64(content: bytes | str | None) -> str | None:
    data = content.encode() if isinstance(content, str) else content
    return None if data is None else base64.b64encode(data).decode()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else VECTORS)
