"""Convex to bronze: every event once, whatever happens, and what they come to is the deployment."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row, SparkSession

from tailrace.config.load import load_pipeline, load_platform
from tailrace.core import failpoint
from tailrace.core.checkpoint import Tailing
from tailrace.databricks.bundle import written
from tailrace.runtime.build import Pipeline, Resync, open_pipeline
from tailrace.runtime.report import Silent
from tailrace.runtime.run import RunReport
from tailrace.targets.bronze.columns import COLUMNS, LIFE, bronze_name
from tailrace.testing.convex import Deployment, Emulator, Workload
from tailrace.testing.convex.exports import Limits
from tests.convex import Rows, there
from tests.spark.bronze import silver


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
    """A pipeline from an emulator to bronze tables in a schema of the session's catalog."""

    def __init__(self, spark: SparkSession, server: Emulator, folder: Path, schema: str) -> None:
        self._spark = spark
        self.folder = folder
        self.schema = schema
        source = f"{{source_type: convex, deployment_url: '{server.url}', deploy_key: '{server.behaviour.key}'}}"
        sink = f"{{sink_id: landing, sink_type: bronze, bronze: {{catalog: {schema}}}}}"
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
        return self._spark.table(f"{self.schema}.{bronze_name(table)}").collect()

    def checkpoints(self, table: str = "connector_checkpoint") -> list[Row]:
        return self._spark.table(f"{self.schema}.{table}").orderBy("updated_at").collect()

    def silver(self) -> Rows:
        with self.open() as pipeline:
            return silver(self._spark, self.folder, pipeline)


@pytest.fixture
def landed(spark: SparkSession, server: Emulator, tmp_path: Path, schema: str) -> Landed:
    return Landed(spark, server, tmp_path, schema)


def test_events_land_once_and_come_to_the_deployment(server: Emulator, landed: Landed) -> None:
    seed = random.randrange(1 << 32)
    server.behaviour.limits = Limits(20, 10)
    workload = Workload(server.deployment, seed)
    workload.fill(40)
    kept = server.deployment.insert("wide", {"n": 1, "x.y `z": True})
    first = landed.run()
    assert first.checkpoint is not None
    workload.write(20)
    server.deployment.insert("wide", {"n": "one", "late": 1.5})
    server.deployment.insert("wide", {"n": 2})
    # Progress that was lost has the whole log read again, and the marks leave out what is there.
    shutil.rmtree(next((landed.folder / "control").rglob("progress")))
    report = landed.run(failing="C22=raise,C23=raise:2,C25=raise:4,C71=raise,C72=raise")
    logged = [
        row for page in landed.folder.rglob("raw_change_log/*.parquet") for row in pq.read_table(page).to_pylist()
    ]
    for table in ("wide", "users", "billing/ledger.lines"):
        events = landed.events(table)
        places = {(row["_cdc_document_id"], row["_cdc_sequence_num"]) for row in events}
        component, _, name = table.rpartition(".")
        ours = [row for row in logged if (row["component_path"], row["table_name"]) == (component, name)]
        assert places == {(row["document_id"], row["timestamp"]) for row in ours}, f"seed {seed}"
        assert len(events) == len(ours), f"seed {seed}"
    assert landed.silver() == there(server.deployment), f"seed {seed}"
    wide = {row["_cdc_document_id"]: row for row in landed.events("wide")}
    assert list(wide[kept].asDict()) == [*COLUMNS, "n", "x.y `z", "_text_n", "late"]
    assert (wide[kept]["n"], wide[kept]["x.y `z"], wide[kept]["_cdc_source_component"]) == (1, True, "")
    assert {(row["n"], row["_text_n"]) for row in wide.values()} == {(1, None), (None, "one"), (2, "2")}
    assert {row["_cdc_run_id"] for row in wide.values()} == {"this-run"}
    (latest,) = landed.checkpoints("connector_checkpoint_latest")
    assert isinstance(report.checkpoint, Tailing)
    assert (latest["source_id"], latest["phase"], latest["delta_cursor"]) == (
        "shop",
        "tailing",
        int(report.checkpoint.at),
    )
    before = len(landed.checkpoints())
    landed.run()
    assert len(landed.checkpoints()) == before


def test_a_table_that_starts_anew_deletes_what_is_gone(server: Emulator, landed: Landed) -> None:
    deployment = server.deployment
    for table in ("users", "users", "doomed", "other"):
        deployment.insert(table, {"n": 1})
    gone = deployment.insert("users", {"n": 2})
    landed.run()
    with deployment.transaction() as made:
        made.delete("users", gone)
    deployment.drop_table("doomed")
    deployment.import_table("users", [{"n": 7}])
    landed.run(resync=Resync(tables=("users", "doomed")))
    assert landed.silver() == there(deployment)
    # Once deleted, a document is not deleted again.
    assert [row["_cdc_is_deleted"] for row in landed.events("users") if row["_cdc_document_id"] == gone] == [
        False,
        True,
    ]
    deployment.drop_table("users")
    deployment.import_table("other", [{"n": 3}])
    landed.run(resync=Resync(every=True))
    assert landed.silver() == there(deployment)
    assert {row["_cdc_sequence_num"] // LIFE for row in landed.events("other")} == {0, 1}


def test_a_bundle_is_written_from_the_tables(server: Emulator, landed: Landed) -> None:
    server.deployment.insert("users", {"a b": 1})
    with landed.open() as pipeline:
        before = written(pipeline.landing())
    landed.run()
    with landed.open() as pipeline:
        assert written(pipeline.landing()) == before
    assert "`a b` bigint" in before["src/ddl/bronze.sql"].lower()
