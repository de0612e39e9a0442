"""The stored checkpoint of a source, and the life it belongs to.

A *life* begins when a pipeline first runs, or runs again after `cdc undeploy`, or with `--resync`: it has a
change log of its own (`log`, a name never used before) and an `epoch` one higher than the life before, so
that everything of the new life sorts above everything of the old.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from tailrace.control import state
from tailrace.core import checkpoint as checkpoints
from tailrace.core.checkpoint import Checkpoint
from tailrace.core.errors import Halt
from tailrace.core.table import in_order


@dataclass(frozen=True, slots=True)
class Life:
    """One run of a pipeline's history, from a snapshot to the next `undeploy` or resync."""

    epoch: int
    log: str
    tables: tuple[str, ...] = ()
    """In the order in which they came, those that came together in that of `in_order`."""


class Checkpoints:
    """The checkpoint of one pipeline's source, kept in a folder."""

    def __init__(self, folder: Path) -> None:
        self._life = folder / "life.json"
        self._checkpoint = folder / "checkpoint.json"

    def life(self) -> Life | None:
        """Return the present life; `None` before the first and after `end`."""
        stored = state.load(self._life)
        if stored is None or stored.get("ended"):
            return None
        tables = stored.get("tables", [])
        return Life(
            int(str(stored["epoch"])), str(stored["log"]), tuple(map(str, tables if isinstance(tables, list) else []))
        )

    def begin(self, tables: tuple[str, ...]) -> Life:
        """Return the present life, or begin the next one for `tables`, those of the last one first, in their order."""
        if (life := self.life()) is not None:
            return life
        stored = state.load(self._life) or {}
        every = in_order((table for table in self.known() if table in tables), tables)
        life = Life(int(str(stored.get("epoch", 0))) + 1, uuid.uuid4().hex[:12], every)
        state.save(self._life, {"epoch": life.epoch, "log": life.log, "tables": list(life.tables)})
        return life

    def extend(self, tables: tuple[str, ...]) -> Life:
        """Return the present life with `tables` added to those it has."""
        life = self.begin(tables)
        every = in_order(life.tables, tables)
        if every != life.tables:
            life = replace(life, tables=every)
            state.save(self._life, {"epoch": life.epoch, "log": life.log, "tables": list(every)})
        return life

    def known(self) -> tuple[str, ...]:
        """Return the tables of the present life, or of the last one: what targets may hold rows of."""
        tables = (state.load(self._life) or {}).get("tables", [])
        return tuple(map(str, tables if isinstance(tables, list) else []))

    def end(self) -> None:
        """Forget the checkpoint, and let the next `begin` start a new life."""
        self._checkpoint.unlink(missing_ok=True)
        if (stored := state.load(self._life)) is not None:
            state.save(self._life, {**stored, "ended": True})

    def load(self) -> Checkpoint | None:
        """Return where the source stands; `None` if nothing was read yet."""
        stored = state.load(self._checkpoint)
        try:
            return None if stored is None else checkpoints.from_json(stored)
        except ValueError as error:
            raise Halt(
                "corrupt-state",
                f'state file "{self._checkpoint}" holds no checkpoint of this release',
                "Run the release that wrote it, or run cdc undeploy and then cdc run, which takes a new snapshot.",
            ) from error

    def age(self) -> float | None:
        """Return how many seconds ago the checkpoint was saved; `None` if there is none."""
        try:
            return max(time.time() - self._checkpoint.stat().st_mtime, 0.0)
        except FileNotFoundError:
            return None

    def save(self, checkpoint: Checkpoint) -> None:
        """Remember `checkpoint`; the rows before it must be durable already."""
        state.save(self._checkpoint, dict(checkpoints.to_json(checkpoint)))
