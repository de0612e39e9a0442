"""A receiver of webhooks on this machine: it keeps what it gets, and answers what a test tells it to."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Got:
    """One request, as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def offset(self) -> int:
        return int(self.json["metadata"]["offset"])


@dataclass(frozen=True)
class Reply:
    """What to answer; `raw` is written in place of a proper answer, and then the connection is closed unless `stay`."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    raw: bytes | None = None
    stay: bool = False


class Receiver:
    """What came, in the order of arrival; `answer` decides on each."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.answer: Callable[[Got], Reply] = lambda _: Reply()
        self.address = ""
        self.written: list[int] = []
        """The lengths of the raw answers that could be written whole."""
        self._lock = threading.Lock()

    def take(self, got: Got) -> Reply:
        with self._lock:
            self.got.append(got)
        return self.answer(got)


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Run a receiver while the block lasts."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _take(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = receiver.take(Got(self.command, self.path, headers, body, time.monotonic()))
            if reply.raw is not None:
                self.close_connection = not reply.stay
                self.wfile.write(reply.raw)
                receiver.written.append(len(reply.raw))
                return
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body)

        do_POST = do_PUT = do_PATCH = do_GET = _take  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that hangs up is part of a test."""

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    receiver.address = f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
