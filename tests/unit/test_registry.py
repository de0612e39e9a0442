"""Schemas by id: asked for once, kept on disk, and never a reason to drop a message."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tailrace.core.errors import Misconfigured, NotReady, Retryable
from tailrace.log._registry import Registry

SCHEMA = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}


class Server:
    """A registry that knows schema 1 and writes down what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.status = 200
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.asked.append((self.path, self.headers.get("Authorization")))
                status = owner.status if self.path.endswith("/1") else 404
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps({"schema": json.dumps(SCHEMA)}).encode() if status == 200 else b"{}")

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.close()


def test_a_schema_is_asked_for_once_and_outlives_the_registry(server: Server, tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{server.port}/apis/ccompat/v7/"
    registry = Registry(address, tmp_path)
    assert registry.schema(1) == registry.schema(1) == SCHEMA
    assert server.asked == [("/apis/ccompat/v7/schemas/ids/1", None)]
    assert Registry("http://127.0.0.1:9", tmp_path).schema(1) == SCHEMA


def test_user_and_password_are_sent_and_not_shown(server: Server, tmp_path: Path) -> None:
    registry = Registry(f"http://me:canary%40@127.0.0.1:{server.port}", tmp_path)
    registry.schema(1)
    assert server.asked[0][1] == "Basic bWU6Y2FuYXJ5QA=="
    with pytest.raises(Retryable) as silent:
        registry.schema(2)
    assert "canary" not in silent.value.render()


@pytest.mark.parametrize("status", [500, 503, 404])
def test_a_registry_that_does_not_help_is_asked_again(status: int, server: Server, tmp_path: Path) -> None:
    server.status = status
    registry = Registry(f"http://127.0.0.1:{server.port}", tmp_path)
    with pytest.raises(Retryable):
        registry.schema(1)
    server.status = 200
    assert registry.schema(1) == SCHEMA


def test_a_registry_that_is_down_is_waited_for(tmp_path: Path) -> None:
    with pytest.raises(Retryable):
        Registry("http://127.0.0.1:9", tmp_path).schema(1)


def test_a_registry_that_refuses_halts(server: Server, tmp_path: Path) -> None:
    server.status = 401
    with pytest.raises(NotReady):
        Registry(f"http://127.0.0.1:{server.port}", tmp_path).schema(1)


@pytest.mark.parametrize("address", ["", "localhost:8081", "file:///etc/passwd", "ftp://x"])
def test_anything_but_http_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured):
        Registry(address, tmp_path)
