"""The statements that fold a staged batch into a table: set by set, in the order of `table.py`.

Pure text in, text out. Every name passes through the dialect's quoting; values are bound, never written. In all
of them `_cdc_t` is the table, `_cdc_g` what lies beside it and `_cdc_s` the staged rows, one for each key: names that
no column of a user has, which a struct of that name would otherwise be taken for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.targets._columns import POSITION
from tailrace.targets._sql.dialect import Dialect

OP, KEPT, DAY = "_cdc_op", "_cdc_kept", "_cdc_day"
STAGE, CHANGED = "_tailrace_stage", "_tailrace_changed"


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements for one table, whose rows are told apart by `keys`."""

    dialect: Dialect
    table: str
    beside: str
    stage: str
    keys: tuple[str, ...]

    # -- one row per key

    def drop_stale(self, *, ties: bool) -> str:
        """Leave out staged rows of keys that were deleted later; with `ties` an upsert at that very position stays."""
        level = f" AND _cdc_s.{OP} = 'd'" if ties else ""
        late = f"(_cdc_g.{POSITION} > _cdc_s.{POSITION} OR (_cdc_g.{POSITION} = _cdc_s.{POSITION}{level}))"
        return self._delete("_cdc_s", late, read="_cdc_g")

    def delete(self) -> str:
        """Delete rows that were deleted after they were written."""
        newer = f"_cdc_s.{OP} = 'd' AND _cdc_s.{POSITION} > _cdc_t.{POSITION}"
        return self._delete("_cdc_t", newer, read="_cdc_t")

    def update(self, columns: Sequence[str], partial: Sequence[str], *, ties: bool) -> list[str]:
        """Update rows that are older than the staged ones; a column that a staged row leaves out keeps its value.

        The last of the statements counts them.
        """
        sets = []
        for name in columns:
            column = self.dialect.column(name)
            if name in partial:
                left_out = f"substr(_cdc_s.{KEPT}, {partial.index(name) + 1}, 1) = '1'"
                sets.append((column, f"CASE WHEN {left_out} THEN _cdc_t.{column} ELSE _cdc_s.{column} END"))
            else:
                sets.append((column, f"_cdc_s.{column}"))
        newer = f"_cdc_s.{POSITION} {'>=' if ties else '>'} _cdc_t.{POSITION}"
        return self._update(sets, f"_cdc_s.{OP} <> 'd' AND {newer}")

    def insert(self, columns: Sequence[str]) -> str:
        """Insert the rows whose key is not there."""
        names = [self.dialect.column(name) for name in (*columns, POSITION)]
        return (
            f"INSERT INTO {self.table} ({', '.join(names)}) {self.dialect.given}"
            f"SELECT {', '.join(f'_cdc_s.{name}' for name in names)} "
            f"FROM {self.stage} _cdc_s WHERE _cdc_s.{OP} <> 'd' AND NOT EXISTS "
            f"(SELECT 1 FROM {self.table} _cdc_t WHERE {self._matched('_cdc_t')})"
        )

    def replaced(self) -> str:
        """Count the rows that a truncate at the bound position removes and a staged row brings anew."""
        return (
            f"SELECT count(*) FROM {self.stage} _cdc_s JOIN {self.table} _cdc_t ON {self._matched('_cdc_t')} "
            f"WHERE _cdc_s.{OP} <> 'd' AND _cdc_t.{POSITION} <= {self.dialect.parameter(1)}"
        )

    def truncate(self, table: str) -> str:
        """Delete what lies at or below the bound position."""
        return f"DELETE FROM {table} WHERE {POSITION} <= {self.dialect.parameter(1)}"

    def mark_truncated(self, flag: str, value: str) -> str:
        """Mark the rows at or below the bound position that no staged row speaks of, instead of deleting them."""
        column = self.dialect.column(flag)
        kept = f"EXISTS (SELECT 1 FROM {self.stage} _cdc_s WHERE {self._matched('_cdc_t')} AND _cdc_s.{OP} <> 'd')"
        return (
            f"UPDATE {self.table} AS _cdc_t SET {column} = {value}, {POSITION} = {self.dialect.parameter(1)} "
            f"WHERE _cdc_t.{POSITION} <= {self.dialect.parameter(2)} AND NOT {kept}"
        )

    def forget(self) -> str:
        """Remove tombstones of the keys that the batch speaks of."""
        return self._delete("_cdc_g", "1 = 1")

    def bury(self) -> str:
        """Leave a tombstone, of the bound day, for every delete that no newer row contradicts."""
        names = [*map(self.dialect.column, self.keys), POSITION, OP]
        values = ", ".join(f"_cdc_s.{name}" for name in names)
        there = f"SELECT 1 FROM {self.table} _cdc_t WHERE {self._matched('_cdc_t')}"
        return (
            f"INSERT INTO {self.beside} ({', '.join(names)}, {DAY}) "
            f"SELECT {values}, {self.dialect.parameter(1)} FROM {self.stage} _cdc_s "
            f"WHERE _cdc_s.{OP} = 'd' AND NOT EXISTS ({there})"
        )

    # -- one row per record, told by key and position

    def remove_records(self) -> str:
        """Delete the records that are to be removed."""
        return self._delete("_cdc_t", f"_cdc_s.{OP} = 'd'")

    def update_records(self, columns: Sequence[str]) -> list[str]:
        """Write the records that are there anew; the last of the statements counts them."""
        names = (self.dialect.column(name) for name in columns)
        return self._update([(name, f"_cdc_s.{name}") for name in names], f"_cdc_s.{OP} <> 'd'")

    # -- parts

    def _matched(self, alias: str) -> str:
        columns = map(self.dialect.column, self.keys)
        return " AND ".join(f"{alias}.{column} = _cdc_s.{column}" for column in columns)

    def _delete(self, gone: str, condition: str, *, read: str = "") -> str:
        """Delete rows of `gone` by their keys; `condition` speaks of staged rows, and of what `read` names."""
        tables = {"_cdc_t": self.table, "_cdc_g": self.beside, "_cdc_s": self.stage}
        if self.dialect.joins:
            return f"DELETE {gone} FROM {self._joined(read or gone, tables[read or gone])} WHERE {condition}"
        keys = [self.dialect.column(key) for key in self.keys]
        listed = ", ".join(f"_cdc_s.{key}" for key in keys)
        found = f"{self.stage} _cdc_s" + (f" JOIN {tables[read]} {read} ON {self._matched(read)}" if read else "")
        within = f"SELECT {listed} FROM {found} WHERE {condition}"
        return f"DELETE FROM {tables[gone]} WHERE ({', '.join(keys)}) IN ({within})"

    def _update(self, sets: Sequence[tuple[str, str]], condition: str) -> list[str]:
        every = [*sets, (POSITION, f"_cdc_s.{POSITION}")]
        if self.dialect.rewrites:
            return self._rewrite(every, condition)
        if self.dialect.joins:
            listed = ", ".join(f"_cdc_t.{column} = {value}" for column, value in every)
            return [f"UPDATE {self._joined('_cdc_t', self.table)} SET {listed} WHERE {condition}"]
        listed = ", ".join(f"{column} = {value}" for column, value in every)
        found = f"{self.stage} AS _cdc_s WHERE {self._matched('_cdc_t')} AND {condition}"
        return [f"UPDATE {self.table} AS _cdc_t SET {listed} FROM {found}"]

    def _rewrite(self, sets: Sequence[tuple[str, str]], condition: str) -> list[str]:
        changed = self.dialect.quote(CHANGED)
        listed = ", ".join(f"{value} AS {column}" for column, value in sets)
        keys = ", ".join(map(self.dialect.column, self.keys))
        found = f"{self.stage} AS _cdc_s JOIN {self.table} AS _cdc_t ON {self._matched('_cdc_t')} WHERE {condition}"
        return [
            f"CREATE OR REPLACE TEMP TABLE {changed} AS SELECT _cdc_t.* REPLACE ({listed}) FROM {found}",
            f"DELETE FROM {self.table} WHERE ({keys}) IN (SELECT {keys} FROM {changed})",
            f"INSERT INTO {self.table} BY NAME SELECT * FROM {changed}",
        ]

    def _joined(self, alias: str, table: str) -> str:
        # From the staged rows to those of the table by its key, never the other way round.
        return f"{self.stage} AS _cdc_s STRAIGHT_JOIN {table} AS {alias} ON {self._matched(alias)}"
