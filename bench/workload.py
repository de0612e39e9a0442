"""The events that the benchmarks log, and the table they must become."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from tailrace.core.checkpoint import Checkpoint, Tailing
from tailrace.core.page import Page
from tailrace.core.table import Column, Table
from tailrace.envelopes import rows as landed_rows

TABLE = Table(
    "public.orders",
    (
        Column("id", "bigint", nullable=False),
        Column("customer", "bigint"),
        Column("status", "string"),
        Column("total", "decimal(12,2)", encoding="decimal-text"),
        Column("quantity", "int"),
        Column("placed_at", "timestamp", encoding="timestamp-iso"),
        Column("due", "date", encoding="date-days"),
        Column("note", "string"),
        Column("paid", "boolean"),
        Column("weight", "double"),
    ),
    ("id",),
)
TOPIC = "cdc.public.orders"


@dataclass(frozen=True)
class Workload:
    """`events` changes of `keys` rows: each key is created, then updated, now and then deleted and made again."""

    events: int
    keys: int
    seed: int = 1
    page_rows: int = 16_384

    def changes(self) -> Iterator[tuple[str, int, int, dict[str, object] | None]]:
        """Yield (op, id, lsn, row) in the order of the source."""
        chance = random.Random(self.seed)
        alive: set[int] = set()
        for n in range(self.events):
            key = n if n < self.keys else chance.randrange(self.keys)
            lsn = 1_000_000 + n * 8
            if key in alive and n >= self.keys and chance.random() < 0.1:
                alive.discard(key)
                yield "d", key, lsn, None
            else:
                op = "u" if key in alive else "c"
                alive.add(key)
                yield op, key, lsn, _row(key, n, chance)

    def pages(self) -> Iterator[Page[pa.Table]]:
        """Yield the changes as the pages that a source would hand over."""
        since: Checkpoint | None = None
        fingerprint = TABLE.fingerprint()
        messages: list[tuple[bytes, bytes]] = []
        schema = pa.schema([field for field in landed_rows.ARROW if field.name not in ("partition", "offset")])
        headers = [{"key": landed_rows.SCHEMA_HEADER, "value": fingerprint.encode()}]

        def page(lsn: int) -> Page[pa.Table]:
            count = len(messages)
            now = datetime.now(UTC)
            columns = [
                [TOPIC] * count,
                [key for key, _ in messages],
                [value for _, value in messages],
                [now] * count,
                [headers] * count,
            ]
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            rows = pa.Table.from_arrays(arrays, schema=schema)
            return Page(rows, since, Tailing("bench", str(lsn)), {fingerprint: TABLE})

        for op, key, lsn, row in self.changes():
            before = {"id": key} if op == "d" else None
            value = {"op": op, "before": before, "after": row, "source": {"lsn": lsn, "txId": lsn, "ts_ms": lsn}}
            messages.append((_json({"id": key}), _json(value)))
            if len(messages) == self.page_rows:
                yield (done := page(lsn))
                since, messages = done.checkpoint, []
        if messages:
            yield page(lsn)

    def table(self) -> dict[int, tuple[str, int, str]]:
        """Return (status, quantity, total) of every row that must be left."""
        rows: dict[int, tuple[str, int, str]] = {}
        for op, key, _, row in self.changes():
            if op == "d":
                del rows[key]
            elif row is not None:
                rows[key] = (str(row["status"]), int(str(row["quantity"])), str(row["total"]))
        return rows


def _row(key: int, n: int, chance: random.Random) -> dict[str, object]:
    return {
        "id": key,
        "customer": key % 1000,
        "status": chance.choice(["new", "paid", "sent", "done"]),
        "total": f"{chance.randrange(1_000_000)}.{n % 100:02d}",
        "quantity": n,
        "placed_at": f"2026-01-{1 + n % 28:02d}T{n % 24:02d}:00:00.{n % 1_000_000:06d}Z",
        "due": 20_000 + n % 500,
        "note": f"order {key} as of event {n}, to be left with the neighbours",
        "paid": n % 2 == 0,
        "weight": n / 7,
    }


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
