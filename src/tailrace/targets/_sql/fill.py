"""The first rows of a table that has none: there is nothing to compare them with, so they need not be staged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from tailrace.targets._columns import POSITION
from tailrace.targets._sql.crossing import outgoing
from tailrace.targets._sql.dialect import Dialect, Session
from tailrace.targets._sql.statements import DAY, OP


def fill(
    session: Session,
    dialect: Dialect,
    tables: tuple[str, str],
    rows: DataFrame,
    types: Mapping[str, str],
    keys: Sequence[str],
    day: str,
) -> int:
    """Load `rows` into the first of `tables`, deletes as tombstones of `day` into the second; return the row count."""
    table, beside = tables
    stored = [*types, POSITION]
    dead: list[pa.RecordBatch] = []
    count = 0

    def living(chunks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        nonlocal count
        for chunk in chunks:
            gone = pc.equal(chunk.column(OP), "d")
            dead.append(chunk.filter(gone).select([*keys, POSITION, OP]))
            alive = chunk.filter(pc.invert(gone)).select(stored)
            count += alive.num_rows
            yield alive

    with outgoing(rows, {**types, POSITION: "string", OP: "string"}, dialect, keys) as chunks:
        session.load(table, [dialect.column(name) for name in stored], living(chunks))
    buried = [_dated(chunk, day) for chunk in dead if chunk.num_rows]
    if buried:
        session.load(beside, [*map(dialect.column, keys), POSITION, OP, DAY], buried)
    return count


def _dated(chunk: pa.RecordBatch, day: str) -> pa.RecordBatch:
    days = pa.array([day] * chunk.num_rows, pa.string())
    return pa.RecordBatch.from_arrays([*chunk.columns, days], [*chunk.schema.names, DAY])
