"""Kafka in memory: what a cluster is to a log, without a server. It ships for tests and for trying things out."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tailrace.envelopes import rows as landed_rows
from tailrace.log._broker import Partition, Topic
from tailrace.spark.frame import described, from_arrow

Header = tuple[str, bytes | None]
Message = tuple[bytes | None, bytes | None, tuple[Header, ...]]


@dataclass
class _Kept:
    id: str
    partitions: list[list[Message]]
    starts: list[int]


@dataclass
class MemoryCluster:
    """Topics as lists; `put`, `create`, `grow` and `expire` are what happens to a real one."""

    id: str = "memory"
    address: str = "memory"
    committed: dict[str, dict[Partition, int]] = field(default_factory=dict)
    _topics: dict[str, _Kept] = field(default_factory=dict)

    def create(self, topic: str, partitions: int = 1) -> None:
        """Make a topic, anew if it is there."""
        self._topics[topic] = _Kept(uuid.uuid4().hex, [[] for _ in range(partitions)], [0] * partitions)

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        kept = self._topics[topic]
        kept.partitions += [[] for _ in range(partitions - len(kept.partitions))]
        kept.starts += [0] * (partitions - len(kept.starts))

    def expire(self, topic: str, partition: int, start: int) -> None:
        """Forget what lies before `start`."""
        self._topics[topic].starts[partition] = start

    def put(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: tuple[Header, ...] = ()
    ) -> None:
        """Append a message."""
        self._topics[topic].partitions[partition].append((key, value, headers))

    def cluster(self) -> str:
        return self.id

    def topics(self, names: Sequence[str]) -> dict[str, Topic]:
        return {n: Topic(self._topics[n].id, len(self._topics[n].partitions)) for n in names if n in self._topics}

    def starts(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        return {(topic, number): self._topics[topic].starts[number] for topic, number in partitions}

    def ends(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        return {(topic, number): len(self._topics[topic].partitions[number]) for topic, number in partitions}

    def message(self, topic: str, partition: int, offset: int) -> tuple[bytes | None, bytes | None]:
        key, value, _ = self._topics[topic].partitions[partition][offset]
        return key, value

    def commit(self, group: str, offsets: Mapping[Partition, int]) -> None:
        self.committed[group] = dict(offsets)

    def read(self, spark: SparkSession, ranges: Mapping[Partition, tuple[int, int]]) -> DataFrame:
        rows = []
        for (topic, number), (start, end) in ranges.items():
            for offset in range(start, end):
                key, value, headers = self._topics[topic].partitions[number][offset]
                named = [{"key": name, "value": content} for name, content in headers]
                place = {"topic": topic, "partition": number, "offset": offset, "timestamp": None}
                rows.append({**place, "key": key, "value": value, "headers": named})
        table = pa.Table.from_pylist(rows, schema=landed_rows.ARROW)
        return from_arrow(spark, table).to(described(landed_rows.SPARK))
