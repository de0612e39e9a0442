"""What a schema registry says of its subjects at one moment, and what became of them since the last look.

A subject is the name under which a registry keeps the versions of one schema: `<topic>-key` and `<topic>-value`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.core.errors import TailraceError


@dataclass(frozen=True, slots=True)
class Version:
    """The latest version of a subject, and the id that messages name its schema by."""

    subject: str
    number: int
    schema_id: int


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A subject that has another version than the one that was accepted last."""

    subject: str
    previous_version: int
    new_version: int
    schema_id: int
    why: str | None = None
    """What a reader would miss in rows of the new version; `None` if nothing."""

    @property
    def compatible(self) -> bool:
        """Whether a reader misses nothing."""
        return self.why is None


@dataclass(frozen=True, slots=True)
class Registered:
    """What one look found; with an `error`, it did not get through."""

    versions: tuple[Version, ...] = ()
    changes: tuple[SchemaChange, ...] = ()
    error: TailraceError | None = None
