"""The stored checkpoint of a source, and the life it belongs to.

A *life* begins when a pipeline first runs, or runs again after `cdc undeploy`: it has a change log of
its own (`log`, a name never used before) and an `epoch` one higher than the life before, so that
everything of the new life sorts above everything of the old.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

from tailrace.control import state
from tailrace.core import checkpoint as checkpoints
from tailrace.core.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Life:
    """One run of a pipeline's history, from a snapshot to the next `undeploy`."""

    epoch: int
    log: str
    tables: tuple[str, ...] = ()


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
        """Return the present life, or begin the next one for `tables`."""
        if (life := self.life()) is not None:
            return life
        stored = state.load(self._life) or {}
        life = Life(int(str(stored.get("epoch", 0))) + 1, uuid.uuid4().hex[:12], tables)
        state.save(self._life, {"epoch": life.epoch, "log": life.log, "tables": list(life.tables)})
        return life

    def end(self) -> None:
        """Forget the checkpoint, and let the next `begin` start a new life."""
        self._checkpoint.unlink(missing_ok=True)
        if (stored := state.load(self._life)) is not None:
            state.save(self._life, {**stored, "ended": True})

    def load(self) -> Checkpoint | None:
        """Return where the source stands; `None` if nothing was read yet."""
        stored = state.load(self._checkpoint)
        return None if stored is None else checkpoints.from_json({k: str(v) for k, v in stored.items()})

    def save(self, checkpoint: Checkpoint) -> None:
        """Remember `checkpoint`; the rows before it must be durable already."""
        state.save(self._checkpoint, dict(checkpoints.to_json(checkpoint)))
