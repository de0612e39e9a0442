"""A target whose disk is full, really: the batch says so, changes nothing, and goes in once there is room."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.core.errors import Retryable
from tailrace.core.table import Evolution, fit
from tailrace.targets import delta, duckdb, sqlite
from tests.contracts.target import ITEMS, batch, drop, put
from tests.disks import small_disk


@pytest.mark.parametrize("kind", ["delta", "sqlite", "duckdb"])
def test_a_batch_that_finds_no_room_changes_nothing_and_may_be_repeated(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    module: Any = {"delta": delta, "sqlite": sqlite, "duckdb": duckdb}[kind]
    seed = random.randrange(1 << 32)
    noise = random.Random(seed)
    with small_disk(tmp_path / "disk", "8m") as disk:
        options = module.Options(path=str(disk.root / "it"))
        to = {"spark": lambda: spark, "pipeline_id": "p", "tables": {ITEMS.name: "items"}, "mode": "scd1"}
        target = module.open_target("t", options, **to)
        target.evolve(ITEMS.name, fit(None, ITEMS, Evolution.ALTER))
        target.apply(batch(spark, [put(1, 1, "a"), put(1, 2, "b")], 1))
        large = [put(2, n, noise.randbytes(150_000).hex()) for n in range(3, 9)]
        refill = batch(spark, [drop(2, 1), *large], 2)
        disk.fill(leave=400_000)
        for _ in range(2):
            with pytest.raises(Retryable) as failed:
                target.apply(refill)
            assert failed.value.code == "disk-full", f"seed {seed}: {failed.value}"
            mark = target.mark(ITEMS.name)
            assert mark is not None
            assert mark.offset == 1
            assert {row["id"] for row in target.current(ITEMS.name).collect()} == {1, 2}
        disk.free()
        target.apply(refill)
        again = module.open_target("t", options, **to)
        assert {row["id"] for row in again.current(ITEMS.name).collect()} == {2, *range(3, 9)}
