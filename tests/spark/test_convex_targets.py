"""Convex to targets of other kinds: what sends, what appends, what keeps the types of its columns."""

from __future__ import annotations

import math
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from tailrace.core.errors import Halt, Misconfigured, ResyncRequired
from tailrace.runtime.build import Resync
from tailrace.runtime.report import Silent
from tailrace.testing.convex import Deployment, Emulator, Fault, Faults, Workload
from tailrace.testing.convex.exports import Limits
from tests.convex import staged, there
from tests.receiver import Receiver, receiving
from tests.spark.convex_runs import Runs, compare, write


@pytest.fixture
def server() -> Iterator[Emulator]:
    with Emulator(Deployment(seed=random.randrange(1 << 16))) as emulator:
        yield emulator


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


def hook(receiver: Receiver, more: str = "") -> str:
    options = f"{{url: '{receiver.address}', allow_http: true, allow_private: true}}"
    return f"  - {{sink_id: hook, sink_type: webhook, webhook: {options}{more}}}"


BASE = "  - {sink_id: base, sink_type: sqlite, schema_evolution: alter, sqlite: {path: 'FOLDER/base.db'}}"


# -- deletes and truncates that come alone


def test_a_webhook_is_told_of_deletes_and_truncates_that_come_alone(
    spark: SparkSession, server: Emulator, receiver: Receiver, tmp_path: Path
) -> None:
    runs = Runs(spark, server, tmp_path, hook(receiver, ", tables: {users: {columns: [name]}}"))
    keys = [server.deployment.insert("users", {"name": f"u{n}", "n": n}) for n in range(3)]
    runs.run()
    for key in keys:
        server.deployment.delete("users", key)
    assert runs.run().targets[0].tables["users"].applied == 3
    assert [got.json["value"]["op"] for got in receiver.got] == ["r"] * 3 + ["d"] * 3
    assert {got.json["key"]["_id"] for got in receiver.got[3:]} == set(keys)
    with runs.open() as pipeline:
        seen = list(pipeline.consume(4))
    assert [(row["op"], row["status"]) for row in seen] == [("r", "change")] * 3 + [("d", "change")]
    runs.run(Resync(every=True))
    assert [got.json["value"]["op"] for got in receiver.got[6:]] == ["t"]
    with runs.open() as pipeline:
        assert [row["op"] for row in pipeline.consume(9)] == ["t"]


def test_a_table_of_events_begins_with_a_delete_that_comes_alone(
    spark: SparkSession, server: Emulator, tmp_path: Path
) -> None:
    sink = (
        "  - {sink_id: %s, sink_type: delta, mode: append, schema_evolution: %s, delta: {path: 'FOLDER/%s'},"
        " tables: {users: {columns: [_id, n]}}}"
    )
    sinks = "\n".join(sink % (name, name, path) for name, path in (("alter", "lake"), ("skip", "narrow")))
    runs = Runs(spark, server, tmp_path, sinks)
    server.deployment.create_table("users")
    runs.run()
    gone = []
    for _ in range(2):
        with server.deployment.transaction() as made:
            gone.append(made.insert("users", {"n": 1}))
            made.delete("users", gone[-1])
        counts = {target.target: target.tables["users"] for target in runs.run().targets}
        assert (counts["alter"].applied, counts["alter"].filtered) == (1, 0)
        # A table that keeps its columns for good must not be made of a delete, which tells none: it is left out, and said so.
        assert (counts["skip"].applied, counts["skip"].filtered) == (0, 1)
    key = server.deployment.insert("users", {"n": 2})
    runs.run()
    assert {(row["_id"], row["_cdc_op"], row.get("n")) for row in runs.lake("users")} == {
        *((one, "d", None) for one in gone),
        (key, "u", 2),
    }
    kept = spark.read.format("delta").load(f"{tmp_path}/narrow/users").collect()
    assert [(row["_id"], row["n"]) for row in kept] == [(key, 2)]


# -- histories


def iceberg(folder: Path) -> list[dict[str, Any]]:
    catalog = SqlCatalog("default", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"{folder}/ice")
    try:
        return catalog.load_table("default.users").scan().to_arrow().to_pylist()
    finally:
        catalog.engine.dispose()


def received(receiver: Receiver) -> dict[str, dict[str, Any]]:
    """Return what a receiver that follows its messages has."""
    rows: dict[str, dict[str, Any]] = {}
    for got in receiver.got:
        if got.json["value"]["op"] == "d":
            rows.pop(got.json["key"]["_id"], None)
        else:
            rows[got.json["key"]["_id"]] = got.json["value"]["after"]
    return rows


def test_a_field_of_several_types_stops_no_target_that_may_alter_its_tables(
    spark: SparkSession, server: Emulator, receiver: Receiver, tmp_path: Path
) -> None:
    """A random history into Iceberg, Delta, SQLite and a webhook; beside them, what the other policies do."""
    ice = "{catalog_uri: 'sqlite:///FOLDER/catalog.db', warehouse: 'FOLDER/ice'}"
    sinks = [
        f"  - {{sink_id: ice, sink_type: iceberg, schema_evolution: alter, iceberg: {ice}}}",
        "  - {sink_id: lake, sink_type: delta, schema_evolution: alter, delta: {path: 'FOLDER/lake'}}",
        "  - {sink_id: narrow, sink_type: delta, delta: {path: 'FOLDER/narrow'}}",
        "  - {sink_id: strict, sink_type: delta, schema_evolution: fail, delta: {path: 'FOLDER/strict'}}",
        BASE,
        hook(receiver),
    ]
    runs = Runs(spark, server, tmp_path, "\n".join(sinks))
    seed = random.randrange(1 << 32)
    chance, deployment = random.Random(seed), server.deployment
    write(deployment, chance, 10)
    deployment.insert("users", {"name": "first", "n": 1})
    runs.run()
    others = [1, 7, 2.5, math.nan, "one", "1", True]
    write(deployment, chance, 15, others)
    odd = deployment.insert("users", {"name": "odd", "n": "odd"})
    good = ["ice", "lake", "base", "hook", "narrow"]
    counts = {one.target: one.tables["users"] for one in runs.run(targets=good).targets}
    assert counts["narrow"].rejected > 0 == counts["lake"].rejected
    with pytest.raises(Halt) as found:
        runs.run(targets=["strict"])
    assert found.value.code == "type-changed"
    documents = deployment.documents("users")
    compare(iceberg(tmp_path), documents, f"seed {seed} iceberg")
    compare(runs.lake("users"), documents, f"seed {seed} delta")
    compare(stored_rows(runs), documents, f"seed {seed} sqlite")
    assert {key: row["name"] for key, row in received(receiver).items()} == {
        key: document["name"] for key, document in documents.items()
    }
    # Left as it was, a table has what its columns can hold; the rest waits among the dead letters.
    kept = spark.read.format("delta").load(f"{tmp_path}/narrow/users")
    assert "_text_n" not in kept.columns
    assert odd not in {row["_id"] for row in kept.collect()}
    with runs.open() as pipeline:
        letters = list(pipeline.letters().every(["narrow"]))
    assert 'bad-value: column "n" is not a bigint' in {letter["dlq.error_message"] for letter in letters}


def stored_rows(runs: Runs) -> list[dict[str, Any]]:
    with sqlite3.connect(runs.folder / "base.db") as database:
        found = database.execute("select * from users")
        return [dict(zip([column[0] for column in found.description], row, strict=True)) for row in found]


# -- a server that fails, and tables that are gone


def stored(runs: Runs, table: str) -> set[str]:
    with sqlite3.connect(runs.folder / "base.db") as database:
        return {row[0] for row in database.execute(f"select _id from {table}")}


def test_runs_converge_though_every_second_call_fails(spark: SparkSession, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    deployment = Deployment(seed)
    workload = Workload(deployment, seed)
    workload.fill(60)
    with Emulator(deployment, faults=Faults(seed)) as server:
        runs = Runs(spark, server, tmp_path, BASE, "retry: {initial_wait_seconds: 0.01, max_wait_seconds: 0.05}\n")
        server.faults.add(*(Fault(kind, probability=0.2) for kind in (503, "reset", "truncated")))
        for _ in range(2):
            runs.run()
            workload.write(10)
        runs.run()
        assert server.faults.struck > 5  # of some forty calls: it did fail
    for table in ("messages", "lines"):
        component = "" if table == "messages" else "billing/ledger"
        assert stored(runs, table) == set(deployment.documents(table, component)), f"seed {seed}"


def test_the_only_selected_tables_may_be_gone(spark: SparkSession, server: Emulator, tmp_path: Path) -> None:
    runs = Runs(spark, server, tmp_path, BASE)
    file = tmp_path / "pipeline.yaml"
    chosen = "selection: {_other: excl, '': {_other: excl, users: {_other: incl}}}"
    file.write_text(file.read_text().replace("deploy_key:", f"{chosen}, deploy_key:"))
    server.deployment.insert("other", {})
    with pytest.raises(Misconfigured, match="no table"):
        runs.run()
    server.deployment.insert("users", {})
    runs.run()
    server.deployment.drop_table("users")
    with pytest.raises(ResyncRequired, match='"users" is gone'):
        runs.run()
    runs.run(Resync(every=True))
    assert stored(runs, "users") == set()
    runs.run()
    key = server.deployment.insert("users", {})
    runs.run()
    assert stored(runs, "users") == {key}


# -- half a snapshot


def test_half_a_snapshot_is_not_published(spark: SparkSession, server: Emulator, tmp_path: Path) -> None:
    sink = "  - {sink_id: files, sink_type: staging, staging: {path: 'FOLDER/staging', publish_to: 'FOLDER/published'}}"
    runs = Runs(spark, server, tmp_path, sink, "slice: {max_rows: 10}\n")
    server.behaviour.limits = Limits(1, 5)
    rows = [server.deployment.insert("users", {"n": n}) for n in range(150)]

    def publish() -> object:
        with runs.open() as pipeline:
            return pipeline.publish(None, Silent())[0]["status"]

    runs.run(max_slices=1)
    assert len(staged((tmp_path / "staging").rglob("*.parquet"))["users"]) < 150
    with pytest.raises(Halt) as found:
        publish()
    assert (found.value.code, found.value.exit_code) == ("snapshot-unfinished", 1)
    assert not (tmp_path / "published").exists()
    runs.run()
    assert publish() == "published"
    server.deployment.delete("users", rows[0])
    runs.run(max_slices=1)
    assert publish() == "published"


# -- names


def test_fields_that_differ_in_case_lose_nothing(spark: SparkSession, server: Emulator, tmp_path: Path) -> None:
    files = "  - {sink_id: files, sink_type: staging, staging: {path: 'FOLDER/staging'}}\n"
    runs = Runs(spark, server, tmp_path, files + BASE)
    server.deployment.insert("users", {"Name": "ann", "n": 0})
    runs.run()
    server.deployment.insert("users", {"name": 1, "Name": "bo", "n": 1})
    server.deployment.insert("users", {"NAME": [1.5], "n": 2})
    runs.run()
    with sqlite3.connect(tmp_path / "base.db") as base:
        base.row_factory = sqlite3.Row
        rows = [dict(row) for row in base.execute("SELECT * FROM users ORDER BY n")]
    second, third = (next(key for key in rows[0] if key.startswith(f"_{name}_")) for name in ("name", "NAME"))
    assert [(row["Name"], row[second], row[third]) for row in rows] == [
        ("ann", None, None),
        ("bo", 1, None),
        (None, None, "[1.5]"),
    ]
    (path,) = (tmp_path / "staging").rglob("*.parquet")
    kept = pq.read_table(path).to_pylist()
    assert staged([path]) == there(server.deployment)
    assert [row["name"] for row in sorted(kept, key=lambda row: row["n"])] == [None, 1, None]
    path.unlink()
    runs.run()
    assert pq.read_table(path).to_pylist() == kept


def test_tables_that_differ_in_case_are_told_apart_also_one_that_comes_later(
    spark: SparkSession, server: Emulator, tmp_path: Path
) -> None:
    published = "  - {sink_id: files, sink_type: staging, staging: {path: 'FOLDER/staging', publish_to: 'FOLDER/out'}}"
    runs = Runs(spark, server, tmp_path, f"{published}\n{BASE}")
    known = list[str]()
    for together in (["Users", "users"], ["USERS"]):
        for name in together:
            server.deployment.insert(name, {"name": name})
        known += together
        runs.run()
        with runs.open() as pipeline:
            assert pipeline.publish(None, Silent())[0]["status"] == "published"
        for root in (tmp_path / "staging", tmp_path / "out" / "staging" / "current"):
            assert {path.stem for path in root.rglob("*.parquet")} == set(known)
        assert staged((tmp_path / "staging").rglob("*.parquet")) == there(server.deployment)
        with sqlite3.connect(tmp_path / "base.db") as base:
            named = "SELECT name FROM sqlite_master WHERE name LIKE 'users%' AND name NOT LIKE '%tomb%'"
            kept = {
                own: base.execute(f'SELECT name FROM "{own}"').fetchall() for (own,) in base.execute(named).fetchall()
            }
        assert sorted(kept.values()) == sorted([(name,)] for name in known)
        assert kept["users"] == [("users",)]
