"""One request, one bounded answer: a connection to the receiver that is used again while it lasts.

    deadline   the whole of a request, from looking up the name to the end of the answer, has `timeout_seconds`
    body       of an answer at most 64 KiB are read, and none of it is kept
    redirect   is an answer like any other: nothing is followed

One thread at a time uses a connection.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import select
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tailrace.core.errors import NotReady, Unreachable
from tailrace.targets.webhook.address import resolve

_MAX_ANSWER = 64 << 10


@dataclass(frozen=True)
class Receiver:
    """Where messages go, and how."""

    url: str = field(repr=False)
    method: str = "POST"
    timeout_seconds: float = 10.0
    allow_private: bool = False

    @property
    def host(self) -> str:
        """Return the name of the machine: all that errors say of the url, which may hold a secret."""
        return urlsplit(self.url).hostname or ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the receiver said, without its body."""

    status: int
    retry_after: str | None = None


class Connection:
    """Calls the receiver over one connection, which is made anew when it is lost."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        parts = urlsplit(receiver.url)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        named = f"[{receiver.host}]" if ":" in receiver.host else receiver.host
        host = named if parts.port is None else f"{named}:{parts.port}"
        self._start = f"{receiver.method} {path} HTTP/1.1\r\nHost: {host}\r\n"
        self._socket: socket.socket | None = None
        self._reader: _Reader | None = None

    def call(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send `body` and return the answer; Unreachable if there was none."""
        deadline = time.monotonic() + self._receiver.timeout_seconds
        fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        request = f"{self._start}{fields}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body
        used = self._still_there()
        try:
            try:
                return self._exchange(request, deadline)
            except ConnectionError:
                if not used:
                    raise
                # The receiver gave an idle connection up just now. It may have the message; it knows its id.
                self.close()
                return self._exchange(request, deadline)
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise NotReady(
                "webhook-tls",
                f'the certificate of the receiver "{self._receiver.host}" was refused: {error.verify_message}',
                "Mend the certificate, or let SSL_CERT_FILE name the authority that signed it.",
            ) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            why = "did not answer in time" if isinstance(error, TimeoutError) else f"failed: {type(error).__name__}"
            # What is no answer may be anything, also what was sent: it goes into no log.
            cause = None if isinstance(error, http.client.HTTPException) else error
            raise Unreachable("webhook-unavailable", f'the receiver "{self._receiver.host}" {why}') from cause

    def close(self) -> None:
        """Let go of the connection; the next call makes another."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
        self._socket = self._reader = None

    def _exchange(self, request: bytes, deadline: float) -> Answer:
        if self._socket is None or self._reader is None:
            self._connect(deadline)
        sock, reader = self._socket, self._reader
        if sock is None or reader is None:
            raise AssertionError("connected without a connection")
        sock.settimeout(_left(deadline))
        sock.sendall(request)
        reader.until(deadline)
        response = self._answered(reader)
        answer = Answer(response.status, response.getheader("Retry-After"))
        if not _read_through(response) or response.will_close or reader.has_more():
            self.close()
        return answer

    def _answered(self, reader: _Reader) -> http.client.HTTPResponse:
        while True:
            response = http.client.HTTPResponse(reader, method=self._receiver.method)  # type: ignore[arg-type]
            response.begin()
            # What comes before the answer (hints, that it takes a while) is none.
            if response.status >= 200 or response.status == http.HTTPStatus.SWITCHING_PROTOCOLS:
                return response

    def _connect(self, deadline: float) -> None:
        host = self._receiver.host
        failed: OSError | None = None
        places = resolve(host, self._port, allow_private=self._receiver.allow_private)
        for n, (family, where) in enumerate(places):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                # One where nobody answers leaves the others their share of the time.
                sock.settimeout(_left(deadline) / (len(places) - n))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.connect(where)
                sock.settimeout(_left(deadline))
                if self._tls is not None:
                    sock = self._tls.wrap_socket(sock, server_hostname=host)
            except ssl.SSLCertVerificationError:
                sock.close()
                raise
            except OSError as error:
                sock.close()
                failed = error
                continue
            self._socket, self._reader = sock, _Reader(sock)
            return
        raise failed or ConnectionError("there is no address")

    def _still_there(self) -> bool:
        """Say whether the connection is open and silent: what comes unasked could be taken for the next answer."""
        if self._socket is None:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if poll.poll(0):
            self.close()
        return self._socket is not None


def _read_through(response: http.client.HTTPResponse) -> bool:
    """Read the body as far as is allowed; say whether that was all. The status counts, whatever follows it."""
    try:
        response.read(_MAX_ANSWER)
    except (OSError, http.client.HTTPException):
        return False
    return response.isclosed()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class _Reader:
    """What a response reads from: the socket until a deadline, and with a memory from one response to the next."""

    def __init__(self, sock: socket.socket) -> None:
        self._raw = _Raw(sock)
        self._buffer = _Kept(self._raw)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return self._buffer

    def until(self, deadline: float) -> None:
        """Let reads fail after `deadline`, however many small pieces come in time."""
        self._raw.deadline = deadline

    def has_more(self) -> bool:
        """Say whether more has come than the response that was read."""
        self._raw.deadline = None
        return bool(self._buffer.peek(1))


class _Kept(io.BufferedReader):
    def close(self) -> None:
        """Stay open: the end of a response is not the end of its connection."""


class _Raw(io.RawIOBase):
    deadline: float | None = None

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._socket = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        if self.deadline is None:
            return None
        self._socket.settimeout(_left(self.deadline))
        return self._socket.recv_into(buffer)
