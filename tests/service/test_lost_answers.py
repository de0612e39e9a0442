"""A commit that went through and whose answer never came is looked up, on every target that has a wire to its server.

Each server is reached through a proxy that cuts the connection at every commit that a batch makes: once it was answered,
and before it was sent. The batches are events, so that one that was written twice would show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dev.services.catalog import Catalog
from dev.services.mariadb import MariaDb
from dev.services.s3 import S3
from tailrace.apply.target import Batch, Mark, Target
from tailrace.core.errors import Retryable
from tailrace.core.table import Evolution, fit
from tailrace.targets import iceberg, mysql, parquet, postgres
from tests.contracts.target import ITEMS, LOG, TABLES, at, events
from tests.proxy import When, wire_to
from tests.service.reading import Database


@dataclass(frozen=True)
class Server:
    """What a target is behind a port, and what its client sends to commit."""

    port: int
    module: Any
    options: Callable[[int], dict[str, Any]]
    """Given the port."""
    commit: bytes
    commits: int = 1
    """So many of them a batch has; the last one is the one that counts."""

    def open(self, spark: SparkSession, port: int) -> Target:
        options = self.module.Options(**self.options(port))
        target: Target = self.module.open_target(
            "lake", options, spark=lambda: spark, pipeline_id="lost", tables=TABLES, mode="append"
        )
        return target


def _in_postgres(ask: Callable[[str], Any]) -> Server:
    database: Database = ask("database")
    server = database.server
    login = {"database": database.name, "username": server.user, "password": server.password}
    return Server(server.port, postgres, lambda port: {"host": "127.0.0.1", "port": port, **login}, b"COMMIT\0")


def _in_mysql(ask: Callable[[str], Any]) -> Server:
    server: MariaDb = ask("mariadb")
    login = {"database": server.database, "username": server.user, "password": server.password, "schema": "lost"}
    return Server(server.port, mysql, lambda port: {"host": server.host, "port": port, **login}, b"\x03COMMIT")


def _parquet_in_s3(ask: Callable[[str], Any]) -> Server:
    s3: S3 = ask("s3")
    s3.create_bucket("lost")
    login = {"s3_region": s3.region, "s3_access_key_id": s3.access_key, "s3_secret_access_key": s3.secret_key}
    return Server(
        _port(s3.endpoint),
        parquet,
        lambda port: {"path": "s3://lost", "s3_endpoint": f"http://127.0.0.1:{port}", **login},
        b"PUT /lost/items/manifests/",
    )


def _iceberg_in_postgres(ask: Callable[[str], Any]) -> Server:
    database: Database = ask("database")
    server, warehouse = database.server, str(ask("tmp_path"))
    login = {"catalog_username": server.user, "catalog_password": server.password, "warehouse": warehouse}
    return Server(
        server.port,
        iceberg,
        lambda port: {"catalog_uri": f"postgresql://127.0.0.1:{port}/{database.name}", **login},
        b".metadata.json",
        commits=2,
    )


def _iceberg_in_rest(ask: Callable[[str], Any]) -> Server:
    catalog: Catalog = ask("catalog")
    place = {"catalog": "rest", "warehouse": "lake", "table_namespace": "lost"}
    return Server(
        _port(catalog.uri),
        iceberg,
        lambda port: {"catalog_uri": f"http://127.0.0.1:{port}", **place},
        b"POST /v1/namespaces/lost/tables/items ",
        commits=2,
    )


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


SERVERS = {
    "postgres": _in_postgres,
    "mysql": _in_mysql,
    "parquet in S3": _parquet_in_s3,
    "iceberg in postgres": _iceberg_in_postgres,
    "iceberg in a REST catalog": _iceberg_in_rest,
}


def settle(target: Target, batch: Batch) -> list[int | None]:
    """Apply a batch as a drain does; return of each try how many rows it says it wrote, `None` if it failed."""
    tries: list[int | None] = []
    for _ in range(3):
        target.mark(ITEMS.name)
        try:
            return [*tries, target.apply(batch).inserted]
        except Retryable:
            tries.append(None)
    raise AssertionError("it was never applied")


@pytest.mark.parametrize("name", SERVERS)
def test_a_commit_whose_answer_was_lost_is_looked_up(
    name: str, spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    server = SERVERS[name](request.getfixturevalue)
    last, whens = 2, list[When](["after", "before"])
    with wire_to(server.port) as wire:
        target = server.open(spark, wire.port)
        target.evolve(ITEMS.name, fit(None, ITEMS, Evolution.ALTER))
        target.apply(events(spark, 1, last))
        for passing in range(server.commits):
            for when in whens:
                wire.cut(server.commit, when, passing)
                tries = settle(target, events(spark, last + 1, last + 2))
                last += 2
                # The commit that counts went through: it is found, and the batch is not tried again.
                found = when == "after" and passing == server.commits - 1
                assert tries == [2] if found else tries[-1] == 2, (name, passing, when, tries)
        assert wire.cuts == whens * server.commits
    again = server.open(spark, server.port)
    assert again.mark(ITEMS.name) == Mark(LOG, last, at(last))
    assert sorted(row["_cdc_offset"] for row in again.current(ITEMS.name).collect()) == list(range(1, last + 1))
