"""Dead letters of a Kafka log: sent to a topic beside the one they came from, and acknowledged there.

An event is in the topic, on all replicas, before the progress of its target passes it. Which ones were sent
is noted, so that a repeat sends none twice; a crash before the note may, and both carry the same origin.
A message cannot be taken out of a topic: which ones are off the list, replayed or purged, is noted as well.

What is on the list is what the topics say, not what was noted: letters that were sent from elsewhere, with another
`control.root` or by another program, are on it too, under the names that their headers give them. One whose headers
give it none is called after the place where it lies itself: it can be shown and taken off the list, and not replayed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tailrace.control import state
from tailrace.control.rejects import Kept, Letter, Rejected, as_text, flooded, overfull, refused
from tailrace.core.errors import NotReady, Unreachable
from tailrace.core.table import file_name

Place = tuple[str, int, int]
"""A topic, a partition and an offset."""

_SECONDS = 20.0
"""How long the cluster may take to answer."""
_MOST_BYTES = 64 * 1024 * 1024
TOPIC_SETTINGS = {"max.message.bytes": str(_MOST_BYTES)}
"""Of a topic for dead letters: large enough for what the source's topic let in."""


class DeadLetters:
    """The dead letters of one pipeline, in topics called `<topic>.<suffix>`."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str],
        *,
        suffix: str,
        enabled: bool,
        limit: int,
        headers: bool = True,
        idempotent: bool = True,
        partitions: int = 1,
        replicas: int = 1,
        topics: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """`topics` are those that the pipeline reads."""
        self._folder = folder
        self._settings: dict[str, Any] = {**settings, "log_level": 0}
        self._suffix = suffix
        self._enabled = enabled
        self.limit = limit
        self._headers = headers
        self._idempotent = idempotent
        self._layout = (partitions, replicas)
        self._topics = topics
        self._made: set[str] = set()
        self._turn = threading.Lock()

    def put(self, target: str, log: str, rejected: Iterable[Rejected]) -> None:
        """Send `rejected` and wait until they are safe, or halt if dead letters are off or there are too many."""
        # Tables of one slice are folded side by side, and share one note of what was sent.
        with self._turn:
            self._put(target, log, rejected)

    def _put(self, target: str, log: str, rejected: Iterable[Rejected]) -> None:
        noted = self._noted(target)
        found: dict[str, Rejected] = {}
        for event in rejected:
            if not self._enabled:
                raise refused(event)
            found[f"{log}/{event.topic}/{event.partition}/{event.offset}"] = event
        known = set(noted)
        new = {name: found[name] for name in found if name not in known}
        if new:
            self._send(target, log, new.values())
            state.save(self._path(target), {"sent": [*noted, *new], "done": sorted(self._done(target))})
        where = f"topics that end in .{self._suffix}"
        if len(found) > self.limit:
            raise overfull(target, self.limit, where)
        if (count := self.count(target)) > self.limit:
            raise flooded(target, count, self.limit, where)

    def count(self, target: str) -> int:
        """Return how many events of `target` were rejected and are on the list."""
        return len(set(self._noted(target)) - self._done(target))

    def letters(self, target: str) -> Iterator[Letter]:
        """Yield the dead letters of `target` that their topics still have, by topic, partition and offset."""
        for kept, told in self._listed(target):
            ours: Letter = {name: text for name, text in told.items() if _is_ours(name)}
            for name in ("dlq.source_partition", "dlq.source_offset"):
                if _is_number(text := str(ours.get(name, ""))):
                    ours[name] = int(text)
            at: Letter = {"at": kept.name} if kept.log is None else {}
            yield {"key": as_text(kept.event.key), "value": as_text(kept.event.value), **at, **ours}

    def kept(self, target: str) -> Iterator[Kept]:
        """Yield the dead letters of `target` as events."""
        for kept, _ in self._listed(target):
            yield kept

    def forget(self, target: str, names: Collection[str] | None) -> None:
        """Take these dead letters off the list; they stay in their topics as long as those keep them."""
        with self._turn:
            noted = self._noted(target)
            gone = {*noted, *(kept.name for kept, _ in self._listed(target))} if names is None else set(names)
            state.save(self._path(target), {"sent": noted, "done": sorted(self._done(target) | gone)})

    def _listed(self, target: str) -> Iterator[tuple[Kept, dict[str, str]]]:
        """Yield what is on the list, once each, and what its headers say."""
        noted, seen = self._noted(target), self._done(target)
        logs = {place: log for log, _, place in (name.partition("/") for name in noted)}
        for topic in self._letter_topics(noted):
            for found in self._read(topic):
                carried: Any = found.headers() or []
                lies = (topic, found.partition() or 0, found.offset() or 0)
                kept = as_kept(lies, _bytes(found.key()), _bytes(found.value()), carried, logs)
                told = _told(carried)
                if told.get("dlq.sink_id", target) == target and kept.name not in seen:
                    seen.add(kept.name)
                    yield kept, told

    def _letter_topics(self, noted: Iterable[str]) -> list[str]:
        """Return the topics that there are for dead letters of what the pipeline reads, and of what was put aside."""
        try:
            sources = {*self._topics(), *(name.split("/")[1] for name in noted)}
        except NotReady as error:
            if error.code != "topic-missing":
                raise
            # One that is read is not there; what was put aside of it may be.
            sources = {name.split("/")[1] for name in noted}
        try:
            there = AdminClient(self._settings).list_topics(timeout=_SECONDS).topics if sources else {}
        except KafkaException as error:
            raise _unread(f"*.{self._suffix}", error.args[0].str()) from error
        return sorted({f"{source}.{self._suffix}" for source in sources} & set(there))

    def _read(self, topic: str) -> Iterator[Message]:
        """Yield what `topic` has now."""
        settings = {"group.id": "tailrace-dead-letters", "enable.auto.commit": False, "enable.partition.eof": True}
        reader = Consumer({**self._settings, **settings})
        try:
            for number in reader.list_topics(topic, timeout=_SECONDS).topics[topic].partitions:
                start, end = reader.get_watermark_offsets(TopicPartition(topic, number), timeout=_SECONDS)
                reader.assign([TopicPartition(topic, number, start)])
                while start < end:
                    found = reader.poll(_SECONDS)
                    error = found and found.error()
                    # What lies at the end may be no message but the end of a transaction.
                    if error and error.code() == KafkaError._PARTITION_EOF:
                        break
                    if found is None or error:
                        raise _unread(topic, "it gave no message in time")
                    start = (found.offset() or 0) + 1
                    yield found
        except KafkaException as error:
            raise _unread(topic, error.args[0].str()) from error
        finally:
            reader.close()

    def _noted(self, target: str) -> list[str]:
        return self._names(target, "sent")

    def _done(self, target: str) -> set[str]:
        return set(self._names(target, "done"))

    def _names(self, target: str, what: str) -> list[str]:
        names = (state.load(self._path(target)) or {}).get(what, [])
        return [str(name) for name in names] if isinstance(names, list) else []

    def _path(self, target: str) -> Path:
        return self._folder / f"{file_name(target)}.sent.json"

    def _send(self, target: str, log: str, events: Iterable[Rejected]) -> None:
        failed: list[KafkaError] = []

        def heard(error: KafkaError | None, _: object) -> None:
            if error is not None:
                failed.append(error)

        try:
            producer = Producer(
                {
                    **self._settings,
                    "acks": "all",
                    "enable.idempotence": self._idempotent,
                    "message.max.bytes": _MOST_BYTES,
                    "message.timeout.ms": int(_SECONDS * 1000),
                }
            )
            for event in events:
                topic = self._topic(event.topic)
                headers = [*event.headers, *(self._diagnosis(event, target, log) if self._headers else ())]
                _produce(producer, topic, event, headers, heard)
            left = producer.flush(_SECONDS)
        except (KafkaException, BufferError) as error:
            raise _unsent(str(error)) from error
        if failed or left:
            raise _unsent(failed[0].str() if failed else f"{left} were not acknowledged in time")

    def _topic(self, source: str) -> str:
        """Return the topic for dead letters of `source`, which is made if it is not there."""
        topic = f"{source}.{self._suffix}"
        if topic not in self._made:
            new = NewTopic(topic, self._layout[0], self._layout[1], config=TOPIC_SETTINGS)
            admin = AdminClient(self._settings)
            try:
                admin.create_topics([new], request_timeout=_SECONDS)[topic].result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
            self._made.add(topic)
        return topic

    def _diagnosis(self, event: Rejected, target: str, log: str) -> list[tuple[str, bytes]]:
        fields: dict[str, object] = {
            "dlq.source_topic": event.topic,
            "dlq.source_partition": event.partition,
            "dlq.source_offset": event.offset,
            "dlq.error_type": event.reason.partition(":")[0],
            "dlq.error_message": event.reason,
            "dlq.timestamp": datetime.now(UTC).isoformat(),
            "dlq.sink_id": target,
            "dlq.log": log,
        }
        return [(name, str(value).encode()) for name, value in fields.items()]


def _produce(
    producer: Producer, topic: str, event: Rejected, headers: Any, heard: Callable[[KafkaError | None, object], None]
) -> None:
    """Hand `event` over; while there is no room for it, wait until some of what came before is acknowledged."""
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            producer.produce(topic, value=event.value, key=event.key, headers=headers, on_delivery=heard)
        except BufferError:
            if time.monotonic() > deadline:
                raise
            producer.poll(0.1)
        else:
            return


def as_kept(
    lies: Place,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
    logs: Mapping[str, str],
) -> Kept:
    """Return the letter that lies there, by where it says it came from; `logs` are of those places that are noted."""
    headers = list(headers)
    told = _told(headers)
    own = tuple((name, text) for name, text in headers if not _is_ours(name))
    place = _place(told)
    written = "/".join(map(str, place or lies))
    log = told.get("dlq.log", logs.get(written, "")) if place else None
    name = written if log is None else f"{log}/{written}"
    return Kept(name, log, Rejected(*(place or lies), key, value, "", own))


def _place(told: Mapping[str, str]) -> Place | None:
    """Return where a letter says it came from, if it says so; no topic has a name with a slash."""
    topic, partition, offset = (told.get(f"dlq.source_{part}", "") for part in ("topic", "partition", "offset"))
    said = topic and "/" not in topic and _is_number(partition) and _is_number(offset)
    return (topic, int(partition), int(offset)) if said else None


def _is_number(text: str) -> bool:
    """Say whether `text` can be a partition or an offset."""
    return text.isdecimal() and len(text) < 20


def _told(headers: Iterable[tuple[str, bytes | None]]) -> dict[str, str]:
    """Return what headers say, under our names also where they are spelt `dlq.source.topic`."""
    return {_name(name): (value or b"").decode(errors="replace") for name, value in headers}


def _name(header: str) -> str:
    return "dlq." + header[4:].replace(".", "_") if _is_ours(header) else header


def _is_ours(header: str) -> bool:
    return header.startswith("dlq.")


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _unread(topic: str, why: str) -> Unreachable:
    return Unreachable(
        "kafka-unreachable", f'topic "{topic}" could not be read: {why}', "Check that the brokers are up."
    )


def _unsent(why: str) -> Unreachable:
    return Unreachable(
        "dead-letter-unsent",
        f"dead letters could not be sent to Kafka: {why}",
        "Nothing was passed over. Check the brokers, and the right to write to and create the topics.",
    )
