"""Which components, tables and fields a caller wants, as the server understands the request.

The server is lenient in a way that hurts: what it cannot parse it takes for "everything". With `strict` it
refuses instead; with `old` it knows only the short words, as servers before July 2026 do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace.testing.convex.errors import Refused, internal

_IDENTIFIER = re.compile(r"(?=.*[A-Za-z0-9])[A-Za-z_][A-Za-z0-9_]{0,63}")
_OTHER = "_other"
_META = ("_ts", "_table", "_component", "_deleted")


@dataclass(frozen=True)
class Fields:
    """The fields of one table."""

    other: bool = True
    named: Mapping[str, bool] = field(default_factory=dict)

    def include(self, name: str) -> bool:
        """Say whether the field is wanted."""
        return name in _META or self.named.get(name, self.other)


@dataclass(frozen=True)
class Tables:
    """The tables of one component; one without fields is not wanted."""

    other: bool = True
    named: Mapping[str, Fields | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Selection:
    """The whole choice; a component without tables is not wanted."""

    other: bool = True
    named: Mapping[str, Tables | None] = field(default_factory=dict)

    def fields(self, component: str, table: str) -> Fields | None:
        """Return the fields wanted of a table; `None` if the table is not wanted."""
        tables = self.named.get(component, Tables() if self.other else None)
        return None if tables is None else tables.named.get(table, Fields() if tables.other else None)


EVERYTHING = Selection()


def requested(arguments: Mapping[str, object], *, strict: bool, old: bool) -> Selection:
    """Return what `arguments` ask for, in the server's order of preference."""
    if (wire := arguments.get("selection")) is not None:
        words = {"incl": True, "excl": False} | ({} if old else {"included": True, "excluded": False})
        try:
            return _checked(_parse(wire, words))
        except _Malformed as error:
            if strict:
                raise Refused(400, "BadSelection", str(error)) from error
    table = arguments.get("table_name") if old else arguments.get("tableName", arguments.get("table_name"))
    component = None if old else arguments.get("component")
    if isinstance(table, str):
        only = Tables(other=False, named={table: Fields()})
        return _checked(Selection(False, {component if isinstance(component, str) else "": only}))
    if isinstance(component, str):
        return _checked(Selection(False, {component: Tables()}))
    return EVERYTHING


class _Malformed(Exception):
    pass


def _parse(wire: object, words: Mapping[str, bool]) -> Selection:
    other, rest = _level(wire, words)
    return Selection(other, {name: _tables(value, words) for name, value in rest.items()})


def _tables(wire: object, words: Mapping[str, bool]) -> Tables | None:
    if isinstance(wire, str) and words.get(wire) is False:
        return None
    other, rest = _level(wire, words)
    return Tables(other, {name: _fields(value, words) for name, value in rest.items()})


def _fields(wire: object, words: Mapping[str, bool]) -> Fields | None:
    if isinstance(wire, str) and words.get(wire) is False:
        return None
    other, rest = _level(wire, words)
    return Fields(other, {name: _word(value, words) for name, value in rest.items()})


def _level(wire: object, words: Mapping[str, bool]) -> tuple[bool, dict[str, object]]:
    if not isinstance(wire, dict) or _OTHER not in wire:
        raise _Malformed("a level of the selection is no object with _other")
    return _word(wire[_OTHER], words), {name: value for name, value in wire.items() if name != _OTHER}


def _word(wire: object, words: Mapping[str, bool]) -> bool:
    if not isinstance(wire, str) or wire not in words:
        raise _Malformed("a word of the selection is neither incl nor excl")
    return words[wire]


def _checked(selection: Selection) -> Selection:
    """Fail as the server does on names and on a table without its ids: with no reason given."""
    for path, tables in selection.named.items():
        names = [part for part in path.split("/") if path] + list(tables.named if tables else ())
        if not all(_IDENTIFIER.fullmatch(name) for name in names):
            raise internal()
        for fields in tables.named.values() if tables else ():
            if fields is not None and not fields.include("_id"):
                raise internal()
    return selection
