"""Somebody else's client reads the emulator: Airbyte's connector for Convex gets the documents that there are.

    python -m tests.e2e.airbyte --environment build/airbyte

It was written against real deployments and knows nothing of ours. It pins old libraries, so it runs in an environment
of its own. It reads the snapshot and the changes behind it, goes on from its own state after more changes, and what its
rows come to, by `_ts` and `_deleted`, must be the tables of the deployment.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tailrace.testing.convex import Deployment, Emulator, Workload
from tailrace.testing.convex.exports import Limits
from tailrace.testing.convex.values import encode

Tables = dict[str, dict[str, Any]]


class Connector:
    """The connector, as Airbyte runs it: a process that writes messages."""

    def __init__(self, environment: Path, folder: Path, server: Emulator) -> None:
        self._program = environment / "bin" / "source-convex"
        self._folder = folder
        self._config = self._file("config.json", {"deployment_url": server.url, "access_key": server.behaviour.key})
        self.state: list[Any] = []
        self.tables: Tables = {}

    def check(self) -> str:
        """Return what it says of the connection."""
        (said,) = (m["connectionStatus"]["status"] for m in self._run("check") if m["type"] == "CONNECTION_STATUS")
        return str(said)

    def read(self) -> int:
        """Read from its last state to the end, into `tables`; return how many records came."""
        (catalog,) = (message["catalog"] for message in self._run("discover") if message["type"] == "CATALOG")
        streams = [
            {"stream": stream, "sync_mode": "incremental", "destination_sync_mode": "append"}
            for stream in catalog["streams"]
        ]
        more = ["--catalog", self._file("catalog.json", {"streams": streams})]
        more += ["--state", self._file("state.json", self.state)] if self.state else []
        records, states = 0, {}
        for message in self._run("read", *more):
            if message["type"] == "RECORD":
                self._take(message["record"]["stream"], message["record"]["data"])
                records += 1
            elif message["type"] == "STATE":
                states[message["state"]["stream"]["stream_descriptor"]["name"]] = message["state"]
        self.state = list(states.values())
        return records

    def _take(self, table: str, row: dict[str, Any]) -> None:
        rows = self.tables.setdefault(table, {})
        document = {name: value for name, value in row.items() if name[0] != "_" or name in ("_id", "_creationTime")}
        if row.get("_deleted"):
            rows.pop(row["_id"], None)
        else:
            rows[row["_id"]] = json.dumps(document, sort_keys=True)

    def _run(self, word: str, *more: str) -> list[dict[str, Any]]:
        command = [str(self._program), word, "--config", self._config, *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise SystemExit(f"{word}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def _file(self, name: str, content: object) -> str:
        path = self._folder / name
        path.write_text(json.dumps(content))
        return str(path)


def there(deployment: Deployment) -> Tables:
    """Return the tables of the application itself, in the encoding that the connector asks for."""
    return {
        table: {key: json.dumps(encode(document, "json"), sort_keys=True) for key, document in documents.items()}
        for (component, table), documents in deployment.dump().items()
        if not component
    }


def main() -> None:
    """Compare; exit 1 if the connector did not get what is there."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--environment", type=Path, required=True)
    words.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    given = words.parse_args()
    print(f"seed {given.seed}", flush=True)
    deployment = Deployment(given.seed)
    workload = Workload(deployment, given.seed)
    workload.fill(200)
    with tempfile.TemporaryDirectory() as folder, Emulator(deployment) as server:
        server.behaviour.limits = Limits(30, 20)
        connector = Connector(given.environment, Path(folder), server)
        right = connector.check() == "SUCCEEDED"
        for step in range(3):
            records = connector.read()
            equal = connector.tables == there(deployment)
            right = right and equal
            print(f"reading {step + 1}: {records} records, {'equal' if equal else 'DIFFERENT'}", flush=True)
            workload.write(60)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
