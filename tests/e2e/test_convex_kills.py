"""Convex, killed at every step from the answer of the server to the publish, and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tailrace.testing.convex import Deployment, Emulator, Workload
from tailrace.testing.convex.exports import Limits
from tests.convex import staged, there

SNAPSHOT = ["C01", "C02:2", "C09:3", "C08:2", "C11:2", "C12"]
PUMP = ["C02", "C03", "C05", "C06", "C07", "C08", "C09:2", "C10", "C11", "C12:2"]
DRAIN = ["C22", "C23:2", "C27"]
PUBLISH = ["C43:2", "C44", "C45", "C46", "C47"]

PIPELINE = """
pipeline_id: kill
source: {source_type: convex, deployment_url: 'URL', deploy_key: '${CONVEX_KEY}'}
sinks:
  - {sink_id: files, sink_type: staging, staging: {path: staging, publish_to: published, keep_versions: 1}}
"""
PLATFORM = """
health_port: 0
spark: {master: "local[2]", conf: {spark.driver.extraJavaOptions: -XX:TieredStopAtLevel=1}}
"""


def cdc(folder: Path, key: str, *words: str, kill: str = "") -> None:
    """Run the command; with `kill`, until it dies at that failpoint."""
    name, _, hit = kill.partition(":")
    armed = {"TAILRACE_TEST_MODE": "1", "TAILRACE_FAILPOINTS": f"{name}=kill:{hit or 1}"} if kill else {}
    done = subprocess.run(
        [sys.executable, "-m", "tailrace.cli.main", *words, "--platform-config", "platform.yaml"],
        cwd=folder, env={**os.environ, "CONVEX_KEY": key, **armed}, text=True, capture_output=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == (-signal.SIGKILL if kill else 0), f"{words} {kill}: {done.stderr[-2000:]}"


@pytest.mark.timeout(1200)
def test_every_failpoint_kills_and_the_next_run_mends(tmp_path: Path) -> None:
    deployment = Deployment(seed=5)
    workload = Workload(deployment, 5)
    workload.fill(60)
    with Emulator(deployment) as server:
        server.behaviour.limits = Limits(10, 5)
        key = server.behaviour.key
        (tmp_path / "pipeline.yaml").write_text(PIPELINE.replace("URL", server.url))
        (tmp_path / "platform.yaml").write_text(PLATFORM)
        for kill in [*SNAPSHOT, *PUMP, *DRAIN]:
            cdc(tmp_path, key, "run", "pipeline.yaml", "--once", kill=kill)
            workload.write(12)
        cdc(tmp_path, key, "run", "pipeline.yaml", "--once")
        assert staged((tmp_path / "staging").rglob("*.parquet")) == there(deployment)
        pages = sorted(tmp_path.rglob("raw_change_log/*.parquet"))
        rows = [row for page in pages for row in pq.read_table(page, partitioning=None).to_pylist()]
        places = ("component_path", "table_name", "document_id", "timestamp")
        events = Counter(tuple(row[name] for name in places) for row in rows)
        assert max(events.values()) == 1
        cdc(tmp_path, key, "convex", "publish", "pipeline.yaml")
        deployment.import_table("users", [{"n": 1}, {"n": 2}])
        for kill in ["C02:2", "C09:2"]:
            cdc(tmp_path, key, "run", "pipeline.yaml", "--once", "--resync-table", "users", kill=kill)
            workload.write(12)
        cdc(tmp_path, key, "run", "pipeline.yaml", "--once", "--resync-table", "users")
        for kill in PUBLISH:
            cdc(tmp_path, key, "convex", "publish", "pipeline.yaml", kill=kill)
        cdc(tmp_path, key, "convex", "publish", "pipeline.yaml")
        published = tmp_path / "published" / "staging"
        manifest = json.loads((published / "manifests" / "latest.json").read_text())
        versions = [tmp_path / "published" / entry["versioned_key"] for entry in manifest["tables"].values()]
        assert staged(versions) == there(deployment)
        assert staged((published / "current").rglob("*.parquet")) == there(deployment)
        assert sorted((published / "versions").rglob("*.parquet")) == sorted(versions)
