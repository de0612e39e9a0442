"""Kafka Connect's types as ours: which type a column has, and how its value is written in JSON.

A type that cannot be stored exactly becomes text, never a rounded number. One that has no meaning as a
column halts, with its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.core.errors import Halt
from tailrace.core.table import Column, Scalar, Table

PLAIN = {
    "int8": "smallint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float32": "float",
    "float64": "double",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "string": "string",
    "bytes": "binary",
}

SEMANTIC = {
    "io.debezium.time.Date": ("date", "date-days"),
    "io.debezium.time.MicroTimestamp": ("timestamp_ntz", "timestamp-micros"),
    "io.debezium.time.ZonedTimestamp": ("timestamp", "timestamp-iso"),
    "io.debezium.time.MicroTime": ("string", "time-micros"),
}
"""What the embedded engine, with its own settings, writes."""

_SEMANTIC = SEMANTIC | {
    "io.debezium.time.Timestamp": ("timestamp_ntz", "timestamp-millis"),
    "io.debezium.time.NanoTimestamp": ("timestamp_ntz", "timestamp-nanos"),
    "io.debezium.time.Time": ("string", "time-millis"),
    "io.debezium.time.NanoTime": ("string", "time-nanos"),
    "org.apache.kafka.connect.data.Date": ("date", "date-days"),
    "org.apache.kafka.connect.data.Timestamp": ("timestamp_ntz", "timestamp-millis"),
    "org.apache.kafka.connect.data.Time": ("string", "time-millis"),
    "io.debezium.data.VariableScaleDecimal": ("string", "decimal-variable"),
}
DECIMAL = "org.apache.kafka.connect.data.Decimal"
JSON = "io.debezium.data.Json"

MOST_DIGITS = 38
"""The most digits that a decimal of Spark holds."""


def table_of(name: str, fields: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> Table:
    """Return the table whose rows have `fields`, each as a schema block of Connect describes it."""
    return Table(name, tuple(_column(name, field) for field in fields), tuple(keys))


def image_of(block: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the fields of the row in the block of a Debezium message; a KeyError if it is another's."""
    parts = {field["field"]: field for field in block["fields"]}
    image: Sequence[Mapping[str, Any]] = parts["after"]["fields"]
    return image


def _column(table: str, field: Mapping[str, Any]) -> Column:
    name = str(field["field"])
    kind, encoding = _type(field, f'column "{name}" of table "{table}"')
    optional, json = bool(field.get("optional", False)), field.get("name") == JSON
    return Column(name, kind, optional, encoding, _default(field.get("default"), encoding), json)


def _type(field: Mapping[str, Any], what: str) -> tuple[str, str]:
    semantic, plain = str(field.get("name") or ""), str(field["type"])
    if semantic == DECIMAL:
        return _decimal(field.get("parameters") or {})
    if semantic in _SEMANTIC:
        return _SEMANTIC[semantic]
    if plain == "array":
        kind, encoding = _type(field["items"], what)
        return f"array<{kind}>", f"array:{encoding}" if encoding else ""
    if plain == "map":
        key, value = _type(field["keys"], what), _type(field["values"], what)
        if not key[1] and not value[1]:
            return f"map<{key[0]},{value[0]}>", ""
    if plain not in PLAIN:
        raise Halt(
            "unsupported-type",
            f"{what} is a {semantic or plain}, which no table here can hold",
            "Leave it out in the connector (column.exclude.list), or have the connector write it as text.",
        )
    if plain == "string" and not semantic:
        return declared_decimal(field.get("parameters") or {})
    return PLAIN[plain], "base64" if plain == "bytes" else ""


def _decimal(parameters: Mapping[str, str]) -> tuple[str, str]:
    scale, precision = int(parameters["scale"]), int(parameters.get("connect.decimal.precision", "0"))
    exact = 0 < precision <= MOST_DIGITS and 0 <= scale <= precision
    return f"decimal({precision},{scale})" if exact else "string", f"decimal-bytes:{scale}"


def _default(value: object, encoding: str) -> Scalar:
    return value if not encoding and isinstance(value, str | int | float | bool) else None


def declared_decimal(parameters: Mapping[str, str]) -> tuple[str, str]:
    """Return the type of a decimal that is written as text, if the source's own declaration is there."""
    declared = parameters.get("__debezium.source.column.type", "")
    precision = int(parameters.get("__debezium.source.column.length", "0"))
    scale = int(parameters.get("__debezium.source.column.scale", "0"))
    if (
        re.fullmatch(r"_?(NUMERIC|DECIMAL)( UNSIGNED)?( ZEROFILL)?", declared)
        and 0 < precision <= MOST_DIGITS
        and 0 <= scale <= precision
    ):
        return f"decimal({precision},{scale})", "decimal-text"
    return "string", ""
