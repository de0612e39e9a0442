"""A wire that breaks: a TCP proxy on this machine that cuts one connection around one message of its client."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

When = Literal["before", "after"]


@dataclass
class _Cut:
    message: bytes
    when: When
    passing: int


class Wire:
    """Passes everything on, until it is told to `cut`; then it does so once."""

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.cuts: list[When] = []
        """What was cut, as it was asked for."""
        self._cut: _Cut | None = None
        self._lock = threading.Lock()

    def cut(self, message: bytes, when: When, passing: int = 0) -> None:
        """Cut the connection whose client sends `message`: before the server has all of it, or once it has answered.

        As many such messages as `passing` says go through first.
        """
        self._cut = _Cut(message, when, passing)

    def serve(self) -> None:
        """Carry connections until `close`."""
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        # A close alone would not wake the thread that accepts.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _carry(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(self._server) as server:
            deaf = threading.Event()
            back = threading.Thread(target=self._answer, args=(server, client, deaf), daemon=True)
            back.start()
            self._pass(client, server, deaf)
            for end in (server, client):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            back.join()

    def _pass(self, client: socket.socket, server: socket.socket, deaf: threading.Event) -> None:
        seen = b""
        with contextlib.suppress(OSError):
            while sent := client.recv(1 << 16):
                when, seen = self._due(seen + sent)
                if when == "before":
                    return
                if when == "after":
                    deaf.set()
                server.sendall(sent)

    def _due(self, seen: bytes) -> tuple[When | None, bytes]:
        """Say whether what was sent last is to be cut, and return what may be the beginning of a message."""
        with self._lock:
            cut = self._cut
            if cut is None or cut.message not in seen:
                return None, seen[-len(cut.message) + 1 :] if cut else b""
            if cut.passing:
                cut.passing -= 1
                return None, b""
            self._cut = None
            self.cuts.append(cut.when)
            return cut.when, b""

    def _answer(self, server: socket.socket, client: socket.socket, deaf: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while came := server.recv(1 << 16):
                if deaf.is_set():
                    break
                client.sendall(came)
        for end in (client, server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def wire_to(port: int) -> Iterator[Wire]:
    """Run a wire to a server of this machine while the block lasts."""
    wire = Wire(port)
    thread = threading.Thread(target=wire.serve, daemon=True)
    thread.start()
    try:
        yield wire
    finally:
        wire.close()
        thread.join()
