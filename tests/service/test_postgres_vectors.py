"""The cases of Spark's AUTO CDC, on PostgreSQL: one test per vector, by its name."""

from __future__ import annotations

import itertools

import psycopg
import pytest
from pyspark.sql import SparkSession

from tailrace.demo.postgres import EmbeddedPostgres
from tests.autocdc import VECTORS, Results, Vector


@pytest.fixture(scope="module")
def results(spark: SparkSession, postgres: EmbeddedPostgres) -> Results:
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE vectors")
    numbers = itertools.count(1)
    return Results(spark, lambda kind: f"{kind}:{postgres.dsn('vectors')}#main.table{next(numbers)}")


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_a_table_in_postgres_is_what_auto_cdc_makes(vector: Vector, results: Results) -> None:
    results.check("postgres", vector)
