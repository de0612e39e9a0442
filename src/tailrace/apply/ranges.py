"""Between which keys a batch lies, so that a target need not look at files that cannot have any of them."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from tailrace.core.table import Scalar, Table

Bound = Scalar | decimal.Decimal | datetime.date
Ranges = Mapping[str, tuple[Bound, Bound]]
"""The smallest and the greatest value of key columns; a key column that is not in it may have any."""

_LONGEST_BOUND = 256
_ORDERED = ("tinyint", "smallint", "int", "bigint", "string", "date", "decimal")


def bounds(table: Table) -> list[Expression]:
    """Return the aggregates that `ranges` reads: two per key column that has an order."""
    return [bound(F.col(f"`{key.replace('`', '``')}`")) for key in _ordered(table) for bound in (F.min, F.max)]


def ranges(table: Table, found: Sequence[Any]) -> dict[str, tuple[Bound, Bound]]:
    """Return the ranges that the values of `bounds` tell; none where there were no rows."""
    known = {}
    for key, low, high in zip(_ordered(table), found[::2], found[1::2], strict=True):
        if low is None or (isinstance(high, str) and max(len(low), len(high)) > _LONGEST_BOUND):
            continue
        known[key] = _rounded(low, high) if isinstance(low, int) else (low, high)
    return known


def inside(near: Ranges) -> Expression:
    """Say of a row whether its key lies within `near`."""
    parts = []
    for key, (low, high) in near.items():
        name = F.col(f"`{key.replace('`', '``')}`")
        parts.append((name >= _literal(low)) & (name <= _literal(high)))
    return reduce(and_, parts, F.lit(True))


def _literal(bound: Bound) -> Expression:
    # On its way to Java a date loses the zeros before its year, and is none any more.
    return F.lit(bound.isoformat()).cast("date") if isinstance(bound, datetime.date) else F.lit(bound)


def _ordered(table: Table) -> list[str]:
    return [key for key in table.keys if table.column(key).type.split("(")[0] in _ORDERED]


def _rounded(low: int, high: int) -> tuple[int, int]:
    """Widen a range a little, to bounds that the next batch of about the same keys has too.

    Spark writes whole numbers into the code that it compiles, so a statement with the same bounds is
    compiled once, and with new ones every time.
    """
    step = 1 << max(0, (high - low).bit_length() - 3)
    return max(low // step * step, -(1 << 63)), min((high // step + 1) * step, (1 << 63) - 1)
