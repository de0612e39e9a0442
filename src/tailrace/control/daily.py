"""What is enough to be done once a day: it saves looking for what cannot be there, and nothing depends on it."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

from tailrace.control import state
from tailrace.core.errors import Halt


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()


class Daily:
    """The day on which something was last done for each name, kept in a file; a torn one is as good as none."""

    def __init__(self, path: Path, today: Callable[[], datetime.date] = _today) -> None:
        self._path = path
        self._today = today

    def do(self, name: str, work: Callable[[], None]) -> None:
        """Do `work` for `name`, unless it was done today."""
        today = self._today().isoformat()
        if self._done().get(name) != today:
            work()
            state.save(self._path, {**self._done(), name: today}, torn="")

    def _done(self) -> state.Document:
        try:
            return state.load(self._path) or {}
        except Halt:
            return {}
