"""A process that is stopped with a batch in hand, while another one commits a part of it, and is then woken.

    python -m tests.e2e.sleeps --targets delta,postgres

One pipeline has all targets in all modes. For each of them a sleeper stops once: in a lake right before its commit, in a
database before its transaction, since nobody else gets in during it. The other process has what the pipeline remembers, and
not its lock, as if it ran on another machine. Each event must then be in each table once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from dev import services
from tailrace.config.load import load_pipeline
from tailrace.config.platform import PlatformConfig
from tailrace.demo.postgres import EmbeddedPostgres
from tailrace.runtime.build import open_pipeline
from tailrace.runtime.report import Silent
from tailrace.spark import session
from tests.clients import EVERY, FILES, Store, in_files, in_mysql, in_postgres
from tests.e2e.kills import MODES, TABLE, Feed, told
from tests.sessions import SMALL

LAKES = ("delta", "iceberg", "parquet")
Sinks = Mapping[tuple[str, str], Store]
"""By kind and mode."""


def slept(folder: Path, sinks: Sinks, spark: SparkSession) -> Iterator[tuple[str, str]]:
    """Let a process sleep in each of `sinks` in turn; yield what each became, and what is wrong with it."""
    names = {f"{kind}-{mode}": (kind, mode) for kind, mode in sinks}
    feed = Feed(folder / "feed", [sinks[of].sink(name, mode=of[1]) for name, of in names.items()], max_rows=18)
    for _ in range(4):
        feed.put()
    for name, of in names.items():
        # Two slices of two files: it sleeps with the second in hand, of which the other one commits the first file.
        sleeper = feed.start(f"{'C22' if of[0] in LAKES else 'C18'}=pause:2", "--target", name)
        try:
            _, status = os.waitpid(sleeper.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                sleeper.returncode = os.waitstatus_to_exitcode(status)
                yield name, f"did not sleep, but ended with {sleeper.returncode}"
                continue
            shutil.rmtree(folder / "other", ignore_errors=True)
            shutil.copytree(folder / "feed" / ".tailrace", folder / "other")
            _go_on(folder, [name], spark, max_slices=1)
            sleeper.send_signal(signal.SIGCONT)
            out, err = sleeper.communicate(timeout=400)
        finally:
            sleeper.kill()
            sleeper.wait()
        _go_on(folder, [name], spark)
        (ended,) = json.loads(out.splitlines()[-1])["targets"]
        wrong = _wrong(feed, sinks[of], *of, ended)
        yield name, f"{wrong}\n{err[-2000:]}" if wrong else ""


def _go_on(folder: Path, targets: list[str], spark: SparkSession, max_slices: int | None = None) -> None:
    """Apply file by file what `targets` lack, in the name of another process."""
    config = load_pipeline(folder / "feed" / "pipeline.yaml", {}).config
    platform = PlatformConfig.model_validate({"control": {"root": str(folder / "other")}, "slice": {"max_rows": 1}})
    with open_pipeline(config, platform) as pipeline:
        pipeline.__dict__["_session"] = spark
        done = pipeline.run(once=True, targets=targets, max_slices=max_slices, report=Silent())
    if error := done.first_error():
        raise error


def _wrong(feed: Feed, store: Store, kind: str, mode: str, ended: Mapping[str, object]) -> str:
    found, expected = Counter(map(told, store.read(TABLE))), feed.expected(4, mode)
    if found != expected:
        return f"missing {list(expected - found)[:3]}, left over {list(found - expected)[:3]}"
    # In a database the other one has the table from then on; in a lake whoever commits next goes on.
    error = ended.get("error")
    code = error["code"] if isinstance(error, dict) else None
    return "" if code == (None if kind in LAKES else "owner-replaced") else f"the sleeper ended with {ended}"


@contextmanager
def every(folder: Path, kinds: Sequence[str]) -> Iterator[Sinks]:
    """Open a store of each of `kinds` for each mode, with the servers that they need."""
    with ExitStack() as stack:
        made: dict[tuple[str, str], Store] = {}
        pg = stack.enter_context(EmbeddedPostgres(folder / "pg")) if "postgres" in kinds else None
        up = stack.enter_context(services.running("mariadb", folder=folder / "up")) if "mysql" in kinds else None
        for kind in kinds:
            for mode in MODES:
                if kind in FILES:
                    made[kind, mode] = in_files(kind, folder / f"{kind}-{mode}")
                elif kind == "postgres" and pg:
                    made[kind, mode] = in_postgres(pg, f"copy_{mode}")
                elif up:
                    made[kind, mode] = in_mysql(up.mariadb, f"copy_{mode}")
        yield made


def main() -> None:
    """Try every target in every mode; say what failed, and fail then."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", default=",".join(EVERY), help="only these")
    kinds = parser.parse_args().targets.split(",")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="tailrace-sleeps-") as name, every(Path(name), kinds) as sinks:
        spark = session(**SMALL)
        for what, wrong in slept(Path(name), sinks, spark):
            print(f"{what}: {wrong or 'holds'}", flush=True)
            failed += bool(wrong)
        spark.stop()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
