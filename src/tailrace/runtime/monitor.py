"""Looking at things every now and then while a run goes, each in a thread of its own: nothing waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tailrace.control.lag import Lag
from tailrace.core.errors import Halt, TailraceError
from tailrace.core.subjects import Registered
from tailrace.runtime.report import Reporter


@contextmanager
def monitored(measure: Callable[[], Lag], interval: float, report: Reporter) -> Iterator[None]:
    """Tell `report` at once and then every `interval` seconds what `measure` finds; its errors are told too."""
    with _repeating(lambda: report.measured(_measured(measure)), interval, "monitor"):
        yield


@contextmanager
def watched(look: Callable[[], Registered] | None, interval: float, report: Reporter) -> Iterator[None]:
    """Tell `report` at once and then every `interval` seconds what a registry says; without one, do nothing."""
    if look is None:
        yield
        return
    with _repeating(lambda: report.registered(_registered(look)), interval, "schema monitor"):
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


def _measured(measure: Callable[[], Lag]) -> Lag:
    try:
        return measure()
    except TailraceError as error:
        return Lag(error=error)
    except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on and the next measurement may work
        return Lag(error=Halt("internal", f"lag could not be measured: {type(error).__name__}"))


def _registered(look: Callable[[], Registered]) -> Registered:
    try:
        return look()
    except TailraceError as error:
        return Registered(error=error)
    except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on and the next look may work
        return Registered(error=Halt("internal", f"the registry could not be looked at: {type(error).__name__}"))
