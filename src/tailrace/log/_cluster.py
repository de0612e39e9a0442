"""What a log of topics needs of Kafka, and of the place where it keeps what it must know again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from tailrace.log._broker import Partition, Topic


class Memory(Protocol):
    """Where the log keeps what it must know again after a restart."""

    def load(self) -> dict[str, Any] | None: ...
    def save(self, content: dict[str, Any]) -> None: ...


class Messages(Protocol):
    """Where messages are read from: a cluster, or what is at hand."""

    def message(self, topic: str, partition: int, offset: int) -> tuple[bytes | None, bytes | None]:
        """Return key and value of the message at a place, or of the next after it."""
        ...

    def read(self, spark: SparkSession, ranges: Mapping[Partition, tuple[int, int]]) -> DataFrame:
        """Return the messages from the first offset of each range to before the second: rows of `envelopes.rows`."""
        ...


class Cluster(Messages, Protocol):
    """What the log needs of Kafka: `log._broker.Broker`, or one in memory."""

    address: str

    def cluster(self) -> str:
        """Return the id of the cluster."""
        ...

    def topics(self, names: Sequence[str]) -> dict[str, Topic]:
        """Return what the cluster knows of `names`; one that does not exist is not in it."""
        ...

    def starts(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Return the first offset that each partition still has."""
        ...

    def ends(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Return the offset after the last one of each partition that is committed."""
        ...

    def commit(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Tell the cluster that `group` has read up to before `offsets`."""
        ...
