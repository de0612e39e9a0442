"""Convex to staging: files of current documents, whatever happens; and what a resync leaves in files and databases."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tailrace.config.load import load_pipeline, load_platform
from tailrace.core.errors import Misconfigured, ResyncRequired
from tailrace.runtime.build import Pipeline, Resync, open_pipeline
from tailrace.runtime.report import Silent
from tailrace.runtime.run import RunReport
from tailrace.testing.convex import Deployment, Emulator, Workload
from tests.convex import Rows, staged, there

SINKS = """
  - {sink_id: files, sink_type: staging, staging: {path: 'FOLDER/staging', publish_to: 'FOLDER/published'}}
  - {sink_id: base, sink_type: sqlite, schema_evolution: alter, sqlite: {path: 'FOLDER/base.db'}}
"""


@pytest.fixture
def server() -> Iterator[Emulator]:
    with Emulator(Deployment(seed=random.randrange(1 << 16))) as emulator:
        yield emulator


class Kept:
    """A pipeline from an emulator to staging and SQLite, in a folder."""

    def __init__(self, spark: SparkSession, server: Emulator, folder: Path) -> None:
        self._spark = spark
        self.folder = folder
        source = f"{{source_type: convex, deployment_url: '{server.url}', deploy_key: '{server.behaviour.key}'}}"
        sinks = SINKS.replace("FOLDER", str(folder))
        (folder / "pipeline.yaml").write_text(f"pipeline_id: shop\nsource: {source}\nsinks:{sinks}")
        (folder / "platform.yaml").write_text(f"control: {{root: '{folder}/control'}}\nlog: {{root: '{folder}/log'}}\n")

    def open(self) -> Pipeline:
        pipeline = open_pipeline(
            load_pipeline(self.folder / "pipeline.yaml").config, load_platform(self.folder / "platform.yaml").config
        )
        pipeline.__dict__["_session"] = self._spark
        return pipeline

    def run(self, *targets: str, resync: Resync = Resync()) -> RunReport:  # noqa: B008
        with self.open() as pipeline:
            report = pipeline.run(once=True, report=Silent(), targets=targets or None, resync=resync)
        if error := report.first_error():
            raise error
        return report

    def staged(self, *names: str) -> list[dict[str, Any]]:
        return pq.read_table(self.folder.joinpath("staging", *names)).to_pylist()

    def documents(self) -> Rows:
        return staged(sorted((self.folder / "staging").rglob("*.parquet")))

    def stored(self, table: str) -> list[tuple[object, ...]]:
        with sqlite3.connect(self.folder / "base.db") as database:
            return sorted(database.execute(f"select _id, n from {table}").fetchall())


@pytest.fixture
def kept(spark: SparkSession, server: Emulator, tmp_path: Path) -> Kept:
    return Kept(spark, server, tmp_path)


def test_folders_may_have_names_that_look_like_patterns(spark: SparkSession, server: Emulator, tmp_path: Path) -> None:
    folder = tmp_path / "a [b] {c,d} e"
    folder.mkdir()
    kept = Kept(spark, server, folder)
    for n in range(3):
        server.deployment.insert("users", {"n": n})
        kept.run()
        assert kept.documents() == there(server.deployment)


def test_files_follow_a_random_history_and_can_be_made_again(server: Emulator, kept: Kept) -> None:
    seed = random.randrange(1 << 32)
    workload = Workload(server.deployment, seed)
    workload.fill(60)
    key = server.deployment.insert("wide", {"a": 1, "b": 2**60, "x.y `z": 5})
    kept.run("files")
    workload.write(30)
    server.deployment.insert("wide", {"a": "text", "c": b"\x00"})
    report = kept.run("files")
    assert kept.documents() == there(server.deployment), f"seed {seed}"
    counts = report.targets[0].tables["wide"]
    assert (counts.applied, counts.inserted, counts.updated) == (1, 1, 0)
    row = next(row for row in kept.staged("_root", "wide.parquet") if row["_document_id"] == key)
    assert list(row) == ["_component_path", "_table_name", "_document_id", "_timestamp", "_schema_fingerprint",
                         "a", "b", "c", "x.y `z", "_creationTime", "_document_json"]  # fmt: skip
    assert (row["a"], row["b"], row["c"], row["x.y `z"]) == ("1", 2**60, None, 5)
    lines = repr(kept.staged("billing", "ledger", "lines.parquet"))
    before = repr(kept.staged("_root", "messages.parquet"))
    (kept.folder / "staging" / "_root" / "messages.parquet").unlink()
    again = kept.run("files").targets[0].tables
    assert repr(kept.staged("_root", "messages.parquet")) == before
    assert (again["messages"].superseded, again["wide"].applied) == (0, 0)
    assert repr(kept.staged("billing", "ledger", "lines.parquet")) == lines
    with kept.open() as pipeline:
        done = pipeline.publish(None, Silent())
        assert (done[0]["status"], pipeline.publish(["files"], Silent())[0]["status"]) == ("published", "unchanged")
    published = sorted((kept.folder / "published" / "staging" / "current").rglob("*.parquet"))
    assert staged(published) == there(server.deployment), f"seed {seed}"


def test_a_resync_leaves_nothing_of_what_is_gone(server: Emulator, kept: Kept) -> None:
    deployment = server.deployment
    for table in ("users", "users", "doomed", "other"):
        deployment.insert(table, {"n": 1})

    def same(*tables: str) -> None:
        assert kept.documents() == there(deployment)
        for table in tables:
            assert kept.stored(table) == sorted((key, row["n"]) for key, row in deployment.documents(table).items())

    kept.run()
    deployment.drop_table("doomed")
    deployment.import_table("users", [{"n": 7}])
    with pytest.raises(ResyncRequired) as found:
        kept.run()
    assert '"doomed" is gone' in str(found.value)
    assert "--resync-table doomed" in found.value.hint
    with pytest.raises(Misconfigured, match="never read"):
        kept.run(resync=Resync(tables=("strange",)))
    deployment.insert("other", {"n": 2})
    kept.run(resync=Resync(tables=("users", "doomed")))
    same("users", "other")
    assert kept.stored("doomed") == []
    deployment.import_table("other", [{"n": 3}, {"n": 4}])
    deployment.drop_table("users")
    kept.run(resync=Resync(every=True))
    same("other")
    assert (kept.stored("users"), kept.staged("_root", "users.parquet")) == ([], [])
