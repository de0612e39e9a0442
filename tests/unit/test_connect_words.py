"""What Kafka Connect says is told on, without what the settings of a connector hide."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tailrace.config.platform import ConnectorConfig
from tailrace.core.errors import NotReady
from tailrace.sources._connect import Connector

SETTINGS = {
    "database.password": "canary-1",
    "value.converter.basic.auth.user.info": "me:canary-2",
    "producer.sasl.jaas.config": "login canary-3",
    "schema.history.internal.producer.ssl.keystore.key": "-- key --\ncanary-4",
    "database.hostname": "db.example.com",
}


class _Refusing(BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        said = self.rfile.read(int(self.headers["Content-Length"])).decode()
        body = json.dumps({"error_code": 400, "message": f"these are wrong: {said}"}).encode()
        self.send_response(400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        answers = {
            "/connectors/shop/status": (200, {"connector": {"state": "RUNNING"}, "tasks": [{"state": "PAUSED"}]})
        }
        status, said = answers.get(self.path, (503 if "busy" in self.path else 404, {"message": "no"}))
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_refusal_that_quotes_the_settings_shows_no_secret(address: str) -> None:
    with pytest.raises(NotReady) as refused:
        Connector(ConnectorConfig(connect_url=address), "shop").put(SETTINGS)
    assert refused.value.code == "connect-refused"
    assert "db.example.com" in str(refused.value)
    assert "canary" not in refused.value.render()


def test_a_monitor_sees_at_once_that_there_is_no_connector_or_no_connect(address: str) -> None:
    def seen(url: str, name: str) -> dict[str, object]:
        return Connector(ConnectorConfig(connect_url=url, retry_wait_seconds=3600), name).seen()

    assert seen(address, "shop") == {"connector": {"state": "RUNNING"}, "tasks": [{"state": "PAUSED"}]}
    assert seen(address, "other") == {"connector": {"state": "MISSING"}, "tasks": []}
    for url, name in ((address, "busy"), ("http://127.0.0.1:1", "shop")):
        assert seen(url, name) == {"connector": {"state": "UNREACHABLE"}, "tasks": []}
