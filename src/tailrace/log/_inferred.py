"""The types of JSON rows that bring no schema along: inferred once, then only widened.

A type that was seen is kept for good, so that a column never flips with what a slice happens to hold: a value that
is none of it is for whoever reads the rows to reject. An object, or anything in which one lies, is kept as its JSON
text, which loses nothing.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.core.nested import element_of
from tailrace.core.table import Column, Table, widens
from tailrace.spark.classes import java_class


def inferred(rows: DataFrame) -> dict[str, str]:
    """Return the type of each column that has any value in `rows`, whose only column is JSON text."""
    session: Any = rows.sparkSession
    texts = getattr(rows._jdf, "as")(java_class(session, "org.apache.spark.sql.Encoders").STRING())
    reader = session._jsparkSession.read().option("dropFieldIfAllNull", "true")
    # What lies inside of objects is not asked for: it may be a thousand levels deep, which Python does not follow.
    fields = reader.json(texts).schema().fields()
    return {field.name(): _plain(field.dataType()) for field in fields if field.name() != "_corrupt_record"}


_DEEP = ("array", "struct")

_TEXT = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_WHOLE = "-?[0-9]{1,18}+"
_TOLD = {
    "bigint": _WHOLE,
    "double": rf"{_WHOLE}(?:\.[0-9]++)?+(?:[eE][+-]?+[0-9]++)?+",
    "boolean": "(?:true|false)",
    "string": _TEXT,
}
"""How values are written, in JSON without spaces, that tell nothing new of a column of this type."""


def nothing_new(have: Table) -> str:
    """Return a pattern for rows, in JSON without spaces, that tell no more of types than `have` knows.

    Matching is much cheaper than inferring. The pattern may miss a row, which then is inferred from; it never matches
    one that would change a type. Nothing in it gives back what it has taken, so no row can make it slow.
    """
    names: dict[str, list[str]] = {}
    for column in have.columns:
        names.setdefault(_told(column.type), []).append(_quoted(column.name))
    pairs = "|".join(f"(?:{'|'.join(alike)}):(?:{value}|null)" for value, alike in names.items())
    return rf"^\{{(?:(?:{pairs})(?:,|(?=\}})))*+\}}$"


def _told(kind: str) -> str:
    element = element_of(kind)
    value = _TOLD.get(element or kind, "null")
    return value if element is None else rf"\[(?:(?:{value}|null)(?:,|(?=\])))*+\]"


def _quoted(name: str) -> str:
    """Return `name` as it stands in JSON, for a pattern."""
    return re.sub(r"([^\w ])", r"\\\1", json.dumps(name, ensure_ascii=False))


def named(rows: DataFrame) -> set[str]:
    """Return every name in `rows`, whose only column is JSON text, also those that never have a value."""
    return {row[0] for row in rows.select(F.explode(F.json_object_keys("row"))).distinct().collect()}


def _plain(kind: Any) -> str:
    """Return what a column of Spark's type `kind` is kept as."""
    if kind.typeName() == "array" and (element := kind.elementType()).typeName() not in _DEEP:
        return f"array<{element.simpleString()}>"
    return "string" if kind.typeName() in _DEEP else str(kind.simpleString())


def widened(have: Table | None, found: dict[str, str], name: str, keys: tuple[str, ...]) -> Table:
    """Return the table that holds what `have` held and what was `found` now, as far as that goes together."""
    columns = {column.name: column.type for column in have.columns} if have else {}
    for column, kind in found.items():
        columns[column] = _join(columns[column], kind) or columns[column] if column in columns else kind
    return Table(
        name, tuple(Column(column, kind) for column, kind in columns.items()), keys or (have.keys if have else ())
    )


def _join(old: str, new: str) -> str | None:
    """Return the type that holds what both hold; `None` if there is none."""
    if old in (new, "string") or (old == "double" and new.startswith(("bigint", "decimal"))):
        return old
    element, other = element_of(old), element_of(new)
    if element is not None and other is not None:
        joined = _join(element, other)
        return joined and f"array<{joined}>"
    return new if widens(old, new) else old if widens(new, old) else None
