"""The rows of a batch as the source of a statement, measured once."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import functions as F

from tailrace.apply.flow import FEW
from tailrace.apply.ranges import Ranges, bounds, ranges
from tailrace.apply.target import Batch
from tailrace.targets._merge import OP


@dataclass(frozen=True, slots=True)
class Measured:
    """A batch in figures: how many rows, how many of them deletes, and between which keys."""

    rows: int
    deletes: int
    ranges: Ranges


def measure(batch: Batch) -> Measured:
    """Return the figures of `batch`, in one job."""
    counts = [F.count(F.lit(1)), F.count(F.when(F.col(OP) == "d", 1))]
    rows, deletes, *values = batch.rows.agg(*counts, *bounds(batch.table)).collect()[0]
    return Measured(rows, deletes, ranges(batch.table, values))


def merge_source(view: str, measured: Measured) -> str:
    """Return `view` as the source of a MERGE.

    The first pass of a MERGE looks for files with matching keys and needs nothing else of the source:
    sent to every task, it spares a shuffle of the whole table.
    """
    if measured.rows > FEW:
        return view
    return f"(SELECT /*+ BROADCAST({view}) */ * FROM {view})"
