"""Real processes: the command as a user starts it, on a real PostgreSQL, killed and started again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tailrace.demo.postgres import EmbeddedPostgres
from tailrace.spark import session


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """One server for the tier; each test makes a database of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-e2e-") as folder,
        EmbeddedPostgres(Path(folder) / "pg", settings={"fsync": "off"}) as server,
    ):
        yield server


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session of the test's own, to read what the command wrote."""
    opened = session(**{"spark.master": "local[2]", "spark.driver.memory": "1g"})
    yield opened
    opened.stop()
