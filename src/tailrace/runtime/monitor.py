"""Looking at things every now and then while a run goes, each in a thread of its own: nothing waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tailrace.control.lag import Lag
from tailrace.core.errors import Halt, TailraceError
from tailrace.core.subjects import Registered
from tailrace.runtime.report import Reporter

Answer = TypeVar("Answer")


@contextmanager
def monitored(measure: Callable[[], Lag], interval: float, report: Reporter) -> Iterator[None]:
    """Tell `report` at once and then every `interval` seconds what `measure` finds; its errors are told too."""

    def tell() -> None:
        report.measured(_answer(measure, lambda error: Lag(error=error), "lag could not be measured"))

    with _repeating(tell, interval, "monitor"):
        yield


@contextmanager
def watched(look: Callable[[], Registered | None] | None, interval: float, report: Reporter) -> Iterator[None]:
    """Tell `report` at once and then every `interval` seconds what a registry says; without one, do nothing."""
    if look is None:
        yield
        return

    def tell() -> None:
        found = _answer(look, lambda error: Registered(error=error), "the registry could not be looked at")
        if found is not None:
            report.registered(found)

    with _repeating(tell, interval, "schema monitor"):
        yield


@contextmanager
def _repeating(work: Callable[[], None], interval: float, name: str) -> Iterator[None]:
    ended = threading.Event()

    def repeat() -> None:
        while not ended.is_set():
            work()
            ended.wait(interval)

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        # Work that hangs in a dead connection must not hold up the end: the thread ends with the process.
        ended.set()
        thread.join(1.0)


def _answer(ask: Callable[[], Answer], failed: Callable[[TailraceError], Answer], what: str) -> Answer:
    """Return what `ask` says, or that it failed: the run goes on, and the next time it may work."""
    try:
        return ask()
    except TailraceError as error:
        return failed(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the looking
        return failed(Halt("internal", f"{what}: {type(error).__name__}"))
