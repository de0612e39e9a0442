"""Documents of Convex as they are read: checked, typed and written as text, because there are many.

A text is JSON with sorted names, without spaces, and with every number as a float in Python's spelling: equal documents
have equal texts, and nothing of them is lost. A general writer does it, once what it would write in another way is
settled. What is new in a document is looked for in all its fields at once.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Mapping
from typing import Any

import orjson

from tailrace.core.convex import CREATED, DEEPEST, REMOVED, TAGS, Fields, Kind, in_range, join, kind_of, own, tagged

_END_OF_TIME = 253_402_300_800_000.0
"""The year 10000, in milliseconds."""
_FLOATS = frozenset({"AAAAAAAAAIA=", "AAAAAAAA+H8=", "AAAAAAAA8H8=", "AAAAAAAA8P8="})
"""The payloads of -0.0, NaN and the infinities as they usually come."""
_LEAST, _BEYOND = 1e-4, 1e16
"""Between these, and their negatives, a number is written without an exponent, by everyone alike."""
_PLAIN = frozenset({str, bool, type(None)})
"""What the writer takes as it is."""


class Documents:
    """Reads documents of one table, one after the other; `fields` says what they held so far."""

    __slots__ = ("_seen", "fields")

    def __init__(self, fields: Mapping[str, Kind] | None = None) -> None:
        self.fields: Fields = dict(fields or {})
        self._seen: set[tuple[str, type | str]] = set()
        """Fields, each with the types and the tags that it came with."""

    def read(self, document: dict[str, Any]) -> str:
        """Return the text of a document, without what is not its own, and use it up; ValueError if it is none."""
        # Most documents have nothing new, which is found out at once for all their fields.
        if not self._seen.issuperset(zip(document, map(type, document.values()), strict=True)):
            self._learn(document)
        if CREATED in document and not _is_time(document[CREATED]):
            raise ValueError("_creationTime is no time")
        for name, item in document.items():
            type_ = type(item)
            if type_ in _PLAIN:
                continue
            tag = _tag(item) if type_ is dict else ""
            if not tag:
                document[name] = _settled(item, 1)
            if type_ is dict and (name, tag) not in self._seen:
                self._see(name, tag, TAGS.get(tag, Kind.TEXT))
        return _text(document)

    def _learn(self, document: dict[str, Any]) -> None:
        for name in [name for name in document if not own(name)]:
            # It is never seen, so that it is looked for again.
            del document[name]
        for name, value in document.items():
            self._see(name, type(value), Kind.NULL if type(value) is dict else kind_of(value))

    def _see(self, name: str, how: type | str, kind: Kind) -> None:
        self._seen.add((name, how))
        self.fields[name] = join(self.fields.get(name, Kind.NULL), kind)


def encoded_text(encoded: object) -> str:
    """Return the text of a value; ValueError unless `decode` returns one for it."""
    return _text(_settled(encoded, 0))


def _text(settled: object) -> str:
    try:
        return orjson.dumps(settled, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError as error:
        # What UTF-8 has no form for is no text.
        raise ValueError(str(error)) from error


def _settled(encoded: Any, depth: int) -> Any:
    """Return a value so that the writer writes it as we do; ValueError unless `decode` returns one for it."""
    type_ = type(encoded)
    if type_ is float and (_LEAST <= encoded < _BEYOND or -_BEYOND < encoded <= -_LEAST):
        return encoded
    if type_ is float or type_ is int:
        return _number(encoded)
    if type_ in _PLAIN or (type_ is dict and _tag(encoded)):
        return encoded
    if type_ is not list and type_ is not dict:
        raise ValueError(f"no value of Convex: {type_.__name__}")
    if depth >= DEEPEST and encoded:
        raise ValueError("a value nests too deep")
    if type_ is list:
        return [item if type(item) in _PLAIN else _settled(item, depth + 1) for item in encoded]
    return {name: item if type(item) in _PLAIN else _settled(item, depth + 1) for name, item in encoded.items()}


def _number(number: float) -> float | orjson.Fragment:
    value = in_range(number)
    plain = value == 0 or _LEAST <= abs(value) < _BEYOND
    return value if plain else orjson.Fragment(repr(value))


def _tag(encoded: dict[str, Any]) -> str:
    """Return the tag of a value that JSON has no form for, empty if it is none; ValueError if it cannot be right."""
    if len(encoded) != 1:
        return ""
    ((tag, payload),) = encoded.items()
    if tag not in TAGS:
        if tag in REMOVED:
            raise ValueError(f'"{tag}" is no type of Convex any more')
        return ""
    # Only as much as it takes to see that it is right, because there are many; `tagged` says what is wrong with others.
    try:
        if tag == "$float":
            right = payload in _FLOATS
        else:
            right = len(a2b_base64(payload, strict_mode=True)) == 8 or tag == "$bytes"
    except (ValueError, TypeError):
        right = False
    if not right:
        tagged(tag, payload)
    return tag


def _is_time(value: Any) -> bool:
    return type(value) in (float, int) and 0 <= value < _END_OF_TIME
