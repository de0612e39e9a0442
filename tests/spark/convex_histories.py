"""Long random histories of a Convex deployment, into every kind of target, against the deployment itself.

    python -m tests.spark.convex_histories --seeds 20 --transactions 10000

Each history is cut at random into `--runs` stretches, and a run follows each: the first reads a snapshot, the others changes.
A run costs the same whether it applies a hundred rows or ten thousand, so runs are few. Staged files and documents folded from
bronze tables are compared whole, rows of Delta and DuckDB column by column. Everything follows from the seed, which is printed.
A seed that disagrees is told and the next one is tried; the last line says how many agreed.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
import time
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
from pyspark.sql import SparkSession

from dev.cpu import worked
from tailrace.config.load import load_pipeline, load_platform
from tailrace.core import convex
from tailrace.runtime.build import open_pipeline
from tailrace.runtime.report import Silent
from tailrace.spark import session
from tailrace.testing.convex import Deployment, Emulator, Workload
from tailrace.testing.convex.workload import TABLES
from tests.convex import staged, there
from tests.sessions import SMALL
from tests.spark.bronze import silver
from tests.spark.test_convex import same

SINKS = """
  - {sink_id: files, sink_type: staging, staging: {path: 'FOLDER/staging'}}
  - {sink_id: lake, sink_type: delta, schema_evolution: alter, delta: {path: 'FOLDER/lake'}}
  - {sink_id: base, sink_type: duckdb, schema_evolution: alter, duckdb: {path: 'FOLDER/base.duckdb'}}
  - {sink_id: landing, sink_type: bronze, bronze: {path: 'FOLDER/bronze'}}
"""


def check(spark: SparkSession, folder: Path, seed: int, transactions: int, runs: int) -> int:
    """Run one history through every target, and compare; return how many documents it came to."""
    deployment, chance = Deployment(seed), random.Random(seed)
    workload = Workload(deployment, seed)
    workload.fill(300)
    cuts = [0, *sorted(chance.sample(range(1, transactions), runs - 1)), transactions]
    with Emulator(deployment) as server:
        source = f"{{source_type: convex, deployment_url: '{server.url}', deploy_key: '{server.behaviour.key}'}}"
        sinks = SINKS.replace("FOLDER", str(folder))
        (folder / "pipeline.yaml").write_text(f"pipeline_id: shop\nsource: {source}\nsinks:{sinks}")
        (folder / "platform.yaml").write_text(f"control: {{root: '{folder}/control'}}\nlog: {{root: '{folder}/log'}}\n")
        for start, end in pairwise(cuts):
            workload.write(end - start)
            run(spark, folder)
    assert staged((folder / "staging").rglob("*.parquet")) == there(deployment), "staging"
    with opened(spark, folder) as pipeline:
        assert silver(spark, folder, pipeline) == there(deployment), "bronze"
    base = duckdb.connect(str(folder / "base.duckdb"), read_only=True)
    for component, table in TABLES:
        name = f"{component}_{table}".strip("_") if table == "users" else table
        documents = deployment.documents(table, component)
        rows = spark.read.format("delta").load(f"{folder}/lake/{name}").collect()
        compare((row.asDict() for row in rows), documents, f"delta {name}")
        found = base.execute(f'SELECT * EXCLUDE ("_creationTime") FROM "{name}"')
        columns = [column[0] for column in found.description]
        compare((dict(zip(columns, row, strict=True)) for row in found.fetchall()), documents, f"duckdb {name}")
    base.close()
    return sum(len(deployment.documents(table, component)) for component, table in TABLES)


def compare(rows: Iterable[Mapping[str, Any]], documents: Mapping[str, Mapping[str, Any]], what: str) -> None:
    kept = {row["_id"]: row for row in rows}
    assert kept.keys() == documents.keys(), what
    for key, row in kept.items():
        for field in {*row, *documents[key]}:
            if field[0] != "_":
                second = row.get(f"_text_{field}")
                value, want = row[field] if second is None else second, documents[key].get(field)
                text = convex.shown(want)
                same_text = isinstance(value, str) and text is not None and same(value, text, convex.Kind.TEXT)
                assert same_text or same(_plain(value), _plain(want)), f"{what} {key} {field}: {value!r} {want!r}"


def _plain(value: object) -> object:
    return math.nan if isinstance(value, float) and math.isnan(value) else value


def opened(spark: SparkSession, folder: Path) -> Any:
    pipeline = open_pipeline(
        load_pipeline(folder / "pipeline.yaml").config, load_platform(folder / "platform.yaml").config
    )
    pipeline.__dict__["_session"] = spark
    return pipeline


def run(spark: SparkSession, folder: Path) -> None:
    with opened(spark, folder) as pipeline:
        report = pipeline.run(once=True, report=Silent())
    if error := report.first_error():
        raise error


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--seeds", type=int, default=20)
    words.add_argument("--first", type=int, default=1)
    words.add_argument("--transactions", type=int, default=10_000)
    words.add_argument("--runs", type=int, default=3)
    given = words.parse_args()
    # All seeds in one process, and with the thorough compiler too: from the second seed on that saves a third.
    spark, agreed = session(**SMALL), 0
    for seed in range(given.first, given.first + given.seeds):
        started, before = time.monotonic(), worked()
        with tempfile.TemporaryDirectory() as name:
            try:
                documents = check(spark, Path(name), seed, given.transactions, given.runs)
            except AssertionError as error:
                print(f"seed {seed}: disagrees: {error}", flush=True)
                continue
        agreed += 1
        seconds, spent = time.monotonic() - started, worked() - before
        done = f"{given.transactions} transactions, {documents} documents, all agree"
        print(f"seed {seed}: {done}, {seconds:.0f} s, {spent:.0f} s of CPU", flush=True)
    spark.stop()
    print(f"{agreed} of {given.seeds} seeds agree")
    raise SystemExit(0 if agreed == given.seeds else 1)


if __name__ == "__main__":
    main()
