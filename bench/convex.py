"""From a Convex deployment to staged files: how fast documents are read, and what changes cost as the history grows.

    python -m bench.convex --documents 100000 --changes 50000 --unit 10000 --grown 1 10 50

An emulator is the deployment, in a process of its own. Reading is measured next to a bare client, in turns: it fetches
the same answers over one connection and parses their JSON, without which it would not know what to ask for next. On a
machine that others use too, the CPU of both processes says more than the clock on the wall, so both are told.

Then `FEW` changes are taken in behind a history of 1, 10 and 50 times `--unit` changes, three times each, with the CPU
of this process and its Java; documents come and go, so their tables grow too. Each history is a deployment and a
pipeline of its own, and they take turns, after some that do not count: Java compiles what it runs often, and the
machine may be busier at one time than at another, which would tell for or against whichever came first. Each part ends
by comparing the staged files with the deployment's own dump.
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
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from dev.cpu import worked
from tailrace.config.load import pipeline_from
from tailrace.config.platform import PlatformConfig
from tailrace.config.yaml_text import read_yaml
from tailrace.control.checkpoints import Checkpoints
from tailrace.core.checkpoint import Checkpoint
from tailrace.core.convex import table_name
from tailrace.log import shape
from tailrace.log.landed import LandedLog
from tailrace.runtime.build import open_pipeline
from tailrace.runtime.pump import pump
from tailrace.runtime.report import Silent
from tailrace.sources.convex import ENVELOPE, ConvexSource, Options
from tailrace.spark import session
from tailrace.testing.convex import Deployment, Emulator, Workload
from tailrace.testing.convex.values import encode

FEW, TIMES, WARM = 1_000, 3, 4
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
        """Have it `fill` with documents, `write` changes or `dump` itself; return how many documents it has then.

        Asked what it has `worked`, it says the milliseconds of CPU.
        """
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
                _write(deployment, workload, int(argument))
            elif word == "dump":
                _dump(deployment, Path(argument))
            else:
                print(int(time.process_time() * 1000), flush=True)
                continue
            print(sum(len(found) for found in deployment.dump().values()), flush=True)


def _write(deployment: Deployment, workload: Workload, changes: int) -> None:
    """Write until so many changes more can be seen from outside: rows of system tables are in the log too."""
    while changes > 0:
        start = len(deployment.log)
        workload.write()
        changes -= sum(not entry.tablet.system for entry in deployment.log[start:])


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


class Extraction:
    """What a pump does: every page checked, durable in a log of its own, and its checkpoint saved."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._options = Options.model_validate({"deployment_url": server.url, "deploy_key": server.key})
        self._folder = folder
        self.rows = 0

    def run(self) -> None:
        """Read on to the head, as a new process would."""
        source = ConvexSource(self._options, pipeline_id="bench", epoch=1)
        log = LandedLog(self._folder / "log", "bench", 1, shape.of(ENVELOPE, "cdc"))
        with closing(source):
            pump(source, log, Checkpoints(self._folder / "control"), self._count, source.head())

    def _count(self, rows: int, _: Checkpoint) -> None:
        self.rows += rows


class Spent:
    """Seconds on the wall, and of CPU in this process and in the server's."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.wall = self.own = self.served = 0.0

    def __enter__(self) -> None:
        self._began = time.monotonic(), time.process_time(), self._server.tell("worked", 0)

    def __exit__(self, *_: object) -> None:
        wall, own, served = self._began
        self.wall += time.monotonic() - wall
        self.own += time.process_time() - own
        self.served += (self._server.tell("worked", 0) - served) / 1000

    def figures(self) -> dict[str, float]:
        """Return them, for people."""
        return {"wall": round(self.wall, 2), "cpu": round(self.own, 2), "cpu_of_server": round(self.served, 2)}


class Clock(Silent):
    """Notes when a run began and when the last slice was applied."""

    def __init__(self) -> None:
        self.began = self.applied = time.monotonic()
        self.rows = 0

    def begun(self, targets: Sequence[str]) -> None:
        """Start."""
        self.began = self.applied = time.monotonic()

    def page(self, rows: int, checkpoint: Checkpoint, total: int | None = None) -> None:
        """Count the rows."""
        self.rows += rows

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


def reading(spark: SparkSession, folder: Path, documents: int, changes: int, rounds: int = TIMES) -> dict[str, Any]:
    """Read `documents`, then `changes`, a bare client and a pump in turns, and stage them; return the figures."""
    with Server() as server, closing(Fetched(server)) as bare:
        kept, at = Staging(spark, server, folder), 0
        pumps = [Extraction(server, folder / str(n)) for n in range(rounds)]
        alone, durable = Spent(server), Spent(server)
        server.tell("fill", documents)
        for each in pumps:
            with alone:
                bare.tables()
                at = bare.snapshot()
            with durable:
                each.run()
        clocks = [kept.run()]
        server.tell("write", changes)
        for each in pumps:
            with alone:
                bare.tables()
                bare.changes(at)
            with durable:
                each.run()
        clocks.append(kept.run())
        rows = sum(clock.rows for clock in clocks)
        return {
            "documents": clocks[0].rows,
            "changes": clocks[1].rows,
            "rounds": rounds,
            "bare": alone.figures(),
            "extraction": durable.figures(),
            "rows_per_second": round(rounds * rows / durable.wall),
            "of_the_bare_rate": round(alone.wall / durable.wall, 2),
            "of_the_bare_rate_by_cpu": round((alone.own + alone.served) / (durable.own + durable.served), 2),
            "seconds_until_staged": [round(clock.applied - clock.began, 2) for clock in clocks],
            "equal": bare.rows == rounds * rows and all(each.rows == rows for each in pumps) and kept.equal(),
        }


class Grown:
    """A deployment behind which lies a history, and a pipeline that has staged it."""

    def __init__(self, spark: SparkSession, server: Server, folder: Path, documents: int, history: int) -> None:
        self._server = server
        self.kept = Staging(spark, server, folder)
        self.history = history
        self.seconds: list[float] = []
        self.cpu: list[float] = []
        server.tell("fill", documents)
        self.kept.run()
        self.documents = server.tell("write", history)
        self.kept.run()

    def take_in(self) -> None:
        """Take in `FEW` more changes, and note what it took."""
        self.documents = self._server.tell("write", FEW)
        before = worked()
        clock = self.kept.run()
        self.seconds.append(round(clock.applied - clock.began, 2))
        self.cpu.append(round(worked() - before, 2))

    def figures(self, first: Grown) -> dict[str, Any]:
        """Return them, for people; `first` has the shortest history."""
        return {
            "history": self.history,
            "documents": self.documents,
            "changes": FEW,
            "seconds": self.seconds,
            "median_seconds": statistics.median(self.seconds[WARM:]),
            "ratio": _ratio(self.seconds, first.seconds),
            "cpu_seconds": self.cpu,
            "median_cpu_seconds": statistics.median(self.cpu[WARM:]),
            "ratio_by_cpu": _ratio(self.cpu, first.cpu),
        }


def _ratio(these: list[float], those: list[float]) -> float:
    return round(statistics.median(these[WARM:]) / statistics.median(those[WARM:]), 2)


def growing(spark: SparkSession, folder: Path, unit: int, times: Sequence[int]) -> list[dict[str, Any]]:
    """Take in `FEW` changes behind histories of several lengths, in turns; return the figures of each."""
    with ExitStack() as stack:
        grown = [
            Grown(spark, stack.enter_context(Server()), folder / str(many), 2 * unit, many * unit) for many in times
        ]
        for _ in range(WARM + TIMES):
            for each in grown:
                each.take_in()
        figures = [each.figures(grown[0]) | {"equal": each.kept.equal()} for each in grown]
        print(json.dumps(figures), file=sys.stderr, flush=True)
        return figures


def run(sizes: tuple[int, int], unit: int, times: Sequence[int]) -> dict[str, Any]:
    """Return every figure; the session is warm before the first."""
    spark = session()
    folder = Path(tempfile.mkdtemp(prefix="bench-convex-"))
    try:
        reading(spark, folder / "warm", 2_000, 2_000, rounds=1)
        found = reading(spark, folder / "reading", *sizes)
        print(json.dumps(found), file=sys.stderr, flush=True)
        grown = growing(spark, folder / "growing", unit, times)
        return {"reading": found, "growing": grown, "equal": found["equal"] and all(each["equal"] for each in grown)}
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
