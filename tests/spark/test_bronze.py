"""Convex to bronze: every event once, whatever happens, and what they come to is the deployment."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from tailrace.apply.target import Batch, Mark
from tailrace.config.load import load_pipeline, load_platform
from tailrace.core import convex, failpoint
from tailrace.core.checkpoint import Tailing
from tailrace.core.convex import Kind
from tailrace.core.errors import Retryable
from tailrace.core.table import Column, Evolution, Table, fit
from tailrace.databricks.bundle import written
from tailrace.runtime.build import Pipeline, Resync, open_pipeline
from tailrace.runtime.report import Silent
from tailrace.runtime.run import RunReport
from tailrace.spark.frame import frame
from tailrace.targets.bronze import BronzeTarget, Options
from tailrace.targets.bronze.columns import COLUMNS, LIFE, NOTES, bronze_name
from tailrace.targets.bronze.place import Place
from tailrace.testing.convex import Deployment, Emulator
from tailrace.testing.convex.exports import Limits
from tests.convex import Rows, there
from tests.spark.bronze import silver
from tests.spark.test_convex import same


@pytest.fixture
def server() -> Iterator[Emulator]:
    with Emulator(Deployment(seed=random.randrange(1 << 16))) as emulator:
        yield emulator


@pytest.fixture
def schema(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    name = f"bronze_{random.randrange(1 << 32):08x}"
    spark.sql(f"CREATE DATABASE {name} LOCATION '{tmp_path}/lake'")
    yield name
    spark.sql(f"DROP DATABASE {name} CASCADE")


class Landed:
    """A pipeline from an emulator to bronze tables, in a schema of the session's catalog or in a folder."""

    def __init__(self, spark: SparkSession, server: Emulator, folder: Path, place: str) -> None:
        self._spark = spark
        self.folder = folder
        source = f"{{source_type: convex, deployment_url: '{server.url}', deploy_key: '{server.behaviour.key}'}}"
        sink = f"{{sink_id: landing, sink_type: bronze, bronze: {{{place}}}}}"
        (folder / "pipeline.yaml").write_text(f"pipeline_id: shop\nsource: {source}\nsinks: [{sink}]\n")
        (folder / "platform.yaml").write_text(
            f"control: {{root: '{folder}/control'}}\nlog: {{root: '{folder}/log'}}\n"
            "retry: {max_attempts: 20, initial_wait_seconds: 0.01, max_wait_seconds: 0.01}\n"
        )

    def open(self) -> Pipeline:
        pipeline = open_pipeline(
            load_pipeline(self.folder / "pipeline.yaml").config, load_platform(self.folder / "platform.yaml").config
        )
        pipeline.__dict__["_session"] = self._spark
        return pipeline

    def run(self, resync: Resync = Resync(), failing: str = "") -> RunReport:  # noqa: B008
        failpoint.arm({"TAILRACE_TEST_MODE": "1", "TAILRACE_FAILPOINTS": failing})
        with self.open() as pipeline:
            report = pipeline.run(once=True, report=Silent(), resync=resync, run_id="this-run")
        left, _ = failpoint._armed.copy(), failpoint._armed.clear()
        if error := report.first_error():
            raise error
        assert not left
        return report

    def events(self, table: str) -> list[Row]:
        return self._table(bronze_name(table)).collect()

    def alive(self, table: str) -> set[str]:
        """Fold the events by key, sequence and delete alone."""
        newest = {
            row["_cdc_document_id"]: row for row in sorted(self.events(table), key=lambda r: r["_cdc_sequence_num"])
        }
        return {key for key, row in newest.items() if not row["_cdc_is_deleted"]}

    def checkpoints(self, table: str = "connector_checkpoint") -> list[Row]:
        return self._table(table).orderBy("updated_at").collect()

    def _table(self, name: str) -> DataFrame:
        options = load_pipeline(self.folder / "pipeline.yaml").config.sinks[0].options
        assert isinstance(options, Options)
        return self._spark.table(options.place(name).sql)

    def silver(self) -> Rows:
        with self.open() as pipeline:
            return silver(self._spark, self.folder, pipeline)


MIXED = [1, 2**60, 1.5, math.nan, -0.0, True, b"\x00", "text", '{"$integer":"AQAAAAAAAAA="}', [1], {"k": 1}, None]


def write(server: Emulator, chance: random.Random, steps: int) -> None:
    """Change documents of two tables at random."""
    for _ in range(steps):
        table, component = chance.choice([("users", ""), ("lines", "billing/ledger")])
        key = chance.choice([None, *server.deployment.documents(table, component)])
        document = {"n": chance.randrange(9), "x.y `z": chance.choice([True, None])}
        if key is None:
            server.deployment.insert(table, document, component)
        elif chance.random() < 0.3:
            server.deployment.delete(table, key, component)
        else:
            server.deployment.replace(table, key, document, component)


def test_events_land_once_and_come_to_the_deployment(
    spark: SparkSession, server: Emulator, tmp_path: Path, schema: str
) -> None:
    landed = Landed(spark, server, tmp_path, f"catalog: {schema}")
    deployment, seed = server.deployment, random.randrange(1 << 32)
    chance = random.Random(seed)
    server.behaviour.limits = Limits(4, 3)
    write(server, chance, 12)
    first = deployment.insert("users", {"i": 1, "f": 1.5, "b": True, "y": b"1", "s": "1"})
    deployment.insert("lines", {"n": 1}, "billing/ledger")
    with landed.open() as pipeline:
        bundle = written(pipeline.landing())
    landed.run()
    with landed.open() as pipeline:
        assert written(pipeline.landing()) == bundle
    write(server, chance, 12)
    mixed = {deployment.insert("users", dict.fromkeys("ifbys", value)): value for value in MIXED}
    # Progress that was lost has the whole log read again, and the marks leave out what is there.
    shutil.rmtree(next((landed.folder / "control").rglob("progress")))
    report = landed.run(failing="C23=raise:2,C71=raise,C72=raise")
    pages = landed.folder.rglob("raw_change_log/*.parquet")
    logged = [row for page in pages for row in pq.read_table(page, partitioning=None).to_pylist()]
    for table in ("users", "billing/ledger.lines"):
        events = landed.events(table)
        places = {(row["_cdc_document_id"], row["_cdc_sequence_num"]) for row in events}
        component, _, name = table.rpartition(".")
        ours = [row for row in logged if (row["component_path"], row["table_name"]) == (component, name)]
        assert places == {(row["document_id"], row["timestamp"]) for row in ours}, f"seed {seed}"
        assert len(events) == len(ours), f"seed {seed}"
    assert landed.silver() == there(deployment), f"seed {seed}"
    users = {row["_cdc_document_id"]: row for row in landed.events("users")}
    assert list(users[first].asDict())[: len(COLUMNS)] == list(COLUMNS)
    for key, value in {first: None, **mixed}.items():
        row, text = users[key], convex.shown(value)
        assert (row["_cdc_run_id"], row["_cdc_source_component"], row["_cdc_is_deleted"]) == ("this-run", "", False)
        for name, kind in {"i": int, "f": float, "b": bool, "y": bytes}.items() if key != first else ():
            assert same(row[f"_text_{name}"], text, Kind.TEXT), f"{name} {value!r}"
            assert same(row[name], value if type(value) is kind else None), f"{name} {value!r}"
        assert key == first or same(row["s"], text, Kind.TEXT)
    assert isinstance(report.checkpoint, Tailing)
    (latest,) = landed.checkpoints("connector_checkpoint_latest")
    assert (latest["source_id"], latest["phase"]) == ("shop", "tailing")
    assert latest["delta_cursor"] == int(report.checkpoint.at)
    assert len({tuple(row)[:6] for row in landed.checkpoints()}) == len(landed.checkpoints())


def test_of_two_processes_one_commits_each_range(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Table("users", (Column("n", "bigint"),), ())

    def opened() -> BronzeTarget:
        options = Options(path=str(tmp_path))
        return BronzeTarget("landing", options, spark=lambda: spark, source_id="shop", tables={"users": "users"})

    def events(first: int, last: int) -> Batch:
        rows = frame(spark, [(f"k{n}", n) for n in range(first, last + 1)], "_cdc_document_id string, n bigint")
        return Batch(shape, rows, Mark("log", last))

    slow, quick = opened(), opened()
    slow.evolve("users", replace(fit(None, shape, Evolution.ALTER), notes=tuple(NOTES.items())))
    for target in (slow, quick):
        assert target.mark("users") is None
    append = Place.append

    def late(place: Place, *rest: Any, **options: str) -> None:
        monkeypatch.setattr(Place, "append", append)
        assert quick.apply(events(1, 3)).inserted == 3
        append(place, *rest, **options)

    # The other one is stopped where its commit is about to begin; then where its batch is made.
    monkeypatch.setattr(Place, "append", late)
    for _ in range(2):
        with pytest.raises(Retryable) as refused:
            slow.apply(events(1, 5))
        assert refused.value.code == "write-conflict"
    assert slow.mark("users") == Mark("log", 3)
    assert slow.apply(events(4, 5)).inserted == 2
    rows = spark.read.format("delta").load(f"{tmp_path}/users").select("n").collect()
    assert sorted(row[0] for row in rows) == [1, 2, 3, 4, 5]


def test_a_table_that_starts_anew_deletes_what_is_gone(spark: SparkSession, server: Emulator, tmp_path: Path) -> None:
    landed, deployment = Landed(spark, server, tmp_path, f"path: '{tmp_path}/bronze'"), server.deployment
    gone, *_ = [deployment.insert("users", {"n": n}) for n in range(3)]
    deployment.insert("other", {"n": 1})
    long = deployment.insert("users", {"text": "x" * 2000})
    for name in (bronze_name("users"), "connector_checkpoint"):
        # As a creation leaves it that was cut off.
        (tmp_path / "bronze" / name / "_delta_log" / "_staged_commits").mkdir(parents=True)
    platform = (tmp_path / "platform.yaml").read_text()
    (tmp_path / "platform.yaml").write_text(f"{platform}limits: {{max_event_bytes: 1024}}\n")
    landed.run()
    assert landed.alive("users") == set(deployment.documents("users")) - {long}
    (tmp_path / "platform.yaml").write_text(platform)
    with landed.open() as pipeline:
        replayed = [pipeline.letters().replay() for _ in range(2)]
    assert [[row["applied"] for row in rows] for rows in replayed] == [[1], []]
    assert landed.alive("users") == set(deployment.documents("users"))
    deployment.delete("users", gone)
    deployment.import_table("users", [{"n": 7}])
    landed.run(resync=Resync(tables=("users",)))
    assert landed.alive("users") == set(deployment.documents("users"))
    # Once deleted, a document is not deleted again.
    assert [row["_cdc_is_deleted"] for row in landed.events("users") if row["_cdc_document_id"] == gone] == [
        False,
        True,
    ]
    # Read anew at the timestamp of the last change, before and after that change was landed.
    for _ in range(2):
        deployment.insert("users", {"n": 8})
        for _ in range(2):
            landed.run(resync=Resync(tables=("users",)))
        landed.run()
    assert landed.alive("users") == set(deployment.documents("users"))
    events = [(row["_cdc_document_id"], row["_cdc_sequence_num"]) for row in landed.events("users")]
    assert len(set(events)) == len(events)
    deployment.drop_table("users")
    deployment.import_table("other", [{"n": 3}])
    landed.run(resync=Resync(every=True))
    assert landed.alive("users") == set()
    assert landed.alive("other") == set(deployment.documents("other"))
    assert {row["_cdc_sequence_num"] // LIFE for row in landed.events("other")} == {0, 1}


def test_a_change_right_before_a_table_starts_anew_ends_with_it(
    spark: SparkSession, server: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With timestamps that have none between them, as a server gives them that is asked for many at a time."""
    landed, deployment = Landed(spark, server, tmp_path, f"path: '{tmp_path}/bronze'"), server.deployment

    def next_ts() -> int:
        deployment.clock = max(deployment.clock, deployment.head) + 1
        return deployment.clock

    monkeypatch.setattr(deployment, "next_ts", next_ts)
    deployment.insert("users", {"n": 1})
    last = deployment.insert("users", {"n": 2})
    landed.run()
    deployment.insert("other", {"n": 3})
    landed.run(resync=Resync(tables=("users",)))
    assert landed.silver() == there(deployment)
    deployment.patch("users", last, {"n": 4})
    landed.run()
    deployment.drop_table("users")
    landed.run(resync=Resync(tables=("users",)))
    assert landed.silver() == there(deployment)
    events = [(row["_cdc_document_id"], row["_cdc_sequence_num"]) for row in landed.events("users")]
    assert len(set(events)) == len(events)
