"""Rows whose key changed while a long value did not: the value is taken over from the row's old key.

A changed key reaches us as a delete of the old key and a create of the new one. The create leaves out
what was not rewritten (unchanged TOAST), and unlike an update it has no row of its own key to keep it
from. The value stands in an older change of the old key, or in the target's row of it.
"""

from __future__ import annotations

from functools import reduce
from operator import and_

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.apply.engine import OFFSET, OLD_KEY, OP, POSITION, PROBLEM, UNCHANGED, column
from tailrace.core.change import Op
from tailrace.core.table import Table

_LONGEST = 8
"""How often one row may change its key within one slice and still be followed."""


def carry_over(events: DataFrame, before: DataFrame | None, table: Table) -> DataFrame:
    """Complete creates of changed keys from what went before them, in `events` or in the rows `before` them."""
    left = -1
    for _ in range(_LONGEST):
        moved = events.where(
            (column(OP) == Op.CREATE.value)
            & (F.size(column(UNCHANGED)) > 0)
            & column(OLD_KEY).isNotNull()
            & column(PROBLEM).isNull()
        ).localCheckpoint()
        waiting = moved.count()
        if waiting in (0, left):
            break
        left = waiting
        events = _filled(events, _found(moved, events, before, table), table).localCheckpoint()
    return events


def _found(moved: DataFrame, events: DataFrame, before: DataFrame | None, table: Table) -> DataFrame:
    """Return, by offset, what is known of each value that a moved row leaves out."""
    wanted = moved.select(
        column(OFFSET).alias("_for"),
        column(POSITION).alias("_at"),
        *(column(OLD_KEY)[key].alias(f"_old_{n}") for n, key in enumerate(table.keys)),
    )
    # The delete of the old key is at the very place of the create, so it is not among the older ones.
    older = events.where(~column(OP).isin(Op.DELETE.value, Op.TRUNCATE.value) & column(PROBLEM).isNull())
    joined = wanted.join(older, _same_key(table) & (column(POSITION) < F.col("_at")), "left")
    order = F.struct(column(POSITION), column(OFFSET))
    given = [
        F.max_by(
            F.struct(column(name).alias("value")),
            F.when(column(OFFSET).isNotNull() & ~F.array_contains(column(UNCHANGED), name), order),
        ).alias(f"_found_{n}")
        for n, name in enumerate(_values(table))
    ]
    old = [f"_old_{n}" for n in range(len(table.keys))]
    found = joined.groupBy("_for", *old).agg(*given)
    if before is None:
        return found.drop(*old)
    with_rows = found.join(before.withColumn("_there", F.lit(True)), _same_key(table), "left")
    return with_rows.select(
        "_for",
        *(
            F.coalesce(F.col(f"_found_{n}"), F.when(F.col("_there"), F.struct(column(name).alias("value")))).alias(
                f"_found_{n}"
            )
            if name in before.columns
            else F.col(f"_found_{n}")
            for n, name in enumerate(_values(table))
        ),
    )


def _filled(events: DataFrame, found: DataFrame, table: Table) -> DataFrame:
    joined = events.join(found, column(OFFSET) == F.col("_for"), "left")
    values = {}
    still = []
    for n, name in enumerate(_values(table)):
        taken = F.array_contains(column(UNCHANGED), name) & F.col(f"_found_{n}").isNotNull()
        values[name] = F.when(taken, F.col(f"_found_{n}")["value"]).otherwise(column(name))
        still.append(F.when(F.array_contains(column(UNCHANGED), name) & ~taken, F.lit(name)))
    moved = F.col("_for").isNotNull()
    left = F.when(moved, F.array_compact(F.array(*still))).otherwise(column(UNCHANGED))
    changed = {**values, UNCHANGED: left}
    return joined.select(*(changed.get(name, column(name)).alias(name) for name in events.columns))


def _same_key(table: Table) -> Expression:
    return reduce(and_, (F.col(f"_old_{n}") == column(key) for n, key in enumerate(table.keys)))


def _values(table: Table) -> list[str]:
    return [name for name in table.names() if name not in table.keys]
