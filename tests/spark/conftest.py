"""One session for the tier."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tailrace.spark import session
from tests.sessions import SMALL


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    started = session(**SMALL)
    yield started
    started.stop()
