"""The row of a change log: what Spark's Kafka source gives, so that every transport opens alike.

`topic` ends in the qualified table name, `offset` is the log's own order, `value` is the message. The
header `schema` carries the fingerprint of the writer's schema where the transport knows it.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

SCHEMA_HEADER = "schema"

COLUMNS = ("topic", "partition", "offset", "key", "value", "timestamp", "headers")

ARROW = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)

SPARK = (
    "topic string, partition int, offset bigint, key binary, value binary, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)

PARTIAL = "partial"
"""Some messages leave columns out (`unchanged`)."""
TRUNCATE = "truncate"
"""Some messages are truncates."""

MOVED = "moved"
"""Some messages that leave columns out are creates of changed keys."""

BEFORE = "before"
"""Some updates carry the row as it was, which may have had another key."""


def features(values: pa.ChunkedArray) -> frozenset[str]:
    """Say what is special about some of our own messages, so that a reader plans for it before reading.

    It may claim too much (a column's text may look like a message), never too little.
    """
    found = set()
    partial = pc.match_substring(values, '"unchanged":["')
    if pc.any(partial).as_py():
        found.add(PARTIAL)
        if pc.any(pc.match_substring(pc.filter(values, partial), '"old_key":{')).as_py():
            found.add(MOVED)
    if pc.any(pc.starts_with(values, '{"op":"t"')).as_py():
        found.add(TRUNCATE)
    if pc.any(pc.starts_with(values, '{"op":"u","before":{')).as_py():
        found.add(BEFORE)
    return frozenset(found)
