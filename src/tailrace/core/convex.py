"""Convex values: read from the encoding that loses nothing, typed, and written as text in one way only.

A document arrives as `convex_encoded_json`: JSON in which an object with exactly one of the keys `$integer`,
`$float`, `$bytes` stands for a value that JSON has no form for, and in which every number is a float64.

A *kind* is what a column can hold. Kinds form a lattice: nothing but null, then the five scalar kinds, then
text, which holds everything. Two different scalar kinds meet in text, because neither holds the other exactly.

                 text
      ┌───────┬───┴───┬────────┬───────┐
    boolean int64  float64  string   bytes
      └───────┴───┬───┴────────┴───────┘
                 null
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import struct
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from tailrace.core.table import Column, Table

ID, CREATED = "_id", "_creationTime"
"""The two system fields that are a document's own; every other top-level name with an underscore is not."""

_OWN = (ID, CREATED)
REMOVED = ("$set", "$map")
DEEPEST = 64
"""Convex nests 16 levels; an answer with many more is not one of Convex."""


class Kind(StrEnum):
    """What a top-level field holds."""

    NULL = "null"
    BOOLEAN = "boolean"
    INT64 = "int64"
    FLOAT64 = "float64"
    STRING = "string"
    BYTES = "bytes"
    TEXT = "text"
    """Arrays, objects, and fields of several kinds: strings as they are, everything else as JSON."""


TAGS = {"$integer": Kind.INT64, "$float": Kind.FLOAT64, "$bytes": Kind.BYTES}
"""What an object with exactly one of these keys stands for."""
_TEXT = Kind.TEXT


def decode(encoded: object, depth: int = 0) -> object:
    """Return the value that `encoded` stands for: int for int64, float for float64; ValueError if it is none."""
    if depth > DEEPEST:
        raise ValueError("a value nests too deep")
    match encoded:
        case None | bool() | str():
            return encoded
        case int() | float():
            return in_range(encoded)
        case list():
            return [decode(item, depth + 1) for item in encoded]
        case dict():
            tag = next(iter(encoded)) if len(encoded) == 1 else ""
            if tag in TAGS:
                return tagged(tag, encoded[tag])
            if tag in REMOVED:
                raise ValueError(f'"{tag}" is no type of Convex any more')
            return {str(name): decode(item, depth + 1) for name, item in encoded.items()}
        case _:
            raise ValueError(f"no value of Convex: {type(encoded).__name__}")


def in_range(number: float) -> float:
    """Return a number of JSON as the float64 that it is; ValueError if it is none."""
    try:
        value = float(number)
    except OverflowError as error:
        raise ValueError("a number is beyond float64") from error
    if math.isinf(value) or math.isnan(value):
        raise ValueError("a number is beyond float64")
    return value


def tagged(tag: str, payload: object) -> object:
    """Return the value that an object of only this tag and payload stands for; ValueError if it is none."""
    if not isinstance(payload, str):
        raise ValueError(f'"{tag}" holds no text')
    try:
        raw = binascii.a2b_base64(payload, strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f'"{tag}" holds no base64') from error
    if tag == "$bytes":
        return raw
    if len(raw) != 8:
        raise ValueError(f'"{tag}" holds {len(raw)} bytes instead of 8')
    if tag == "$integer":
        return int.from_bytes(raw, "little", signed=True)
    value: float = struct.unpack("<d", raw)[0]
    if math.isfinite(value) and value != 0:
        raise ValueError('"$float" holds a number that has a form of its own')
    return value


def clean_text(value: object) -> str:
    """Return a decoded value as JSON that people and SQL read: int64 as digits, bytes as base64, in strings."""
    return _json(_clean(value))


def shown(value: object) -> str | None:
    """Return a decoded value as a column of kind `text` holds it; null is null."""
    match value:
        case None:
            return None
        case str():
            return value
        case int() if not isinstance(value, bool):
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case float() if not math.isfinite(value):
            return str(_clean(value))
        case _:
            return clean_text(value)


def _clean(value: object) -> object:
    match value:
        case None | bool() | str():
            return value
        case int():
            return str(value)
        case float():
            special = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            return value if math.isfinite(value) else special
        case bytes():
            return base64.b64encode(value).decode()
        case list():
            return [_clean(item) for item in value]
        case dict():
            return {name: _clean(item) for name, item in value.items()}
        case _:
            raise ValueError(f"no value of Convex: {type(value).__name__}")


# What is written here came from JSON, or was walked to its bounded depth: it does not contain itself.
_json = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=False
).encode


def created_at(milliseconds: object) -> datetime:
    """Return the time of `_creationTime`, cut to microseconds; ValueError if it is no such time."""
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float) or not milliseconds >= 0:
        raise ValueError("_creationTime is no time")
    whole, rest = divmod(in_range(milliseconds), 1000.0)
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=int(whole), microseconds=int(rest * 1000))
    except OverflowError as error:
        raise ValueError("_creationTime is no time") from error


# -- kinds


_SIMPLE: dict[type, Kind] = {
    type(None): Kind.NULL,
    bool: Kind.BOOLEAN,
    int: Kind.FLOAT64,
    float: Kind.FLOAT64,
    str: Kind.STRING,
}


def kind_of(encoded: object) -> Kind:
    """Return the kind of a field that holds `encoded`, which `decode` accepts."""
    if (simple := _SIMPLE.get(type(encoded))) is not None:
        return simple
    if isinstance(encoded, dict) and len(encoded) == 1:
        return TAGS.get(next(iter(encoded)), _TEXT)
    return _TEXT


def join(one: Kind, other: Kind) -> Kind:
    """Return the least kind that holds what both hold."""
    if one is other or other is Kind.NULL:
        return one
    return other if one is Kind.NULL else Kind.TEXT


Fields = dict[str, Kind]
"""The fields of a table that were seen so far, each with its kind."""


def own(name: str) -> bool:
    """Say whether a top-level field belongs to the document, and not to the way it travels."""
    return not name.startswith("_") or name in _OWN


def widened(fields: Mapping[str, Kind], document: Mapping[str, object]) -> Fields:
    """Return `fields` with what `document`, still encoded, adds to them."""
    seen = {name: kind_of(value) for name, value in document.items() if own(name)}
    return {**fields, **{name: join(fields.get(name, Kind.NULL), kind) for name, kind in seen.items()}}


def fields_of(schema: object) -> Fields:
    """Return the fields that a table's JSON schema, of the encoding that loses nothing, speaks of.

    The schema tells what was seen so far. What it does not explain may be anything, and is text.
    """
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return {}
    return {str(name): _kind_in(fragment) for name, fragment in properties.items() if own(str(name))}


def _kind_in(fragment: object) -> Kind:
    match fragment:
        case False:
            return Kind.NULL
        case {"anyOf": list(parts)}:
            found = Kind.NULL
            for part in parts:
                found = join(found, _kind_in(part))
            return found
        case {"type": "string" | "boolean" | "null" as name}:
            return Kind(name)
        case {"type": "number" | "integer"}:
            return Kind.FLOAT64
        case {"type": "object", "properties": {"$integer": _, **others}} if not others:
            return Kind.INT64
        case {"type": "object", "properties": {"$float": _, **others}} if not others:
            return Kind.FLOAT64
        case {"type": "object", "properties": {"$bytes": _, **others}} if not others:
            return Kind.BYTES
        case _:
            return Kind.TEXT


def fingerprint(schema: object) -> str:
    """Return a short text that differs when a JSON schema differs in more than words and order."""
    return hashlib.sha256(_json(_normal(schema)).encode()).hexdigest()[:16]


def _normal(schema: object) -> object:
    match schema:
        case dict():
            kept = {name: _normal(part) for name, part in schema.items() if name not in ("$description", "$schema")}
            for name in ("anyOf", "required"):
                parts = kept.get(name)
                if isinstance(parts, list):
                    kept[name] = sorted(parts, key=_json)
            return kept
        case list():
            return [_normal(part) for part in schema]
        case _:
            return schema


# -- tables

_TYPES = {
    Kind.BOOLEAN: "boolean",
    Kind.INT64: "bigint",
    Kind.FLOAT64: "double",
    Kind.STRING: "string",
    Kind.BYTES: "binary",
    Kind.TEXT: "string",
}


def is_stored(type_: str) -> bool:
    """Say whether a column of this type may have been made for a field."""
    return type_ in _TYPES.values()


def kind_stored(type_: str) -> Kind:
    """Return the kind of values that a column of this type was made for."""
    return next(kind for kind, known in _TYPES.items() if known == type_)


_OF = " of "
"""Stands in the encoding of a column between its kind and its field, where that has another name."""


def table(name: str, fields: Mapping[str, Kind], taken: Collection[str] | None = None) -> Table:
    """Return the shape of a table with these fields: `_id` first, `_creationTime` last, the others by name.

    A field that has only ever been null has no type yet, and no column. A shape for a target, which has taken the names
    `taken`, has no two columns that differ only in case; one that tells what was seen may have.
    """
    typed = {field: kind for field, kind in fields.items() if kind is not Kind.NULL and field not in (ID, CREATED)}
    columns = [Column(ID, "string", nullable=False, encoding=Kind.STRING.value)]
    named = {field: field for field in typed} if taken is None else column_names(typed, taken)
    columns += [
        Column(named[field], _TYPES[kind], encoding=kind.value if named[field] == field else f"{kind}{_OF}{field}")
        for field, kind in sorted(typed.items())
    ]
    if CREATED in fields:
        columns.append(Column(CREATED, "timestamp", encoding="time"))
    return Table(name, tuple(columns), (ID,))


def column_names(fields: Iterable[str], taken: Collection[str]) -> dict[str, str]:
    """Return the column of each field: of fields that differ only in case one has its own name, as tables need it.

    That is the one whose name is `taken`, a column of the target, or else the first, small letters first. The others
    are called `_<field>_<digits>`, which no field is: those of a document do not begin so.
    """
    owners = {name.lower(): name for name in taken}
    names = {}
    for field in sorted(fields, key=str.swapcase):
        own = owners.setdefault(field.lower(), field) == field
        names[field] = field if own else f"_{field}_{hashlib.sha256(field.encode()).hexdigest()[:8]}"
    return names


def made_of(column: Column) -> tuple[str, str]:
    """Return the field that a column was made for, and the kind that its encoding speaks of."""
    word, of, field = column.encoding.partition(_OF)
    return (field if of else column.name), word


def fields_in(shape: Table) -> Fields:
    """Return the fields that `table` made this shape of."""
    known = (made_of(column) for column in shape.columns)
    return {field: Kind.FLOAT64 if word == "time" else Kind(word) for field, word in known}


def table_name(component: str, table: str) -> str:
    """Return the name of a table among those of all components; names have no dots, so no two are alike."""
    return f"{component}.{table}" if component else table


def all_fields(parts: Iterable[Mapping[str, Kind]]) -> Fields:
    """Return the fields that hold what every one of `parts` holds."""
    found: Fields = {}
    for part in parts:
        found |= {name: join(found.get(name, Kind.NULL), kind) for name, kind in part.items()}
    return found
