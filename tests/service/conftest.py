"""One real PostgreSQL for the session, and a fresh database per test."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tailrace.demo.postgres import EmbeddedPostgres
from tests.service.reading import Database

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
        connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database() AND active"
        )
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", [name]
        )
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
