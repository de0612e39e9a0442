"""The types of JSON rows that bring no schema along: inferred once, then only widened.

A type that was seen is kept for good, so that a column never flips with what a slice happens to hold. An
object, or anything in which one lies, is kept as its JSON text, which loses nothing.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DataType, StructType

from tailrace.core.errors import Halt
from tailrace.core.nested import element_of
from tailrace.core.table import Column, Table, widens
from tailrace.spark.classes import java_class


def inferred(rows: DataFrame) -> dict[str, str]:
    """Return the type of each column that has any value in `rows`, whose only column is JSON text."""
    session: Any = rows.sparkSession
    texts = getattr(rows._jdf, "as")(java_class(session, "org.apache.spark.sql.Encoders").STRING())
    reader = session._jsparkSession.read().option("dropFieldIfAllNull", "true")
    found = StructType.fromJson(json.loads(reader.json(texts).schema().json()))
    return {field.name: _plain(field.dataType) for field in found.fields if field.name != "_corrupt_record"}


def _plain(kind: DataType) -> str:
    if isinstance(kind, ArrayType) and not isinstance(kind.elementType, ArrayType | StructType):
        return f"array<{_plain(kind.elementType)}>"
    return "string" if isinstance(kind, ArrayType | StructType) else kind.simpleString()


def widened(
    have: Table | None, found: dict[str, str], name: str, keys: tuple[str, ...], *, firmly: bool = False
) -> Table:
    """Return the table that holds what `have` held and what was `found` now.

    A type that does not go together with what it was halts; `firmly` keeps what it was, and whoever reads the rows
    rejects the values that are none.
    """
    columns = {column.name: column.type for column in have.columns} if have else {}
    for column, kind in found.items():
        try:
            columns[column] = (
                _join(columns[column], kind, f'column "{column}" of table "{name}"') if column in columns else kind
            )
        except Halt:
            if not firmly:
                raise
    return Table(
        name, tuple(Column(column, kind) for column, kind in columns.items()), keys or (have.keys if have else ())
    )


def _join(old: str, new: str, what: str) -> str:
    if old in (new, "string") or (old == "double" and new.startswith(("bigint", "decimal"))):
        return old
    element, other = element_of(old), element_of(new)
    if element is not None and other is not None:
        return f"array<{_join(element, other, what)}>"
    if widens(old, new):
        return new
    if widens(new, old):
        return old
    raise Halt(
        "type-changed",
        f"{what} was {old} in every message before and is {new} now",
        "The messages carry no schema, so its type was learned from them. Have the writer send one type, or send "
        "schemas along (value.converter.schemas.enable, or Avro with a registry), and write to a new target table.",
    )
