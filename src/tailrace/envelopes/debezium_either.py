"""Debezium's messages of which nobody said how they are written: in JSON or in Avro, as most of the first ones are.

It is found out once and kept for good. A message that is written otherwise and comes later is one that cannot be
read: a topic has one converter, so it is no message of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.core.table import Table
from tailrace.envelopes import message
from tailrace.envelopes.debezium_avro import FRAME
from tailrace.envelopes.message import FILTERED, Format, Sample

Written = Literal["json", "avro"]

_LOOKS = "looks_like"
_TYPES = {"changed_at": "timestamp", "partial": "boolean", "keyless": "boolean"}
"""Of the columns that are not text."""


class DebeziumEither:
    """See the module."""

    by_offset = False

    def __init__(
        self, json: Format, avro: Format, known: Written | None = None, keep: Callable[[Written], None] | None = None
    ) -> None:
        """`known` is what was found out before; what is found now is given to `keep`."""
        self._formats: dict[Written, Format] = {"json": json, "avro": avro}
        self.written = known
        self._keep = keep
        self._lock = threading.Lock()

    def peek(self, rows: DataFrame, epoch: int, max_bytes: int) -> DataFrame:
        """Look into the messages; before it is known how they are written, only at how they begin."""
        if self.written:
            return self._format.peek(rows, epoch, max_bytes)
        value = F.col("value")
        framed = (F.octet_length(value) > FRAME) & (F.substring(value, 1, 1) == F.lit(b"\0"))
        braced = F.ltrim(value.cast("string")).startswith("{")
        fate = F.when(value.isNull(), FILTERED).otherwise("malformed: not a message of this format")
        places = ("topic", "partition", "offset")
        empty = (F.lit(None).cast(_TYPES.get(name, "string")).alias(name) for name in message.COLUMNS[3:-1])
        looks = F.when(framed, "avro").when(braced, "json").alias(_LOOKS)
        return rows.select(*places, *empty, fate.alias("fate"), looks)

    def learn(self, peeked: DataFrame) -> bool:
        """Find out how messages are written, and ask for what is needed to look into them; say whether to look again.

        A slice may have been looked at before it was known, and come here after another one made it known.
        """
        if _LOOKS not in peeked.columns:
            return self._format.learn(peeked)
        with self._lock:
            if self.written is None:
                found = peeked.groupBy(_LOOKS).count().where(F.col(_LOOKS).isNotNull()).collect()
                if not found:
                    return False
                counts = {row[0]: row[1] for row in found}
                self.written = "avro" if counts.get("avro", 0) > counts.get("json", 0) else "json"
                if self._keep:
                    self._keep(self.written)
        return True

    def remember(self, table: Table, schema: str) -> None:
        """Take note that rows of `table` may be written with `schema`."""
        self._format.remember(table, schema)

    def schema(self, table: str, sample: Sample) -> Table | None:
        """Return the schema that a message of `table` brings along."""
        return self._format.schema(table, sample)

    def keys(self, sample: Sample) -> tuple[str, ...]:
        """Return the columns that identify a row, as far as a message says so."""
        return self._format.keys(sample)

    def open_rows(self, rows: DataFrame, table: Table, epoch: int, max_bytes: int) -> DataFrame:
        """Open peeked rows of one table."""
        return self._format.open_rows(rows, table, epoch, max_bytes)

    @property
    def _format(self) -> Format:
        return self._formats[self.written or "json"]
