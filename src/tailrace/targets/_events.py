"""A change as one JSON document: what a webhook sends of it, and what a table of events keeps."""

from __future__ import annotations

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from tailrace.apply.engine import OP, POSITION, UNCHANGED, column
from tailrace.core.change import Op
from tailrace.core.table import Table

JSON = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def key_of(table: Table) -> Expression:
    """Return the key of the row that a change is of; NULL for a truncate, and of a table without a key."""
    key = (
        F.struct(*(column(name).alias(name) for name in table.keys))
        if table.keys
        else F.lit(None).cast("struct<none:string>")
    )
    return F.when(column(OP) != Op.TRUNCATE.value, key)


def before_of(table: Table) -> Expression:
    """Return what a delete removed; NULL for other changes."""
    return F.when(column(OP) == Op.DELETE.value, _image(table))


def after_of(table: Table) -> Expression:
    """Return what the row became; NULL for a delete and a truncate."""
    return F.when(~column(OP).isin(Op.DELETE.value, Op.TRUNCATE.value), _image(table))


def value_of(table: Table) -> Expression:
    """Return the change: `op`, `before`, `after`, `ts_ms`, `source`, `unchanged`."""
    return value(column(OP), before_of(table), after_of(table), *told_of(table))


def value(op: Expression, before: Expression, after: Expression, *told: Expression) -> Expression:
    """Return a change of these parts; `told` is what `told_of` returns."""
    named = zip(("op", "before", "after", "ts_ms", "source", "unchanged"), (op, before, after, *told), strict=True)
    return F.struct(*(part.alias(name) for name, part in named))


def told_of(table: Table) -> tuple[Expression, Expression, Expression]:
    """Return when a change was made, where its source has it, and which columns it does not tell."""
    source = F.struct(F.lit(table.name).alias("table"), column(POSITION).alias("position"))
    return F.unix_millis(column("_cdc_changed_at")), source, column(UNCHANGED)


def _image(table: Table) -> Expression:
    return F.struct(*(column(name).alias(name) for name in table.names()))
