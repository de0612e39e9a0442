"""The stages of the demo, from an empty folder to a verdict.

    fill the shop  ->  follow it while it changes  ->  catch up to the head  ->  compare row by row

It runs the pipeline that a user would run, from files that a user could have written. The last stage compares
with what the source held when it was idle, after a run that ended at its head, so the position is exact.
"""

from __future__ import annotations

import json
import secrets
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psycopg
from pyspark.sql import SparkSession

from tailrace.config.load import load_pipeline, load_platform
from tailrace.config.pipeline import PipelineConfig
from tailrace.config.platform import PlatformConfig
from tailrace.core.checkpoint import Checkpoint, Tailing
from tailrace.core.errors import Halt
from tailrace.demo import database
from tailrace.demo.compare import Comparison, compare_all, in_delta, in_duckdb
from tailrace.demo.postgres import EmbeddedPostgres
from tailrace.demo.shop import TABLES, Shop
from tailrace.demo.view import Board, Steps
from tailrace.runtime.build import open_pipeline
from tailrace.runtime.report import Several, new_run_id
from tailrace.runtime.run import RunReport
from tailrace.spark import session
from tailrace.web.serve import Served

_PAUSE_SECONDS = 0.04
"""Between two transactions: about twenty a second, which leaves the processor to Spark."""
_FIRST_PAUSE_SECONDS = 0.25
"""The same until the target has taken the snapshot, however long that takes."""

_COPY = "copy.duckdb"

_PIPELINE = """\
# The pipeline of the demo: point source at a database of yours, and run it with: cdc run pipeline.yaml
pipeline_id: shop
source:
  source_type: postgres
  host: 127.0.0.1
  port: {port}
  database: shop
  username: cdc
  password: {{file: {password_file}}}
  tables: [{tables}]
sinks:
  - sink_id: lake
    sink_type: delta
    mode: scd1
    schema_evolution: alter
    delta: {{path: {lake}}}
  - sink_id: copy
    sink_type: duckdb
    schema_evolution: alter
    duckdb: {{path: {copy}}}
"""

TARGETS = {"lake": "Delta", "copy": "DuckDB"}
"""What each target of the pipeline is, by its id."""

_PLATFORM = """\
# Where the demo keeps its state; all of this is optional.
control: {{root: {state}}}
health_port: 0
slice: {{interval_seconds: 0.5}}
spark:
  conf:
    # For a short life: compile quickly, not well.
    spark.driver.extraJavaOptions: -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m
    spark.sql.adaptive.enabled: "false"
"""


class Stopped(Exception):
    """The user asked for the end."""


@dataclass(frozen=True, slots=True)
class _Files:
    """What a user would have written."""

    pipeline: PipelineConfig
    platform: PlatformConfig


class Demo:
    """One run of the demo in an empty folder."""

    def __init__(self, folder: Path, seconds: float, seed: int, steps: Steps, stopping: threading.Event) -> None:
        self._folder = folder
        self._seconds = seconds
        self._shop = Shop(seed)
        self._steps = steps
        self._stopping = stopping
        self._idle = threading.Event()
        self._board = Board(TABLES, TARGETS, steps)

    def run(self) -> int:
        """Go through all stages and return the exit code; `Stopped` if the user asked for the end before."""
        # The server is the last to stop: whoever still reads from it would report a lost connection.
        with EmbeddedPostgres(self._folder / "postgres") as server, ThreadPoolExecutor(3, "demo") as pool:
            try:
                return self._run(server, pool)
            finally:
                self._idle.set()

    def _run(self, server: EmbeddedPostgres, pool: ThreadPoolExecutor) -> int:
        self._steps(f"PostgreSQL runs on port {server.port}; starting Spark, filling the shop")
        password = secrets.token_urlsafe(24)
        files = write_files(self._folder, server.port, password)
        spark = pool.submit(_start_spark, files.platform)
        shop = server.dsn("shop", "shop", database.create_roles(server, password))
        rows = database.fill(shop, self._shop)
        self._steps(f"the shop has {rows:,} rows in {len(TABLES)} tables")
        while not spark.done():
            self._wait(0.1)
        self._steps(f"Spark {spark.result().version} runs; following the shop for {self._seconds:g} s")
        with self._steps.showing(self._board):
            self._follow(files, shop, pool)
            self._board.phase = "catching up"
            done = self._through(files, pool, once=True)
        self._steps("comparing every row of source and targets")
        held = {"Delta": in_delta(spark.result(), self._folder / "lake"), "DuckDB": in_duckdb(self._folder / _COPY)}
        results = {target: compare_all(shop, read, TABLES) for target, read in held.items()}
        self._refuse_to_go_on()
        return tell(results, done.checkpoint, self._board.upto)

    def _follow(self, files: _Files, shop: str, pool: ThreadPoolExecutor) -> None:
        """Run the pipeline until the shop has changed for long enough."""
        workload = pool.submit(self._change, shop)
        try:
            self._through(files, pool, once=False, until=workload)
        finally:
            self._idle.set()
        workload.result()

    def _through(
        self, files: _Files, pool: ThreadPoolExecutor, *, once: bool, until: Future[None] | None = None
    ) -> RunReport:
        served = Served(files.pipeline, files.platform, new_run_id(), lambda url: self._steps(f"watch it at {url}"))
        heard = Several(self._board, served.health)
        with open_pipeline(files.pipeline, files.platform) as pipeline:
            running = pool.submit(pipeline.run, once=once, report=heard, serving=served.serving)
            while not running.done() and not self._stopping.is_set() and not (until and until.done()):
                self._stopping.wait(0.1)
            if not once or self._stopping.is_set():
                pipeline.stop()
            report = running.result()
        self._refuse_to_go_on()
        if error := report.first_error():
            raise error
        return report

    def _change(self, dsn: str) -> None:
        """Change the shop until the target has kept up with it for long enough, or the demo ends."""
        events = [(self._seconds / 3, self._shop.grow), (self._seconds * 2 / 3, self._shop.clear_carts)]
        transactions = self._shop.transactions()
        current_at = counted_at = 0.0
        with psycopg.connect(dsn) as connection:
            while not self._idle.wait(_PAUSE_SECONDS if current_at else _FIRST_PAUSE_SECONDS):
                now = time.monotonic()
                if not current_at and self._board.current.is_set():
                    current_at = now
                passed = now - current_at if current_at else 0.0
                if events and passed >= events[0][0]:
                    transaction = events.pop(0)[1]()
                    self._steps(f"the shop: {transaction.name}")
                elif passed >= self._seconds:
                    break
                else:
                    transaction = next(transactions)
                database.execute(connection, transaction)
                self._board.transactions += 1
                self._board.doing = transaction.name
                if now - counted_at > 1:
                    self._board.source_has(database.counts(connection))
                    counted_at = now
            self._board.source_has(database.counts(connection))

    def _wait(self, seconds: float) -> None:
        self._stopping.wait(seconds)
        self._refuse_to_go_on()

    def _refuse_to_go_on(self) -> None:
        if self._stopping.is_set():
            raise Stopped


# -- the pipeline


def write_files(folder: Path, port: int, password: str) -> _Files:
    """Write the pipeline file, the platform file and the secret file, and load them as a user's are."""
    secret, pipeline, platform = folder / "cdc.password", folder / "pipeline.yaml", folder / "platform.yaml"
    secret.touch(0o600)
    secret.write_text(password)
    tables = ", ".join(TABLES)
    pipeline.write_text(
        _PIPELINE.format(
            port=port,
            password_file=_quoted(secret),
            tables=tables,
            lake=_quoted(folder / "lake"),
            copy=_quoted(folder / _COPY),
        )
    )
    platform.write_text(_PLATFORM.format(state=_quoted(folder / "state")))
    return _Files(load_pipeline(pipeline).config, load_platform(platform).config)


def _quoted(path: Path) -> str:
    return json.dumps(str(path), ensure_ascii=False).replace("${", "$${")


def _start_spark(platform: PlatformConfig) -> SparkSession:
    return session(**{"spark.master": platform.spark.master, **platform.spark.conf})


# -- the comparison


def tell(results: Mapping[str, Sequence[Comparison]], checkpoint: Checkpoint | None, offset: int) -> int:
    """Print the comparison of each target and the position that it is true for; return the exit code."""
    if not isinstance(checkpoint, Tailing):
        raise Halt("no-position", "the run ended without a position", "This is a defect: please report it.")
    lines = [f"{target} {line}" for target, tables in results.items() for table in tables for line in table.lines()]
    equal = all(table.equal for tables in results.values() for table in tables)
    verdict = "equal" if equal else "DIFFERENT"
    lines.append(f"source and targets are {verdict} at position {checkpoint.at} (change log offset {offset})")
    sys.stdout.write("\n".join([*lines, ""]))
    sys.stdout.flush()
    return 0 if equal else 1
