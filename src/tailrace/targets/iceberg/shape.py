"""How an Iceberg table gets its columns: create, add with a default, widen. Every step can be repeated.

Iceberg knows a column by its id, so adding one, or widening it where the format has a rule for that, touches no row.
Two changes do, and both are noted in the table itself, so that whoever finds them half done finishes them:

    a default     set "tailrace.pending"  ->  add the columns  ->  update all rows  ->  unset it
    a wider type  add "_cdc_wide_<name>"  ->  update all rows  ->  drop the old column and take its name, in one step
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tailrace.core import nested
from tailrace.core.errors import Halt
from tailrace.core.table import END, RESERVED, SEQUENCE, START, Column, Table, table_from_json
from tailrace.spark.kinds import kind_of
from tailrace.targets._columns import EVENT_COLUMNS
from tailrace.targets._merge import literal, quote, widened
from tailrace.targets.iceberg.catalog import Catalog, Place
from tailrace.targets.iceberg.marks import KEYS, PENDING, TYPES
from tailrace.targets.iceberg.metadata import Metadata

_WIDE = "_cdc_wide_"
_SMALL = re.compile(r"\b(tinyint|smallint)\b")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_TRANSFORM = re.compile(r"(bucket|truncate|years?|months?|days?|hours?)\((?:(\d+)\s*,\s*)?(.+)\)", re.IGNORECASE)
_THEIRS = {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"} | {
    "_change_type",
    "_change_ordinal",
    "_commit_snapshot_id",
}
"""Names that Iceberg has for columns of its own."""


def table_of(found: Metadata, name: str) -> Table:
    """Return the shape of the stored table, without columns of ours."""
    schema, properties = found.schema(), found.properties()
    ours = {START, END} if SEQUENCE in schema.names else set[str]()
    fields = (field for field in schema if not field.name.startswith(RESERVED) and field.name not in ours)
    told = types_of(properties)
    columns = [Column(f.name, told_type(f.name, kind_of(f.dataType), told)) for f in fields]
    return Table(name, tuple(columns), tuple(json.loads(properties[KEYS])))


def types_of(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the types of columns that Iceberg stores as wider ones, by name."""
    return dict(json.loads(properties.get(TYPES, "{}")))


def told_type(name: str, stored: str, told: Mapping[str, str]) -> str:
    """Return the type of a column: Iceberg has no `tinyint` and no `smallint`, and stores an `int`."""
    return told[name] if name in told and _stored(told[name]) == stored else stored


def create(
    session: SparkSession,
    place: Place,
    columns: Sequence[tuple[str, str]],
    properties: Mapping[str, str],
    partition_by: Sequence[str] = (),
) -> bool:
    """Create the table, empty, in one commit; say whether it was not there before."""
    names = [name for name, _ in columns]
    _refuse_theirs(names, place)
    for depth in range(1, len(place.namespace) + 1):
        within = ".".join(map(quote, (place.catalog, *place.namespace[:depth])))
        session.sql(f"CREATE NAMESPACE IF NOT EXISTS {within}")
    parts = ", ".join(_partition(text, names, place) for text in partition_by)
    small = {name: kind for name, kind in columns if _SMALL.search(kind)}
    every = {**properties, **({TYPES: json.dumps(small)} if small else {})}
    try:
        session.sql(
            f"CREATE TABLE {place.sql} ({', '.join(f'{quote(name)} {_stored(kind)}' for name, kind in columns)}) "
            f"USING iceberg {parts and f'PARTITIONED BY ({parts}) '}TBLPROPERTIES ({_assignments(every)})"
        )
    except AnalysisException as error:
        if error.getCondition() != "TABLE_OR_VIEW_ALREADY_EXISTS":
            raise
        return False
    return True


def add(session: SparkSession, place: Place, found: Metadata, columns: Sequence[Column], *, fill: bool = False) -> None:
    """Add what is missing of `columns`; with `fill`, rows that exist get its default."""
    have = found.schema().names
    missing = [column for column in columns if column.name not in have]
    if fill and any(column.default is not None for column in missing):
        set_properties(session, place, {PENDING: json.dumps(Table("", tuple(missing), ()).to_json())})
        _finish(session, place, found, missing)
    else:
        _add(session, place, found, missing)


def finish(session: SparkSession, place: Place, found: Metadata) -> bool:
    """Finish a fill that was begun and not ended; say whether there was one."""
    pending = found.properties().get(PENDING)
    if pending is None:
        return False
    _finish(session, place, found, table_from_json(json.loads(pending)).columns)
    return True


def widen(session: SparkSession, catalog: Catalog, place: Place, columns: Iterable[Column]) -> None:
    """Give `columns` their new types; one that has it already is left alone."""
    for column in columns:
        found = catalog.load(place)
        if found is None:
            return
        told = types_of(found.properties())
        stored = kind_of(found.schema()[column.name].dataType)
        if _stored(column.type) != stored:
            if _promotes(stored, _stored(column.type)):
                _grow(session, place, column, stored)
            else:
                _replace(session, catalog, place, found, column, stored)
        if told.get(column.name, stored) != column.type and (column.name in told or _SMALL.search(column.type)):
            changed = {**told, column.name: column.type}
            set_properties(session, place, {TYPES: json.dumps(changed)})


def padded(rows: DataFrame, found: Metadata) -> DataFrame:
    """Return `rows` with exactly the stored columns: Spark wants every one named, and NULL is what is not carried."""
    return rows.select(
        *(
            F.col(quote(field.name))
            if field.name in rows.columns
            else F.lit(None).cast(field.dataType).alias(field.name)
            for field in found.schema()
        )
    )


def set_properties(session: SparkSession, place: Place, properties: Mapping[str, str]) -> None:
    """Set table properties, in one commit."""
    session.sql(f"ALTER TABLE {place.sql} SET TBLPROPERTIES ({_assignments(properties)})")


def unsupported(columns: Iterable[Column], table: str) -> Halt:
    """Return the halt for a widening that cannot be done in place."""
    wanted = ", ".join(f'"{column.name}" {column.type}' for column in columns)
    return Halt(
        "type-changed",
        f'Iceberg cannot widen the columns of table "{table}" to {wanted}',
        "A column that partitions the table, or lies within another, only becomes what Iceberg reads it as: an int a "
        "bigint, a float a double, a decimal one with more digits before the point. Write to a new target table.",
    )


def _stored(kind: str) -> str:
    return _SMALL.sub("int", kind)


def _promotes(old: str, new: str) -> bool:
    """Say whether Iceberg reads a stored `old` as a `new`; within other types every part is judged alone."""
    if (old, new) in {("int", "bigint"), ("float", "double")}:
        return True
    if (before := _DECIMAL.fullmatch(old)) and (after := _DECIMAL.fullmatch(new)):
        return before[2] == after[2]
    return "<" in old


def _grow(session: SparkSession, place: Place, column: Column, old: str) -> None:
    new = _stored(column.type)
    fields = nested.added(old, new)
    if fields:
        listed = ", ".join(f"{quote(column.name)}.{path} {kind}" for path, kind in fields)
        session.sql(f"ALTER TABLE {place.sql} ADD COLUMNS ({listed})")
    for path, kind in nested.changed(old, new):
        session.sql(f"ALTER TABLE {place.sql} ALTER COLUMN {quote(column.name)}{path and '.'}{path} TYPE {kind}")


def _replace(
    session: SparkSession, catalog: Catalog, place: Place, found: Metadata, column: Column, stored: str
) -> None:
    """Put a wider column in the place of one that Iceberg has no rule for."""
    wide, kind = _WIDE + column.name, _stored(column.type)
    if wide not in found.schema().names:
        session.sql(f"ALTER TABLE {place.sql} ADD COLUMNS ({quote(wide)} {kind} AFTER {quote(column.name)})")
    session.sql(f"UPDATE {place.sql} SET {quote(wide)} = {widened(column.name, stored, kind)}")
    grown = catalog.load(place)
    if grown is not None:
        grown.replace_column(column.name, wide)


def _finish(session: SparkSession, place: Place, found: Metadata, columns: Sequence[Column]) -> None:
    have = found.schema().names
    _add(session, place, found, [column for column in columns if column.name not in have])
    filled = [column for column in columns if column.default is not None]
    values = (f"{quote(c.name)} = CAST({literal(c.default)} AS {_stored(c.type)})" for c in filled)
    session.sql(f"UPDATE {place.sql} SET {', '.join(values)}")
    session.sql(f"ALTER TABLE {place.sql} UNSET TBLPROPERTIES IF EXISTS ({literal(PENDING)})")


def _add(session: SparkSession, place: Place, found: Metadata, columns: Sequence[Column]) -> None:
    if not columns:
        return
    _refuse_theirs([column.name for column in columns], place)
    small = {column.name: column.type for column in columns if _SMALL.search(column.type)}
    if small:
        set_properties(session, place, {TYPES: json.dumps({**types_of(found.properties()), **small})})
    last = _last_user_column(found.schema())
    parts = []
    for column in columns:
        parts.append(f"{quote(column.name)} {_stored(column.type)} AFTER {quote(last)}")
        last = column.name
    session.sql(f"ALTER TABLE {place.sql} ADD COLUMNS ({', '.join(parts)})")


def _last_user_column(schema: StructType) -> str:
    """Return the column that a new one goes behind: ours stay last, but for those of an event table."""
    if EVENT_COLUMNS.keys() <= set(schema.names):
        return str(schema.names[-1])
    return [str(name) for name in schema.names if name not in (START, END) and not name.startswith(RESERVED)][-1]


def _partition(text: str, names: Sequence[str], place: Place) -> str:
    found = None if text in names else _TRANSFORM.fullmatch(text.strip())
    column = found[3].strip() if found else text
    if column not in names:
        raise Halt(
            "unknown-column",
            f'table "{place.name}" has no column "{column}" to be partitioned by',
            "Mend partition_by, or give tables that are partitioned otherwise to a sink of their own.",
        )
    if found is None:
        return quote(column)
    return f"{found[1]}({found[2] + ', ' if found[2] else ''}{quote(column)})"


def _refuse_theirs(names: Iterable[str], place: Place) -> None:
    for name in names:
        if name.lower() in _THEIRS:
            raise Halt(
                "reserved-column",
                f'column "{name}" of table "{place.name}" has a name that Iceberg has for itself',
                "Leave the column out with columns, or rename it in the source.",
            )


def _assignments(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())
