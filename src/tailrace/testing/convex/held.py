"""What the fields of a table hold now, kept up to date with each write.

The real server answers which columns a table has, and of which types, from such a summary. To read every document for
that would make each run of a reader as slow as the table is large.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from tailrace.testing.convex.values import Document, Value


@dataclass(slots=True)
class _Alike:
    """Values of one field that no schema tells apart: how many there are, and one of them."""

    count: int
    one: Value


class Held:
    """Counts the values of each field by what a schema says of them."""

    def __init__(self) -> None:
        self.documents = 0
        self._fields: dict[str, dict[Hashable, _Alike]] = {}
        self._looks: dict[str, dict[str, Hashable]] = {}

    def put(self, key: str, document: Document | None) -> None:
        """Let the document `key` be this one; without one, it is gone."""
        for name, look in self._looks.pop(key, {}).items():
            alike = self._fields[name][look]
            alike.count -= 1
            if not alike.count:
                del self._fields[name][look]
        if document is not None:
            looks = {name: _look(value) for name, value in document.items()}
            for name, look in looks.items():
                self._fields.setdefault(name, {}).setdefault(look, _Alike(0, document[name])).count += 1
            self._looks[key] = looks
        self.documents = len(self._looks)

    def examples(self) -> dict[str, list[Value]]:
        """Return each field that there is with values that have every type it has."""
        return {name: [alike.one for alike in found.values()] for name, found in self._fields.items() if found}

    def required(self) -> list[str]:
        """Return the fields that every document has, sorted."""
        often = {name: sum(alike.count for alike in found.values()) for name, found in self._fields.items()}
        return sorted(name for name, count in often.items() if count and count == self.documents)


def _look(value: Value) -> Hashable:
    """Return what a schema, of any format, can say of `value`."""
    match value:
        case float():
            zero = value == 0 and math.copysign(1, value) < 0
            return "float64", math.isfinite(value), zero
        case list():
            return frozenset(map(_look, value))
        case dict():
            return tuple((name, _look(value[name])) for name in sorted(value))
        case _:
            return type(value).__name__
