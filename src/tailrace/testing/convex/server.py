"""The deployment over HTTP, on loopback: addresses, keys and refusals in the order of the real server.

client header ─▶ GET: query, key │ POST: key, body ─▶ plan ─▶ permission ─▶ arguments ─▶ read ─▶ format
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self, cast
from urllib.parse import parse_qsl, urlsplit

from tailrace.testing.convex import exports, faults
from tailrace.testing.convex.deployment import Deployment
from tailrace.testing.convex.errors import Refused
from tailrace.testing.convex.exports import Limits
from tailrace.testing.convex.faults import Fault, Faults
from tailrace.testing.convex.selection import requested

_POSTED = ("list_snapshot", "document_deltas")
_GOT = (*_POSTED, "json_schemas", "get_table_column_names", "test_streaming_export_connection")
_CONNECTION = "test_streaming_export_connection"
_CLIENTS = ("python", "python-convex", "npm", "npm-cli", "rust", "actions")
"""Names that are subject to minimum versions."""


_FLAGS = ("deltaSchema", "byComponent")
_TYPES = {
    "list_snapshot": {"snapshot": int, "cursor": str, "format": str},
    "document_deltas": {"cursor": int, "format": str},
}
"""What is posted; a selection of another type is one that cannot be parsed."""


@dataclass
class Behaviour:
    """What kind of server this is; may be changed while it runs."""

    key: str = "prod:emulated|0123456789abcdef"
    weak_key: str = "prod:emulated|may-not-view"
    """A key that is right and may not see data."""
    limits: Limits = field(default_factory=Limits)
    enabled: bool = True
    """The plan has streaming export."""
    bootstrapping: bool = False
    strict_selection: bool = False
    knows_selection: bool = True
    """A server that does not know the argument exports everything."""
    old: bool = False
    """A server of 2025: no components in rows or filters, short words only, flat schemas."""


class Emulator:
    """Serves one deployment until closed; `url` and `behaviour.key` are what a client needs."""

    def __init__(
        self,
        deployment: Deployment | None = None,
        *,
        port: int = 0,
        behaviour: Behaviour | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.deployment = deployment or Deployment()
        self.behaviour = behaviour or Behaviour()
        self.faults = faults or Faults()
        self.calls: Counter[str] = Counter()
        self._server = _Server(("127.0.0.1", port), self)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving; repeating it does nothing."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, verb: str, target: str, headers: Mapping[str, str], body: bytes) -> object:
        """Return what a request gets, or raise what it is refused with."""
        address = urlsplit(target)
        endpoint = address.path.removeprefix("/api/")
        query = dict(parse_qsl(address.query, keep_blank_values=True))
        self._check_client(headers)
        if not address.path.startswith("/api/") or endpoint not in _GOT:
            raise Refused(404, "", "")
        if verb == "POST" and endpoint not in _POSTED:
            raise Refused(405, "", "")
        if verb == "GET":
            arguments = _from_query(endpoint, query)
            allowed = self._key_sees_data(headers, query)
        else:
            allowed = self._key_sees_data(headers, query)
            arguments = _from_body(endpoint, headers, body)
        if not self.behaviour.enabled:
            raise Refused(403, "StreamingExportNotEnabled", "Streaming export is only available on the Pro plan.")
        if allowed is None:
            raise Refused(403, "BadDeployKey", "No deploy key was given")
        if not allowed:
            raise Refused(403, "OperationNotPermitted", "The key lacks deployment:data:view")
        with self.deployment.lock:
            return self._page(endpoint, arguments)

    def _check_client(self, headers: Mapping[str, str]) -> None:
        client = headers.get("Convex-Client")
        if client is not None and "-" not in client:
            raise Refused(400, "InvalidClientVersion", f"Failed to parse client version: {client}")
        if client is not None and client.rpartition("-")[0] in _CLIENTS:
            raise Refused(400, "ClientVersionUnsupported", "The client is too old")

    def _key_sees_data(self, headers: Mapping[str, str], query: Mapping[str, str]) -> bool | None:
        """Say whether the key may see data; `None` if there is no key."""
        given = headers.get("Authorization")
        if given is None:
            key = query.get("adminKey")
        else:
            word, _, key = given.partition(" ")
            if word.lower() != "convex" or not key:
                raise Refused(400, "InvalidHeaderFailure", "The Authorization header is malformed")
        if key is None:
            return None
        bare = {_bare(self.behaviour.key): True, _bare(self.behaviour.weak_key): False}
        if _bare(key) not in bare:
            raise Refused(401, "BadAdminKey", "The provided deploy key was invalid for this deployment")
        return bare[_bare(key)]

    def _page(self, endpoint: str, arguments: Mapping[str, object]) -> object:
        form = str(arguments.get("format", "json"))
        old, strict = self.behaviour.old, self.behaviour.strict_selection
        if not self.behaviour.knows_selection:
            arguments = {name: value for name, value in arguments.items() if name != "selection"}
        match endpoint:
            case "list_snapshot":
                place = exports.place_of(cast(str | None, arguments.get("cursor")))
                chosen = requested(arguments, strict=strict, old=old)
                return exports.list_snapshot(
                    self.deployment,
                    cast(int | None, arguments.get("snapshot")),
                    place,
                    chosen,
                    form,
                    self.behaviour.limits,
                    components=not old,
                )
            case "document_deltas":
                position = exports.required(cast(int | None, arguments.get("cursor")))
                chosen = requested(arguments, strict=strict, old=old)
                return exports.document_deltas(
                    self.deployment, position, chosen, form, self.behaviour.limits, components=not old
                )
            case _ if endpoint == _CONNECTION:
                return None
        if self.behaviour.bootstrapping:
            raise Refused(503, "TableSummariesUnavailable", "Table summaries are still being built")
        if endpoint == "get_table_column_names":
            return exports.column_names(self.deployment)
        by_component = arguments.get("byComponent") is True and not old
        delta = arguments.get("deltaSchema") is True
        return exports.json_schemas(self.deployment, form, delta=delta, by_component=by_component)


def _bare(key: str) -> str:
    kind, _, rest = key.partition(":")
    return rest if kind in ("prod", "dev", "preview") else key


def _from_query(endpoint: str, query: Mapping[str, str]) -> dict[str, object]:
    # A selection in a query string is an unknown key to the server, and so ignored.
    arguments: dict[str, object] = {name: text for name, text in query.items() if name != "selection"}
    for name in ("snapshot", "cursor") if endpoint == "list_snapshot" else ("cursor",):
        if (name == "snapshot" or endpoint == "document_deltas") and name in query:
            try:
                arguments[name] = int(query[name])
            except ValueError as error:
                raise Refused(400, "BadQueryArgs", f"Failed to deserialize query string: {name}") from error
    for name in _FLAGS if endpoint == "json_schemas" else ():
        if name in query:
            if query[name] not in ("true", "false"):
                raise Refused(400, "BadQueryArgs", f"Failed to deserialize query string: {name}")
            arguments[name] = query[name] == "true"
    return arguments


def _from_body(endpoint: str, headers: Mapping[str, str], body: bytes) -> dict[str, object]:
    try:
        parsed = json.loads(body)
    except ValueError:
        parsed = None
    if headers.get("Content-Type", "").partition(";")[0] != "application/json" or not isinstance(parsed, dict):
        raise Refused(400, "BadJsonBody", "Expected request with Content-Type: application/json")
    arguments = {name: value for name, value in parsed.items() if value is not None}
    for name, type_ in _TYPES[endpoint].items():
        value = arguments.get(name)
        beyond = isinstance(value, int) and not -(1 << 63) <= value < 1 << 63
        if value is not None and (type(value) is not type_ or beyond):
            raise Refused(400, "BadJsonBody", f"{name} has another type")
    return arguments


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A client that gave up is no news.
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], emulator: Emulator) -> None:
        super().__init__(address, _Handler)
        self.emulator = emulator

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a connection that a client or a fault cut is expected here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    timeout = 30
    # An answer goes out in one piece: two small writes would wait for each other.
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Say nothing."""

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def _serve(self, verb: str) -> None:
        emulator = self.server.emulator
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        endpoint = urlsplit(self.path).path.removeprefix("/api/")
        emulator.calls[endpoint] += 1
        fault = emulator.faults.strike(endpoint)
        try:
            if fault is not None:
                self._fail(fault)
            found = emulator.answer(verb, self.path, {name.title(): text for name, text in self.headers.items()}, body)
        except _Cut:
            self._cut()
            return
        except Refused as refused:
            self._send(refused.status, refused.body(), refused.retry_after)
            return
        self._send(200, found, None, fault)

    def _fail(self, fault: Fault) -> None:
        if fault.kind == faults.RESET:
            raise _Cut
        if fault.kind == faults.SLOW:
            time.sleep(1.5)
        elif isinstance(fault.kind, int):
            raise Refused(fault.kind, _CODES.get(fault.kind, ""), "A fault was asked for", fault.retry_after)
        elif fault.kind not in (faults.HALF, faults.INVALID, faults.LARGE):
            raise Refused(_STATUSES.get(fault.kind, 400), fault.kind, "A fault was asked for", fault.retry_after)

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.connection.close()

    def _send(self, status: int, answer: object, retry_after: int | None = None, fault: Fault | None = None) -> None:
        empty = answer is None and status != 200
        body = b"" if empty else json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()
        if fault is not None and fault.kind == faults.INVALID:
            body = body[:-1] + b"?"
        if fault is not None and fault.kind == faults.LARGE:
            body = b'"' + b"x" * 2_000_000 + b'"'
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if retry_after is not None:
            self.send_header("Retry-After", str(retry_after))
        self.end_headers()
        if fault is not None and fault.kind == faults.HALF:
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self._cut()
            return
        self.wfile.write(body)


class _Cut(Exception):
    pass


_CODES = {
    401: "BadAdminKey",
    403: "OperationNotPermitted",
    429: "TooManyRequests",
    500: "InternalServerError",
    503: "OptimisticConcurrencyControlFailure",
}
_STATUSES = {
    "BadAdminKey": 401,
    "BadDeployKey": 403,
    "OperationNotPermitted": 403,
    "StreamingExportNotEnabled": 403,
    "InternalServerError": 500,
    "TableSummariesUnavailable": 503,
    "OptimisticConcurrencyControlFailure": 503,
}
"""Of every other code it is 400."""
