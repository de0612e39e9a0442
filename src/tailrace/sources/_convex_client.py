"""Calls to a Convex deployment: one request, one bounded answer, and what each refusal means to us.

    network, timeout, 408, 429, 5xx, an answer cut short    Retryable
    401, 403, a plan without export                          NotReady
    SnapshotTooOld, InvalidWindowToReadDocuments             ResyncRequired, by exactly these codes
    anything else                                            Halt

The key goes into a header and nowhere else, to the configured host and no other: redirects are refused. Every
call only reads, so one that failed may be made again, and is, within `Bounds`.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import json
import random
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

import orjson

from tailrace.core.errors import Halt, Misconfigured, NotReady, ResyncRequired, Retryable, TailraceError, Unreachable

RESYNC = "Run cdc run <file> --resync, which takes a new snapshot of every table."
FORMAT = "convex_encoded_json"
_GONE = ("SnapshotTooOld", "InvalidWindowToReadDocuments")
_FIRST_WAIT, _LONGEST_WAIT, _LONGEST_ASKED = 0.1, 2.0, 3600.0
_NETWORK = (OSError, http.client.HTTPException, ssl.SSLError)


class NotThere(NotReady):
    """The server has no such address: it is no deployment, or one that lacks this call."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long to wait for an answer, how large it may be, and how often it is asked for."""

    connect_seconds: float = 10.0
    answer_seconds: float = 310.0
    """A little more than the server itself allows."""
    answer_bytes: int = 256 << 20
    """A transaction of 16 MiB, each value written out in JSON, fits many times."""
    attempts: int = 1
    """So many times a call is made before it has failed."""
    patience_seconds: float = 60.0
    """It is made again only if that long has not passed."""


PATIENT = Bounds(attempts=10)
"""For work that takes many calls and is of use only if all of them are answered."""

_Asked = tuple[str, str, bytes | None]
"""Verb, address and body of a request whose answer has not been read."""


class Client:
    """Talks to one deployment over one connection, which is made anew when it is lost; one thread at a time."""

    def __init__(self, url: str, key: str, client_name: str, bounds: Bounds | None = None) -> None:
        self.deployment = deployment_of(url)
        self._key = key
        self._headers = {"Authorization": f"Convex {key}", "Convex-Client": client_name, "Accept": "application/json"}
        self._bounds = bounds or Bounds()
        self._connection: http.client.HTTPConnection | None = None
        self._asked: _Asked | None = None
        self._closed = threading.Event()

    def get(self, endpoint: str, **query: str) -> object:
        """Return the answer to a GET of `endpoint`."""
        address = f"/api/{endpoint}" + (f"?{urlencode(query)}" if query else "")
        return self._call(endpoint, "GET", address, None)

    def post(self, endpoint: str, arguments: Mapping[str, object]) -> object:
        """Return the answer to a POST of `arguments` to `endpoint`, values in the encoding that loses nothing."""
        return self._call(endpoint, *_posted(endpoint, arguments))

    def ask(self, endpoint: str, arguments: Mapping[str, object]) -> None:
        """Send what `post` will be called with next: the server works on it meanwhile. Another call may come first."""
        asked = _posted(endpoint, arguments)
        if self._connection is not None and self._asked is None:
            try:
                self._send(*asked)
                self._asked = asked
            except _NETWORK:
                # Whoever needs the answer asks again, over a new connection.
                self._drop()

    def close(self) -> None:
        """Cut the connection, even under a call that waits for its answer; the next call makes a new one, once."""
        self._closed.set()
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _call(self, endpoint: str, verb: str, address: str, body: bytes | None) -> object:
        end, failed = time.monotonic() + self._bounds.patience_seconds, 0
        while True:
            try:
                return self._answer(endpoint, verb, address, body)
            except Retryable as error:
                failed += 1
                pause = max(_backoff(failed), error.after or 0.0)
                late = time.monotonic() + pause > end
                if failed >= self._bounds.attempts or late or self._closed.wait(pause):
                    raise

    def _answer(self, endpoint: str, verb: str, address: str, body: bytes | None) -> object:
        reused = self._connection is not None
        try:
            status, headers, text = self._exchange(verb, address, body)
        except _NETWORK as error:
            self._drop()
            # A connection that lay idle may have been closed by the other side; that is no failure yet.
            if not reused or isinstance(error, TimeoutError):
                raise self._lost(endpoint, error) from error
            try:
                status, headers, text = self._exchange(verb, address, body)
            except _NETWORK as again:
                self._drop()
                raise self._lost(endpoint, again) from again
        if 200 <= status < 300:
            try:
                return parsed(text)
            except (ValueError, RecursionError) as error:
                raise Retryable(
                    "convex-answer",
                    f'Convex answered "{endpoint}" with something that is no JSON',
                    "It is tried again.",
                ) from error
        raise self._refusal(endpoint, status, headers, text)

    def _exchange(self, verb: str, address: str, body: bytes | None) -> tuple[int, Mapping[str, str], bytes]:
        asked, self._asked = self._asked, None
        if asked is not None and asked != (verb, address, body):
            # The answer to something else lies on this connection.
            self._drop()
        connection = self._connection
        if asked is None or connection is None:
            connection = self._send(verb, address, body)
        with connection.getresponse() as answer:
            text = answer.read(self._bounds.answer_bytes + 1)
            if len(text) > self._bounds.answer_bytes:
                self._drop()
                raise Halt(
                    "convex-too-large",
                    f"an answer of Convex has more than {self._bounds.answer_bytes} bytes",
                    "A transaction of Convex is never this large. Check that deployment_url is a Convex deployment.",
                )
            if answer.length:
                raise http.client.IncompleteRead(text, answer.length)
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text

    def _send(self, verb: str, address: str, body: bytes | None) -> http.client.HTTPConnection:
        # A server may end a connection with each answer; the library would make a new one that waits for its answers
        # no longer than for itself.
        if self._connection is None or self._connection.sock is None:
            self._connection = self._connected()
        headers = self._headers | ({} if body is None else {"Content-Type": "application/json"})
        self._connection.request(verb, address, body, headers)
        return self._connection

    def _connected(self) -> http.client.HTTPConnection:
        address = urlsplit(self.deployment)
        kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        connection = kind(address.hostname or "", address.port, timeout=self._bounds.connect_seconds)
        connection.connect()
        connection.sock.settimeout(self._bounds.answer_seconds)
        return connection

    def _drop(self) -> None:
        self._asked = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _lost(self, endpoint: str, error: Exception) -> Unreachable:
        return Unreachable(
            "connection-lost",
            f'the call "{endpoint}" to {self.deployment} got no whole answer: {self._said(str(error) or repr(error))}',
            "It is tried again. If it never works, check deployment_url and the network.",
        )

    def _refusal(self, endpoint: str, status: int, headers: Mapping[str, str], text: bytes) -> TailraceError:
        code, message = _reason(text)
        said = f'Convex answered "{endpoint}" with {status}' + (f" {self._said(code)}" if code else "")
        said += f": {self._said(message)}" if message else ""
        if code in _GONE and status == 400:
            return ResyncRequired(said, RESYNC)
        if status in (408, 429) or status >= 500:
            return Retryable("convex-busy", said, "It is tried again.", after=_seconds(headers.get("retry-after")))
        if status in (401, 403) or code in _HINTS:
            hint = _HINTS.get(code, "Set deploy_key of the source to a key of this deployment that may view data.")
            return NotReady("convex-refused", said, hint)
        if 300 <= status < 400:
            hint = (
                "Redirects are not followed, because the key belongs to one host. Set deployment_url to the last one."
            )
            return NotReady("convex-refused", said, hint)
        if status == 404:
            return NotThere("convex-refused", said, "Check that deployment_url is the root address of a deployment.")
        return Halt("convex-request", said, "This is a defect, or a server of another kind: please report it.")

    def _said(self, text: str) -> str:
        """Return what the other side said, on one line, without the key, and not too much of it."""
        for secret in (self._key, self._key.partition("|")[2]):
            text = text.replace(secret, "***") if secret else text
        return "".join(char if char.isprintable() else " " for char in text)[:300]


def _backoff(failed: int) -> float:
    return min(_FIRST_WAIT * 2.0 ** (failed - 1), _LONGEST_WAIT) * random.uniform(0.5, 1.0)


def _posted(endpoint: str, arguments: Mapping[str, object]) -> tuple[str, str, bytes]:
    return "POST", f"/api/{endpoint}", json.dumps({**arguments, "format": FORMAT}, allow_nan=False).encode()


_HINTS = {
    "StreamingExportNotEnabled": "Streaming export is part of Convex's Pro plan. Upgrade, or use a self-hosted server.",
    "OperationNotPermitted": "Give the key the permission deployment:data:view.",
    "SnapshotTooNew": "The position is newer than the deployment. Check that deployment_url is the one it came from.",
    "InvalidAdminKey": "deploy_key of the source is malformed. Copy it again from the dashboard.",
    "InvalidHeaderFailure": "deploy_key of the source is malformed. Copy it again from the dashboard.",
    "HeaderParseFailure": "deploy_key of the source is malformed. Copy it again from the dashboard.",
    "InvalidClientVersion": "Set client_name of the source to a name and a version, such as tailrace-1.0.0.",
    "ClientVersionUnsupported": "Set client_name of the source to a name of its own.",
}


def deployment_of(url: str) -> str:
    """Return the deployment's address in one spelling; Misconfigured unless it is the root of an HTTP server."""
    try:
        address = urlsplit(url)
        port = address.port
    except ValueError:
        address, port = urlsplit(""), None
    plain = not (address.query or address.fragment or address.username or address.password) and not {"?", "#"} & set(
        url
    )
    if address.scheme not in ("http", "https") or not address.hostname or address.path not in ("", "/") or not plain:
        raise Misconfigured(
            "convex-url",
            "deployment_url is not the root address of a deployment",
            "Write it as https://<name>.convex.cloud, without a path, a query or a user.",
        )
    host = f"[{address.hostname}]" if ":" in address.hostname else address.hostname
    usual = {"http": 80, "https": 443}[address.scheme]
    return f"{address.scheme}://{host}" + (f":{port}" if port not in (None, usual) else "")


def parsed(text: bytes) -> object:
    """Return what `json.loads` returns, in a third of the time; an integer beyond 64 bits may come as a float."""
    try:
        return orjson.loads(text)
    except ValueError:
        # Half of a surrogate pair, a mark at the beginning or very deep nesting is no JSON to it.
        return json.loads(text)


def _reason(text: bytes) -> tuple[str, str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return "", ""
    if not isinstance(found, dict):
        return "", ""
    code, message = found.get("code"), found.get("message")
    return code if isinstance(code, str) else "", message if isinstance(message, str) else ""


def _seconds(text: str | None) -> float | None:
    """Return how long `Retry-After` asks to wait, be it written as seconds or as a date."""
    try:
        if text is None or text.isdecimal():
            return None if text is None else min(float(text), _LONGEST_ASKED)
        when = email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(max(when - time.time(), 0.0), _LONGEST_ASKED)
