"""Where a source stands: taking its first snapshot, or tailing what came after it.

    (nothing) -> Snapshotting -> Tailing -> Tailing -> ...

A checkpoint is a promise that everything before it is durable in the change log, so it is saved only
after the rows it covers are written. `runtime.pump` is the one place that saves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Place = str
"""A place in a source's history, in the source's own notation; opaque to everyone else."""


@dataclass(frozen=True, slots=True)
class Snapshotting:
    """Part way through a consistent snapshot; `cursor` says how far.

    `origin` names the system and history that `snapshot` belongs to: a place means nothing elsewhere.
    """

    origin: str
    snapshot: Place
    cursor: str


@dataclass(frozen=True, slots=True)
class Tailing:
    """The snapshot is complete; every change up to `at` has been read."""

    origin: str
    at: Place


Checkpoint = Snapshotting | Tailing


def to_json(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the form that is stored and shown; `from_json` is its inverse."""
    match checkpoint:
        case Snapshotting(origin, snapshot, cursor):
            return {"phase": "snapshotting", "origin": origin, "snapshot": snapshot, "cursor": cursor}
        case Tailing(origin, at):
            return {"phase": "tailing", "origin": origin, "at": at}


def from_json(stored: Mapping[str, str]) -> Checkpoint:
    """Return the checkpoint that `to_json` made; anything else is a ValueError."""
    match dict(stored):
        case {"phase": "snapshotting", "origin": str(origin), "snapshot": str(snapshot), "cursor": str(cursor)}:
            return Snapshotting(origin, snapshot, cursor)
        case {"phase": "tailing", "origin": str(origin), "at": str(at)}:
            return Tailing(origin, at)
    raise ValueError(f"not a checkpoint: {dict(stored)!r}")
