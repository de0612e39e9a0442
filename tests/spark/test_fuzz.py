"""Thousands of random histories, each under three batchings with replays, must give the oracle's table."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.fuzz import KINDS, check


@pytest.mark.parametrize(("scd_type", "histories"), [(1, 5_000), (2, 2_000)])
def test_any_batching_gives_the_oracle_s_table(
    spark: SparkSession, tmp_path: Path, scd_type: int, histories: int
) -> None:
    seed = random.randrange(1 << 32)
    kind = random.Random(seed).choice(KINDS[scd_type])
    check(spark, tmp_path, seed, kind, histories)
