"""Which components, tables and fields a pipeline asks of Convex, and whether a row is one of them.

The server takes a selection that it cannot parse for "everything". So ours is checked here before it is sent,
is always sent in the words that every server knows, and is held against every row that comes back.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping

Wire = Mapping[str, str | Mapping[str, str | Mapping[str, str]]]

_WORDS = {"incl": "incl", "excl": "excl", "included": "incl", "excluded": "excl"}
_NAME = re.compile(r"(?=.*[A-Za-z0-9])[A-Za-z_][A-Za-z0-9_]{0,63}")
_OTHER = "_other"
_EVERYTHING = {_OTHER: "incl"}

_Fields = dict[str, str]
_Tables = dict[str, str | _Fields]


class Selection:
    """A selection in the server's form, checked."""

    def __init__(self, wire: Wire | None = None) -> None:
        """Take the form of the pipeline file; without one, everything. A ValueError says what is wrong."""
        self.wire: dict[str, str | _Tables] = {_OTHER: "incl"} if wire is None else _components(wire)

    def digest(self) -> str:
        """Return a short text that is equal for equal selections only."""
        return hashlib.sha256(json.dumps(self.wire, sort_keys=True).encode()).hexdigest()[:16]

    def includes(self, component: str, table: str) -> bool:
        """Say whether rows of this table were asked for."""
        return self._fields(component, table) is not None

    def is_whole(self, component: str, table: str) -> bool:
        """Say whether every field of this table was asked for."""
        return self._fields(component, table) == _EVERYTHING

    def excess(self, component: str, table: str, names: Iterable[str]) -> list[str]:
        """Return which of the fields `names` of a row of this table were not asked for."""
        fields = self._fields(component, table)
        if fields is None:
            return sorted(names)
        if fields == _EVERYTHING:
            return []
        return [name for name in sorted(names) if fields.get(name, fields[_OTHER]) == "excl"]

    def narrowed(self, tables: Iterable[tuple[str, str]]) -> Selection:
        """Return what this selection includes of `tables`, and nothing else."""
        found: dict[str, dict[str, str | _Fields]] = {}
        for component, table in sorted(tables):
            if (fields := self._fields(component, table)) is not None:
                found.setdefault(component, {_OTHER: "excl"})[table] = fields
        return Selection({_OTHER: "excl", **found})

    def _fields(self, component: str, table: str) -> _Fields | None:
        tables = self.wire.get(component, self.wire[_OTHER])
        if isinstance(tables, str):
            return None if tables == "excl" else _EVERYTHING
        fields = tables.get(table, tables[_OTHER])
        if isinstance(fields, str):
            return None if fields == "excl" else _EVERYTHING
        return fields


def only(tables: Iterable[tuple[str, str]]) -> dict[str, object]:
    """Return the server's form of a selection of the ids, and nothing else, of these tables."""
    found: dict[str, object] = {_OTHER: "excl"}
    for component, table in sorted(tables):
        inner = found.setdefault(component, {_OTHER: "excl"})
        if isinstance(inner, dict):
            inner[table] = {_OTHER: "excl", "_id": "incl"}
    return found


def _components(wire: Wire) -> dict[str, str | _Tables]:
    found: dict[str, str | _Tables] = {_OTHER: _other(wire, "selection")}
    for path, inner in wire.items():
        if path == _OTHER:
            continue
        if path and not all(_NAME.fullmatch(part) for part in path.split("/")):
            raise ValueError(f'selection names the component "{path}", which is no name of Convex')
        where = f'component "{path}" of selection'
        found[path] = _excluded(inner, where) if isinstance(inner, str) else _tables(inner, where)
    return found


def _tables(wire: Mapping[str, str | Mapping[str, str]], where: str) -> _Tables:
    found: _Tables = {_OTHER: _other(wire, where)}
    for name, inner in wire.items():
        if name == _OTHER:
            continue
        if not _NAME.fullmatch(name) or name.startswith("_"):
            raise ValueError(f'{where} names the table "{name}", which is no name of Convex')
        inside = f'table "{name}" of {where}'
        found[name] = _excluded(inner, inside) if isinstance(inner, str) else _columns(inner, inside)
    return found


def _columns(wire: Mapping[str, str], where: str) -> _Fields:
    found = {_OTHER: _other(wire, where)}
    found |= {name: _word(word, f'field "{name}" of {where}') for name, word in wire.items() if name != _OTHER}
    if found.get("_id", found[_OTHER]) == "excl":
        raise ValueError(f'{where} leaves out "_id", and a document cannot be told apart without it')
    return found


def _other(wire: Mapping[str, object], where: str) -> str:
    if _OTHER not in wire:
        raise ValueError(f'{where} has no "{_OTHER}": it says whether names that are not listed are included')
    return _word(wire[_OTHER], f'"{_OTHER}" of {where}')


def _word(word: object, where: str) -> str:
    if not isinstance(word, str) or word not in _WORDS:
        raise ValueError(f'{where} is neither "incl" nor "excl"')
    return _WORDS[word]


def _excluded(word: str, where: str) -> str:
    if _word(word, where) == "incl":
        raise ValueError(f'{where} cannot be just "incl": write {{"_other": "incl"}}, as Convex wants it')
    return "excl"
