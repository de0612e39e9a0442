"""The shape of a table, and how the shape of one fits another.

Types are the names Spark SQL gives them (`bigint`, `decimal(10,2)`, `array<string>`): one vocabulary
for sources, engine and targets. `fit` decides what a target must change to take a source's rows; a
target obeys and never decides.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tailrace.core import nested
from tailrace.core.errors import Halt, Misconfigured

Scalar = str | int | float | bool | None

RESERVED = "_cdc_"
"""Columns of ours start like this; a source's column may not."""

START, END, SEQUENCE = "__START_AT", "__END_AT", "_cdc_sequence"
"""In a table of records: from when to when one stands, and the sequence of the event whose values it has."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its type here, and how its value is written in a message.

    `encoding` is the envelope's word for the wire form (for example `date-days`, `base64`), empty
    where JSON's own form will do. `default` is what rows written before the column existed hold. `json` says of text
    that each value is a JSON document; a target that has a type for those may use it.
    """

    name: str
    type: str
    nullable: bool = True
    encoding: str = ""
    default: Scalar = None
    json: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a source: `name` is qualified (`public.orders`), `keys` identify a row."""

    name: str
    columns: tuple[Column, ...]
    keys: tuple[str, ...]

    def names(self) -> tuple[str, ...]:
        """Return the column names in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """Return the column called `name`; a KeyError if there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def to_json(self) -> dict[str, object]:
        """Return the form that is stored; `table_from_json` is its inverse."""
        return {
            "name": self.name,
            "keys": list(self.keys),
            "columns": [
                {
                    "name": c.name,
                    "type": c.type,
                    "nullable": c.nullable,
                    "encoding": c.encoding,
                    "default": c.default,
                    # Only where it is so: a table without such columns keeps the fingerprint that it has in old logs.
                    **({"json": True} if c.json else {}),
                }
                for c in self.columns
            ],
        }

    def fingerprint(self) -> str:
        """Return a short text that two tables share only if they are equal."""
        text = json.dumps(self.to_json(), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def table_from_json(stored: Mapping[str, object]) -> Table:
    """Return the table that `to_json` made."""
    columns, keys = stored["columns"], stored["keys"]
    if not isinstance(columns, list) or not isinstance(keys, list):
        raise ValueError("not a table")
    return Table(str(stored["name"]), tuple(Column(**column) for column in columns), tuple(keys))


class Evolution(StrEnum):
    """What to do when the source's table has grown: the `schema_evolution` of a target."""

    SKIP = "skip"
    FAIL = "fail"
    ALTER = "alter"


@dataclass(frozen=True, slots=True)
class Fit:
    """How a source's table goes into a target's: what to add, what to widen, what is left out."""

    table: Table
    """The target's table as it will be: the rows of a batch have these columns."""
    create: bool = False
    add: tuple[Column, ...] = ()
    widen: tuple[Column, ...] = ()
    skipped: tuple[str, ...] = ()
    """Columns and changes of type that the policy leaves out, as sentences for a warning."""
    notes: tuple[tuple[str, str], ...] = ()
    """What the writer wants remembered with a table that is created, by name."""


def fit(
    have: Table | None,
    want: Table,
    policy: Evolution,
    *,
    narrower: bool = True,
    pad: bool = False,
    expected: Collection[str] = (),
) -> Fit:
    """Decide how rows shaped like `want` go into a target shaped like `have`.

    A column that the source dropped stays in the target: rows keep what they have. A type that is
    narrower in the source than in the target is stored in the target's type, unless `narrower` says no.
    With `pad`, a field that a struct has lost is NULL from then on. A column that is `expected` belongs to the table
    though it comes later: it is added whatever the policy. Anything that cannot be stored exactly halts; nothing is
    ever cut to fit.
    """
    _refuse_bad_names(want)
    if have is None:
        return Fit(want, create=True)
    if have.keys and have.keys != want.keys:
        raise Halt(
            "key-changed",
            f'table "{want.name}" is keyed by {list(want.keys)} in the source and by {list(have.keys)} in the target',
            "Rows of two keys cannot live in one table. Write to a new target table, or set primary_key for it.",
        )
    _refuse_case_twins([*have.names(), *want.names()], want.name)
    _refuse_twins_inside([*have.columns, *want.columns], want.name)
    add, widen, skipped = [], [], []
    columns = {column.name: column for column in have.columns}
    for column in want.columns:
        old = columns.get(column.name)
        if old is None:
            if policy is Evolution.SKIP and column.name not in expected:
                skipped.append(f'column "{column.name}" {column.type} is new and left out')
            else:
                add.append(column)
        # Every document is text, and not every text a document.
        elif (
            wider := _wider(want.name, old, column, narrower=narrower, pad=pad)
        ) != old.type or old.json > column.json:
            if policy is Evolution.SKIP:
                stays = "json" if old.json else old.type
                skipped.append(f'column "{column.name}" became {column.type} and stays {stays}')
            else:
                widen.append(Column(column.name, wider))
    new = [column for column in add if column.name not in expected]
    if policy is Evolution.FAIL and (new or widen):
        change = new[0] if new else widen[0]
        what = "has no column" if new else f"cannot widen to {change.type} the column"
        raise Halt(
            "schema-refused",
            f'table "{want.name}" {what} "{change.name}" in the target',
            "Change it there, or set schema_evolution to alter or skip for this target.",
        )
    for column in widen:
        columns[column.name] = Column(column.name, column.type)
    for column in add:
        columns[column.name] = Column(column.name, column.type, default=column.default, json=column.json)
    return Fit(Table(want.name, tuple(columns.values()), want.keys), False, tuple(add), tuple(widen), tuple(skipped))


def _wider(table: str, old: Column, column: Column, *, narrower: bool, pad: bool) -> str:
    """Return the type that holds what both hold; halt if there is none, or if it may not be used."""
    if old.type == column.type:
        return old.type
    wider = nested.merged(old.type, column.type, widens)
    if wider and (pad or not nested.lost(old.type, column.type)):
        # Part by part: a field may be new while another one is narrower than it was.
        narrowed = any(nested.changed(column.type, wider))
        if narrower or not narrowed:
            return wider
    raise Halt(
        "type-changed",
        f'column "{column.name}" of table "{table}" became {column.type} in the source and is {old.type} in the target',
        "This is not a widening, so no stored value may be converted silently. Change the column in the target, or "
        "write to a new target table.",
    )


_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def widens(old: str, new: str) -> bool:
    """Say whether every value of type `old` is exactly a value of type `new`; a day is its first moment in UTC."""
    if old == new:
        return True
    if old in _INTEGERS and new in _INTEGERS:
        return _INTEGERS.index(old) < _INTEGERS.index(new)
    if decimal := _DECIMAL.fullmatch(new):
        precision, scale = map(int, decimal.groups())
        if old in _INTEGERS:
            return precision - scale >= _DIGITS[old]
        if smaller := _DECIMAL.fullmatch(old):
            old_precision, old_scale = map(int, smaller.groups())
            return scale >= old_scale and precision - scale >= old_precision - old_scale
    return (old, new) in {
        ("float", "double"),
        ("tinyint", "float"),
        ("smallint", "float"),
        ("tinyint", "double"),
        ("smallint", "double"),
        ("int", "double"),
        ("date", "timestamp_ntz"),
        ("date", "timestamp"),
    }


def incompatible(old: Table, new: Table) -> str | None:
    """Say what of `old` a reader would miss in rows written with `new`; `None` if nothing."""
    if old.keys != new.keys:
        return f"its key was {list(old.keys)} and is {list(new.keys)}"
    for column in old.columns:
        if column.name not in new.names():
            return f'column "{column.name}" is gone'
        kind = new.column(column.name).type
        if kind != column.type and not widens(column.type, kind):
            return f'column "{column.name}" was {column.type} and is {kind}'
    return None


def _refuse_bad_names(table: Table) -> None:
    for column in table.columns:
        if column.name.lower().startswith(RESERVED):
            raise Halt(
                "reserved-column",
                f'column "{column.name}" of table "{table.name}" starts with "{RESERVED}"',
                "Names that start so are ours. Leave the column out with columns, or rename it in the source.",
            )
    _refuse_case_twins(table.names(), table.name)
    _refuse_twins_inside(table.columns, table.name)


def _refuse_case_twins(names: Iterable[str], table: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise Halt(
                "case-collision",
                f'columns "{other}" and "{name}" of table "{table}" differ only in case',
                "Spark tables do not tell them apart. Leave one out with columns, or rename it in the source.",
            )


def _refuse_twins_inside(columns: Sequence[Column], table: str) -> None:
    for name in dict.fromkeys(column.name for column in columns):
        for one, other in nested.case_twins([column.type for column in columns if column.name == name]):
            raise Halt(
                "case-collision",
                f'fields "{one}" and "{other}" inside column "{name}" of table "{table}" differ only in case',
                "Spark tables do not tell them apart. Leave the column out with columns, or rename one in the source.",
            )


def table_called(topic: str) -> str | None:
    """Return the table that `topic` is called after, `<prefix>.<schema>.<table>`; `None` if it is called otherwise."""
    return ".".join(topic.split(".")[-2:]) if topic.count(".") > 1 else None


def in_order(known: Iterable[str], tables: Iterable[str]) -> tuple[str, ...]:
    """Return the tables that are `known`, and behind them those of `tables` that are new, small letters first."""
    return tuple(dict.fromkeys((*known, *sorted(tables, key=str.swapcase))))


def told_apart(tables: Sequence[str]) -> dict[str, str]:
    """Return a name for each table that no other has where case is not told apart: its own, unless one before has that.

    The others get digits, which are made of their own names: whichever tables come later, no name changes.
    """
    taken: set[str] = set()
    names = {}
    for table in tables:
        names[table] = f"{table}_{_digits(table)}" if table.lower() in taken else table
        taken.add(table.lower())
    return names


def _digits(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _bare(table: str) -> str:
    return table.rsplit(".", 1)[-1]


def target_names(tables: Sequence[str], chosen: Mapping[str, str], *, folds: bool = True) -> dict[str, str]:
    """Return the target's name for each source table: its own, with its schema where two would collide.

    A target that `folds` takes names that differ only in case for one.
    """
    often = Counter(_bare(table) for table in {table.lower() for table in tables})
    names = {}
    for table, told in told_apart(tables).items():
        whole = told if folds else table
        own = _bare(whole) if often[_bare(table.lower())] == 1 else whole.replace(".", "_")
        names[table] = chosen.get(table, own)
    written: dict[str, str] = {}
    for table, name in names.items():
        place = file_name(name)
        other = written.setdefault(place.lower() if folds else place, table)
        if other != table:
            raise Misconfigured(
                "name-collision",
                f'tables "{other}" and "{table}" would both be written to "{name}"',
                "Give one of them a name of its own under tables.",
            )
    return names


def file_name(name: str) -> str:
    """Return `name` as one path segment: equal for equal names only, and never special to a file system."""
    encoded = "".join(char if char.isascii() and (char.isalnum() or char in "_-") else _percent(char) for char in name)
    if len(encoded) > 120:
        return encoded[:80] + "%." + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    if _DEVICE.fullmatch(encoded):
        return _percent(encoded[0]) + encoded[1:]
    return encoded or "%"


_DEVICE = re.compile(r"con|prn|aux|nul|com[0-9]|lpt[0-9]", re.IGNORECASE)


def _percent(char: str) -> str:
    return "".join(f"%{byte:02x}" for byte in char.encode("utf-8", "surrogatepass"))
