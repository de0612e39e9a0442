"""The command that the tests of kills run, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.sessions import COMMAND, QUICK

PLATFORM = {
    "slice": {"max_rows": 1},
    "health_enabled": False,
    "retry": {"initial_wait_seconds": 0.1},
    "spark": {
        "master": "local[1]",
        "conf": COMMAND | {"spark.sql.shuffle.partitions": "1"},
    },
}


@dataclass
class Command:
    """`cdc run` in a folder that has its two files."""

    folder: Path

    def write(self, pipeline: dict[str, Any], platform: dict[str, Any]) -> None:
        """Write the two files."""
        # JSON is YAML.
        (self.folder / "pipeline.yaml").write_text(json.dumps(pipeline))
        (self.folder / "platform.yaml").write_text(json.dumps(platform))

    def put(self, *, grows: bool = False) -> None:
        """Let the source have more; with `grows`, with a column that is new."""
        raise NotImplementedError

    def run(self, failpoints: str = "") -> subprocess.CompletedProcess[str]:
        """Run the command to the head, or until a failpoint kills it."""
        process = self.start(failpoints)
        out, err = process.communicate(timeout=400)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def start(self, failpoints: str = "", *options: str) -> subprocess.Popen[str]:
        """Start the command."""
        command = [sys.executable, "-m", "tailrace.cli.main", "run", "pipeline.yaml", "--once", "--json", *options]
        armed = {"TAILRACE_TEST_MODE": "1", "TAILRACE_FAILPOINTS": failpoints} if failpoints else {}
        return subprocess.Popen(
            [*command, "--platform-config", "platform.yaml"], cwd=self.folder, env={**os.environ, **QUICK, **armed}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
