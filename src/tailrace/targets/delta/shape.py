"""How a Delta table gets its columns: create, add with a default, widen. Every step can be repeated.

A new column with a default changes rows that exist, without any event for them. A property records the
fill before the column appears and leaves when every row has it; whoever finds it finishes it first:

    set "tailrace.pending"  ->  add the columns  ->  update all rows  ->  unset it
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tailrace.core import nested
from tailrace.core.errors import Halt
from tailrace.core.table import END, RESERVED, SEQUENCE, START, Column, Table, table_from_json
from tailrace.spark.kinds import kind_of
from tailrace.targets._columns import EVENT_COLUMNS
from tailrace.targets._merge import literal, quote, widened
from tailrace.targets.delta.log import Snapshot
from tailrace.targets.delta.place import KEYS, Place

PENDING = "tailrace.pending"

_NEEDS_MAPPING = set(" ,;{}()\n\t=")
_INDEXED = 32


def table_of(snapshot: Snapshot, name: str) -> Table:
    """Return the shape of the stored table, without columns of ours."""
    schema = snapshot.schema()
    ours = {START, END} if SEQUENCE in schema.names else set[str]()
    fields = (field for field in schema if not field.name.startswith(RESERVED) and field.name not in ours)
    columns = [Column(field.name, kind_of(field.dataType)) for field in fields]
    return Table(name, tuple(columns), tuple(json.loads(snapshot.properties()[KEYS])))


def create(
    session: SparkSession, place: Place, table: Table, columns: Sequence[tuple[str, str]], ours: Mapping[str, str]
) -> None:
    """Create the table empty and marked as ours, in one commit; do nothing if it is there."""
    properties = {"delta.enableDeletionVectors": "false", **ours, **needed(columns)}
    names = [name for name, _ in columns]
    if any(names.index(key) >= _INDEXED for key in table.keys):
        # Delta keeps statistics of the first columns only, and a MERGE skips files by those of the key.
        indexed = [*names[: _INDEXED - len(table.keys)], *table.keys]
        properties["delta.dataSkippingStatsColumns"] = ",".join(map(quote, dict.fromkeys(indexed)))
    if place.schema and not session.catalog.databaseExists(place.schema):
        session.sql(f"CREATE SCHEMA IF NOT EXISTS {place.schema}")
    place.create(
        session,
        f"CREATE TABLE IF NOT EXISTS {place.sql} ({', '.join(f'{quote(n)} {t}' for n, t in columns)}) "
        f"USING delta TBLPROPERTIES ({_assignments(properties)})",
    )


def add(session: SparkSession, place: Place, snapshot: Snapshot, columns: Sequence[Column], *, fill: bool) -> None:
    """Add what is missing of `columns`; with `fill`, rows that exist get its default."""
    have = snapshot.schema().names
    missing = [column for column in columns if column.name not in have]
    if fill and any(column.default is not None for column in missing):
        pending = json.dumps(Table("", tuple(missing), ()).to_json())
        set_properties(session, place, {PENDING: pending})
        _finish(session, place, snapshot, missing)
    else:
        _add(session, place, snapshot, missing)


def finish(session: SparkSession, place: Place, snapshot: Snapshot) -> bool:
    """Finish a fill that was begun and not ended; say whether there was one."""
    pending = snapshot.properties().get(PENDING)
    if pending is None:
        return False
    _finish(session, place, snapshot, table_from_json(json.loads(pending)).columns)
    return True


def widen(session: SparkSession, place: Place, snapshot: Snapshot, columns: Iterable[Column]) -> None:
    """Give `columns` their new types; one that has it already is left alone."""
    have = {field.name: kind_of(field.dataType) for field in snapshot.schema()}
    changed = [column for column in columns if have.get(column.name, column.type) != column.type]
    days = [column.name for column in changed if (have[column.name], column.type) == ("date", "timestamp")]
    if days:
        _rewrite(session, place, days)
    changed = [column for column in changed if column.name not in days]
    if changed and snapshot.properties().get("delta.enableTypeWidening") != "true":
        set_properties(session, place, {"delta.enableTypeWidening": "true"})
    for column in changed:
        _grow(session, place, column, have[column.name])


def _rewrite(session: SparkSession, place: Place, days: Sequence[str]) -> None:
    """Write all rows anew, in one commit, with `days` as moments: Delta has no rule for that."""
    rows = place.read(session)
    values = (
        f"{widened(name, 'date', 'timestamp')} AS {quote(name)}" if name in days else quote(name)
        for name in rows.columns
    )
    place.overwrite(session, rows.selectExpr(*values))


def _grow(session: SparkSession, place: Place, column: Column, old: str) -> None:
    fields = nested.added(old, column.type)
    ensure(session, place, needed([(column.name, column.type)]))
    if fields:
        listed = ", ".join(f"{quote(column.name)}.{path} {kind}" for path, kind in fields)
        session.sql(f"ALTER TABLE {place.sql} ADD COLUMNS ({listed})")
    for path, kind in nested.changed(old, column.type):
        session.sql(f"ALTER TABLE {place.sql} ALTER COLUMN {quote(column.name)}{path and '.'}{path} TYPE {kind}")


def set_properties(session: SparkSession, place: Place, properties: Mapping[str, str]) -> None:
    """Set table properties, in one commit."""
    session.sql(f"ALTER TABLE {place.sql} SET TBLPROPERTIES ({_assignments(properties)})")


def ensure(session: SparkSession, place: Place, wanted: Mapping[str, str]) -> None:
    """Set those of the properties `wanted` that the table at `place` does not have."""
    log = place.log(session) if wanted else None
    snapshot = log.snapshot() if log else None
    if snapshot and (missing := {k: v for k, v in wanted.items() if snapshot.properties().get(k) != v}):
        set_properties(session, place, missing)


def needed(columns: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the properties that a table must have for names and types of `columns`, if any."""
    listed = list(columns)
    odd = any(_NEEDS_MAPPING & set(name) for top, kind in listed for name in (top, *nested.names(kind)))
    mapping = {"delta.columnMapping.mode": "name"} if odd else {}
    # Delta gives a new table the feature by itself, and asks for it when the table is there.
    plain = any("timestamp_ntz" in kind for _, kind in listed)
    return {**mapping, "delta.feature.timestampNtz": "supported"} if plain else mapping


def _finish(session: SparkSession, place: Place, snapshot: Snapshot, columns: Sequence[Column]) -> None:
    have = snapshot.schema().names
    _add(session, place, snapshot, [column for column in columns if column.name not in have])
    filled = [column for column in columns if column.default is not None]
    values = (f"{quote(c.name)} = CAST({literal(c.default)} AS {c.type})" for c in filled)
    session.sql(f"UPDATE {place.sql} SET {', '.join(values)}")
    session.sql(f"ALTER TABLE {place.sql} UNSET TBLPROPERTIES IF EXISTS ({literal(PENDING)})")


def _add(session: SparkSession, place: Place, snapshot: Snapshot, columns: Sequence[Column]) -> None:
    if not columns:
        return
    ensure(session, place, needed((column.name, column.type) for column in columns))
    last = _last_user_column(snapshot.schema())
    parts = []
    for column in columns:
        parts.append(f"{quote(column.name)} {column.type} AFTER {quote(last)}")
        last = column.name
    session.sql(f"ALTER TABLE {place.sql} ADD COLUMNS ({', '.join(parts)})")


def _last_user_column(schema: StructType) -> str:
    """Return the column that a new one goes behind: ours stay last, but for those of an event table."""
    if EVENT_COLUMNS.keys() <= set(schema.names):
        return schema.names[-1]
    return [name for name in schema.names if name not in (START, END) and not name.startswith(RESERVED)][-1]


def _assignments(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())


def unsupported(columns: Iterable[Column], table: str) -> Halt:
    """Return the halt for a widening that Delta has no rule for."""
    wanted = ", ".join(f'"{column.name}" {column.type}' for column in columns)
    return Halt(
        "type-changed",
        f'Delta cannot widen the columns of table "{table}" to {wanted}',
        "Delta widens integers, float to double, decimals and date; within a struct, date only to timestamp_ntz. "
        "Write to a new target table.",
    )
