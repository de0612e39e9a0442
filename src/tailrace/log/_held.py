"""Messages that are at hand, to be read as if they came from Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tailrace.envelopes import rows as landed_rows
from tailrace.log._broker import Partition
from tailrace.spark.frame import described, from_arrow


@dataclass(frozen=True, slots=True)
class Held:
    """Some messages, as rows of `envelopes.rows`."""

    rows: pa.Table

    def message(self, topic: str, partition: int, offset: int) -> tuple[bytes | None, bytes | None]:
        """Return key and value of the message at a place."""
        place = (topic, partition, offset)
        found = next(r for r in self.rows.to_pylist() if (r["topic"], r["partition"], r["offset"]) == place)
        return found["key"], found["value"]

    def read(self, spark: SparkSession, ranges: Mapping[Partition, tuple[int, int]]) -> DataFrame:
        """Return all of them, whatever the ranges."""
        return from_arrow(spark, self.rows).to(described(landed_rows.SPARK))
