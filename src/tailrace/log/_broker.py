"""What is asked of Kafka apart from its messages: which topics there are, who they are, from where to where they go.

Errors of the client library become ours here: what may pass is retryable, what was refused is not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, SparkSession

from tailrace.core.errors import NotReady, Unreachable
from tailrace.envelopes import rows as landed_rows

_REFUSED = {
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError._SSL,
}
_NOT_GIVEN = "Failed to acquire SASL OAUTHBEARER token"
_DENIED = re.compile(
    "invalid_(client|grant|request|scope)|unauthorized_client|unsupported_grant_type|access_denied", re.IGNORECASE
)
"""Why a token endpoint gives no token, and will not give one later (RFC 6749, 5.2)."""
_SECRETS = ("sasl.password", "sasl.oauthbearer.client.secret")
_LARGE_FETCHES = {"kafka.max.poll.records": "5000", "kafka.max.partition.fetch.bytes": str(8 << 20)}
"""A slice is read to its end at once, so few large answers are better than many small ones."""
_LONGEST = 400
_SECONDS = 10.0
"""How long one answer may take."""
_SHOWN_SECONDS = 3.0
"""How long that of a group's place may take, which holds up whoever has just applied a slice."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the cluster knows it: a topic that was made anew under the same name has another id."""

    id: str
    partitions: int


Partition = tuple[str, int]


class Broker:
    """A cluster; connections are made when something is asked.

    `settings` are those of librdkafka, `options` those of Spark's reader.
    """

    def __init__(self, settings: Mapping[str, str], options: Mapping[str, str]) -> None:
        self.address = settings["bootstrap.servers"]
        self._options = dict(options)
        # What goes wrong is raised; librdkafka would also print it, again and again.
        self._settings: dict[str, Any] = {
            **settings,
            "log_level": 0,
            "socket.connection.setup.timeout.ms": 10000,
            "error_cb": self._hear,
        }
        self._refusal: KafkaError | None = None

    def cluster(self, seconds: float = _SECONDS) -> str:
        """Return the id of the cluster, which must answer within `seconds`."""
        with self._asking("the cluster"):
            return str(self._admin.describe_cluster(request_timeout=seconds).result().cluster_id)

    def names(self, pattern: str = ".*") -> list[str]:
        """Return the topics whose whole name matches `pattern`; those of Kafka itself apart."""
        wanted = re.compile(pattern)
        with self._asking("topics"):
            found = self._admin.list_topics(timeout=_SECONDS).topics
        return sorted(name for name in found if wanted.fullmatch(name) and not name.startswith("__"))

    def topics(self, names: Sequence[str]) -> dict[str, Topic]:
        """Return what the cluster knows of `names`; one that does not exist is not in it."""
        found = {}
        with self._asking("topics"):
            answers = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=_SECONDS)
            for name, answer in answers.items():
                try:
                    described = answer.result()
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
                else:
                    found[name] = Topic(str(described.topic_id), len(described.partitions))
        return found

    def starts(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Return the first offset that each partition still has."""
        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def ends(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Return the offset after the last one of each partition that is committed."""
        return self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def message(self, topic: str, partition: int, offset: int) -> tuple[bytes | None, bytes | None]:
        """Return key and value of the message at a place, or of the next after it."""
        with self._asking(f'a message of topic "{topic}"'):
            reader = Consumer({**self._settings, "group.id": "tailrace-peek", "enable.auto.commit": False})
            try:
                reader.assign([TopicPartition(topic, partition, offset)])
                found = reader.poll(_SECONDS)
                if found is None or found.error():
                    raise Unreachable(
                        "kafka-unreachable", f'topic "{topic}" gave no message at offset {offset} in time'
                    )
                return _bytes(found.key()), _bytes(found.value())
            finally:
                reader.close()

    def commit(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Tell the cluster that `group` has read up to before `offsets`: for tools that show lag.

        Not as a member of the group, whose commit waits 45 s for a broker that is gone: nothing depends on it.
        """
        if offsets:
            with self._asking(f'group "{group}"'):
                places = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
                asked = [ConsumerGroupTopicPartitions(group, places)]
                answers = self._admin.alter_consumer_group_offsets(asked, request_timeout=_SHOWN_SECONDS)
                for place in answers[group].result().topic_partitions:
                    if place.error:
                        raise KafkaException(place.error)

    def create(
        self, names: Sequence[str], partitions: int, replicas: int, settings: Mapping[str, str] | None = None
    ) -> None:
        """Make topics; one that is there already stays as it is."""
        if names:
            with self._asking("new topics"):
                asked = [NewTopic(name, partitions, replicas, config=dict(settings or {})) for name in names]
                for answer in self._admin.create_topics(asked, request_timeout=_SECONDS).values():
                    self._settle(answer, KafkaError.TOPIC_ALREADY_EXISTS)

    def delete(self, names: Sequence[str]) -> None:
        """Remove topics; one that is not there is no matter."""
        if names:
            with self._asking("the removal of topics"):
                for answer in self._admin.delete_topics(list(names), request_timeout=_SECONDS).values():
                    self._settle(answer, KafkaError.UNKNOWN_TOPIC_OR_PART)

    def _settle(self, answer: Future[object], fine: int) -> None:
        try:
            answer.result()
        except KafkaException as error:
            if error.args[0].code() != fine:
                raise

    def read(self, spark: SparkSession, ranges: Mapping[Partition, tuple[int, int]]) -> DataFrame:
        """Return the messages from the first offset of each range to before the second."""
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for (topic, number), (start, end) in ranges.items():
            starts.setdefault(topic, {})[str(number)] = start
            ends.setdefault(topic, {})[str(number)] = end
        return (
            spark.read.format("kafka")
            .options(**_LARGE_FETCHES)
            .options(**self._options)
            .option("kafka.isolation.level", "read_committed")
            # Spark keeps its consumers, and one that asks for a topic that was removed would make it anew.
            .option("kafka.allow.auto.create.topics", "false")
            .option("assign", json.dumps({topic: sorted(map(int, parts)) for topic, parts in starts.items()}))
            .option("startingOffsets", json.dumps(starts))
            .option("endingOffsets", json.dumps(ends))
            .option("failOnDataLoss", "true")
            .option("includeHeaders", "true")
            .option("minPartitions", str(spark.sparkContext.defaultParallelism))
            .load()
            .select(*landed_rows.COLUMNS)
        )

    def _offsets(self, partitions: Sequence[Partition], spec: OffsetSpec) -> dict[Partition, int]:
        if not partitions:
            return {}
        with self._asking("offsets"):
            asked = {TopicPartition(topic, number): spec for topic, number in partitions}
            answers = self._admin.list_offsets(
                asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_SECONDS
            )
            return {(place.topic, place.partition): answer.result().offset for place, answer in answers.items()}

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient(self._settings)

    def _hear(self, error: KafkaError) -> None:
        if error.code() in _REFUSED:
            self._refusal = error

    def _listen(self) -> KafkaError | None:
        """Return what was told aside since the last time: a login that is refused is told to whoever polls."""
        self._admin.poll(0)
        heard, self._refusal = self._refusal, None
        return heard

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
            # Whatever was refused before is no longer.
            self._listen()
        except KafkaException as error:
            # The question itself is never answered then.
            said = self._listen() or error.args[0]
            text = f"{what} could not be asked of Kafka at {self.address}: {self._shown(said.str())}"
            if _refuses(said):
                hint = "Check the security settings under kafka in the platform file, and the rights of the user."
                raise NotReady("kafka-refused", text, hint) from error
            hint = "Check kafka.bootstrap_servers, and that the brokers are up."
            raise Unreachable("kafka-unreachable", text, hint) from error

    def _shown(self, text: str) -> str:
        """Return what a server said, without what nobody is to see."""
        for name in _SECRETS:
            if secret := self._settings.get(name):
                text = text.replace(secret, "***")
        return " ".join(text.split())[:_LONGEST]


def _refuses(said: KafkaError) -> bool:
    """Say whether asking again is of no use; an endpoint that gives no token may only be down."""
    return said.code() in _REFUSED and (_NOT_GIVEN not in said.str() or bool(_DENIED.search(said.str())))


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
