"""What rows that were there before a column was added have in it.

The engine tells a column's default as it is now, which those rows need not have: `DROP DEFAULT` and `SET DEFAULT` leave
them what they were given, and `now()` was asked once. The server keeps that value beside the column until something
writes the whole table anew; from then on the default of now is the best guess.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tailrace.core.table import Column, Scalar, Table
from tailrace.sources._postgres_server import Server

# Rows of a partitioned table lie in its partitions. A file that has the number of its table was never replaced.
_COLUMNS = """
SELECT n.nspname || '.' || c.relname, a.attname, CASE t.typtype WHEN 'e' THEN 'text' ELSE t.typname END,
       a.atthasmissing, (a.attmissingval::text::text[])[1], pg_relation_filenode(l.oid) = l.oid
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
  SELECT coalesce((SELECT relid FROM pg_partition_tree(c.oid) WHERE isleaf LIMIT 1), c.oid) AS oid
) l
JOIN pg_attribute a ON a.attrelid = l.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type d ON d.oid = a.atttypid JOIN pg_type t ON t.oid = coalesce(nullif(d.typbasetype, 0), d.oid)
WHERE c.relkind IN ('r', 'p') AND n.nspname || '.' || c.relname = ANY(%s)
"""

_TEXT = ("text", "varchar", "bpchar", "uuid", "json", "jsonb", "numeric")
_INTEGERS = ("int2", "int4", "int8")
_TIMES = {
    "date": "date-days",
    "time": "time-micros",
    "timestamp": "timestamp-micros",
    "timestamptz": "timestamp-iso",
}
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)?( ?\d\d:\d\d:\d\d(\.\d+)?(\+00)?)?")


def with_given(server: Server, tables: Sequence[Table]) -> list[Table]:
    """Return `tables` with what rows that were there have in columns that were added, as their defaults."""
    rows = server.execute(_COLUMNS, [[table.name for table in tables]]).fetchall()
    found: dict[str, dict[str, Any]] = {}
    for table, column, *given in rows:
        found.setdefault(table, {})[column] = given
    return [replace(table, columns=tuple(_columns(table, found.get(table.name, {})))) for table in tables]


def _columns(table: Table, found: Mapping[str, Any]) -> Iterator[Column]:
    for column in table.columns:
        kind, has, text, untouched = found.get(column.name, (None, False, None, False))
        if has:
            yield replace(column, default=_value(column, kind, text))
        else:
            yield replace(column, default=None) if untouched and column.nullable else column


def _value(column: Column, kind: str, text: str) -> Scalar:
    if kind == "bool":
        return text == "t"
    if kind in _INTEGERS:
        return int(text)
    if kind in ("float4", "float8"):
        number = float(text)
        return number if math.isfinite(number) else None
    if kind in _TEXT and column.encoding in ("", "decimal-text"):
        return text
    if kind in _TIMES and column.encoding == _TIMES[kind] and _TIME.fullmatch(text):
        return text
    return column.default
