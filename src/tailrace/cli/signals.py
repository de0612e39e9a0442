"""Ctrl-C and SIGTERM: the first asks the work to stop, the second ends the process at once.

The work runs in a thread of its own and the main thread only waits, so a signal is heard even while
the work sits in a call to the JVM. A JVM that starts in this process, and a new Spark context, put
their own signal actions in place of ours: the wait puts ours back.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

Result = TypeVar("Result")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_REARM_SECONDS = 0.2


def attend(work: Callable[[], Result], stop: Callable[[], None]) -> Result:
    """Return what `work` returns, calling `stop` when the process is asked to end.

    Call it from the main thread. `stop` must return at once and make `work` return soon.
    """
    outcome: list[Result] = []
    failure: list[BaseException] = []
    asked = threading.Event()

    def body() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            failure.append(error)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if asked.is_set():
            os._exit(130)
        asked.set()
        sys.stderr.write("stopping; once more to stop at once\n")
        stop()

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    worker = threading.Thread(target=body, name="run", daemon=True)
    try:
        _arm(on_signal)
        worker.start()
        while worker.is_alive():
            worker.join(_REARM_SECONDS)
            _arm(on_signal)
    finally:
        for number, action in before.items():
            signal.signal(number, action)
    if failure:
        raise failure[0]
    return outcome[0]


def _arm(on_signal: Callable[[int, FrameType | None], None]) -> None:
    for number in _SIGNALS:
        signal.signal(number, on_signal)
