"""From the engine's description of a row to our table: which type a column has and how its value is written.

`type` is Spark SQL's name, `encoding` the wire form that `envelopes.debezium` decodes. A type that cannot be
stored exactly becomes text, never a rounded number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tailrace.core.table import Column, Scalar, Table

_PLAIN = {
    "int8": "smallint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float32": "float",
    "float64": "double",
    "boolean": "boolean",
    "string": "string",
    "bytes": "binary",
}

_SEMANTIC = {
    "io.debezium.time.Date": ("date", "date-days"),
    "io.debezium.time.MicroTimestamp": ("timestamp_ntz", "timestamp-micros"),
    "io.debezium.time.ZonedTimestamp": ("timestamp", "timestamp-iso"),
    "io.debezium.time.MicroTime": ("string", "time-micros"),
}

MOST_DIGITS = 38
"""The most digits that a decimal of Spark holds."""


def table_of(described: Mapping[str, Any]) -> Table:
    """Return the table that a description from `Consumer.java` stands for."""
    columns = tuple(_column(column) for column in described["columns"])
    return Table(str(described["table"]), columns, tuple(str(key) for key in described["keys"]))


def _column(described: Mapping[str, Any]) -> Column:
    kind, encoding = _type(described, described.get("parameters", {}))
    return Column(described["name"], kind, bool(described["optional"]), encoding, _default(described, encoding))


def _type(described: Mapping[str, Any], parameters: Mapping[str, str]) -> tuple[str, str]:
    if described["text"]:
        return "string", ""
    if element := described.get("element"):
        kind, encoding = _type(element, {**parameters, **element.get("parameters", {})})
        return f"array<{kind}>", f"array:{encoding}" if encoding else ""
    if semantic := _SEMANTIC.get(described["semantic"]):
        return semantic
    kind = _PLAIN.get(str(described["type"]).lower(), "string")
    if kind == "string":
        return _decimal(parameters)
    return kind, "base64" if kind == "binary" else ""


def _decimal(parameters: Mapping[str, str]) -> tuple[str, str]:
    declared = parameters.get("__debezium.source.column.type", "")
    precision = int(parameters.get("__debezium.source.column.length", "0"))
    scale = int(parameters.get("__debezium.source.column.scale", "0"))
    if re.fullmatch(r"_?(NUMERIC|DECIMAL)", declared) and 0 < precision <= MOST_DIGITS and 0 <= scale <= precision:
        return f"decimal({precision},{scale})", "decimal-text"
    return "string", ""


def _default(described: Mapping[str, Any], encoding: str) -> Scalar:
    value = described.get("default")
    if encoding not in ("", "decimal-text") or not isinstance(value, str | int | float | bool):
        return None
    # NaN and the infinities travel as text; as a default they would be taken for it.
    return None if isinstance(value, str) and str(described["type"]).startswith("float") else value
