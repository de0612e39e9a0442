"""One real server of each kind for the session, started when a test first asks for it; a fresh database per test."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from dev.services import Group, on_demand
from dev.services.catalog import Catalog
from dev.services.connect import Connect
from dev.services.kafka import Kafka
from dev.services.mariadb import MariaDb
from dev.services.oauth import TokenEndpoint
from dev.services.registry import Registry
from dev.services.s3 import S3
from tailrace.demo.postgres import EmbeddedPostgres
from tailrace.spark import session
from tests.service.maria import Maria
from tests.service.reading import Database
from tests.sessions import SMALL

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    settings = {"fsync": "off", "full_page_writes": "off"}
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-pg-") as folder,
        EmbeddedPostgres(Path(folder) / "server", settings=settings) as server,
    ):
        yield server


@pytest.fixture
def database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    name = f"t{next(_numbers)}"
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    with psycopg.connect(postgres.dsn(name), autocommit=True) as connection:
        database = Database(postgres, name, connection)
        yield database
        for source in database.opened:
            source.close()
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        _drop_slots(admin, name)
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _drop_slots(admin: psycopg.Connection[tuple[object, ...]], name: str) -> None:
    """Drop the slots of a database; a reader that ends just now may have one for a moment more."""
    slots, deadline = "FROM pg_replication_slots WHERE database = %s", time.monotonic() + 30
    while True:
        admin.execute(f"SELECT pg_terminate_backend(active_pid, 10000) {slots} AND active", [name])
        try:
            admin.execute(f"SELECT pg_drop_replication_slot(slot_name) {slots}", [name])
        except psycopg.errors.ObjectInUse:
            if time.monotonic() > deadline:
                raise
        else:
            return


@pytest.fixture(scope="session", autouse=True)
def spark() -> Iterator[SparkSession]:
    """A session for targets that are servers, and for Iceberg in S3.

    It must be the first of the process: a pipeline of a test would start the JVM without the client of S3.
    """
    started = session(also=["tailrace.targets.iceberg"], **SMALL)
    yield started
    started.stop()


@pytest.fixture(scope="session")
def services() -> Iterator[Group]:
    """The group the fixtures below start; a test that stops a server must take one of its own."""
    with on_demand() as group:
        yield group


@pytest.fixture(scope="session")
def kafka(services: Group) -> Kafka:
    services.start("kafka")
    return services.kafka


@pytest.fixture(scope="session")
def secured() -> Iterator[Kafka]:
    """A broker that also listens with TLS, and wants to know who asks."""
    with on_demand(secure=True) as group:
        group.start("kafka")
        yield group.kafka


@pytest.fixture(scope="session")
def tokens(secured: Kafka) -> Iterator[TokenEndpoint]:
    """Where the one client that the secured broker's signer knows gets its tokens."""
    assert secured.secured
    with TokenEndpoint(secured.secured.signer, "tailrace", "tailrace-secret") as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def registry(services: Group) -> Registry:
    services.start("registry")
    return services.registry


@pytest.fixture(scope="session")
def connect(services: Group) -> Connect:
    services.start("connect")
    return services.connect


@pytest.fixture(scope="session")
def mariadb(services: Group) -> MariaDb:
    services.start("mariadb")
    return services.mariadb


@pytest.fixture
def maria(mariadb: MariaDb, tmp_path: Path) -> Iterator[Maria]:
    name = f"m{next(_numbers)}"
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        connection.select_db(name)
        yield Maria(mariadb, name, connection, tmp_path)
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")


@pytest.fixture(scope="session")
def catalog(services: Group) -> Catalog:
    services.start("catalog")
    return services.catalog


@pytest.fixture(scope="session")
def s3(services: Group) -> S3:
    services.start("s3")
    return services.s3
