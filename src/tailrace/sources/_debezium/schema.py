"""From the engine's description of a row to our table: which type a column has and how its value is written.

`type` is Spark SQL's name, `encoding` the wire form that `envelopes.debezium` decodes. A type that cannot be
stored exactly becomes text, never a rounded number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.core.table import Column, Scalar, Table
from tailrace.envelopes.connect import DECIMAL, JSON, PLAIN, SEMANTIC, declared_decimal


def table_of(described: Mapping[str, Any]) -> Table:
    """Return the table that a description from `Consumer.java` stands for."""
    columns = tuple(_column(column) for column in described["columns"])
    return Table(str(described["table"]), columns, tuple(str(key) for key in described["keys"]))


def _column(described: Mapping[str, Any]) -> Column:
    kind, encoding = _type(described, described.get("parameters", {}))
    optional, json = bool(described["optional"]), described["semantic"] == JSON
    return Column(described["name"], kind, optional, encoding, _default(described, encoding), json)


def _type(described: Mapping[str, Any], parameters: Mapping[str, str]) -> tuple[str, str]:
    if described["text"]:
        return "string", ""
    if element := described.get("element"):
        kind, encoding = _type(element, {**parameters, **element.get("parameters", {})})
        return f"array<{kind}>", f"array:{encoding}" if encoding else ""
    if described["semantic"] == DECIMAL:
        # Of the embedded engine only numbers without a sign come so, which a bigint does not hold.
        return "decimal(20,0)", "decimal-text"
    if semantic := SEMANTIC.get(described["semantic"]):
        return semantic
    kind = PLAIN.get(str(described["type"]).lower(), "string")
    if kind == "string":
        return declared_decimal(parameters)
    return kind, "base64" if kind == "binary" else ""


def _default(described: Mapping[str, Any], encoding: str) -> Scalar:
    value = described.get("default")
    if encoding not in ("", "decimal-text") or not isinstance(value, str | int | float | bool):
        return None
    # NaN and the infinities travel as text; as a default they would be taken for it.
    return None if isinstance(value, str) and str(described["type"]).startswith("float") else value
