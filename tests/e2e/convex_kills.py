"""Convex, killed at steps from the answer of the server to the publish, and started again; for `tests.e2e.kills`.

The order is that of the steps. After all kills the staged files, the change log and what is published must be what the
deployment makes them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from tailrace.testing.convex import Deployment, Emulator, Workload
from tailrace.testing.convex.exports import Limits
from tests.convex import staged, there
from tests.e2e.command import PLATFORM
from tests.sessions import QUICK

PIPELINE = """
pipeline_id: kill
source: {source_type: convex, deployment_url: 'URL', deploy_key: '${CONVEX_KEY}'}
sinks:
  - {sink_id: files, sink_type: staging, staging: {path: staging, publish_to: published, keep_versions: 1}}
"""


@dataclass(frozen=True)
class Points:
    """Where to kill: each is a failpoint, and perhaps which pass of it."""

    snapshot: tuple[str, ...] = ("C01", "C02:2", "C09:3", "C08:2", "C11:2", "C12")
    pump: tuple[str, ...] = ("C02", "C03", "C05", "C06", "C07", "C08", "C09", "C10", "C11", "C12")
    drain: tuple[str, ...] = ("C22", "C23:2", "C27")
    resync: tuple[str, ...] = ("C02:2", "C09:2")
    publish: tuple[str, ...] = ("C43:2", "C44", "C45", "C46", "C47")


def cdc(folder: Path, key: str, *words: str, kill: str = "") -> None:
    """Run the command; with `kill`, until it dies at that failpoint."""
    name, _, hit = kill.partition(":")
    armed = {"TAILRACE_TEST_MODE": "1", "TAILRACE_FAILPOINTS": f"{name}=kill:{hit or 1}"} if kill else {}
    done = subprocess.run(
        [sys.executable, "-m", "tailrace.cli.main", *words, "--platform-config", "platform.yaml"],
        cwd=folder, env={**os.environ, **QUICK, "CONVEX_KEY": key, **armed}, text=True, capture_output=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == (-signal.SIGKILL if kill else 0), f"{words} {kill}: {done.stderr[-2000:]}"


def killed_at(folder: Path, points: Points) -> None:
    """Kill at each of `points`, and see that nothing is lost, doubled or half published."""
    deployment = Deployment(seed=5)
    workload = Workload(deployment, 5)
    # Answers are made durable a hundred or so at a time, and there are to be some left after every kill in a snapshot.
    workload.fill(1200)
    with Emulator(deployment) as server:
        server.behaviour.limits = Limits(1, 5)
        key = server.behaviour.key
        (folder / "pipeline.yaml").write_text(PIPELINE.replace("URL", server.url))
        platform = {name: value for name, value in PLATFORM.items() if name != "slice"}
        (folder / "platform.yaml").write_text(json.dumps(platform))
        for kill in [*points.snapshot, *points.pump, *points.drain]:
            cdc(folder, key, "run", "pipeline.yaml", "--once", kill=kill)
            workload.write(12)
        cdc(folder, key, "run", "pipeline.yaml", "--once")
        assert staged((folder / "staging").rglob("*.parquet")) == there(deployment)
        assert _most_of_one_event(folder) == 1
        cdc(folder, key, "convex", "publish", "pipeline.yaml")
        deployment.import_table("users", [{"n": 1}, {"n": 2}])
        workload.write(12)
        for kill in points.resync:
            cdc(folder, key, "run", "pipeline.yaml", "--once", "--resync-table", "users", kill=kill)
            workload.write(12)
        cdc(folder, key, "run", "pipeline.yaml", "--once", "--resync-table", "users")
        for kill in points.publish:
            cdc(folder, key, "convex", "publish", "pipeline.yaml", kill=kill)
        cdc(folder, key, "convex", "publish", "pipeline.yaml")
        published = folder / "published" / "staging"
        manifest = json.loads((published / "manifests" / "latest.json").read_text())
        versions = [folder / "published" / entry["versioned_key"] for entry in manifest["tables"].values()]
        assert staged(versions) == there(deployment)
        assert staged((published / "current").rglob("*.parquet")) == there(deployment)
        assert sorted((published / "versions").rglob("*.parquet")) == sorted(versions)


def _most_of_one_event(folder: Path) -> int:
    pages = folder.rglob("raw_change_log/*.parquet")
    rows = [row for page in pages for row in pq.read_table(page, partitioning=None).to_pylist()]
    places = ("component_path", "table_name", "document_id", "timestamp")
    return max(Counter(tuple(row[name] for name in places) for row in rows).values())
