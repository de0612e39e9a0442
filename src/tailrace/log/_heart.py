"""The sign of life of whoever has claimed something."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from tailrace.core.errors import Retryable


@dataclass
class Heart:
    """Says from time to time that somebody is alive, until it is stopped."""

    beat: Callable[[], None]
    last: Callable[[], None]
    """Done when it is stopped: what was claimed and not committed is free again."""
    seconds: float
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def _run(self) -> None:
        while not self._stopped.wait(self.seconds):
            with suppress(Retryable):
                self.beat()

    def stop(self) -> None:
        if not self._stopped.is_set():
            self._stopped.set()
            with suppress(Retryable):
                self.last()
