"""One session for the tier: two cores, two shuffle partitions, and nothing compiled that a tiny table does not need.

Compiling the plan of a statement takes longer here than running it. What is compiled is run by the e2e tier.
"""

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
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        }
    )
    yield started
    started.stop()
