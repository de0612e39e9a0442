"""Long random histories of a Convex deployment, into every kind of target, against the deployment itself.

    python -m tests.spark.convex_histories --seeds 20 --transactions 10000

Each history is cut at random into `--runs` stretches, and a run follows each: the first reads a snapshot, the others changes.
A run costs the same whether it applies a hundred rows or ten thousand, so runs are few. Documents in staged files and folded
from bronze tables are compared whole; rows of every other target, and what a webhook's messages come to, field by field and
type by type. Everything follows from the seed, which is printed. A seed that disagrees is told and the next one is tried;
the last line says how many agreed.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import random
import tempfile
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from dev.cpu import worked
from tailrace.config.load import load_pipeline, load_platform
from tailrace.core import convex
from tailrace.runtime.build import open_pipeline
from tailrace.runtime.report import Silent
from tailrace.spark import session
from tailrace.testing.convex import Deployment, Emulator, Workload
from tailrace.testing.convex.values import Document, Value
from tailrace.testing.convex.workload import TABLES
from tests.clients import EVERY, Row, Store
from tests.convex import staged, there
from tests.e2e.kills import stores
from tests.receiver import Receiver, receiving
from tests.sessions import SMALL
from tests.spark.bronze import silver
from tests.spark.test_convex import same

FIELDS = frozenset(("name", "count", "score", "blob", "flag", "tags", "mixed", "turned", "_creationTime"))
LEFT_OUT = {"mysql": frozenset(("score",))}
"""Fields that a target has no type for: MySQL knows neither NaN nor the infinities."""
TEXT = frozenset(("tags", "mixed"))
"""Fields that no column has but as text: they are nested, or of several types from the beginning."""


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Turning(Workload):
    """Documents with a field more: of one type until the first run has made its column, of several from then on."""

    def __init__(self, deployment: Deployment, seed: int) -> None:
        super().__init__(deployment, seed)
        self._turn = random.Random(f"turning {seed}")
        self.turned = False

    def document(self) -> Document:
        choices: list[Value] = [7, 1 << 60, *([2.5, "eight", True, None, [9]] if self.turned else [])]
        return super().document() | {"turned": self._turn.choice(choices)}


def check(spark: SparkSession, kept: Mapping[str, Store], folder: Path, seed: int, transactions: int, runs: int) -> int:
    """Run one history through every target, and compare; return how many documents it came to."""
    deployment, chance = Deployment(seed), random.Random(seed)
    workload = Turning(deployment, seed)
    workload.fill(300)
    cuts = [0, *sorted(chance.sample(range(1, transactions), runs - 1)), transactions]
    with Emulator(deployment) as server, receiving() as receiver:
        describe(folder, server, kept, receiver)
        for start, end in pairwise(cuts):
            workload.write(end - start)
            run(spark, folder)
            workload.turned = True
    assert staged((folder / "staging").rglob("*.parquet")) == there(deployment), "staging"
    with opened(spark, folder) as pipeline:
        assert silver(spark, folder, pipeline) == there(deployment), "bronze"
    followed = follow(receiver)
    for component, table in TABLES:
        documents = deployment.documents(table, component)
        rows = followed.get(f"cdc.{convex.table_name(component, table)}", {})
        compare(rows.values(), documents, "webhook", table)
        name = f"{component}_{table}".strip("_") if table == "users" else table
        for kind, store in kept.items():
            compare(store.read(name), documents, kind, name)
    return sum(len(deployment.documents(table, component)) for component, table in TABLES)


def describe(folder: Path, server: Emulator, kept: Mapping[str, Store], receiver: Receiver) -> None:
    """Write the pipeline and the platform."""
    hook = {"url": receiver.address, "allow_http": True, "allow_private": True}
    sinks: list[dict[str, Any]] = [
        {"sink_id": "files", "sink_type": "staging", "staging": {"path": f"{folder}/staging"}},
        {"sink_id": "landing", "sink_type": "bronze", "bronze": {"path": f"{folder}/bronze"}},
        {"sink_id": "hook", "sink_type": "webhook", "webhook": hook},
    ]
    for kind, store in kept.items():
        columns = {"columns": sorted(FIELDS - LEFT_OUT[kind])} if kind in LEFT_OUT else {}
        chosen = {convex.table_name(component, table): columns for component, table in TABLES} if columns else {}
        sinks.append(store.sink(kind, schema_evolution="alter", tables=chosen))
    source = {"source_type": "convex", "deployment_url": server.url, "deploy_key": server.behaviour.key}
    pipeline = {"pipeline_id": "shop", "source": source, "sinks": sinks}
    (folder / "pipeline.yaml").write_text(json.dumps(pipeline))
    (folder / "platform.yaml").write_text(f"control: {{root: '{folder}/control'}}\nlog: {{root: '{folder}/log'}}\n")


def follow(receiver: Receiver) -> dict[str, dict[str, Row]]:
    """Return the rows that the messages come to, by topic and id."""
    found: dict[str, dict[str, Row]] = {}
    for message in (got.json for got in receiver.got):
        rows = found.setdefault(message["metadata"]["topic"], {})
        match message["value"]["op"]:
            case "t":
                rows.clear()
            case "d":
                rows.pop(message["key"]["_id"], None)
            case _:
                rows[message["key"]["_id"]] = message["value"]["after"]
    return found


def compare(rows: Iterable[Row], documents: Mapping[str, Mapping[str, Any]], kind: str, table: str) -> None:
    """Hold the rows of a target against documents, field by field."""
    fields = FIELDS - LEFT_OUT.get(kind, frozenset())
    found = {row["_id"]: row for row in rows}
    assert found.keys() == documents.keys(), f"{kind} {table}"
    for key, row in found.items():
        assert {name for name in row if name[0] != "_"} <= fields, f"{kind} {table} {key}"
        for field in fields:
            told = f"{kind} {table} {key} {field}: {row} {documents[key].get(field)!r}"
            assert _agrees(row, field, documents[key].get(field), kind), told


def _agrees(row: Row, field: str, want: Any, kind: str) -> bool:
    value, text, exact = row.get(field), convex.shown(want), held(kind, field, want)
    if field == "_creationTime":
        return _moment(value) == EPOCH + timedelta(microseconds=math.floor(Fraction(want) * 1000))
    # A message has the types of its slice.
    if field in TEXT or (kind == "webhook" and field == "turned" and isinstance(value, str)):
        return same(value, text, convex.Kind.TEXT)
    second = row.get(f"_text_{field}")
    if second is None:
        return same(value, exact)
    # Two columns: one has all values as text, the other one those of its type.
    return field == "turned" and same(second, text, convex.Kind.TEXT) and (value is None or same(value, exact))


def _moment(value: Any) -> datetime:
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def held(kind: str, field: str, value: Any) -> Any:
    """Return a value as a target holds it that has no type of its own for it."""
    match value:
        case bool() if field == "flag" and kind in ("sqlite", "mysql"):
            return int(value)
        case float() if kind == "sqlite":
            return "NaN" if math.isnan(value) else value + 0.0
        case bytes() if kind == "webhook":
            return base64.b64encode(value).decode()
        case float() if kind == "webhook" and not math.isfinite(value):
            return convex.shown(value)
        case _:
            return value


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
        with tempfile.TemporaryDirectory() as name, stores(Path(name), EVERY) as kept:
            try:
                documents = check(spark, kept, Path(name), seed, given.transactions, given.runs)
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
