"""A slice: a bounded stretch of a change log, and what it holds, known before anything is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from tailrace.envelopes import rows as landed_rows
from tailrace.envelopes.message import header


@dataclass(frozen=True, slots=True)
class Contents:
    """What a stretch of a log holds, without reading it."""

    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    """How many rows there are per (topic, fingerprint of the writer's schema), oldest schema first.

    The fingerprint is empty for a message that has no row: the reset of a table that is empty since.
    """
    features: dict[str, frozenset[str]] = field(default_factory=dict)
    """What is special about the messages of a topic; see `envelopes.rows.features`."""
    lowest: dict[str, str] = field(default_factory=dict)
    """The lowest position among the messages of a topic, where it is known without reading."""
    aside: dict[str, Aside] = field(default_factory=dict)
    """By topic, the messages that change no table of the pipeline."""
    floors: dict[str, str] = field(default_factory=dict)
    """By topic, the position of a truncate that came before any row did, above some of these: it may be in no table."""


@dataclass(frozen=True, slots=True)
class Aside:
    """Messages that change no table: those that mean nothing by design, and those that cannot be read."""

    filtered: int = 0
    rejected: int = 0
    table: str = ""
    """The table that the topic is of, which they are counted with; empty if it is not of one."""


@dataclass(frozen=True)
class Slice:
    """The rows of a log with `after < offset <= upto`, which may be `core.offsets.Offsets`.

    `read` gives them as one bounded DataFrame with the columns of `envelopes.rows`; reading twice
    gives the same rows.
    """

    after: int
    upto: int
    contents: Contents
    read: Callable[[SparkSession], DataFrame]
    kept: ClassVar[bool] = False
    """Reading it again does not go through what it was read from."""

    def topics(self) -> list[str]:
        """Return the topics that have rows here, in a fixed order."""
        return sorted({topic for topic, _ in self.contents.counts})

    def fingerprints(self, topic: str) -> list[str]:
        """Return the schemas that the rows of `topic` were written with, oldest first."""
        return [fingerprint for other, fingerprint in self.contents.counts if other == topic]

    def rows_of(self, topic: str) -> int:
        """Return how many rows `topic` has here."""
        return sum(count for (other, _), count in self.contents.counts.items() if other == topic)

    def rows(self, spark: SparkSession, topic: str, fingerprint: str | None = None) -> DataFrame:
        """Return the rows of `topic`, for its envelope to open; only those of one schema if it is named."""
        rows = self.read(spark).where(F.col("topic") == topic)
        return rows if fingerprint is None else rows.where(written_with() == fingerprint)

    def messages(self, spark: SparkSession, places: Collection[tuple[str, int, int]]) -> Iterator[Row]:
        """Yield the messages at `places` (topic, partition, offset) as they came, and perhaps a few others."""
        topics = sorted({topic for topic, _, _ in places})
        offsets = [offset for _, _, offset in places]
        found = self.read(spark).where(F.col("topic").isin(topics) & F.col("offset").isin(offsets))
        return found.select(*landed_rows.COLUMNS).toLocalIterator()

    def unreadable(self, spark: SparkSession, topic: str) -> DataFrame | None:
        """Return `topic, partition, offset, _cdc_problem` of what `topic` has aside to be rejected."""
        return None

    def expect(self, included: int, counts: tuple[int, int], rejected: DataFrame, taken: DataFrame) -> None:
        """Take note of what the commit that comes next makes of the rows of one table.

        The table has the log up to `included`; `counts` says how many events are rejected and superseded. `taken` are
        those that are applied: `_cdc_position`, and in `_cdc_events` how many.
        """

    def release(self) -> None:
        """Let go of what was kept for reading again; the slice is not used any more."""

    def newer_than(self, topic: str, position: str) -> bool:
        """Say whether every message of `topic` is known to be newer than `position`."""
        return self.contents.lowest.get(topic, "") > position

    def has(self, topic: str, feature: str) -> bool:
        """Say whether messages of `topic` may have `feature`."""
        return feature in self.contents.features.get(topic, frozenset())


def written_with() -> Column:
    """Return the fingerprint of the schema that a row was written with; empty if it names none."""
    return F.coalesce(header(landed_rows.SCHEMA_HEADER).cast("string"), F.lit(""))


def total(parts: Iterable[Contents]) -> Contents:
    """Return the contents of several parts, in their order, together."""
    counts: dict[tuple[str, str], int] = {}
    features: dict[str, frozenset[str]] = {}
    for part in parts:
        for key, count in part.counts.items():
            counts[key] = counts.get(key, 0) + count
        for topic, found in part.features.items():
            features[topic] = features.get(topic, frozenset()) | found
    return Contents(counts, features)
