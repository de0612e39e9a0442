"""Trying again: around a page or a slice, only for errors that say they are retryable."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import TypeVar

from tailrace.config.pipeline import RetryConfig
from tailrace.core.errors import Retryable
from tailrace.runtime.report import Reporter

Result = TypeVar("Result")


def attempt(work: Callable[[], Result], policy: RetryConfig, stop: threading.Event, report: Reporter) -> Result:
    """Do `work`, again after a wait while it raises `Retryable` and attempts are left.

    The last error is raised as it is. A stop ends the waiting: the error is raised then too.
    """
    wait = policy.initial_wait_seconds
    for left in range(policy.max_attempts - 1, -1, -1):
        try:
            return work()
        except Retryable as error:
            if not left or stop.is_set():
                raise
            pause = min(wait, policy.max_wait_seconds) * (random.uniform(0.5, 1.0) if policy.jitter else 1.0)
            report.warning(f"{error.code}: {error}; trying again in {pause:.1f} s, {left} attempts left")
            if stop.wait(pause):
                raise
            wait *= policy.multiplier
    raise AssertionError("unreachable")
