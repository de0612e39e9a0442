"""How a table gets its columns, and what lies beside it: created and altered in the transaction of the caller."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tailrace.core.table import SEQUENCE, Column, Fit, Table
from tailrace.targets._columns import POSITION, UNCHANGED, columns_of
from tailrace.targets._sql.control import Control, Entry, Owner
from tailrace.targets._sql.dialect import Dialect, Session
from tailrace.targets._sql.statements import DAY, OP

NUMBER = "_cdc_offset"
"""In what lies beside a table of records: the number of the commit that hid it."""


@dataclass(frozen=True, slots=True)
class Place:
    """A table and what lies beside it, by name."""

    dialect: Dialect
    name: str

    @property
    def beside_name(self) -> str:
        """Return the name of the table beside it."""
        return f"_tailrace_beside_{self.name}"

    @property
    def table(self) -> str:
        """Return the table, quoted."""
        return self.dialect.table(self.name)

    @property
    def beside(self) -> str:
        """Return the table beside it, quoted."""
        return self.dialect.table(self.beside_name)


def planned(dialect: Dialect, owner: Owner, mode: str, change: Fit) -> Entry:
    """Return the entry of a table that is to be created."""
    columns = change.table.columns
    shape = Table(owner.table, tuple(_kept(dialect, column) for column in columns), change.table.keys)
    return Entry(owner.text(), mode, shape, dict(change.notes), natives=_natives(dialect, columns))


def _kept(dialect: Dialect, column: Column) -> Column:
    return Column(column.name, column.type, json=column.json and dialect.documents)


def _natives(dialect: Dialect, columns: Iterable[Column]) -> dict[str, str]:
    return {column.name: "json" for column in columns if column.json and dialect.documents}


def beside(entry: Entry) -> dict[str, str]:
    """Return the columns of what lies beside a table, with their types."""
    if entry.mode == "scd1":
        keys = {key: entry.kinds()[key] for key in entry.shape.keys}
        return {**keys, POSITION: "string", OP: "string", DAY: "string"}
    user = entry.kinds()
    ours = {SEQUENCE: entry.sequence, POSITION: "string", OP: "string", UNCHANGED: "array<string>"}
    return {**user, **ours, NUMBER: "bigint", DAY: "string"}


def told(entry: Entry) -> tuple[str, ...]:
    """Return the columns that tell rows of the table apart."""
    keys = entry.shape.keys
    return {"scd1": keys, "scd2": (*keys, POSITION)}.get(entry.mode, ())


def columns(dialect: Dialect, types: Mapping[str, str], told: Sequence[str]) -> str:
    """Return the columns called and typed like `types` as a statement that makes a table has them."""
    parts = []
    for name, kind in types.items():
        if name in (POSITION, OP, DAY):
            sql = dialect.position
        else:
            sql = dialect.key_type(kind, told) if name in told else dialect.kind(kind).sql
        parts.append(f"{dialect.column(name)} {sql}")
    return ", ".join(parts)


def create_beside(session: Session, place: Place, entry: Entry) -> None:
    """Create what lies beside the table, in the place of what an earlier one left."""
    if Control(place.dialect).exists(session, place.beside_name):
        session.run(f"DROP TABLE {place.beside}")
    if entry.mode != "append":
        _make(session, place.dialect, place.beside, _side(entry))
        _index(session, place, entry)


def create(session: Session, place: Place, entry: Entry) -> None:
    """Create the table itself."""
    _make(session, place.dialect, place.table, _table(entry))


def claim(session: Session, place: Place, entry: Entry) -> None:
    """Add to an empty table that somebody else has made what makes it ours."""
    create_beside(session, place, entry)
    position = columns(place.dialect, {POSITION: "string"}, ())
    _add_column(session, place, place.table, POSITION, position, began=True)


def noted(session: Session, place: Place, entry: Entry, change: Fit) -> Entry:
    """Return `entry` with what `change` is about to add, where half of that may last.

    A column that is there and was not noted is somebody else's: adding it fails.
    """
    if place.dialect.columns is None:
        return entry
    there = _there(session, place, place.table)
    names = (column.name for column in change.add if column.name not in entry.shape.names())
    new = (name for name in names if place.dialect.name_of(name).lower() not in there)
    return replace(entry, adding=tuple(dict.fromkeys((*entry.adding, *new))))


def alter(session: Session, place: Place, entry: Entry, change: Fit, stored: Callable[[Column], object]) -> Entry:
    """Add and widen what is not yet as `change` says; return the entry as it is then.

    In mode scd1 rows that exist get the default of a new column; `stored` returns it as it is stored.
    """
    have = entry.kinds()
    add = [column for column in change.add if column.name not in have]
    widen = {c.name: Column(c.name, c.type) for c in change.widen if have.get(c.name, c.type) != c.type}
    old = (widen.get(column.name, column) for column in entry.shape.columns)
    natives = {name: kind for name, kind in entry.natives.items() if name not in widen}
    wider = replace(entry, shape=replace(entry.shape, columns=tuple(old)), natives=natives)
    if widen:
        _widen(session, place, entry, wider, list(widen))
    for column in add:
        _add(session, place, entry, column, stored)
    new = (_kept(place.dialect, column) for column in add)
    shape = replace(wider.shape, columns=(*wider.shape.columns, *new))
    return replace(wider, shape=shape, natives={**natives, **_natives(place.dialect, add)}, adding=())


def _widen(session: Session, place: Place, entry: Entry, wider: Entry, names: Sequence[str]) -> None:
    dialect = place.dialect
    types = {name: (entry.kinds()[name], wider.kinds()[name]) for name in names}
    anew = dialect.convert and any(dialect.kind(old).sql != dialect.kind(new).sql for old, new in types.values())
    for own, layout in ((place.name, _table(wider)), (place.beside_name, _side(wider))):
        table = dialect.table(own)
        found = [name for name in names if name in layout.types]
        if entry.mode == "append" and own == place.beside_name:
            continue
        if anew and dialect.convert:
            values = {name: dialect.convert(dialect.column(name), *types[name]) for name in found}
            _make_anew(session, dialect, own, layout, values)
        else:
            for name in found:
                for statement in dialect.widen(table, dialect.column(name), *types[name]):
                    session.run(statement)


def _make_anew(session: Session, dialect: Dialect, own: str, layout: _Layout, values: Mapping[str, str]) -> None:
    table, new = dialect.table(own), dialect.column("_tailrace_new")
    attached = session.ask(dialect.attached, [dialect.fold(own)]) if dialect.attached else []
    _make(session, dialect, new, layout)
    names = [dialect.column(name) for name in layout.types]
    listed = [values.get(name, dialect.column(name)) for name in layout.types]
    session.run(f"INSERT INTO {new} ({', '.join(names)}) SELECT {', '.join(listed)} FROM {table}")
    session.run(f"DROP TABLE {table}")
    session.run(f"ALTER TABLE {new} RENAME TO {table}")
    # Indexes and triggers, ours and those of others.
    for (statement,) in attached:
        session.run(statement)


@dataclass(frozen=True, slots=True)
class _Layout:
    types: Mapping[str, str]
    told: tuple[str, ...]
    primary: tuple[str, ...] = ()


def stored(entry: Entry) -> dict[str, str]:
    """Return the columns of the table, ours among them, with their kinds."""
    return {**dict(columns_of(entry.shape, entry.mode, entry.sequence)), **entry.natives}


def _table(entry: Entry) -> _Layout:
    return _Layout(stored(entry), told(entry), told(entry))


def _side(entry: Entry) -> _Layout:
    return _Layout(beside(entry), told(entry), told(entry) if entry.mode == "scd1" else ())


def _index(session: Session, place: Place, entry: Entry) -> None:
    if entry.mode == "scd2" and place.dialect.keyed:
        index = place.dialect.column(f"_tailrace_keys_{place.name}")
        listed = ", ".join(map(place.dialect.column, entry.shape.keys))
        session.run(f"CREATE INDEX {index} ON {place.beside} ({listed})")


def _make(session: Session, dialect: Dialect, table: str, layout: _Layout) -> None:
    parts = columns(dialect, layout.types, layout.told)
    if layout.primary and dialect.keyed:
        parts += f", PRIMARY KEY ({', '.join(map(dialect.column, layout.primary))})"
    session.run(f"CREATE TABLE {table} ({parts})")


def _add(session: Session, place: Place, entry: Entry, column: Column, stored: Callable[[Column], object]) -> None:
    kind = place.dialect.kind(_natives(place.dialect, [column]).get(column.name, column.type))
    name = place.dialect.column(column.name)
    for table in (place.table, place.beside) if entry.mode == "scd2" else (place.table,):
        _add_column(session, place, table, column.name, f"{name} {kind.sql}", began=column.name in entry.adding)
    if column.default is not None and entry.mode == "scd1":
        value = place.dialect.cast(place.dialect.parameter(1), kind.sql)
        session.run(f"UPDATE {place.table} SET {name} = {value}", [stored(column)])


def _add_column(session: Session, place: Place, table: str, name: str, declared: str, *, began: bool) -> None:
    if began and place.dialect.name_of(name).lower() in _there(session, place, table):
        # Nobody writes to it before the control row has it, so nothing is lost; it may be of another type.
        session.run(f"ALTER TABLE {table} DROP COLUMN {place.dialect.column(name)}")
    session.run(f"ALTER TABLE {table} ADD COLUMN {declared}")


def _there(session: Session, place: Place, table: str) -> Collection[str]:
    """Return the columns of `table` that an earlier try may have added; none where such a try is undone."""
    return place.dialect.columns(session, table) if place.dialect.columns else ()
