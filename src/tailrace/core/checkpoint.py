"""Where a source stands: taking its first snapshot, or tailing what came after it.

    (nothing) -> Snapshotting -> Tailing -> Tailing -> ...

A checkpoint is a promise that everything before it is durable in the change log, so it is saved only
after the rows it covers are written. `runtime.pump` is the one place that saves it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

Place = str
"""A place in a source's history, in the source's own notation; opaque to everyone else."""

VERSION = 2
"""Of a checkpoint with a scope; one without has no version in its stored form."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What of its source a checkpoint speaks for, where the source itself would not notice a difference."""

    selection: str
    """A digest of what was asked for: a place in one selection means nothing in another."""
    tables: tuple[tuple[str, str], ...] = ()
    """The tables seen so far, by name, each with what identifies it in the source, empty if that is unknown."""


@dataclass(frozen=True, slots=True)
class Snapshotting:
    """Part way through a consistent snapshot; `cursor` says how far.

    `origin` names the system and history that `snapshot` belongs to: a place means nothing elsewhere. With a
    `scope`, the source keeps the snapshot: a reader that starts again goes on at `cursor`. Without one it
    dies with its reader and is taken anew.
    """

    origin: str
    snapshot: Place
    cursor: str
    scope: Scope | None = None

    @property
    def resumable(self) -> bool:
        """Whether the rest of the snapshot can still be read by somebody else."""
        return self.scope is not None


@dataclass(frozen=True, slots=True)
class Tailing:
    """The snapshot is complete; every change up to `at` has been read."""

    origin: str
    at: Place
    scope: Scope | None = None


Checkpoint = Snapshotting | Tailing


def to_json(checkpoint: Checkpoint) -> dict[str, object]:
    """Return the form that is stored and shown; `from_json` is its inverse."""
    scope = checkpoint.scope
    more: dict[str, object] = {}
    if scope is not None:
        more = {"version": VERSION, "selection": scope.selection, "tables": dict(scope.tables)}
    match checkpoint:
        case Snapshotting(origin, snapshot, cursor):
            return {"phase": "snapshotting", "origin": origin, "snapshot": snapshot, "cursor": cursor, **more}
        case Tailing(origin, at):
            return {"phase": "tailing", "origin": origin, "at": at, **more}


def from_json(stored: Mapping[str, object]) -> Checkpoint:
    """Return the checkpoint that `to_json` made; anything else, even one key more, is a ValueError."""
    found = dict(stored)
    scope = _scope(found)
    match found:
        case {"phase": "snapshotting", "origin": str(o), "snapshot": str(s), "cursor": str(c), **others} if not others:
            return Snapshotting(o, s, c, scope)
        case {"phase": "tailing", "origin": str(origin), "at": str(at), **others} if not others:
            return Tailing(origin, at, scope)
    raise ValueError(f"not a checkpoint: {dict(stored)!r}")


@functools.lru_cache(maxsize=16)
def _one(scope: Scope) -> Scope:
    """Return the same object for equal scopes: every page of a log tells its own, and few of them differ."""
    return scope


def _scope(found: dict[str, object]) -> Scope | None:
    """Take the parts of a scope out of `found`; all of them, or none."""
    if not {"version", "selection", "tables"} & found.keys():
        return None
    version, selection, tables = (found.pop(name, None) for name in ("version", "selection", "tables"))
    if version == VERSION and isinstance(version, int) and isinstance(selection, str) and isinstance(tables, dict):
        pairs = tuple(sorted(tables.items()))
        if all(isinstance(name, str) and isinstance(identity, str) for name, identity in pairs):
            return _one(Scope(selection, pairs))
    raise ValueError(f"not the scope of a checkpoint of version {VERSION}")
