"""Dead letters of a Kafka log: sent to a topic beside the one they came from, and acknowledged there.

An event is in the topic, on all replicas, before the progress of its target passes it. Which ones were sent
is noted, so that a repeat sends none twice; a crash before the note may, and both carry the same origin.
A message cannot be taken out of a topic: which ones are off the list, replayed or purged, is noted as well.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tailrace.control import state
from tailrace.control.rejects import Kept, Letter, Rejected, as_text, flooded, refused
from tailrace.core.errors import Retryable
from tailrace.core.table import file_name

_SECONDS = 20.0
"""How long the cluster may take to answer."""
_MOST_BYTES = 64 * 1024 * 1024


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
    ) -> None:
        self._folder = folder
        self._settings: dict[str, Any] = {**settings, "log_level": 0}
        self._suffix = suffix
        self._enabled = enabled
        self.limit = limit
        self._headers = headers
        self._idempotent = idempotent
        self._layout = (partitions, replicas)
        self._made: set[str] = set()
        self._turn = threading.Lock()

    def put(self, target: str, log: str, rejected: Iterable[Rejected]) -> None:
        """Send `rejected` and wait until they are safe, or halt if dead letters are off or there are too many."""
        # Tables of one slice are folded side by side, and share one note of what was sent.
        with self._turn:
            self._put(target, log, rejected)

    def _put(self, target: str, log: str, rejected: Iterable[Rejected]) -> None:
        noted = self._noted(target)
        new: dict[str, Rejected] = {}
        for event in rejected:
            if not self._enabled:
                raise refused(event)
            name = f"{log}/{event.topic}/{event.partition}/{event.offset}"
            if name not in noted:
                new[name] = event
        if new:
            self._send(target, log, new.values())
            state.save(self._path(target), {"sent": [*noted, *new], "done": sorted(self._done(target))})
        if (count := self.count(target)) > self.limit:
            raise flooded(target, count, self.limit, f"topics that end in .{self._suffix}")

    def count(self, target: str) -> int:
        """Return how many events of `target` were rejected and are on the list."""
        return len(set(self._noted(target)) - self._done(target))

    def letters(self, target: str) -> Iterator[Letter]:
        """Yield the dead letters of `target` that their topics still have, by topic, partition and offset."""
        for _, found, headers in self._listed(target):
            ours: Letter = {name: text for name, text in _told(headers).items() if _is_ours(name)}
            for name in ("dlq.source_partition", "dlq.source_offset"):
                if (text := str(ours.get(name, ""))).isdecimal():
                    ours[name] = int(text)
            yield {"key": as_text(_bytes(found.key())), "value": as_text(_bytes(found.value())), **ours}

    def kept(self, target: str) -> Iterator[Kept]:
        """Yield the dead letters of `target` as events."""
        for name, found, headers in self._listed(target):
            if name is not None:
                log, topic, partition, offset = name.split("/")
                own = tuple((key, value) for key, value in headers if not _is_ours(key))
                key, value = _bytes(found.key()), _bytes(found.value())
                yield Kept(name, log, Rejected(topic, int(partition), int(offset), key, value, "", own))

    def forget(self, target: str, names: Collection[str] | None) -> None:
        """Take these dead letters off the list; they stay in their topics as long as those keep them."""
        with self._turn:
            noted = self._noted(target)
            done = set(noted) if names is None else self._done(target) | (set(names) & set(noted))
            state.save(self._path(target), {"sent": noted, "done": sorted(done)})

    def _listed(self, target: str) -> Iterator[tuple[str | None, Message, list[tuple[str, bytes | None]]]]:
        """Yield what is on the list, once each: its name, if it says where it came from, and the message."""
        noted, seen = self._noted(target), self._done(target)
        for topic in sorted({name.split("/")[1] for name in noted}):
            for found in self._read(f"{topic}.{self._suffix}"):
                carried: Any = found.headers() or []
                told = _told(carried)
                if told.get("dlq.sink_id", target) != target:
                    continue
                place = "/".join(told.get(f"dlq.source_{part}", "") for part in ("topic", "partition", "offset"))
                log = f"{told['dlq.log']}/" if "dlq.log" in told else ""
                name = next((one for one in noted if one.startswith(log) and one.endswith(f"/{place}")), None)
                if name is None or name not in seen:
                    seen.add(name or "")
                    yield name, found, carried

    def _read(self, topic: str) -> Iterator[Message]:
        """Yield what `topic` has now."""
        reader = Consumer({**self._settings, "group.id": "tailrace-dead-letters", "enable.auto.commit": False})
        try:
            for number in reader.list_topics(topic, timeout=_SECONDS).topics[topic].partitions:
                start, end = reader.get_watermark_offsets(TopicPartition(topic, number), timeout=_SECONDS)
                reader.assign([TopicPartition(topic, number, start)])
                while start < end:
                    found = reader.poll(_SECONDS)
                    if found is None or found.error():
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
                producer.produce(topic, value=event.value, key=event.key, headers=headers, on_delivery=heard)
            left = producer.flush(_SECONDS)
        except (KafkaException, BufferError) as error:
            raise _unsent(str(error)) from error
        if failed or left:
            raise _unsent(failed[0].str() if failed else f"{left} were not acknowledged in time")

    def _topic(self, source: str) -> str:
        """Return the topic for dead letters of `source`, which is made if it is not there."""
        topic = f"{source}.{self._suffix}"
        if topic not in self._made:
            # Large enough for what the source's topic let in.
            settings = {"max.message.bytes": str(_MOST_BYTES)}
            new = NewTopic(topic, self._layout[0], self._layout[1], config=settings)
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


def _told(headers: Iterable[tuple[str, bytes | None]]) -> dict[str, str]:
    """Return what headers say, under our names also where they are spelt `dlq.source.topic`."""
    return {_name(name): (value or b"").decode(errors="replace") for name, value in headers}


def _name(header: str) -> str:
    return "dlq." + header[4:].replace(".", "_") if _is_ours(header) else header


def _is_ours(header: str) -> bool:
    return header.startswith("dlq.")


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _unread(topic: str, why: str) -> Retryable:
    return Retryable("kafka-unreachable", f'topic "{topic}" could not be read: {why}', "Check that the brokers are up.")


def _unsent(why: str) -> Retryable:
    return Retryable(
        "dead-letter-unsent",
        f"dead letters could not be sent to Kafka: {why}",
        "Nothing was passed over. Check the brokers, and the right to write to and create the topics.",
    )
