"""The target that defines what a target means: `fold`, in this process, under a lock.

It ships for tests and for trying things out. Its state is an object of its own, so that a target opened
again over the same state is what a real one is after a restart.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from tailrace.apply.ranges import Ranges
from tailrace.apply.target import NOWHERE, Applied, Batch, Mark
from tailrace.core.change import Change, Folded, Key, Op, Value, fold
from tailrace.core.errors import Halt, Retryable
from tailrace.core.table import END, SEQUENCE, START, Column, Fit, Table
from tailrace.spark.frame import frame
from tailrace.targets._tables import refuse_reserved


class Options(BaseModel):
    """The memory target has nothing to set."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass
class Kept:
    """One table: its shape, its rows (of mode append its events, of scd2 its records) and what they include."""

    owner: tuple[str, str]
    table: Table
    notes: dict[str, str] = field(default_factory=dict)
    folded: Folded = field(default_factory=Folded)
    events: list[dict[str, Value]] = field(default_factory=list)
    records: dict[Key, dict[str, Value]] = field(default_factory=dict)
    """By key and position."""
    hidden: list[dict[str, Value]] = field(default_factory=list)
    mark: Mark | None = None


@dataclass
class State:
    """What outlives the target that wrote it."""

    tables: dict[str, Kept] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)


class MemoryTarget:
    """Tables in this process; see `apply.target.Target` for what each method promises."""

    def __init__(
        self,
        name: str,
        options: Options | None = None,
        *,
        spark_session: SparkSession | Callable[[], SparkSession],
        pipeline_id: str,
        tables: Mapping[str, str] | None = None,
        mode: Literal["scd1", "scd2", "append"] = "scd1",
        state: State | None = None,
    ) -> None:
        refuse_reserved(name, tables or {})
        self.name = name
        self.state = state or State()
        self._spark_session = spark_session
        self._owner = (pipeline_id, name)
        self._names = dict(tables or {})
        self._mode = mode
        self._told: dict[str, Mark | None] = {}

    def mark(self, table: str) -> Mark | None:
        kept = self._find(table)
        self._told[table] = kept.mark if kept else None
        return self._told[table]

    def have(self, table: str) -> Table | None:
        kept = self._find(table)
        return kept.table if kept else None

    def notes(self, table: str) -> dict[str, str]:
        kept = self._find(table)
        return dict(kept.notes) if kept else {}

    def known(self, table: str, near: Ranges = NOWHERE) -> DataFrame:
        with self.state.lock:
            kept = self._kept(table)
            seen = {key: (position, False) for key, position in kept.folded.tombstones.items()}
            seen |= {key: (position, True) for key, (position, _) in kept.folded.rows.items()}
        types = [f"`{key.replace('`', '``')}` {kept.table.column(key).type}" for key in kept.table.keys]
        schema = ", ".join([*types, "_cdc_position string", "_cdc_alive boolean"])
        return frame(self._session(), [(*key, *known) for key, known in seen.items()], schema)

    def current(self, table: str, near: Ranges = NOWHERE) -> DataFrame:
        if self._mode == "scd2":
            return self.records(table, near)[0]
        with self.state.lock:
            kept = self._kept(table)
            rows = [{**row, "_cdc_position": position} for position, row in kept.folded.rows.values()]
            return self._frame(kept, {"_cdc_position": "string"}, rows)

    def records(self, table: str, near: Ranges = NOWHERE) -> tuple[DataFrame, DataFrame | None]:
        with self.state.lock:
            kept = self._kept(table)
            sequence = kept.notes.get("sequence", "string")
            event = {SEQUENCE: sequence, "_cdc_position": "string", "_cdc_unchanged": "array<string>"}
            visible = self._frame(kept, {START: sequence, END: sequence, **event}, kept.records.values())
            hidden = self._frame(kept, {**event, "_cdc_op": "string", "_cdc_offset": "bigint"}, kept.hidden)
            return visible, hidden if kept.hidden else None

    def evolve(self, table: str, change: Fit) -> None:
        with self.state.lock:
            kept = self._find(table)
            if kept is None:
                shape = Table(table, change.table.columns, change.table.keys)
                self.state.tables[self._names.get(table, table)] = Kept(self._owner, shape, dict(change.notes))
                return
            new = [column for column in change.add if column.name not in kept.table.names()]
            defaults = {column.name: self._default(column) for column in new}
            for _, row in kept.folded.rows.values():
                row.update(defaults)
            for record in (*kept.records.values(), *kept.hidden):
                record.update(dict.fromkeys(defaults))
            wider = {column.name: column for column in change.widen}
            days = {name: c.type for name, c in wider.items() if kept.table.column(name).type == "date" != c.type}
            if days:
                _as_moments(kept, days)
            columns = [wider.get(column.name, column) for column in kept.table.columns]
            kept.table = Table(table, (*columns, *new), kept.table.keys)

    def apply(self, batch: Batch) -> Applied:
        rows, hidden = batch.rows.collect(), batch.hidden.collect() if batch.hidden else []
        with self.state.lock:
            kept = self._kept(batch.table.name)
            if kept.mark and kept.mark.includes(batch.mark):
                return Applied()
            if self._told.get(batch.table.name, kept.mark) != kept.mark:
                raise Retryable(
                    "write-conflict",
                    f'another writer committed to table "{batch.table.name}" in the meantime',
                    "Nothing was written. Apply the batch again, one call at a time.",
                )
            if self._mode == "scd2":
                applied = _record(kept, batch, rows, hidden)
            else:
                applied = self._append(kept, rows) if self._mode == "append" else _fold(kept, batch, rows)
            kept.mark = self._told[batch.table.name] = batch.mark
            return applied

    def rows(self, table: str) -> list[dict[str, Value]]:
        """Return the rows that a reader of `table` sees, without reserved columns."""
        with self.state.lock:
            kept = self._kept(table)
            if self._mode == "append":
                return [dict(event) for event in kept.events]
            if self._mode == "scd2":
                shown = (*kept.table.names(), START, END)
                return [{name: record.get(name) for name in shown} for record in kept.records.values()]
            names = kept.table.names()
            return [{name: row.get(name) for name in names} for _, row in kept.folded.rows.values()]

    def _append(self, kept: Kept, rows: list[Row]) -> Applied:
        kept.events.extend({name: _plain(value) for name, value in row.asDict().items()} for row in rows)
        return Applied(inserted=len(rows))

    def _frame(self, kept: Kept, ours: Mapping[str, str], rows: Iterable[Mapping[str, Value]]) -> DataFrame:
        types = {**{column.name: column.type for column in kept.table.columns}, **ours}
        schema = ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in types.items())
        return frame(self._session(), [tuple(row.get(name) for name in types) for row in rows], schema)

    def _kept(self, table: str) -> Kept:
        kept = self._find(table)
        if kept is None:
            raise Halt("table-missing", f'table "{table}" is not in target "{self.name}"', "It is created first.")
        return kept

    def _find(self, table: str) -> Kept | None:
        name = self._names.get(table, table)
        kept = self.state.tables.get(name)
        if kept and (kept.owner != self._owner or kept.table.name != table):
            raise Halt(
                "foreign-table",
                f'the table "{name}" belongs to pipeline and target {kept.owner}',
                "Nothing was written to it. Give the table another name under tables.",
            )
        return kept

    def _default(self, column: Column) -> Value:
        if column.default is None:
            return None
        value = F.lit(column.default).cast(column.type)
        return _plain(self._session().range(1).select(value).collect()[0][0])

    def _session(self) -> SparkSession:
        given = self._spark_session
        return given if isinstance(given, SparkSession) else given()


def _record(kept: Kept, batch: Batch, rows: list[Row], hidden: list[Row]) -> Applied:
    counts = {"inserted": 0, "updated": 0, "deleted": 0}
    for row in rows:
        record = {name: _plain(value) for name, value in row.asDict().items()}
        place: Key = tuple(record[name] for name in (*kept.table.keys, "_cdc_position"))
        there = kept.records.pop(place, None)
        if record.pop("_cdc_op") != "d":
            kept.records[place] = record
            counts["updated" if there else "inserted"] += 1
        elif there:
            counts["deleted"] += 1
    for row in hidden:
        kept.hidden.append({**{n: _plain(v) for n, v in row.asDict().items()}, "_cdc_offset": batch.mark.offset})
    return Applied(**counts)


def _fold(kept: Kept, batch: Batch, rows: list[Row]) -> Applied:
    before = {key: position for key, (position, _) in kept.folded.rows.items()}
    changes = [Change(batch.table.name, Op.TRUNCATE, batch.truncate)] if batch.truncate else []
    if batch.soft and batch.truncate:
        # A row that the batch speaks of says itself whether it is marked.
        spoken = {tuple(_plain(row[name]) for name in kept.table.keys) for row in rows}
        changes = [
            _marked(batch, key, row)
            for key, row in kept.folded.rows.items()
            if row[0] <= batch.truncate and key not in spoken
        ]
    fold([*changes, *(_change(kept.table, batch, row) for row in rows)], kept.folded)
    after = kept.folded.rows
    updated = sum(1 for key, position in before.items() if key in after and after[key][0] != position)
    return Applied(len(after.keys() - before.keys()), updated, len(before.keys() - after.keys()))


def _change(table: Table, batch: Batch, row: Row) -> Change:
    image = {name: _plain(row[name]) for name in batch.table.names()}
    key: Key = tuple(image[name] for name in table.keys)
    if row["_cdc_op"] == "d":
        return Change(batch.table.name, Op.DELETE, row["_cdc_position"], key)
    # A column that the batch does not carry is one that the source has dropped: the row keeps its value.
    left_out = set(table.names()) - image.keys()
    unchanged = frozenset(row["_cdc_unchanged"] or ()) | left_out
    return Change(batch.table.name, Op.UPDATE, row["_cdc_position"], key, image, unchanged)


def _marked(batch: Batch, key: Key, row: tuple[str, dict[str, Value]]) -> Change:
    """Return the change that a truncate makes to a row which stays: it is marked as deleted."""
    boolean = batch.table.column(batch.soft).type == "boolean"
    now = True if boolean else row[1].get(batch.soft) or datetime.datetime.now()  # noqa: DTZ005
    return Change(batch.table.name, Op.UPDATE, batch.truncate, key, {**row[1], batch.soft: now})


def _as_moments(kept: Kept, days: Mapping[str, str]) -> None:
    """Make moments of the days in the columns that `days` names, as Spark collects them; see `core.table.widens`."""

    def moment(name: str, value: Value) -> Value:
        if name not in days or not isinstance(value, datetime.date):
            return value
        first = datetime.datetime.combine(value, datetime.time(), datetime.UTC)
        return (first.astimezone() if days[name] == "timestamp" else first).replace(tzinfo=None)

    def row(values: Mapping[str, Value]) -> dict[str, Value]:
        return {name: moment(name, value) for name, value in values.items()}

    def key(values: Key) -> Key:
        return tuple(map(moment, kept.table.keys, values))

    folded = kept.folded
    folded.rows = {key(k): (position, row(values)) for k, (position, values) in folded.rows.items()}
    folded.tombstones = {key(k): position for k, position in folded.tombstones.items()}
    folded.gone = {key(k): row(values) for k, values in folded.gone.items()}
    kept.events = [row(values) for values in kept.events]
    kept.records = {(*key(k[:-1]), k[-1]): row(values) for k, values in kept.records.items()}
    kept.hidden = [row(values) for values in kept.hidden]


def _plain(value: Any) -> Value:
    return bytes(value) if isinstance(value, bytearray) else value
