"""Spark's types by name, as `core.nested` takes them apart and as SQL reads them."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructField, StructType

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


def twins(of: DataType) -> Iterator[tuple[str, str]]:
    """Yield fields of one struct, anywhere inside, that have one name or names that differ only in case."""
    if isinstance(of, StructType):
        seen: dict[str, str] = {}
        for field in of:
            if other := seen.get(field.name.lower()):
                yield other, field.name
            seen[field.name.lower()] = field.name
            yield from twins(field.dataType)
    elif isinstance(of, ArrayType):
        yield from twins(of.elementType)
    elif isinstance(of, MapType):
        yield from (*twins(of.keyType), *twins(of.valueType))


def holds_void(of: DataType) -> bool:
    """Say whether `of` is, or has anywhere inside, the type of a NULL that was given none."""
    if isinstance(of, StructType):
        return any(holds_void(field.dataType) for field in of)
    if isinstance(of, ArrayType):
        return holds_void(of.elementType)
    if isinstance(of, MapType):
        return holds_void(of.keyType) or holds_void(of.valueType)
    return isinstance(of, NullType)


def numbered(of: DataType) -> DataType:
    """Return the type that values of the type `of` can be cast to whose fields are called by their numbers."""
    if isinstance(of, StructType):
        return StructType([StructField(f"f{n}", numbered(field.dataType)) for n, field in enumerate(of)])
    if isinstance(of, ArrayType):
        return ArrayType(numbered(of.elementType), of.containsNull)
    return of
