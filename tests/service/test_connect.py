"""From a database through Debezium to a topic: the messages that `source_type: kafka` will read."""

from __future__ import annotations

import json

from dev.services import http
from dev.services.connect import Connect, avro_converters, json_converters
from dev.services.kafka import Kafka
from dev.services.mariadb import MariaDb
from dev.services.registry import Registry
from tests.service import topics
from tests.service.reading import Database


def test_postgres_rows_arrive_as_avro_with_the_five_byte_header(
    kafka: Kafka, registry: Registry, connect: Connect, database: Database
) -> None:
    database.run("CREATE TABLE orders (id int PRIMARY KEY, total numeric(10,2))")
    database.run("INSERT INTO orders VALUES (1, 9.99)")
    server = database.server
    connect.put(
        "orders",
        {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "database.hostname": "127.0.0.1", "database.port": str(server.port), "database.user": server.user,
            "database.password": server.password, "database.dbname": database.name, "plugin.name": "pgoutput",
            "topic.prefix": "avro", "slot.name": f"connect_{database.name}",
            "publication.autocreate.mode": "filtered", "table.include.list": "public.orders",
            **avro_converters(registry),
        },
    )  # fmt: skip
    try:
        topics.read({"bootstrap.servers": kafka.bootstrap}, "avro.public.orders", 1)
        database.run("INSERT INTO orders VALUES (2, 1)")
        messages = topics.read({"bootstrap.servers": kafka.bootstrap}, "avro.public.orders", 2)
    finally:
        connect.delete("orders")
    values = [message.value() or b"" for message in messages]
    assert [value[0] for value in values] == [0, 0]
    written_with = {int.from_bytes(value[1:5], "big") for value in values}
    assert len(written_with) == 1
    schema = json.loads(http.call("GET", f"{registry.url}/schemas/ids/{written_with.pop()}")["schema"])
    assert (schema["name"], schema["namespace"]) == ("Envelope", "avro.public.orders")


def test_mariadb_rows_arrive_as_json(kafka: Kafka, connect: Connect, mariadb: MariaDb) -> None:
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("CREATE TABLE shop.orders (id int PRIMARY KEY, total decimal(10,2))")
        cursor.execute("INSERT INTO shop.orders VALUES (1, 9.99)")
        connect.put(
            "shop",
            {
                "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
                "database.hostname": mariadb.host, "database.port": str(mariadb.port),
                "database.user": mariadb.replication_user, "database.password": mariadb.replication_password,
                "database.server.id": "6001", "database.include.list": "shop", "topic.prefix": "json",
                "schema.history.internal.kafka.bootstrap.servers": kafka.bootstrap,
                "schema.history.internal.kafka.topic": "history-shop", "decimal.handling.mode": "string",
                **json_converters(schemas=False),
            },
        )  # fmt: skip
        try:
            topics.read({"bootstrap.servers": kafka.bootstrap}, "json.shop.orders", 1)
            cursor.execute("INSERT INTO shop.orders VALUES (2, 1)")
            messages = topics.read({"bootstrap.servers": kafka.bootstrap}, "json.shop.orders", 2)
        finally:
            connect.delete("shop")
    events = [json.loads(message.value() or b"") for message in messages]
    assert [event["op"] for event in events] == ["r", "c"]
    assert [event["after"] for event in events] == [{"id": 1, "total": "9.99"}, {"id": 2, "total": "1.00"}]
