"""Convex to PostgreSQL: a random history with deletes, and a field of several types, comes to the deployment's documents."""

from __future__ import annotations

import random
from pathlib import Path

from psycopg.rows import dict_row
from pyspark.sql import SparkSession

from tailrace.demo.postgres import EmbeddedPostgres
from tailrace.testing.convex import Deployment, Emulator
from tests.service.reading import Database
from tests.spark.convex_runs import Runs, compare, write


def test_a_database_follows_a_deployment(
    spark: SparkSession, postgres: EmbeddedPostgres, database: Database, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    chance, deployment = random.Random(seed), Deployment(seed)
    options = (
        f"{{host: 127.0.0.1, port: {postgres.port}, database: {database.name}, username: {postgres.user}, "
        f"password: '{postgres.password}', schema: public}}"
    )
    sink = f"  - {{sink_id: base, sink_type: postgres, schema_evolution: alter, postgres: {options}}}"
    with Emulator(deployment) as server:
        runs = Runs(spark, server, tmp_path, sink)
        write(deployment, chance, 10)
        # Of one type when its column is made, whatever chance left of the others.
        deployment.insert("users", {"name": "first", "n": 1})
        runs.run()
        for values in ([1, 2.5, "one", True], [1, 2**60, "two"]):
            write(deployment, chance, 12, values)
            runs.run()
    with database.sql.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute("SELECT * FROM users").fetchall()
    compare(rows, deployment.documents("users"), f"seed {seed}")
