"""From a Convex deployment to staged files: how fast documents are read, and what changes cost as the history grows.

    python -m bench.convex --documents 100000 --changes 50000 --unit 10000 --grown 1 10 50

An emulator is the deployment, in a process of its own. Reading is measured next to a bare client, which fetches the
same answers in the same run and parses their JSON. Then `FEW` changes are taken in behind a history of 1, 10 and 50
times `--unit` changes, three times each; documents come and go, so their tables grow too. Each part ends by comparing
the staged files with the deployment's own dump.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tailrace.config.load import pipeline_from
from tailrace.config.platform import PlatformConfig
from tailrace.config.yaml_text import read_yaml
from tailrace.core.checkpoint import Checkpoint
from tailrace.core.convex import table_name
from tailrace.runtime.build import open_pipeline
from tailrace.runtime.report import Silent
from tailrace.spark import session
from tailrace.testing.convex import Deployment, Emulator, Workload
from tailrace.testing.convex.values import encode

FEW, TIMES = 1_000, 3
SIZES, UNIT, GROWN = (100_000, 50_000), 10_000, (1, 10, 50)


class Server:
    """An emulator in a process of its own, told what to write."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "bench.convex", "--serve"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url, self.key = self._said().split(" ", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=60)

    def tell(self, word: str, argument: object) -> int:
        """Have it `fill` with documents, `write` changes or `dump` itself; return how many documents it has then."""
        if self._process.stdin:
            print(word, argument, file=self._process.stdin, flush=True)
        return int(self._said())

    def _said(self) -> str:
        return self._process.stdout.readline().strip() if self._process.stdout else ""


def serve() -> None:
    """Be the deployment, until standard input ends."""
    deployment = Deployment(1)
    workload = Workload(deployment, 1)
    with Emulator(deployment) as emulator:
        print(emulator.url, emulator.behaviour.key, flush=True)
        for line in sys.stdin:
            word, argument = line.split()
            if word == "fill":
                workload.fill(int(argument))
            elif word == "write":
                goal = len(deployment.log) + int(argument)
                while len(deployment.log) < goal:
                    workload.write()
            else:
                _dump(deployment, Path(argument))
            print(sum(len(found) for found in deployment.dump().values()), flush=True)


def _dump(deployment: Deployment, path: Path) -> None:
    with path.open("w") as file:
        for (component, table), documents in deployment.dump().items():
            for key, document in documents.items():
                text = json.dumps(encode(document, "encoded"), sort_keys=True)
                print(json.dumps([table_name(component, table), key, text]), file=file)


class Fetched:
    """What a bare client gets: every page of the snapshot, then of the changes."""

    def __init__(self, server: Server) -> None:
        address = urlsplit(server.url)
        self._line = http.client.HTTPConnection(address.hostname or "", address.port)
        self._headers = {"Authorization": f"Convex {server.key}", "Content-Type": "application/json"}
        self.rows = 0

    def tables(self) -> None:
        """Ask which tables there are and what they look like, as every client has to."""
        # A connection that lay idle may be closed by now.
        self._line.close()
        for question in ("get_table_column_names", "json_schemas?byComponent=true&format=convex_encoded_json"):
            self._line.request("GET", f"/api/{question}", headers=self._headers)
            with self._line.getresponse() as answer:
                json.loads(answer.read())

    def snapshot(self) -> int:
        """Fetch a snapshot; return its timestamp."""
        found: dict[str, Any] = {"snapshot": None, "cursor": None, "hasMore": True}
        while found["hasMore"]:
            found = self._page("list_snapshot", {"snapshot": found["snapshot"], "cursor": found["cursor"]})
        return int(found["snapshot"])

    def changes(self, cursor: int) -> None:
        """Fetch every change after `cursor`."""
        found: dict[str, Any] = {"cursor": cursor, "hasMore": True}
        while found["hasMore"]:
            found = self._page("document_deltas", {"cursor": found["cursor"]})

    def _page(self, endpoint: str, arguments: dict[str, object]) -> dict[str, Any]:
        body = json.dumps({**arguments, "format": "convex_encoded_json"})
        self._line.request("POST", f"/api/{endpoint}", body, self._headers)
        with self._line.getresponse() as answer:
            page: dict[str, Any] = json.loads(answer.read())
        self.rows += len(page["values"])
        return page

    def close(self) -> None:
        """Hang up."""
        self._line.close()


class Clock(Silent):
    """Notes when a run began, when the last page was durable, and when the last slice was applied."""

    def __init__(self) -> None:
        self.began = self.landed = self.applied = time.monotonic()
        self.worked, self.cpu = time.process_time(), 0.0
        self.rows = 0

    def begun(self, targets: Sequence[str]) -> None:
        """Start."""
        self.began = self.landed = self.applied = time.monotonic()
        self.worked = time.process_time()

    def page(self, rows: int, checkpoint: Checkpoint, total: int | None = None) -> None:
        """Count the rows."""
        self.rows += rows
        self.landed = time.monotonic()
        self.cpu = time.process_time() - self.worked

    def slice(self, *_: object) -> None:
        """Note the time."""
        self.applied = time.monotonic()


class Staging:
    """A pipeline from the deployment to files."""

    def __init__(self, spark: SparkSession, server: Server, folder: Path) -> None:
        self._spark = spark
        self._server = server
        self._folder = folder
        text = {
            "pipeline_id": "bench",
            "source": {"source_type": "convex", "deployment_url": server.url, "deploy_key": server.key},
            "sinks": [{"sink_id": "files", "sink_type": "staging", "staging": {"path": str(folder / "staging")}}],
        }
        self._config = pipeline_from(read_yaml("bench", json.dumps(text).encode()), {}).config
        roots = {name: {"root": str(folder / name)} for name in ("control", "log")}
        self._platform = PlatformConfig.model_validate({**roots, "health_enabled": "false"})

    def run(self) -> Clock:
        """Read to the head and stage it."""
        clock = Clock()
        with open_pipeline(self._config, self._platform) as pipeline:
            pipeline.__dict__["_session"] = self._spark
            done = pipeline.run(once=True, report=clock)
        if error := done.first_error():
            raise error
        return clock

    def equal(self) -> bool:
        """Say whether the files hold what the deployment does."""
        dump = self._folder / "dump.jsonl"
        self._server.tell("dump", dump)
        with dump.open() as file:
            wanted = sorted(json.loads(line) for line in file)
        found = []
        for path in (self._folder / "staging").rglob("*.parquet"):
            names = ["_component_path", "_table_name", "_document_id", "_document_json"]
            for component, table, key, text in zip(
                *(column.to_pylist() for column in pq.read_table(path, columns=names, partitioning=None)), strict=True
            ):
                found.append([table_name(component, table), key, json.dumps(json.loads(text), sort_keys=True)])
        return sorted(found) == wanted


def reading(spark: SparkSession, folder: Path, documents: int, changes: int) -> dict[str, Any]:
    """Read and stage `documents`, then `changes`; return the figures."""
    with Server() as server, closing(Fetched(server)) as bare:
        kept = Staging(spark, server, folder)
        server.tell("fill", documents)
        seconds: dict[str, float] = {}
        started, worked = time.monotonic(), time.process_time()
        bare.tables()
        at = bare.snapshot()
        seconds["bare_snapshot"] = time.monotonic() - started
        bare_cpu = time.process_time() - worked
        first = kept.run()
        server.tell("write", changes)
        started, worked = time.monotonic(), time.process_time()
        bare.tables()
        bare.changes(at)
        seconds["bare_changes"] = time.monotonic() - started
        bare_cpu += time.process_time() - worked
        second = kept.run()
        for name, clock in (("snapshot", first), ("changes", second)):
            seconds[name] = clock.landed - clock.began
            seconds[f"staging_{name}"] = clock.applied - clock.landed
        fetched = seconds["bare_snapshot"] + seconds["bare_changes"]
        return {
            "documents": first.rows,
            "changes": second.rows,
            "fetched": bare.rows,
            "seconds": {name: round(value, 2) for name, value in seconds.items()},
            # On a machine that others use too, this says more than the clock on the wall.
            "cpu_seconds": {"bare": round(bare_cpu, 2), "extraction": round(first.cpu + second.cpu, 2)},
            "rows_per_second": round((first.rows + second.rows) / (seconds["snapshot"] + seconds["changes"])),
            "of_the_bare_rate": round(fetched / (seconds["snapshot"] + seconds["changes"]), 2),
            "equal": bare.rows == first.rows + second.rows and kept.equal(),
        }


def growing(spark: SparkSession, folder: Path, unit: int, times: Sequence[int]) -> list[dict[str, Any]]:
    """Take in `FEW` changes behind ever longer histories; return the figures of each."""
    figures: list[dict[str, Any]] = []
    with Server() as server:
        kept, written = Staging(spark, server, folder), 0
        server.tell("fill", 2 * unit)
        kept.run()
        for many in times:
            server.tell("write", many * unit - written)
            written, seconds, documents = many * unit, [], 0
            kept.run()
            for _ in range(TIMES + 1):
                documents = server.tell("write", FEW)
                clock = kept.run()
                seconds.append(round(clock.applied - clock.began, 2))
                written += FEW
            median = statistics.median(seconds[1:])
            figures.append(
                {
                    "history": many * unit,
                    "documents": documents,
                    "changes": FEW,
                    "seconds": seconds,
                    "median_seconds": median,
                    "ratio": round(median / (figures[0]["median_seconds"] if figures else median), 2),
                }
            )
            print(json.dumps(figures[-1]), file=sys.stderr, flush=True)
        figures[-1]["equal"] = kept.equal()
    return figures


def run(sizes: tuple[int, int], unit: int, times: Sequence[int]) -> dict[str, Any]:
    """Return every figure; the session is warm before the first."""
    spark = session()
    folder = Path(tempfile.mkdtemp(prefix="bench-convex-"))
    try:
        reading(spark, folder / "warm", 2_000, 2_000)
        found = reading(spark, folder / "reading", *sizes)
        print(json.dumps(found), file=sys.stderr, flush=True)
        grown = growing(spark, folder / "growing", unit, times)
        return {"reading": found, "growing": grown, "equal": found["equal"] and grown[-1]["equal"]}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Measure; exit 1 if the files are wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=SIZES[0])
    parser.add_argument("--changes", type=int, default=SIZES[1])
    parser.add_argument("--unit", type=int, default=UNIT)
    parser.add_argument("--grown", type=int, nargs="+", default=GROWN)
    parser.add_argument("--serve", action="store_true", help="be the deployment; for the benchmark itself")
    chosen = parser.parse_args()
    if chosen.serve:
        return serve()
    figures = run((chosen.documents, chosen.changes), chosen.unit, chosen.grown)
    print(json.dumps(figures, indent=2))
    raise SystemExit(0 if figures["equal"] else 1)


if __name__ == "__main__":
    main()
