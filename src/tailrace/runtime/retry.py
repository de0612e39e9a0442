"""Trying again: around a page or a slice, only for errors that say they are retryable."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import TypeVar

from tailrace.config.pipeline import RetryConfig
from tailrace.core.errors import Retryable, Unreachable
from tailrace.runtime.report import Reporter

Result = TypeVar("Result")


def attempt(
    work: Callable[[], Result],
    policy: RetryConfig,
    stop: threading.Event,
    report: Reporter,
    done: Callable[[], int] = lambda: 0,
    target: str | None = None,
    *,
    endless: bool = False,
) -> Result:
    """Do `work`, again after a wait while it raises `Retryable` and attempts are left.

    With `endless`, finding a server away takes none of the attempts: it is waited for however long that takes. Attempts
    count anew when `done` shows that the last one did something before it failed. `target` is whose work it is; without
    one it is the pump's. A wait is no shorter than the other side asked for. The last error is raised as it is. A stop
    ends the waiting: the error is raised then too.
    """
    left, wait, before = policy.max_attempts, policy.initial_wait_seconds, done()
    failed = False
    while True:
        try:
            result = work()
        except Retryable as error:
            if (now := done()) != before:
                left, wait, before = policy.max_attempts, policy.initial_wait_seconds, now
            failed, away = True, endless and isinstance(error, Unreachable)
            left -= not away
            if not left or stop.is_set():
                raise
            pause = min(wait, policy.max_wait_seconds) * (random.uniform(0.5, 1.0) if policy.jitter else 1.0)
            pause = max(pause, error.after or 0.0)
            wait = min(wait * policy.multiplier, policy.max_wait_seconds)
            limit = "until it is back" if away else f"{left} attempts left"
            report.warning(f"{error.code}: {error}; trying again in {pause:.1f} s, {limit}")
            report.retrying(target, error)
            if stop.wait(pause):
                raise
        else:
            if failed:
                report.retrying(target, None)
            return result
