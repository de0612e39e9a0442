"""How a statement is staged: its snapshot is written, under a name, and no reader sees it yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

ENABLED = {"write.wap.enabled": "true"}
"""The property that a table needs for it."""

_NAME = "spark.wap.id"
_SUMMARY = "spark.sql.iceberg.snapshot-property."


@contextmanager
def stage(session: SparkSession, name: str, summary: Mapping[str, str]) -> Iterator[None]:
    """Have what `session`, one that is ours alone, writes be staged under `name`, with `summary` in its summary."""
    with noted(session, summary), _set(session, {_NAME: name}):
        yield


@contextmanager
def noted(session: SparkSession, summary: Mapping[str, str]) -> Iterator[None]:
    """Have `summary` in the summary of what `session`, one that is ours alone, writes."""
    with _set(session, {f"{_SUMMARY}{key}": value for key, value in summary.items()}):
        yield


@contextmanager
def _set(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    for key, value in settings.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        # Left in place they would speak of the next statement too.
        for key in settings:
            session.conf.unset(key)
