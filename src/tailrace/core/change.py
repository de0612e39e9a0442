"""One row of one table, as it became: the only thing that flows through this system.

Sources make changes, the change log keeps them, the apply engine folds them into tables. A change
does not know where it came from beyond its `position`, nor where it is going.

Two changes with the same table and key are ordered by `position` and by nothing else: not by arrival,
not by wall clock. `fold` is the whole meaning of a current table in a few lines; every target must
agree with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Value = object
Key = tuple[Value, ...]


class Op(StrEnum):
    """What happened to the row."""

    READ = "r"
    CREATE = "c"
    UPDATE = "u"
    DELETE = "d"
    TRUNCATE = "t"


@dataclass(frozen=True, slots=True)
class Change:
    """A change to the row of `table` identified by `key`; a truncate has no key.

    A changed key is a delete of the old key and a create with `old_key`, both at one position.
    """

    table: str
    op: Op
    position: str
    key: Key = ()
    after: Mapping[str, Value] | None = None
    unchanged: frozenset[str] = frozenset()
    old_key: Key | None = None


@dataclass
class Folded:
    """The current rows of one table, and what must be remembered of the rows that are gone."""

    rows: dict[Key, tuple[str, dict[str, Value]]] = field(default_factory=dict)
    tombstones: dict[Key, str] = field(default_factory=dict)
    floor: str = ""
    gone: dict[Key, dict[str, Value]] = field(default_factory=dict)
    """Rows as they were when last deleted, for a row that goes on under another key."""

    def seen(self, key: Key) -> str:
        """Return the newest position known of `key`, be it alive, deleted or truncated."""
        return max(self.rows[key][0] if key in self.rows else "", self.tombstones.get(key, ""), self.floor)


def fold(changes: Iterable[Change], into: Folded | None = None) -> Folded:
    """Fold `changes` of one table, in whatever order they come, into its current rows.

    A change at or below what its key has already seen is superseded, so repeats are harmless and a
    deleted row is not brought back. An `unchanged` column keeps the value that the row has, so changes
    that leave columns out must come after the ones they lean on.
    """
    table = into or Folded()
    for change in changes:
        if change.op is Op.TRUNCATE:
            table.floor = max(table.floor, change.position)
            table.rows = {key: row for key, row in table.rows.items() if row[0] > table.floor}
        elif change.position > table.seen(change.key):
            _, old = table.rows.pop(change.key, ("", {}))
            if change.op is Op.DELETE:
                table.tombstones[change.key] = change.position
                table.gone[change.key] = old
            else:
                old = old if change.old_key is None else table.gone.get(change.old_key, {})
                kept = {name: old[name] for name in change.unchanged if name in old}
                table.rows[change.key] = (change.position, {**(change.after or {}), **kept})
    return table
