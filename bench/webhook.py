"""From the change log to a receiver over HTTP that takes a millisecond for each message: messages per second.

    python -m bench.webhook --events 20000

The receiver is a process of its own. It is asked at the end for what it got: every event once, and for each key the
newest one last. The session is warm: the measured run is the second of its kind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.workload import TABLE, TOPIC, Workload
from tailrace.config.model import Hidden
from tailrace.control.deliveries import Deliveries
from tailrace.control.progress import Progress
from tailrace.control.rejects import Rejects
from tailrace.core.table import Evolution
from tailrace.log.landed import LandedLog
from tailrace.runtime.drain import Drain, Pace, drain
from tailrace.runtime.fold import Fold
from tailrace.runtime.report import Silent
from tailrace.runtime.rules import Choice, Rules
from tailrace.spark import session
from tailrace.targets import webhook

ANSWER_SECONDS = 0.001
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


async def _receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, got: list[bytes]) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            got.append(await reader.readexactly(int(length.split(b":")[1])))
            await asyncio.sleep(ANSWER_SECONDS)
            writer.write(_OK)
    except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
        writer.close()


async def _serve() -> None:
    """Receive until standard input ends, then print what came."""
    got: list[bytes] = []
    server = await asyncio.start_server(lambda r, w: _receive(r, w, got), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()
    newest: dict[int, Any] = {}
    for body in got:
        value = json.loads(body, parse_float=str)["value"]
        row = value["after"] or {}
        key = (row or value["before"])["id"]
        newest[key] = [row["status"], row["quantity"], str(row["total"])] if row else None
    print(json.dumps({"messages": len(got), "rows": {key: row for key, row in newest.items() if row}}))


@contextmanager
def receiver() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Give the address of a receiver; after the block, what it got stands in the list."""
    command = [sys.executable, "-m", "bench.webhook", "--receive"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told: list[dict[str, Any]] = []
        yield f"http://127.0.0.1:{int(process.stdout.readline())}", told
        told.append(json.loads(process.communicate()[0]))


def measure(spark: SparkSession, work: Workload, folder: Path) -> dict[str, object]:
    """Send the events of `work`, ask the receiver, and return the figures."""
    log = LandedLog(folder / "log", "bench", 1)
    log.recover(None)
    for page in work.pages():
        log.append(page)
    with receiver() as (url, told):
        target = webhook.open_target(
            "hook",
            webhook.Options(url=Hidden(url), allow_private=True),
            pipeline_id="bench",
            mode="append",
            notes=Deliveries(folder / "notes", "hook"),
            stop=threading.Event(),
        )
        rejects = Rejects(folder / "rejects", enabled=False, limit=0)
        fold = Fold(lambda: spark, log, target, Rules("append", Evolution.ALTER, 1 << 24), rejects, Silent())
        pace = Pace(work.events, 1.0)
        job = Drain("hook", log, fold, {TOPIC: Choice(TABLE.name)}, Progress(folder / "p"), pace, Silent())
        started = time.monotonic()
        for _ in drain(job, threading.Event(), lambda step: step(), upto=log.head()):
            pass
        seconds = time.monotonic() - started
    rows = {int(key): tuple(row) for key, row in told[0]["rows"].items()}
    return {
        "events": work.events,
        "seconds": round(seconds, 3),
        "events_per_second": round(work.events / seconds),
        "equal": told[0]["messages"] == work.events and rows == work.table(),
    }


def run(events: int, keys: int) -> dict[str, object]:
    """Return the figures of the second of two runs."""
    spark = session()
    folder = Path(tempfile.mkdtemp(prefix="tailrace-bench-"))
    try:
        measure(spark, Workload(events, keys), folder / "warm")
        return measure(spark, Workload(events, keys), folder / "run")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Run the benchmark and print its figures as JSON; exit 1 if the receiver did not get what it must."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--keys", type=int, default=4_000)
    parser.add_argument("--receive", action="store_true", help="be the receiver")
    options = parser.parse_args()
    if options.receive:
        asyncio.run(_serve())
        return
    figures = run(options.events, options.keys)
    print(json.dumps(figures, indent=2))
    raise SystemExit(0 if figures["equal"] else 1)


if __name__ == "__main__":
    main()
