"""Spark's types by name, as `core.nested` takes them apart and as SQL reads them."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from tailrace.core.nested import struct


def kind_of(of: DataType) -> str:
    """Return the name of a type; fields whose names are not plain are quoted, which Spark's own name does not do."""
    if isinstance(of, StructType):
        return struct({field.name: kind_of(field.dataType) for field in of})
    if isinstance(of, ArrayType):
        return f"array<{kind_of(of.elementType)}>"
    if isinstance(of, MapType):
        return f"map<{kind_of(of.keyType)},{kind_of(of.valueType)}>"
    return of.simpleString()
