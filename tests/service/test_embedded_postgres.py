"""The server that we bring along: found again where it was, and certainly stopped."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tailrace.core.errors import NotReady
from tailrace.demo.postgres import EmbeddedPostgres


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tailrace-pg-") as made:
        yield Path(made) / "server"


def test_a_restarted_server_keeps_port_password_and_rows(folder: Path) -> None:
    with EmbeddedPostgres(folder, settings={"fsync": "off"}) as first, psycopg.connect(first.dsn()) as connection:
        connection.execute("CREATE TABLE a AS SELECT 1 AS id")
    assert not first.running()
    with EmbeddedPostgres(folder, settings={"fsync": "off"}) as second:
        assert (second.port, second.password) == (first.port, first.password)
        with psycopg.connect(second.dsn()) as connection:
            assert connection.execute("SELECT id FROM a").fetchall() == [(1,)]
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(second.dsn(password="wrong"))
        assert second.password not in repr(second)


def test_a_port_in_use_is_told_before_anything_is_made(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(NotReady) as refused:
            EmbeddedPostgres(folder, port=taken.getsockname()[1]).start()
    assert refused.value.code == "port-in-use"
    assert not folder.exists()
