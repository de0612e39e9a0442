"""Documents of Convex as they are read: checked, typed and written as text in one walk, because there are many.

A text is JSON with sorted names, without spaces, and with every number as a float: equal documents have equal texts,
and nothing of them is lost. It is written here piece by piece, which takes a fraction of what a general writer does.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Mapping
from json.encoder import encode_basestring as quoted
from typing import Any

from tailrace.core.convex import (
    CREATED,
    DEEPEST,
    REMOVED,
    TAGS,
    Fields,
    Kind,
    in_range,
    join,
    kind_of,
    own,
    tagged,
)

_END_OF_TIME = 253_402_300_800_000.0
"""The year 10000, in milliseconds."""
_FLOATS = frozenset({"AAAAAAAAAIA=", "AAAAAAAA+H8=", "AAAAAAAA8H8=", "AAAAAAAA8P8="})
"""The payloads of -0.0, NaN and the infinities as they usually come."""
# To look a member of an enumeration up takes as long as to write a field.
_NULL, _BOOLEAN, _FLOAT64, _STRING, _TEXT = Kind.NULL, Kind.BOOLEAN, Kind.FLOAT64, Kind.STRING, Kind.TEXT


class Documents:
    """Reads documents of one table, one after the other; `fields` says what they held so far."""

    __slots__ = ("_names", "fields")

    def __init__(self) -> None:
        self.fields: Fields = {}
        self._names: dict[str, str] = {}

    def read(self, document: Mapping[str, Any]) -> str:
        """Return the text of a document, without names that are not its own; ValueError if it is none."""
        fields, names, parts = self.fields, self._names, []
        for name in sorted(document):
            item, known = document[name], fields.get(name)
            if known is None and not own(name):
                continue
            type_ = type(item)
            if type_ is str:
                kind, text = _STRING, quoted(item)
            elif type_ is float and item - item == 0:
                kind, text = _FLOAT64, repr(item)
            elif type_ is dict and len(item) == 1 and (tag := next(iter(item))) in TAGS:
                kind, text = TAGS[tag], _tagged_text(tag, item[tag])
            elif item is None:
                kind, text = _NULL, "null"
            elif type_ is bool:
                kind, text = _BOOLEAN, "true" if item else "false"
            else:
                kind, text = kind_of(item), encoded_text(item, 1)
            if kind is not known and known is not _TEXT and (kind is not _NULL or known is None):
                fields[name] = join(known or _NULL, kind)
                names[name] = f"{quoted(name)}:"
            parts.append(names[name] + text)
        if CREATED in document and not _is_time(document[CREATED]):
            raise ValueError("_creationTime is no time")
        text = "{" + ",".join(parts) + "}"
        if not text.isascii():
            # What UTF-8 has no form for is no text.
            text.encode()
        return text


def encoded_text(encoded: Any, depth: int = 0) -> str:
    """Return the text of a value; ValueError unless `decode` returns one for it."""
    if depth > DEEPEST:
        raise ValueError("a value nests too deep")
    type_ = type(encoded)
    if type_ is dict:
        if len(encoded) == 1:
            ((tag, payload),) = encoded.items()
            if tag in TAGS:
                return _tagged_text(tag, payload)
            if tag in REMOVED:
                raise ValueError(f'"{tag}" is no type of Convex any more')
        parts = [f"{quoted(name)}:{encoded_text(encoded[name], depth + 1)}" for name in sorted(encoded)]
        return "{" + ",".join(parts) + "}"
    if type_ is list:
        return "[" + ",".join([encoded_text(item, depth + 1) for item in encoded]) + "]"
    if type_ is str:
        return quoted(encoded)
    if encoded is None:
        return "null"
    if type_ is bool:
        return "true" if encoded else "false"
    # Of a number that has no end, or is none, the difference to itself is none either.
    if type_ is float and encoded - encoded == 0:
        return repr(encoded)
    if type_ is float or type_ is int:
        return repr(in_range(encoded))
    raise ValueError(f"no value of Convex: {type_.__name__}")


def _tagged_text(tag: str, payload: Any) -> str:
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
    # Base64, which it is by now, needs no escapes.
    return f'{{"{tag}":"{payload}"}}'


def _is_time(value: Any) -> bool:
    return type(value) in (float, int) and 0 <= value < _END_OF_TIME
