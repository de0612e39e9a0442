"""How far targets have sent that cannot say it themselves: one document per table, whole or not at all.

It takes the place of the mark that other targets commit with their rows, so a torn or edited one halts: starting from
nothing would send everything again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailrace.control import state
from tailrace.core.table import file_name


class Deliveries:
    """The notes of one target, in a folder of their own; `names` are those of the files, told apart in any folder."""

    def __init__(self, folder: Path, target: str, names: Mapping[str, str] | None = None) -> None:
        self._folder = folder / file_name(target)
        self._names = dict(names or {})

    def load(self, table: str) -> Mapping[str, Any] | None:
        """Return what was noted of `table`; `None` if nothing was."""
        return state.load(self._path(table))

    def save(self, table: str, content: Mapping[str, Any]) -> None:
        """Replace what is noted of `table`, durably."""
        state.save(self._path(table), dict(content), torn="C24")

    def _path(self, table: str) -> Path:
        return self._folder / f"{file_name(self._names.get(table, table))}.json"
