"""What differs between SQL databases, as data: names, types, and how rows cross over in bulk.

The algorithm that keeps a table current is in `table.py`, once; a database is a `Dialect`, which says how it
spells things, and a `Database`, which opens a session on it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from tailrace.core.errors import Halt, TailraceError
from tailrace.core.nested import element_of, entry_of, fields_of
from tailrace.core.table import Table

Values = Sequence[Any]

JSON = ("json", "jsonb")
NATIVE = (*JSON, "text", "uuid")
"""Kinds that Spark has no name for; their values are text to it. `text` is told from `string` where a table that
somebody else has made compares its keys in a way of its own."""

_JSON = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    # A moment or a local time that was a day when it was written has no more than that.
    "timestampFormat": "yyyy-MM-dd['T'HH:mm:ss.SSSSSSXXX]",
    "timestampNTZFormat": "yyyy-MM-dd['T'HH:mm:ss.SSSSSS]",
}

_MAP_BY_OTHERS = re.compile(r"map<(?!string,)")


def as_it_is(value: Expression) -> Expression:
    """Return `value`: it crosses over as Arrow has it."""
    return value


@dataclass(frozen=True, slots=True)
class Kind:
    """How values of one Spark type lie in a database, and how they get there and back."""

    sql: str
    """The type of the column."""
    arrow: pa.DataType | None = None
    """What is read back; as the database has it if unset."""
    out: Callable[[Expression], Expression] = as_it_is
    back: Callable[[Expression], Expression] = as_it_is
    read: str = "{}"
    """How the column is named in a query, so that it is read back in a form that `back` takes."""
    ranged: bool = False
    """The database orders what it stores as Spark orders the values."""


def text_kind(sql: str, kind: str, *, ranged: bool = False) -> Kind:
    """Return the kind of values that are stored as Spark writes them."""
    return Kind(sql, pa.string(), lambda v: v.cast("string"), lambda v: v.cast(kind), ranged=ranged)


def json_kind(sql: str, kind: str) -> Kind:
    """Return the kind of nested values that are stored as JSON."""
    if kind == "variant":
        return Kind(sql, pa.string(), F.to_json, F.parse_json)
    if _MAP_BY_OTHERS.search(kind):
        raise Halt(
            "unsupported-type",
            f"a value of type {kind} cannot be kept as JSON: the keys of its map are not text",
            "Leave the column out with columns, or give its map keys of text.",
        )
    return Kind(sql, pa.string(), lambda v: F.to_json(v, _JSON), lambda v: F.from_json(v, kind, _JSON))


def in_spark(kind: str) -> str:
    """Return the type that values of `kind` have in Spark."""
    return "string" if kind in NATIVE else kind


def double_quoted(name: str) -> str:
    """Return `name` as an identifier of standard SQL."""
    return '"' + name.replace('"', '""') + '"'


def quoted_text(text: str) -> str:
    """Return `text` as a literal of standard SQL."""
    return "'" + text.replace("'", "''") + "'"


def cast(value: str, sql: str) -> str:
    """Return `value` as one of the type `sql`."""
    return f"CAST({value} AS {sql})"


def is_nested(kind: str) -> bool:
    """Say whether values of `kind` hold other values."""
    return kind == "variant" or any(part(kind) is not None for part in (fields_of, element_of, entry_of))


class Session(Protocol):
    """One connection; a statement is undone unless `commit` comes after it."""

    def run(self, sql: str, values: Values = ()) -> int:
        """Run a statement; return how many rows it changed."""
        ...

    def ask(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Return the few rows that a query has."""
        ...

    def fetch(self, sql: str, values: Values, kinds: Mapping[str, Kind]) -> pa.Table:
        """Return the rows of a query, whose columns are called as in `kinds`."""
        ...

    def load(self, table: str, columns: Sequence[str], batches: Iterable[pa.RecordBatch]) -> None:
        """Add rows to `table` in bulk; `columns` are quoted, and in the order of the batches."""
        ...

    def commit(self) -> None:
        """Make what was done since the start, or the last commit, last; all of it or nothing."""
        ...


class Database(Protocol):
    """A database that can be opened, and whose failures can be told."""

    dialect: Dialect
    errors: tuple[type[Exception], ...]
    """What its client raises."""

    def connect(self, *, write: bool) -> AbstractContextManager[Session]:
        """Open a session in a transaction; without `write` nothing is created, not even a file."""
        ...

    def translate(self, error: Exception, what: str) -> TailraceError:
        """Return `error`, met while doing `what`, as one of ours."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one database spells things."""

    name: str
    """What it is called in a message."""
    kind: Callable[[str], Kind]
    """Says how values of a Spark type, or of one of `NATIVE` that it has, lie there."""
    quote: Callable[[str], str]
    parameter: Callable[[int], str]
    """Returns the place of the n-th value in a statement, from 1 on."""
    exists: str
    """A query for the table called by its one value."""
    positioned: Callable[[str], str]
    """Returns a query that has a row if the table called so has the column of positions, as every one of ours has."""
    widen: Callable[[str, str, str, str], list[str]]
    """Returns the statements that bring a column of a table from one Spark type to another."""
    convert: Callable[[str, str, str], str] | None = None
    """Writes a column as its value in another Spark type, where a column cannot change its type: the table is then
    made anew."""
    attached: str = ""
    """With `convert`: a query for the statements that made what is lost with the table called by its one value."""
    reflect: Callable[[Session, str], Table | str] | None = None
    """Returns the table called so that somebody else has made, or why it cannot be kept; unset if none can be."""
    schema: str = ""
    """The schema that holds the tables, quoted; empty if there are none."""
    stage: str = "CREATE TEMPORARY TABLE {name} ({columns})"
    staged: tuple[str, ...] = ()
    """Statements after rows were staged in `{name}`, such as one that has them counted."""
    now: str = "CURRENT_TIMESTAMP"
    """The time of the transaction, as a timestamp is stored."""
    lock: str = ""
    """Ends a query whose row nobody else may change before the commit."""
    position: str = "TEXT"
    """The type of a position, compared byte by byte."""
    collate: str = ""
    """Follows text that is to be compared byte by byte."""
    key: Callable[[str, Sequence[str]], str] | None = None
    """Returns the type of a key, given its Spark type and the columns that tell rows apart, where a key is limited."""
    before: Callable[[Session], None] | None = None
    """Done before a table is made or altered, such as a lock."""
    columns: Callable[[Session, str], Collection[str]] | None = None
    """Returns the columns, in small letters, that the quoted table has; set where a statement that makes or alters a
    table commits by itself, so that half of a change may be there already."""
    joins: bool = False
    """UPDATE and DELETE join the tables they read, instead of reading them in a query within."""
    cast: Callable[[str, str], str] = cast
    """Returns a bound value as one of a type of a column."""
    rewrites: bool = False
    """A row is changed by deleting it and writing it anew: by columns, an UPDATE writes the neighbours anew as well. It
    also tells -0.0 from 0.0, where an UPDATE takes them for one and leaves what is there."""
    documents: bool = False
    """It has a kind `json` that keeps a JSON document as it is written."""
    given: str = ""
    """Stands before what is inserted: a value counts also where the database would make one by itself."""
    keyed: bool = True
    """Tables have a primary key."""
    folds: bool = False
    """Names that differ only in case are one name."""
    literal: Callable[[object], str] | None = None
    """Writes a value into a query, where a query that reads in bulk takes no values."""
    longest: int = 0
    """How many bytes a name may have; 0 for any number."""
    reserved: str = ""
    """Begins the names of tables that the database makes for itself."""
    unfit: re.Pattern[str] | None = None
    """What a name cannot hold."""

    def name_of(self, name: str) -> str:
        """Return the name that `name` has there: its own unless it does not fit, and different for different names."""
        fitting = self.unfit.sub("_", name) if self.unfit else name
        text = fitting.encode("utf-8", "surrogatepass")
        if fitting == name and (not self.longest or len(text) <= self.longest):
            return name
        mark = "~" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        return text[: self.longest - len(mark)].decode("utf-8", "ignore") + mark

    def key_type(self, kind: str, told: Sequence[str]) -> str:
        """Return the type of a key of the Spark type `kind`, where the columns `told` tell rows apart."""
        if self.key is not None:
            return self.key(kind, told)
        return self.kind(kind).sql + (self.collate if kind == "string" else "")

    def column(self, name: str) -> str:
        """Return the column called `name`, quoted."""
        return self.quote(self.name_of(name))

    def table(self, name: str) -> str:
        """Return the table called `name`, quoted, with its schema."""
        return f"{self.schema}.{self.column(name)}" if self.schema else self.column(name)

    def fold(self, name: str) -> str:
        """Return what two names share that are one there."""
        own = self.name_of(name)
        return "".join(char.lower() if char.isascii() else char for char in own) if self.folds else own
