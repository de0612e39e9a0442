"""Files that a batch cannot match: they are taken away, so that whatever reads one of them fails."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

from pyspark.sql import SparkSession

from tailrace.targets.delta import open_table
from tests.spark.applied import apply, feed


def check(spark: SparkSession, folder: Path, scd_type: int) -> None:
    """Apply late and new events to a table of which only the files around their keys are left."""
    target = f"delta:{folder}/table"
    for start in (0, 1000, 2000, 3000):
        made = spark.range(start, start + 50).selectExpr(
            "cast(id AS int) AS id", "'a' AS name", "1 AS size", "3L AS seq", "'u' AS op"
        )
        apply(made.coalesce(1), target, stored_as_scd_type=scd_type)
    opened = open_table(str(folder / "table"), "changes", spark, "scd1")
    every, near = (set(opened.current("changes", keys).inputFiles()) for keys in ({}, {"id": (2001, 2040)}))
    assert len(near) <= 2 < 4 <= len(every)
    for file in every - near:
        Path(unquote(urlparse(file).path)).unlink()
    done = apply(feed(spark, (2001, "b", 2, 5, "u"), (2040, "b", 2, 2, "u")), target, stored_as_scd_type=scd_type)
    assert done.read == 2
    assert opened.current("changes", {"id": (2001, 2001)}).where("id = 2001 AND size = 2").count() == 1
