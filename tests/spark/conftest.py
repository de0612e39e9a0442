"""One session for the tier: two cores, two shuffle partitions, and only the quick compiler, as all tables are tiny."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tailrace.spark import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    started = session(
        **{
            "spark.master": "local[2]",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        }
    )
    yield started
    started.stop()
