"""The HTTP server of a running pipeline: probes, metrics and the live page.

It reads `Health` and nothing else, so an answer costs no connection and cannot hang. It takes GET and HEAD
of a few fixed paths; a request has no body, and what is asked for is never echoed.
"""

from __future__ import annotations

import errno
import json
import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tailrace.control.health import Health
from tailrace.control.readiness import Bounds, failing
from tailrace.core.errors import NotReady
from tailrace.web import documents, metrics

_PAGE = Path(__file__).with_name("page.html").read_bytes()
_HTML = "text/html; charset=utf-8"
_JSON = "application/json"
_ALLOWED = "GET, HEAD"
_MOST_REQUESTS = 32
"""At one time; whoever comes beyond is turned away, so that a flood of probes takes no memory from the run."""
_LONGEST_TARGET = 1024
_SECONDS = 10
_ALWAYS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # The page is one file: it may load nothing, be framed by nobody, and ask only the server it came from.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


class Answer(NamedTuple):
    """What is sent back."""

    status: HTTPStatus
    kind: str
    body: bytes
    headers: Mapping[str, str] = {}


class Server:
    """Answers for `health` while it is entered; `port` 0 takes a free one."""

    def __init__(self, health: Health, bounds: Bounds, version: str, host: str, port: int) -> None:
        self._health = health
        self._bounds = bounds
        self._version = version
        routes = {
            "/": self._page,
            "/healthz": self._alive,
            "/readyz": self._ready,
            "/metrics": self._metrics,
            "/api/status": self._status,
        }
        self._listener = _listen(host, port, routes)
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.1,), name="health", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self._listener.server_address[:2]
        return str(host), int(port)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown()
        self._thread.join()
        self._listener.server_close()

    # -- the answers

    def _page(self) -> Answer:
        return Answer(HTTPStatus.OK, _HTML, _PAGE)

    def _alive(self) -> Answer:
        return _json(HTTPStatus.OK, documents.alive(self._health.view()))

    def _ready(self) -> Answer:
        view = self._health.view()
        wrong = failing(view, self._bounds)
        return _json(HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK, documents.ready(view, wrong))

    def _metrics(self) -> Answer:
        view = self._health.view()
        text = metrics.render(view, failing(view, self._bounds), self._version)
        return Answer(HTTPStatus.OK, metrics.CONTENT_TYPE, text.encode())

    def _status(self) -> Answer:
        view = self._health.view()
        return _json(HTTPStatus.OK, documents.status(view, failing(view, self._bounds), self._version))


def _json(status: HTTPStatus, content: Mapping[str, object]) -> Answer:
    return Answer(status, _JSON, json.dumps(content, default=str).encode() + b"\n")


def _error(status: HTTPStatus) -> Answer:
    refused = {"Allow": _ALLOWED} if status is HTTPStatus.METHOD_NOT_ALLOWED else {}
    return _json(status, {"error": status.phrase.lower()})._replace(headers=refused)


def _listen(host: str, port: int, routes: Mapping[str, Callable[[], Answer]]) -> _Listener:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return _Listener(host, port, family, routes)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise NotReady(
                "port-in-use",
                f'port {port} of "{host}", which the health server is to listen on, is in use',
                "Stop what listens there, or set health_port to another port, to 0 for any free one, "
                "or health_enabled to false.",
            ) from error
        raise NotReady(
            "port-taken",
            f'port {port} of "{host}" cannot be listened on: {error.strerror or error}',
            "Set health_host to an address of this machine, and health_port to a port that this user may use.",
        ) from error


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 2 * _MOST_REQUESTS

    def __init__(
        self, host: str, port: int, family: socket.AddressFamily, routes: Mapping[str, Callable[[], Answer]]
    ) -> None:
        self.address_family = family
        self.routes = routes
        self._room = threading.BoundedSemaphore(_MOST_REQUESTS)
        super().__init__((host, port), _Request)

    def server_bind(self) -> None:
        # That of HTTPServer looks up the name of the host, which can take long, and may share a port with others.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that went away is none of the run's business."""


class _Request(BaseHTTPRequestHandler):
    server: _Listener
    server_version = "tailrace"
    sys_version = ""
    timeout = _SECONDS

    def do_GET(self) -> None:
        self._send(self._answer())

    def do_HEAD(self) -> None:
        self._send(self._answer())

    def _answer(self) -> Answer:
        if len(self.path) > _LONGEST_TARGET:
            return _error(HTTPStatus.REQUEST_URI_TOO_LONG)
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            return _error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        answer = self.server.routes.get(self.path.partition("?")[0])
        if answer is None:
            return _error(HTTPStatus.NOT_FOUND)
        try:
            return answer()
        except Exception:  # noqa: BLE001 - what went wrong here must neither be shown nor reach the run
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in {
            "Content-Type": answer.kind,
            "Content-Length": str(len(answer.body)),
            **_ALWAYS,
            **answer.headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer in JSON what the base class refuses; a method that it does not know is one that is not allowed."""
        refused = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self.close_connection = True
        self._send(_error(refused))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """Say nothing: probes come every few seconds."""
