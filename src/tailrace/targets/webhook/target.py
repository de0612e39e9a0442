"""A receiver of messages over HTTP: one request for each change, at least once, in order for each row.

No commit holds the message and the mark together, so the mark moves only after acknowledgements, and the receiver
tells a message that it has already by its id. See ADR 14.

    2xx                                    done
    408, 425, 429, 5xx, no answer          sent again, no sooner than Retry-After says
    3xx, 401, 403, 407, 410                Halt
    any other                              the change is a dead letter
"""

from __future__ import annotations

import contextlib
import email.utils
import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import DataFrame

from tailrace.apply.ranges import Ranges
from tailrace.apply.target import NOWHERE, Applied, Batch, Mark, Refusal, mark_from_json
from tailrace.core import offsets
from tailrace.core.errors import Halt, Misconfigured, NotReady, Reject, Retryable, TailraceError, Unreachable
from tailrace.core.failpoint import failpoint
from tailrace.core.table import Fit, Table
from tailrace.targets.webhook.call import Answer, Connection, Receiver
from tailrace.targets.webhook.delivery import Delivery
from tailrace.targets.webhook.message import Message, Place, message_id, messages, signature

_AWAY = (429, 502, 503, 504)
"""Answers that say: not now."""
_ATTEMPTS = 5
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 30.0
"""Seconds. A receiver that asks for a longer wait is left to the retry of its sink."""
_LONGEST_ASKED = 86_400.0
_SAVE_EVERY = 2.0
"""Seconds between two notes of how far a slice has come."""


PutAside = Callable[[Sequence[Refusal]], None]


class Notes(Protocol):
    """Where a target without a store of its own keeps what it must know after a restart; durable once it returns."""

    def load(self, table: str) -> Mapping[str, Any] | None: ...

    def save(self, table: str, content: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Part:
    """How far a slice was sent when it was not sent whole: all of it up to `upto` whose place is at most `place`."""

    log: str
    upto: int
    place: Place
    refused: int = 0

    def includes(self, place: Place) -> bool:
        """Say whether the change at `place` was settled; one that lay outside of that slice was not."""
        _, topic, partition, offset, _ = place
        named = offsets.by_partition(self.upto)
        last = named.get(f"{topic}:{partition}", -1) if named else self.upto
        return place <= self.place and offset <= last

    def to_json(self) -> dict[str, object]:
        upto = {"offset": int(self.upto), "partitions": dict(offsets.by_partition(self.upto))}
        return {"log": self.log, "upto": upto, "place": list(self.place), "refused": self.refused}


class WebhookTarget:
    """Sends changes; see `apply.target.Target` and `Sending` for what each method promises."""

    sends = True

    def __init__(
        self,
        name: str,
        receiver: Receiver,
        *,
        pipeline_id: str,
        notes: Notes,
        headers: Mapping[str, str],
        keys: tuple[bytes, ...] = (),
        concurrency: int = 8,
        stop: threading.Event | None = None,
    ) -> None:
        self.name = name
        self._receiver = receiver
        self._pipeline_id = pipeline_id
        self._notes = notes
        self._headers = dict(headers)
        self._keys = keys
        self._lanes = concurrency
        self._stop = stop or threading.Event()
        self._connections: queue.LifoQueue[Connection] = queue.LifoQueue()
        for _ in range(concurrency):
            self._connections.put(Connection(receiver))
        self._not_before = 0.0

    def mark(self, table: str) -> Mark | None:
        stored = (self._notes.load(table) or {}).get("mark")
        return mark_from_json(stored) if stored else None

    def have(self, table: str) -> Table | None:
        """Return nothing: a message has whatever columns its change has."""
        return None

    def notes(self, table: str) -> dict[str, str]:
        return {}

    def known(self, table: str, near: Ranges = NOWHERE) -> DataFrame:
        raise self._keeps_nothing()

    def current(self, table: str, near: Ranges = NOWHERE) -> DataFrame:
        raise self._keeps_nothing()

    def evolve(self, table: str, change: Fit) -> None:
        """Do nothing: there is no table."""

    def apply(self, batch: Batch) -> Applied:
        """Send the changes of `batch`, then move the mark; a repeat sends what was not settled the last time."""
        news = messages(batch.rows, batch.table)
        return self.deliver(batch.table.name, batch.mark, news, batch.reject, replay=batch.replay)

    def deliver(
        self, table: str, upto: Mark, news: Iterable[Message], reject: PutAside, *, replay: bool = False
    ) -> Applied:
        """Send `news`, which are all that `table` has up to the mark `upto`, in the order of their places.

        A replay lies before what was settled of a slice: that says nothing of it, and it says nothing of that.
        """
        before, stored = self.mark(table), (self._notes.load(table) or {}).get("part")
        if before is not None and before.includes(upto):
            return Applied()
        part = None if replay else self._part(stored, upto.log)
        delivery = Delivery(_Sending(self, upto.log), self._lanes, self._stop)

        def keep(made: Part) -> None:
            if not replay:
                self._save_part(table, before, made)

        notice = _Progress(delivery, upto, part, reject, keep)
        failpoint("C19")
        try:
            delivery.run((m for m in news if not (part and part.includes(m.place))), notice.now_and_then)
        finally:
            notice.save()
        failpoint("C23")
        self._notes.save(table, {"mark": upto.to_json(), **({"part": stored} if replay else {})})
        failpoint("C25")
        return Applied(inserted=delivery.settled - notice.refused_now, rejected=notice.refused)

    def _save_part(self, table: str, before: Mark | None, part: Part) -> None:
        # The mark stands beside it until the slice is whole.
        self._notes.save(table, {"mark": before.to_json() if before else None, "part": part.to_json()})

    def _part(self, stored: Mapping[str, Any] | None, log: str) -> Part | None:
        if not stored or stored["log"] != log:
            return None
        upto = stored["upto"]["partitions"] or stored["upto"]["offset"]
        position, topic, partition, offset, half = stored["place"]
        return Part(log, offsets.from_json(upto), (position, topic, partition, offset, half), stored["refused"])

    def attempt(self, name: str, body: bytes) -> None:
        """Send one message once; raise what the answer means if it is not taken."""
        timestamp = int(time.time())
        headers = {**self._headers, "webhook-id": name, "webhook-timestamp": str(timestamp)}
        if self._keys:
            headers["webhook-signature"] = signature(self._keys, name, timestamp, body)
        with self._connection() as connection:
            answer = connection.call(headers, body)
        error = meaning(answer, self._receiver.host)
        if error is not None:
            raise error

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        connection = self._connections.get()
        try:
            yield connection
        finally:
            self._connections.put(connection)

    def pause(self, seconds: float) -> None:
        """Let nothing be sent for a while, on any lane."""
        self._not_before = max(self._not_before, time.monotonic() + seconds)

    def paused(self) -> float:
        """Return for how many seconds nothing is to be sent."""
        return self._not_before - time.monotonic()

    def id_of(self, log: str, place: Place) -> str:
        return message_id(self._pipeline_id, self.name, log, place)

    def _keeps_nothing(self) -> Misconfigured:
        return Misconfigured(
            "not-available", f'target "{self.name}" is a webhook and keeps no rows', "Read them from another target."
        )


class _Sending:
    """Sends messages of one log until each is settled."""

    def __init__(self, target: WebhookTarget, log: str) -> None:
        self._target = target
        self._log = log

    def __call__(self, message: Message, over: threading.Event) -> Reject | None:
        name = self._target.id_of(self._log, message.place)
        failed = 0
        while True:
            while (pause := self._target.paused()) > 0:
                if over.wait(pause):
                    raise Retryable("stopping", "sending was stopped during a wait that the receiver asked for")
            try:
                self._target.attempt(name, message.body)
            except Reject as reject:
                return reject
            except Retryable as error:
                failed += 1
                wait = min(_FIRST_WAIT * 2 ** (failed - 1), _LONGEST_WAIT) * random.uniform(0.5, 1.0)
                if error.after:
                    self._target.pause(error.after)
                    wait = 0.0
                if failed >= _ATTEMPTS or (error.after or 0.0) > _LONGEST_WAIT or over.wait(wait):
                    raise
            else:
                return None


class _Progress:
    """Notes what is settled of a batch: refusals first, so that none is passed before it is put aside."""

    def __init__(
        self, delivery: Delivery, upto: Mark, part: Part | None, reject: PutAside, keep: Callable[[Part], None]
    ) -> None:
        self._delivery = delivery
        self._upto = upto
        self._part = part
        self._reject = reject
        self._keep = keep
        self._earlier = part.refused if part else 0
        self._due = time.monotonic() + _SAVE_EVERY
        self.refused_now = 0

    @property
    def refused(self) -> int:
        """How many changes of the batch the receiver refused, those of an attempt before this one included."""
        return self._earlier + self.refused_now

    def now_and_then(self) -> None:
        if time.monotonic() >= self._due:
            self.save()

    def save(self) -> None:
        """Put aside what was refused, then note the frontier."""
        self._due = time.monotonic() + _SAVE_EVERY
        frontier = self._delivery.frontier
        if frontier is None:
            return
        if refused := self._delivery.refused(frontier):
            refusals = [Refusal(*place[1:4], f"{reject.code}: {reject}") for place, reject in refused]
            self._reject(refusals)
            self._delivery.forget(frontier)
            self.refused_now += len(refusals)
        if self._part is None or frontier > self._part.place:
            self._part = Part(self._upto.log, self._upto.offset, frontier, self.refused)
            self._keep(self._part)


def meaning(answer: Answer, host: str) -> TailraceError | None:
    """Return what an answer asks of us; nothing if the message was taken."""
    status = answer.status
    said = f'the receiver "{host}" answered {status}'
    if 200 <= status < 300:
        return None
    if status in (408, 425, 429) or status >= 500 or status < 200:
        kind = Unreachable if status in _AWAY else Retryable
        return kind("webhook-unavailable", said, after=_seconds(answer.retry_after))
    if status < 400:
        return Halt(
            "webhook-redirect",
            f"{said}: a redirect",
            "Messages follow no redirect. Set url to where the receiver is.",
        )
    if status in (401, 403, 407):
        return NotReady(
            "webhook-denied",
            f"{said}: it does not let us in",
            "See that headers and signing_secrets are those that the receiver, or the proxy before it, asks for. What "
            "was not sent is sent after the next start.",
        )
    if status == 410:
        return Halt(
            "webhook-gone",
            f"{said}: it wants no more messages",
            "Set url to another receiver, or enabled to false. What was not sent is sent after the next start.",
        )
    return Reject("webhook-refused", said)


def _seconds(text: str | None) -> float | None:
    """Return how long `Retry-After` asks to wait, be it written as seconds or as a date."""
    if text is None:
        return None
    if text.isdecimal():
        return min(float(text), _LONGEST_ASKED)
    try:
        when = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return min(max(when.timestamp() - time.time(), 0.0), _LONGEST_ASKED)
