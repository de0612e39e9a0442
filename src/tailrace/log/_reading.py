"""What Spark says of Kafka while it reads: what may pass, and what is gone for good."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tailrace.core.errors import ResyncRequired, Retryable, TailraceError, Unreachable

RESYNC = (
    "Rows would be missing if it went on. Delete the topics, have the connector take a new snapshot, run cdc undeploy "
    "<file>, and then cdc run <file>, which reads the topics from their beginning: what they have of a table replaces "
    "all of it in the targets. Nothing was changed."
)
_LOST = ("OffsetOutOfRange", "data may have been lost", "data loss", "KAFKA_DATA_LOSS")
_AWAY = re.compile(
    r"\borg\.apache\.kafka\.[\w.]*(Timeout|Disconnect|Network|NotAvailable|NotLeaderOrFollower|UnknownTopicOrPartition)"
)


@contextmanager
def reading() -> Iterator[None]:
    """Tell what may pass from what is gone for good, in what Spark says of Kafka."""
    try:
        yield
    except TailraceError:
        raise
    except (Py4JError, PySparkException) as error:
        text = str(error)
        said = " ".join(text.split())[:300]
        if any(word in text for word in _LOST):
            raise ResyncRequired(f"messages are gone that were still needed: {said}", RESYNC) from error
        if _AWAY.search(text):
            raise Unreachable("kafka-unreachable", f"reading from Kafka failed: {said}") from error
        if "kafka" in text.lower():
            # It may have to do with the messages as well as with the brokers, and come again with them.
            raise Retryable("kafka-unreachable", f"reading from Kafka failed: {said}") from error
        raise
