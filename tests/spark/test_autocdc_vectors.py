"""The cases of Spark's AUTO CDC, on every target that needs no server: one test per vector, by its name."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.autocdc import VECTORS, Results, Vector

OTHERS = ("sqlite", "duckdb")


@pytest.fixture(scope="module")
def results(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Results:
    catalog = "spark.sql.catalog.vectors"
    spark.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set(f"{catalog}.type", "hadoop")
    spark.conf.set(f"{catalog}.warehouse", str(tmp_path_factory.mktemp("warehouse")))

    def place(kind: str) -> str:
        folder = tmp_path_factory.mktemp("vectors")
        if kind == "iceberg":
            return f"iceberg:vectors.here.{folder.name}"
        return f"delta:{folder}/table" if kind == "delta" else f"{kind}:{folder}/tables.db#table"

    return Results(spark, place)


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_the_table_is_what_auto_cdc_makes(vector: Vector, results: Results) -> None:
    results.check("delta", vector)


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_a_table_in_a_database_is_no_other(vector: Vector, kind: str, results: Results) -> None:
    results.check(kind, vector)


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_a_table_in_iceberg_is_no_other(vector: Vector, results: Results) -> None:
    results.check("iceberg", vector)
