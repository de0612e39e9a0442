"""What is sent for a change: its body as a column expression, its id, and its signature.

    {"key": {...}, "value": {"op", "before", "after", "ts_ms", "source", "unchanged"},
     "metadata": {"topic", "partition", "offset"}}

The id depends on the place of the change in its log and on nothing else, so it is the same however often the change is
sent. The signature is that of Standard Webhooks, version 1.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.apply.engine import OFFSET, OP, PARTITION, POSITION, TOPIC, column
from tailrace.core.change import Op
from tailrace.core.table import Table
from tailrace.targets._events import JSON, key_of, value_of

Place = tuple[str, str, int, int, int]
"""Position, topic, partition, offset, half: the order in which changes are sent.

A message may hold two changes, where a key has changed: the delete of the old one, half 0, and the row under the new
one, half 1. Every other change is a half 1, or 0 for a delete, alone.
"""

_HALF = "_cdc_half"


@dataclass(frozen=True, slots=True)
class Message:
    """One change, ready to be sent."""

    place: Place
    key: int
    """Equal for changes of one row; those of others may have it too."""
    alone: bool
    """It concerns every row of its table, so nothing of the table is sent beside it."""
    body: bytes


def messages(events: DataFrame, table: Table) -> Iterator[Message]:
    """Yield the messages of `events` in their order; few of them are in memory at a time."""
    half = (column(OP) != Op.DELETE.value).cast("int").alias(_HALF)
    shown = events.select(
        *(column(name) for name in (POSITION, TOPIC, PARTITION, OFFSET)),
        half,
        F.hash(*(column(name) for name in table.keys)) if table.keys else F.lit(0),
        column(OP) == Op.TRUNCATE.value,
        F.to_json(_body(table), JSON),
    )
    for row in shown.orderBy(POSITION, TOPIC, PARTITION, OFFSET, _HALF).toLocalIterator():
        yield Message((row[0], row[1], row[2], row[3], row[4]), row[5], row[6], row[7].encode())


def _body(table: Table) -> Expression:
    origin = F.struct(*(column(name).alias(name.removeprefix("_cdc_")) for name in (TOPIC, PARTITION, OFFSET)))
    return F.struct(key_of(table).alias("key"), value_of(table).alias("value"), origin.alias("metadata"))


def message_id(pipeline: str, target: str, log: str, place: Place) -> str:
    """Return the id of the change at `place`: the same on every attempt, of every process."""
    origin = json.dumps([pipeline, target, log, *place[1:]], ensure_ascii=False)
    return f"msg_{hashlib.sha256(origin.encode()).hexdigest()[:40]}"


def signing_key(secret: str) -> bytes:
    """Return the bytes of a secret, which is base64, with or without `whsec_` before it; ValueError if it is none."""
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        raise ValueError("should be whsec_ and base64") from None
    if not 24 <= len(key) <= 64:
        raise ValueError("should be 24 to 64 bytes in base64")
    return key


def signature(keys: Sequence[bytes], name: str, timestamp: int, body: bytes) -> str:
    """Return the signature header: one signature for each of `keys`."""
    signed = f"{name}.{timestamp}.".encode() + body
    return " ".join("v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode() for key in keys)
