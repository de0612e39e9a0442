"""Rows whose key changed: an update of one becomes two changes, and a long value that did not change is taken over.

A changed key reaches us as a delete of the old key and a create of the new one. The create leaves out
what was not rewritten (unchanged TOAST), and unlike an update it has no row of its own key to keep it
from. The value stands in an older change of the old key, or in the target's row of it.

An old key may have lived before: what is taken is from the life that ended with the move, which began
with the last create of that key in the slice or, without one, is the target's row.
"""

from __future__ import annotations

from functools import reduce
from operator import and_

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from tailrace.apply.engine import OFFSET, OLD_KEY, OP, PARTITION, POSITION, PROBLEM, TOPIC, UNCHANGED, column
from tailrace.core.change import Op
from tailrace.core.table import Table

_BORN = (Op.CREATE.value, Op.READ.value)


def carry_over(events: DataFrame, before: DataFrame | None, table: Table) -> DataFrame:
    """Complete creates of changed keys from what went before them, in `events` or in the rows `before` them."""
    events = events.localCheckpoint()
    moved = events.where(_incomplete()).localCheckpoint()
    waiting = moved.count()
    if not waiting:
        return events
    others = _others(events, moved, table).localCheckpoint()
    # One step follows one move, and a row may have moved several times within the slice.
    left = waiting + 1
    while 0 < waiting < left:
        left = waiting
        found = _found(moved, others.unionByName(moved), before, table)
        moved = _filled(moved, found, table).localCheckpoint()
        waiting = moved.where(_incomplete()).count()
    done = moved.select(_place().alias("_cdc_for"), F.struct(UNCHANGED, *map(column, _values(table))).alias("_cdc_row"))
    joined = events.join(done, _place() == F.col("_cdc_for"), "left")
    replaced = {
        name: F.when(F.col("_cdc_for").isNotNull(), F.col("_cdc_row")[name]).otherwise(column(name))
        for name in (UNCHANGED, *_values(table))
    }
    return joined.select(*(replaced.get(name, column(name)).alias(name) for name in events.columns))


def split(events: DataFrame, table: Table, seen: Observation) -> DataFrame:
    """Make two changes of an update that gave its row another key: the delete of the old one, and a create.

    A connector does this itself for the key that it knows. Where the target's key is another one, or somebody else
    wrote the messages, only the row before says it. `seen` counts as `moved` how many events came on top.
    """
    old, keys = column(OLD_KEY), table.keys
    whole = reduce(and_, (old[key].isNotNull() for key in keys))
    same = reduce(and_, (old[key].eqNullSafe(column(key)) for key in keys))
    moved = (column(OP) == Op.UPDATE.value) & column(PROBLEM).isNull() & old.isNotNull() & whole & ~same
    parts = F.array(F.lit(Op.DELETE.value), F.lit(Op.CREATE.value))
    rows = events.select("*", F.explode(F.when(moved, parts).otherwise(F.array(column(OP)))).alias("_cdc_part"))
    gone = (column(OP) == Op.UPDATE.value) & (F.col("_cdc_part") == Op.DELETE.value)
    changed = {
        OP: F.col("_cdc_part"),
        UNCHANGED: F.when(gone, F.array().cast("array<string>")).otherwise(column(UNCHANGED)),
        **{key: F.when(gone, old[key]).otherwise(column(key)) for key in keys},
        **{name: F.when(~gone, column(name)) for name in _values(table)},
    }
    rows = rows.observe(seen, F.count_if(gone).alias("moved"))
    return rows.select(*(changed.get(name, column(name)).alias(name) for name in events.columns))


def keys_met(events: DataFrame, table: Table) -> DataFrame:
    """Return the keys that `events` speak of, as they are and as they were, each with the position of its event."""
    old = (column(OLD_KEY)[key].alias(key) for key in table.keys)
    before = events.where(column(OLD_KEY).isNotNull()).select(POSITION, *old)
    return events.select(POSITION, *map(column, table.keys)).unionByName(before)


def _place() -> Expression:
    """Return what tells one event of a table from another."""
    return F.struct(column(TOPIC), column(PARTITION), column(OFFSET))


def _incomplete() -> Expression:
    partial = (column(OP) == Op.CREATE.value) & (F.size(column(UNCHANGED)) > 0)
    return partial & column(OLD_KEY).isNotNull() & column(PROBLEM).isNull()


def _others(events: DataFrame, moved: DataFrame, table: Table) -> DataFrame:
    """Return what else `events` say of the keys that were moved from."""
    old = moved.select(*(column(OLD_KEY)[key].alias(f"_cdc_old_{n}") for n, key in enumerate(table.keys))).distinct()
    alive = ~column(OP).isin(Op.DELETE.value, Op.TRUNCATE.value) & column(PROBLEM).isNull()
    return events.where(alive & ~_incomplete()).join(old, _same_key(table), "left_semi")


def _found(moved: DataFrame, older: DataFrame, before: DataFrame | None, table: Table) -> DataFrame:
    """Return, by offset, what is known of each value that a moved row leaves out."""
    wanted = moved.select(
        _place().alias("_cdc_for"),
        column(POSITION).alias("_cdc_at"),
        *(column(OLD_KEY)[key].alias(f"_cdc_old_{n}") for n, key in enumerate(table.keys)),
    )
    joined = wanted.join(older, _same_key(table) & (column(POSITION) < F.col("_cdc_at")), "left")
    order = F.struct(column(POSITION), column(OFFSET))
    given = [
        F.max_by(
            F.struct(column(POSITION).alias("at"), column(name).alias("value")),
            F.when(column(OFFSET).isNotNull() & ~F.array_contains(column(UNCHANGED), name), order),
        ).alias(f"_cdc_found_{n}")
        for n, name in enumerate(_values(table))
    ]
    born = F.max(F.when(column(OP).isin(*_BORN), column(POSITION))).alias("_cdc_born")
    old = [f"_cdc_old_{n}" for n in range(len(table.keys))]
    found = joined.groupBy("_cdc_for", *old).agg(born, *given)
    if before is not None:
        found = found.join(before.withColumn("_cdc_there", F.lit(True)), _same_key(table), "left")
    stored = () if before is None else before.columns
    return found.select("_cdc_for", *(_value(n, name, stored=name in stored) for n, name in enumerate(_values(table))))


def _value(n: int, name: str, *, stored: bool) -> Expression:
    given, whole_life = F.col(f"_cdc_found_{n}"), F.col("_cdc_born").isNull()
    value = F.when(given.isNotNull() & (whole_life | (given["at"] >= F.col("_cdc_born"))), F.struct(given["value"]))
    if stored:
        value = F.coalesce(value, F.when(whole_life & F.col("_cdc_there"), F.struct(column(name).alias("value"))))
    return value.alias(f"_cdc_found_{n}")


def _filled(moved: DataFrame, found: DataFrame, table: Table) -> DataFrame:
    joined = moved.join(found, _place() == F.col("_cdc_for"), "left")
    changed = {}
    still = []
    for n, name in enumerate(_values(table)):
        left_out = F.array_contains(column(UNCHANGED), name)
        taken = left_out & F.col(f"_cdc_found_{n}").isNotNull()
        changed[name] = F.when(taken, F.col(f"_cdc_found_{n}")["value"]).otherwise(column(name))
        still.append(F.when(left_out & ~taken, F.lit(name)))
    changed[UNCHANGED] = F.array_compact(F.array(*still))
    return joined.select(*(changed.get(name, column(name)).alias(name) for name in moved.columns))


def _same_key(table: Table) -> Expression:
    return reduce(and_, (F.col(f"_cdc_old_{n}") == column(key) for n, key in enumerate(table.keys)))


def _values(table: Table) -> list[str]:
    return [name for name in table.names() if name not in table.keys]
