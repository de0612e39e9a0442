"""Killed at every step, or at any moment, and started again: nothing lost, nothing doubled, nothing brought back."""

from __future__ import annotations

import random
import signal
import threading
import time
from pathlib import Path

import pytest

from tailrace.demo.postgres import EmbeddedPostgres
from tests.e2e.harness import Shop

SNAPSHOT = ["C01=kill", "C02=kill", "C09=kill"]
PUMP = ["C03=kill", "C05=kill", "C06=kill", "C07=kill", "C08=kill", "C09=kill", "C10=kill", "C11=kill", "C12=kill"]
DRAIN = [
    "C18=kill:2",
    "C19=kill",
    "C20=kill:3",
    "C21=kill:2",
    "C22=kill:2",
    "C23=kill:3",
    "C25=kill",
    "C26=kill:2",
    "C27=kill",
    "C28=kill",
]


@pytest.mark.timeout(1500)
def test_every_failpoint_kills_and_the_next_run_mends(tmp_path: Path, postgres: EmbeddedPostgres) -> None:
    shop = Shop(tmp_path, postgres, seed=7)
    shop.change()
    for armed in [*SNAPSHOT, *PUMP, *DRAIN]:
        killed = shop.cdc("run", str(shop.pipeline), "--once", failpoints=armed)
        assert killed.returncode == -signal.SIGKILL, f"{armed}: {killed.returncode} {killed.stderr[-2000:]}"
        shop.change()
    shop.finish()
    assert shop.differences() == []
    again = shop.finish()
    assert all(table["applied"] == 0 for target in again["targets"] for table in target["tables"])  # type: ignore[index, union-attr]
    shop.change()
    shop.finish("--resync")
    assert shop.differences() == []


@pytest.mark.timeout(1500)
def test_random_kills_under_load(tmp_path: Path, postgres: EmbeddedPostgres) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    shop = Shop(tmp_path, postgres, seed=seed, max_rows=20_000)
    shop.change()
    over = threading.Event()

    def load() -> None:
        while not over.is_set():
            shop.change()
            time.sleep(0.5)

    loading = threading.Thread(target=load)
    loading.start()
    try:
        for _ in range(20):
            process = shop.start("run", str(shop.pipeline))
            time.sleep(chance.uniform(1.0, 16.0))
            assert process.poll() is None, (shop.folder / "run.log").read_text()[-3000:]
            process.kill()
            process.wait()
    finally:
        over.set()
        loading.join()
    shop.finish()
    assert shop.differences() == [], f"seed {seed}"
