"""Measuring lag every now and then while a run goes, in a thread of its own: nothing waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tailrace.control.lag import Lag
from tailrace.core.errors import Halt, TailraceError
from tailrace.runtime.report import Reporter


@contextmanager
def monitored(measure: Callable[[], Lag], interval: float, report: Reporter) -> Iterator[None]:
    """Tell `report` at once and then every `interval` seconds what `measure` finds; its errors are told too."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            report.measured(_measured(measure))
            ended.wait(interval)

    watcher = threading.Thread(target=watch, name="monitor", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        # A measurement that hangs in a dead connection must not hold up the end: the thread ends with the process.
        ended.set()
        watcher.join(1.0)


def _measured(measure: Callable[[], Lag]) -> Lag:
    try:
        return measure()
    except TailraceError as error:
        return Lag(error=error)
    except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on and the next measurement may work
        return Lag(error=Halt("internal", f"lag could not be measured: {type(error).__name__}"))
