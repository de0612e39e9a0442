"""Messages to the receiver: of one key one after the other, of different keys side by side.

    message ──▶ the lane of its key ──▶ sent, and again until the receiver took it ──▶ settled

A message is settled when the receiver has acknowledged it or will never take it. `frontier` is the last message up to
which everything is settled; a run that begins anew after it loses nothing. What lies between it and the newest message
is bounded, and so is what a crash sends twice.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue

from tailrace.core.errors import Reject, Retryable
from tailrace.targets.webhook.message import Message, Place

AHEAD = 64
"""How many messages for each lane may be beyond the frontier."""

Send = Callable[[Message, threading.Event], Reject | None]
"""Returns when the message is settled, with the reason if it is refused for good; gives up when the event is set."""


class Delivery:
    """One stretch of messages on its way, in `lanes` threads of its own."""

    def __init__(self, send: Send, lanes: int, stop: threading.Event) -> None:
        self._send = send
        self._lanes: list[SimpleQueue[_Pending | None]] = [SimpleQueue() for _ in range(lanes)]
        self._stop = stop
        self._over = threading.Event()
        self._pending: deque[_Pending] = deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._refused: list[tuple[Place, Reject]] = []
        self.frontier: Place | None = None
        self.settled = 0

    def run(self, messages: Iterable[Message], passed: Callable[[], None]) -> None:
        """Deliver `messages` in their order; tell `passed` after each that was handed on. Raise what stopped it.

        However it ends, no thread is left, and what `frontier` says is settled.
        """
        threads = [threading.Thread(target=self._work, args=(lane,), daemon=True) for lane in self._lanes]
        for thread in threads:
            thread.start()
        try:
            for message in messages:
                if not self._room_for(message):
                    break
                pending = _Pending(message)
                with self._changed:
                    self._pending.append(pending)
                self._lanes[message.key % len(self._lanes)].put(pending)
                passed()
            self._wait(lambda: not self._pending)
        finally:
            self._over.set()
            for lane in self._lanes:
                lane.put(None)
            for thread in threads:
                thread.join()
        if self._error is not None:
            raise self._error

    def refused(self, upto: Place) -> list[tuple[Place, Reject]]:
        """Return what was refused for good up to `upto`; it is told until `forget` is."""
        with self._changed:
            return [item for item in self._refused if item[0] <= upto]

    def forget(self, upto: Place) -> None:
        """Tell no more of what was refused up to `upto`: it is durable elsewhere."""
        with self._changed:
            self._refused = [item for item in self._refused if item[0] > upto]

    def _room_for(self, message: Message) -> bool:
        """Wait until `message` may be handed on; say no if something has gone wrong."""
        if self._stop.is_set():
            self._give_up()
        if message.alone or (self._pending and self._pending[-1].message.alone):
            return self._wait(lambda: not self._pending)
        return self._wait(lambda: len(self._pending) < AHEAD * len(self._lanes))

    def _wait(self, until: Callable[[], bool]) -> bool:
        with self._changed:
            while self._error is None and not until():
                self._changed.wait(0.2)
                if self._stop.is_set() and not until():
                    self._give_up()
            return self._error is None

    def _give_up(self) -> None:
        with self._changed:
            self._error = self._error or Retryable("stopping", "the run was stopped before all messages were sent")
            self._over.set()

    def _work(self, lane: SimpleQueue[_Pending | None]) -> None:
        while (pending := lane.get()) is not None:
            if self._over.is_set():
                continue
            try:
                reject = self._send(pending.message, self._over)
            except BaseException as error:  # noqa: BLE001
                # It is raised by `run`; the other lanes end what they have in hand.
                with self._changed:
                    self._error = self._error or error
                    self._over.set()
                    self._changed.notify_all()
            else:
                self._settle(pending, reject)

    def _settle(self, pending: _Pending, reject: Reject | None) -> None:
        with self._changed:
            pending.settled = True
            if reject is not None:
                self._refused.append((pending.message.place, reject))
            while self._pending and self._pending[0].settled:
                self.frontier = self._pending.popleft().message.place
                self.settled += 1
            if len(self._pending) <= AHEAD * len(self._lanes) // 2:
                self._changed.notify_all()


class _Pending:
    __slots__ = ("message", "settled")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.settled = False
