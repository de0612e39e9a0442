"""The schema history: how tables came to look as they do, which the rows of a binlog do not say themselves.

One file of lines: a head, which says what the pipeline reads, then the engine's records (`_debezium/History.java`),
each with the place of its statement. The engine runs ahead of the checkpoint, so at a start what lies behind the
checkpoint is cut off; it comes again. The checkpoint says how many records are before it: a file with fewer is not the
one that belongs to it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tailrace.core.errors import Halt
from tailrace.sources._binlog_stand import Stand, file_number

FORMAT = 1


class History:
    """The schema history in the file `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = -1
        self._places: list[tuple[int, int, int]] = []

    def begin(self, epoch: int, tables: Iterable[str]) -> None:
        """Start anew, for a snapshot of `tables` in the life of this `epoch`."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._write([json.dumps({"tailrace": FORMAT, "epoch": epoch, "tables": sorted(tables)})])

    def tables(self) -> tuple[str, ...]:
        """Return the tables that the pipeline reads; none if it has not begun."""
        lines = self._lines()
        return tuple(_head(lines[0]).get("tables", ())) if lines else ()

    def resume(self, epoch: int, stand: Stand) -> None:
        """Cut off what is behind `stand`; halt if what is before it is not all there."""
        lines = self._lines()
        if not lines or _head(lines[0]).get("epoch") != epoch:
            raise self._lost("is gone" if not lines else "is of another life of the pipeline")
        kept, end = lines[:1], (*stand.order, stand.event)
        for number, line in enumerate(lines[1:]):
            place = _place(line)
            # A record that was being written when the process died is behind every checkpoint.
            if place is None and number < stand.history:
                raise self._lost("cannot be read")
            if place is not None and place <= end:
                kept.append(line)
        if len(kept) - 1 != stand.history:
            raise self._lost(f"has {len(kept) - 1} records where the stored position needs {stand.history}")
        if len(kept) != len(lines):
            self._write(kept)

    def count(self, stand: Stand) -> int:
        """Return how many records are of statements before `stand`."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            raise self._lost("is gone") from None
        if size != self._size:
            self._places = [place for line in self._lines()[1:] if (place := _place(line))]
            self._size = size
        end = (*stand.order, stand.event)
        return sum(place <= end for place in self._places)

    def remove(self) -> bool:
        """Remove the file; say whether there was one."""
        there = self.path.exists()
        self.path.unlink(missing_ok=True)
        return there

    def _lines(self) -> list[str]:
        try:
            return self.path.read_text("utf-8").splitlines()
        except FileNotFoundError:
            return []

    def _write(self, lines: list[str]) -> None:
        draft = self.path.with_name(f".{self.path.name}.new")
        with draft.open("w", encoding="utf-8") as file:
            file.write("\n".join([*lines, ""]))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)

    def _lost(self, why: str) -> Halt:
        return Halt(
            "schema-history-lost",
            f'the schema history "{self.path}" {why}',
            "Without it the rows of the binlog cannot be read. Restore control.root as it was, or run "
            "cdc run <file> --resync, which takes a new snapshot of every table.",
        )


def _head(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) and found.get("tailrace") == FORMAT else {}


def _place(line: str) -> tuple[int, int, int] | None:
    try:
        position = json.loads(line)["position"]
        return file_number(position["file"]), int(position["pos"]), int(position.get("event", 0))
    except (ValueError, LookupError, TypeError):
        return None
