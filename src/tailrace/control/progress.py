"""How far a target has come in a change log: it saves reading again, and nothing depends on it.

The marks in the target are the truth. Progress is saved after every table of a slice has committed, so
it may be behind the marks but never ahead. A torn file is as good as none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tailrace.apply.target import Mark
from tailrace.control import state
from tailrace.core import offsets
from tailrace.core.errors import Halt
from tailrace.core.table import file_name


class Progress:
    """The progress of every target of one pipeline, kept in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, target: str, log: str) -> int:
        """Return the offset up to which `target` has all of `log`; -1 if nothing is known."""
        try:
            stored = state.load(self._path(target))
        except Halt as error:
            if error.code == "corrupt-state":
                return -1
            raise
        return offsets.from_json(stored["offset"]) if stored and stored.get("log") == log else -1

    def save(self, target: str, log: str, offset: int, marks: Mapping[str, Mark]) -> None:
        """Remember that every table of `target` includes `log` up to `offset`; `marks` are for showing."""
        seen = {
            table: {"offset": offsets.to_json(mark.offset), "position": mark.high}
            for table, mark in sorted(marks.items())
        }
        state.save(
            self._path(target),
            {"log": log, "offset": offsets.to_json(offset), "marks": {**self.marks(target, log), **seen}},
            torn="C26",
        )

    def lower(self, target: str, log: str, place: int, table: str, mark: Mark | None) -> None:
        """Remember that `table` was taken back to `mark`, and that the target has `log` up to `place` at most."""
        upto = offsets.least([self.load(target, log), place])
        self.save(target, log, upto, {table: mark if mark and mark.log == log else Mark(log, -1)})

    def marks(self, target: str, log: str) -> dict[str, object]:
        """Return the marks of the tables of `target` as last seen; the target itself has the truth."""
        try:
            stored = state.load(self._path(target)) or {}
        except Halt:
            return {}
        marks = stored.get("marks")
        return marks if isinstance(marks, dict) and stored.get("log") == log else {}

    def noted(self, target: str, log: str) -> dict[str, int]:
        """Return the places of those marks."""
        seen = self.marks(target, log)
        return {
            table: offsets.from_json(mark["offset"])
            for table, mark in seen.items()
            if isinstance(mark, dict) and "offset" in mark
        }

    def _path(self, target: str) -> Path:
        return self._folder / f"{file_name(target)}.json"
