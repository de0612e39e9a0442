"""Convex values as Python has them, and the three ways in which the server writes them.

    None, bool, int (int64), float (float64), str, bytes, list, dict

`json` is readable and loses types; `convex_encoded_json` loses nothing; `export_json` loses nothing to a
reader that knows the types. Written apart from the code that reads these formats, so that the two can
disagree in a test.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Mapping, Sequence

Value = None | bool | int | float | str | bytes | list["Value"] | dict[str, "Value"]
Document = dict[str, Value]

FORMATS = {
    "json": "json",
    "convex_clean_json": "json",
    "convex_encoded_json": "encoded",
    "convex_json": "encoded",
    "export_json": "export",
}
"""What a caller may ask for, and which encoding that is."""


def encode(value: Value, encoding: str) -> object:
    """Return `value` as something that `json.dumps` writes in the given encoding."""
    match value:
        case bool() | None | str():
            return value
        case int():
            return _int64(value, encoding)
        case float():
            return _float64(value, encoding)
        case bytes():
            text = base64.b64encode(value).decode()
            return text if encoding == "json" else {"$bytes": text}
        case list():
            return [encode(item, encoding) for item in value]
        case _:
            return {name: encode(value[name], encoding) for name in sorted(value)}


def _int64(value: int, encoding: str) -> object:
    if encoding == "json":
        return str(value)
    return value if encoding == "export" else {"$integer": base64.b64encode(struct.pack("<q", value)).decode()}


def _float64(value: float, encoding: str) -> object:
    negative_zero = value == 0 and math.copysign(1, value) < 0
    if math.isfinite(value) and not (negative_zero and encoding == "encoded"):
        return value
    if encoding == "json":
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return {"$float": base64.b64encode(struct.pack("<d", value)).decode()}


def schema(values: list[Value], encoding: str) -> dict[str, object]:
    """Return the JSON schema that the server infers from `values` of one place, which are not none."""
    kinds = {_KINDS[type_] for type_ in set(map(type, values))}
    found = [_fragment(kind, values, encoding) for kind in sorted(kinds)]
    return found[0] if len(found) == 1 else {"anyOf": found}


def object_schema(documents: Sequence[Mapping[str, Value]], encoding: str) -> dict[str, object]:
    """Return the schema of objects seen so far: a field that some of them lack is not required."""
    held: dict[str, list[Value]] = {}
    for document in documents:
        for name, value in document.items():
            held.setdefault(name, []).append(value)
    return fields_schema(held, [name for name in sorted(held) if len(held[name]) == len(documents)], encoding)


def fields_schema(held: Mapping[str, list[Value]], required: list[str], encoding: str) -> dict[str, object]:
    """Return the schema of objects whose fields have been seen to hold these values."""
    return {
        "type": "object",
        "properties": {name: schema(held[name], encoding) for name in sorted(held)},
        "additionalProperties": False,
        "required": required,
    }


_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "int64",
    float: "float64",
    str: "string",
    bytes: "bytes",
    list: "array",
    dict: "object",
}
_PLAIN: dict[tuple[str, str], dict[str, object]] = {
    ("int64", "export"): {"type": "number", "$description": "int64"},
    ("int64", "json"): {"type": "string", "$description": "int64 represented as a base10 string"},
    ("bytes", "json"): {"type": "string", "$description": "base64-encoded bytes"},
}


def _fragment(kind: str, values: list[Value], encoding: str) -> dict[str, object]:
    tagged = {"int64": "$integer", "bytes": "$bytes", "float64": "$float"}.get(kind, "")
    wrapped = {"type": "object", "properties": {tagged: {"type": "string"}}, "additionalProperties": False}
    match kind:
        case "null" | "boolean" | "string":
            return {"type": kind}
        case "int64" | "bytes":
            return _PLAIN.get((kind, encoding), wrapped)
        case "float64":
            floats = [value for value in values if isinstance(value, float)]
            if all(isinstance(_float64(value, encoding), float) for value in floats):
                return {"type": "number"}
            other: dict[str, object] = {"type": "string"} if encoding == "json" else wrapped
            return {"anyOf": [{"type": "number"}, other], "$description": "float64"}
        case "array":
            items = [item for value in values if isinstance(value, list) for item in value]
            return {"type": "array", "items": schema(items, encoding) if items else {}}
        case _:
            return object_schema([value for value in values if isinstance(value, dict)], encoding)
