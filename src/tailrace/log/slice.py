"""A slice: a bounded stretch of a change log, and what it holds, known before anything is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Contents:
    """What a stretch of a log holds, without reading it."""

    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    """How many rows there are per (topic, fingerprint of the writer's schema), oldest schema first.

    The fingerprint is empty for a message that has no row: the reset of a table that is empty since.
    """
    features: dict[str, frozenset[str]] = field(default_factory=dict)
    """What is special about the messages of a topic; see `envelopes.rows.features`."""


@dataclass(frozen=True)
class Slice:
    """The rows of a log with `after < offset <= upto`.

    `read` gives them as one bounded DataFrame with the columns of `envelopes.rows`; reading twice
    gives the same rows.
    """

    after: int
    upto: int
    contents: Contents
    read: Callable[[SparkSession], DataFrame]

    def topics(self) -> list[str]:
        """Return the topics that have rows here, in a fixed order."""
        return sorted({topic for topic, _ in self.contents.counts})

    def fingerprints(self, topic: str) -> list[str]:
        """Return the schemas that the rows of `topic` were written with, oldest first."""
        return [fingerprint for other, fingerprint in self.contents.counts if other == topic]

    def rows_of(self, topic: str) -> int:
        """Return how many rows `topic` has here."""
        return sum(count for (other, _), count in self.contents.counts.items() if other == topic)

    def has(self, topic: str, feature: str) -> bool:
        """Say whether messages of `topic` may have `feature`."""
        return feature in self.contents.features.get(topic, frozenset())


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
