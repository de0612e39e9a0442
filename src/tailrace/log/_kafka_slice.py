"""A slice of topics: messages that were peeked into once, and are kept until its tables are folded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from tailrace.envelopes import rows as landed_rows
from tailrace.envelopes.message import FILTERED
from tailrace.log._broker import Partition
from tailrace.log._reading import reading
from tailrace.log.slice import Slice


@dataclass(frozen=True)
class KafkaSlice(Slice):
    """A slice whose messages were peeked into and are kept under a name."""

    kept: ClassVar[bool] = True
    view: str = ""
    ranges: Mapping[Partition, tuple[int, int]] = field(default_factory=dict)
    raw: Callable[[SparkSession, Mapping[Partition, tuple[int, int]]], DataFrame] | None = None
    schemas: Mapping[tuple[str, str], Collection[str]] = field(default_factory=dict)
    """By table and fingerprint, what the messages themselves call their schema."""
    drop: Callable[[], None] = lambda: None

    def rows(self, spark: SparkSession, topic: str, fingerprint: str | None = None) -> DataFrame:
        """Return the peeked rows of the table `topic`."""
        mine = F.col("fate").isNull() & (F.col("table") == topic)
        if fingerprint is not None:
            mine &= F.col("schema").isin(*self.schemas[topic, fingerprint])
        return self.read(spark).where(mine)

    def messages(self, spark: SparkSession, places: Collection[tuple[str, int, int]]) -> Iterator[Row]:
        """Read the messages at `places` from Kafka again, as they came."""
        bounds: dict[Partition, tuple[int, int]] = {}
        for topic, partition, offset in places:
            first, end = bounds.get((topic, partition), (offset, offset + 1))
            bounds[topic, partition] = min(first, offset), max(end, offset + 1)
        if self.raw is None:
            raise TypeError("a slice of Kafka without a way to read it")
        wanted = F.col("offset").isin(sorted({offset for _, _, offset in places}))
        with reading():
            yield from self.raw(spark, bounds).where(wanted).select(*landed_rows.COLUMNS).toLocalIterator()

    def unreadable(self, spark: SparkSession, topic: str) -> DataFrame | None:
        """Return where the messages of `topic` lie that cannot be read, and why."""
        bad = F.col("fate").isNotNull() & (F.col("fate") != FILTERED) & (F.col("topic") == topic)
        return (
            self.read(spark)
            .where(bad)
            .selectExpr(
                "topic AS _cdc_topic", "partition AS _cdc_partition", "offset AS _cdc_offset", "fate AS _cdc_problem"
            )
        )

    def release(self) -> None:
        """Forget the kept rows."""
        self.drop()
