"""Rows that a capture writes to the log by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa

from tailrace.envelopes.rows import ARROW


def reset_rows(topic_prefix: str, tables: Mapping[str, object], place: Mapping[str, object]) -> pa.Table:
    """Return one row per table that says: what the target has of it is void, the snapshot starts it anew.

    `place` is the lowest place that the source has, as its messages write it.
    """
    value = json.dumps(
        {"op": "t", "before": None, "after": None, "source": {**place, "ts_ms": 0, "snapshot": True}},
        separators=(",", ":"),
    )
    count = len(tables)
    schema = pa.schema([ARROW.field(name) for name in ("topic", "key", "value", "timestamp", "headers")])
    columns = [
        [f"{topic_prefix}.{table}" for table in tables],
        [None] * count,
        [value.encode()] * count,
        [0] * count,
        [[] for _ in tables],
    ]
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def no_rows() -> pa.Table:
    """Return a page's worth of nothing."""
    return reset_rows("", {}, {})
