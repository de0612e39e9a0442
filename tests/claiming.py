"""Two processes that claim the same files at the same time; for tests of who gets them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.synchronize import Barrier
from typing import Any

from tailrace.control._audit_store import PostgresStore
from tailrace.control.audit import Audit

ROUNDS = 30


def in_postgres(dsn: str) -> Audit:
    return Audit(PostgresStore(dsn, "claims", "a test"))


def race(opened: Callable[[], Audit], numbers: list[int]) -> list[int]:
    """Let two processes claim `numbers` for one target after the other; return how many of the two got them each time."""
    spawned = multiprocessing.get_context("spawn")
    line, answers = spawned.Barrier(2), spawned.Queue()
    workers = [spawned.Process(target=_claim, args=(opened, numbers, name, line, answers)) for name in ("one", "two")]
    for worker in workers:
        worker.start()
    won: list[list[bool]] = [answers.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join(60)
    return [sum(both) for both in zip(*won, strict=True)]


def _claim(opened: Callable[[], Audit], numbers: list[int], name: str, line: Barrier, answers: Any) -> None:
    audit, won = opened(), []
    for target in range(ROUNDS):
        line.wait(60)
        won.append(audit.claim(f"target {target}", numbers, name, "run", timedelta(seconds=60)))
    answers.put(won)
