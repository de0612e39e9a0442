"""Writing to and reading from a topic, as a test needs it: all of it, in order, or a failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import Consumer, Message, Producer, TopicPartition


def patiently(done: Callable[[], bool], seconds: float = 90) -> None:
    """Return once `done` says so."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise AssertionError("it did not happen in time")
        time.sleep(0.1)


def write(settings: Mapping[str, str], topic: str, messages: Iterable[tuple[bytes | None, bytes | None]]) -> None:
    """Write keys and values to the topic and wait until the broker has them."""
    failed: list[object] = []
    producer = Producer({**settings, "log_level": 0})
    for key, value in messages:
        producer.produce(topic, value, key, on_delivery=lambda error, _: failed.append(error) if error else None)
    unsent = producer.flush(30)
    if failed or unsent:
        raise AssertionError(f"{unsent} messages were not sent; {failed[:3]}")


def read(settings: Mapping[str, str], topic: str, count: int, seconds: float = 60) -> list[Message]:
    """Return the first `count` messages of partition 0; wait for the topic and for the messages."""
    consumer = Consumer({**settings, "group.id": "test", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Message] = []
    deadline = time.monotonic() + seconds
    try:
        while len(found) < count:
            if time.monotonic() > deadline:
                raise AssertionError(f'topic "{topic}" has {len(found)} of {count} messages')
            found += [message for message in consumer.consume(count - len(found), 1) if not message.error()]
    finally:
        consumer.close()
    return found
