"""The text of the statements that fold a batch into a table that Spark can MERGE into.

Pure text in, text out. Names and values come from outside, so every one of them passes through `quote`
or `literal`; the session that runs the text must not substitute variables in it.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tailrace.apply.ranges import Bound

POSITION = "_cdc_position"
OP = "_cdc_op"
UNCHANGED = "_cdc_unchanged"


def quote(name: str) -> str:
    """Return `name` as an identifier of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def literal(value: Bound) -> str:
    """Return `value` as a literal of Spark SQL."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return f"double('{value}')"
        case decimal.Decimal():
            return f"{value:f}BD"
        case datetime.datetime():
            kind = "TIMESTAMP" if value.tzinfo else "TIMESTAMP_NTZ"
            return f"{kind} '{value.isoformat(sep=' ')}'"
        case datetime.date():
            return f"DATE '{value.isoformat()}'"
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def widened(name: str, old: str, new: str) -> str:
    """Return the stored column `name` of type `old` as a value of the wider type `new`."""
    if (old, new) == ("date", "timestamp"):
        # A cast would go by the time zone of whoever's session this is.
        return f"timestamp_seconds(unix_date({quote(name)}) * 86400L)"
    return f"CAST({quote(name)} AS {new})"


def within(ranges: Mapping[str, tuple[Bound, Bound]], alias: str = "") -> list[str]:
    """Return the conditions that hold for every key within `ranges`."""
    return [
        f"{alias}{quote(key)} >= {literal(low)} AND {alias}{quote(key)} <= {literal(high)}"
        for key, (low, high) in ranges.items()
    ]


@dataclass(frozen=True, slots=True)
class MergeRecords:
    """One MERGE of records, each told by its key and the position of its event."""

    into: str
    source: str
    columns: Sequence[str]
    keys: Sequence[str]
    ranges: Mapping[str, tuple[Bound, Bound]]

    def sql(self) -> str:
        """Return the statement; what is to be written was computed from what is there."""
        equal = [f"t.{quote(key)} = s.{quote(key)}" for key in (*self.keys, POSITION)]
        names = ", ".join(map(quote, self.columns))
        values = ", ".join(f"s.{quote(name)}" for name in self.columns)
        sets = ", ".join(f"{quote(name)} = s.{quote(name)}" for name in self.columns)
        return "\n".join(
            [
                f"MERGE INTO {self.into} t USING {self.source} s ON {' AND '.join(equal + within(self.ranges, 't.'))}",
                f"WHEN MATCHED AND s.{OP} = 'd' THEN DELETE",
                f"WHEN MATCHED THEN UPDATE SET {sets}",
                f"WHEN NOT MATCHED AND s.{OP} <> 'd' THEN INSERT ({names}) VALUES ({values})",
            ]
        )


@dataclass(frozen=True, slots=True)
class Merge:
    """One MERGE: `columns` are those of the target, `carried` those that the source has."""

    into: str
    source: str
    columns: Sequence[str]
    carried: frozenset[str]
    keys: Sequence[str]
    partial: frozenset[str]
    truncate: str
    ranges: Mapping[str, tuple[Bound, Bound]]
    ties: bool = False
    flag: tuple[str, str] | None = None
    """The column that a truncate marks in rows that it would delete, and its value as SQL; without it they go."""

    def sql(self) -> str:
        """Return the statement; a row never replaces one with a greater position."""
        newer = f"s.{POSITION} > t.{POSITION}"
        not_older = f"s.{POSITION} >= t.{POSITION}" if self.ties else newer
        stored = [*(name for name in self.columns if name in self.carried), POSITION]
        names = ", ".join(map(quote, stored))
        values = ", ".join(f"s.{quote(name)}" for name in stored)
        clauses = [
            f"MERGE INTO {self.into} t USING {self.source} s ON {self._condition()}",
            f"WHEN MATCHED AND {newer} AND s.{OP} = 'd' THEN DELETE",
            f"WHEN MATCHED AND {not_older} AND s.{OP} <> 'd' THEN UPDATE SET {', '.join(self._assignments())}",
            f"WHEN NOT MATCHED AND s.{OP} <> 'd' THEN INSERT ({names}) VALUES ({values})",
        ]
        if self.truncate:
            clauses.append(
                f"WHEN NOT MATCHED BY SOURCE AND t.{POSITION} <= {literal(self.truncate)} THEN {self._end()}"
            )
        return "\n".join(clauses)

    def _end(self) -> str:
        if self.flag is None:
            return "DELETE"
        column, value = self.flag
        return f"UPDATE SET {quote(column)} = {value}, {POSITION} = {literal(self.truncate)}"

    def _condition(self) -> str:
        equal = [f"t.{quote(key)} = s.{quote(key)}" for key in self.keys]
        # Bounds on the target alone let it skip files by their statistics; a row outside cannot match.
        return " AND ".join(equal + within(self.ranges, "t."))

    def _assignments(self) -> list[str]:
        # A row that this batch truncates is gone before the batch's own row of the same key arrives, so
        # that one finds no value to keep; unless it stays, with a mark.
        kept = f" AND t.{POSITION} > {literal(self.truncate)}" if self.truncate and self.flag is None else ""
        sets = []
        for name in self.columns:
            column = quote(name)
            if name not in self.carried:
                if kept:
                    sets.append(f"{column} = CASE WHEN true{kept} THEN t.{column} END")
            elif name in self.partial:
                unchanged = f"array_contains(s.{UNCHANGED}, {literal(name)}){kept}"
                sets.append(f"{column} = CASE WHEN {unchanged} THEN t.{column} ELSE s.{column} END")
            else:
                sets.append(f"{column} = s.{column}")
        return [*sets, f"{POSITION} = s.{POSITION}"]
