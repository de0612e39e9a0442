"""The rows of a batch as the source of a statement: measured once, and named where another session sees them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.apply.target import Batch
from tailrace.targets._merge import OP, Bound, quote

_LONGEST_BOUND = 256
_BROADCAST_ROWS = 250_000
_ORDERED = ("tinyint", "smallint", "int", "bigint", "string", "date", "decimal")


@dataclass(frozen=True, slots=True)
class Measured:
    """A batch in figures: how many rows, how many of them deletes, and between which keys."""

    rows: int
    deletes: int
    ranges: dict[str, tuple[Bound, Bound]]


def measure(batch: Batch) -> Measured:
    """Return the figures of `batch`, in one job."""
    ordered = [key for key in batch.table.keys if batch.table.column(key).type.split("(")[0] in _ORDERED]
    bounds = [bound(quote(key)) for key in ordered for bound in (F.min, F.max)]
    found = batch.rows.agg(F.count(F.lit(1)), F.count(F.when(F.col(OP) == "d", 1)), *bounds).collect()[0]
    rows, deletes, *values = found
    ranges = {}
    for key, low, high in zip(ordered, values[::2], values[1::2], strict=True):
        if rows and not (isinstance(high, str) and max(len(low), len(high)) > _LONGEST_BOUND):
            ranges[key] = _rounded(low, high) if isinstance(low, int) else (low, high)
    return Measured(rows, deletes, ranges)


def _rounded(low: int, high: int) -> tuple[int, int]:
    """Widen a range a little, to bounds that the next batch of about the same keys has too.

    Spark writes whole numbers into the code that it compiles, so a statement with the same bounds is
    compiled once, and with new ones every time.
    """
    step = 1 << max(0, (high - low).bit_length() - 3)
    return max(low // step * step, -(1 << 63)), min((high // step + 1) * step, (1 << 63) - 1)


@contextmanager
def shared_view(rows: DataFrame) -> Iterator[str]:
    """Give `rows` a name for as long as the statement runs.

    Only a global view can be named in a session other than the one that made the rows.
    """
    name = f"tailrace_{uuid.uuid4().hex}"
    rows.createGlobalTempView(name)
    try:
        yield f"global_temp.{name}"
    finally:
        rows.sparkSession.catalog.dropGlobalTempView(name)


def merge_source(view: str, measured: Measured) -> str:
    """Return `view` as the source of a MERGE.

    The first pass of a MERGE looks for files with matching keys and needs nothing else of the source:
    sent to every task, it spares a shuffle of the whole table.
    """
    if measured.rows > _BROADCAST_ROWS:
        return view
    return f"(SELECT /*+ BROADCAST({view}) */ * FROM {view})"
