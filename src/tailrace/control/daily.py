"""What is enough to be done once a day: it saves looking for what cannot be there, and nothing depends on it."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tailrace.control import state
from tailrace.core.errors import Halt, Retryable
from tailrace.core.table import file_name


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()


class Daily:
    """The day on which something was last done for each name, in a file of its own; a torn one is as good as none."""

    def __init__(self, folder: Path, today: Callable[[], datetime.date] = _today) -> None:
        self._folder = folder
        self._today = today

    def do(self, name: str, work: Callable[[], None]) -> None:
        """Do `work` for `name`, unless it was done today."""
        path, today = self._folder / f"{file_name(name)}.json", self._today().isoformat()
        if _day(path) != today:
            work()
            # What cannot be noted is done again.
            with suppress(Retryable):
                state.save(path, {"day": today}, torn="")


def _day(path: Path) -> object:
    try:
        return (state.load(path) or {}).get("day")
    except (Halt, OSError):
        return None
