"""Rows of Convex's answers, checked, as rows of the change log.

A row that breaks what the server promises halts: a wrong guess about order or identity would lose changes.
Types are learned here: `Shapes` knows every field that a table was seen with, and each row names the shape that
its table had by then. Rows are kept as columns, as the log wants them: there are many, and each is touched once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, cast

import pyarrow as pa

from tailrace.core import convex
from tailrace.core.change import Op
from tailrace.core.errors import Halt
from tailrace.core.table import Table
from tailrace.envelopes.convex_rows import ARROW
from tailrace.sources._convex_documents import Documents
from tailrace.sources._convex_selection import Selection

_UNSAID: Any = object()


@dataclass(slots=True)
class Rows:
    """Documents of answers, one list a column; a row that is `deleted` has the id of its document and no more."""

    components: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """Each table's name among those of all components."""
    ids: list[str] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    deleted: list[bool] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def extend(self, other: Rows) -> None:
        """Add rows behind these."""
        self.components += other.components
        self.tables += other.tables
        self.names += other.names
        self.ids += other.ids
        self.stamps += other.stamps
        self.deleted += other.deleted
        self.texts += other.texts

    def first(self, count: int) -> Rows:
        """Return the first rows."""
        return Rows(
            self.components[:count],
            self.tables[:count],
            self.names[:count],
            self.ids[:count],
            self.stamps[:count],
            self.deleted[:count],
            self.texts[:count],
        )


class _Table(NamedTuple):
    """What is the same for every row of a table."""

    component: str
    table: str
    name: str
    whole: bool
    """Every field was asked for."""
    documents: Documents
    """Reads those that were not deleted: a delete tells nothing of what fields hold."""


def rows_of(values: list[object], selection: Selection, shapes: Shapes, *, delta: bool) -> Rows:
    """Return the values of an answer as rows, and use them up; `shapes` learns from them.

    Halt if one is none, or one that was not asked for.
    """
    if not {dict}.issuperset(map(type, values)):
        raise broken("a value is no document")
    documents = cast(list[dict[str, Any]], values)
    found = Rows(
        components=[document.pop("_component", "") for document in documents],
        tables=[document.pop("_table", _UNSAID) for document in documents],
        ids=[document.get(convex.ID, _UNSAID) for document in documents],
        stamps=[document.pop("_ts", _UNSAID) for document in documents],
    )
    if not {str}.issuperset(map(type, chain(found.components, found.tables, found.ids))) or not all(found.ids):
        raise broken("a document has no table or no id")
    stamps = found.stamps
    if not {int}.issuperset(map(type, stamps)) or (stamps and not 0 < min(stamps) <= max(stamps) < 1 << 63):
        raise broken("a document has no timestamp")
    # Documents of a snapshot need not say it.
    found.deleted = [document.pop("_deleted", _UNSAID if delta else False) for document in documents]
    if not {bool}.issuperset(map(type, found.deleted)):
        raise broken("a document does not say whether it is deleted")
    if not delta and any(found.deleted):
        raise broken("a document of a snapshot is deleted")
    pairs = list(zip(found.components, found.tables, strict=True))
    tables = {pair: _table(*pair, selection, shapes) for pair in dict.fromkeys(pairs)}
    owners = [tables[pair] for pair in pairs]
    found.names = [of.name for of in owners]
    deletes, add = Documents(), found.texts.append
    for of, document, deleted in zip(owners, documents, found.deleted, strict=True):
        if not of.whole:
            _refuse_excess(of, document, selection)
        try:
            add((deletes if deleted else of.documents).read(document))
        except ValueError as error:
            raise broken(f'a document of table "{of.name}" cannot be read: {error}') from error
    return found


def _table(component: str, table: str, selection: Selection, shapes: Shapes) -> _Table:
    name, whole = convex.table_name(component, table), selection.is_whole(component, table)
    return _Table(component, table, name, whole, shapes.documents(name))


def _refuse_excess(of: _Table, document: Mapping[str, object], selection: Selection) -> None:
    if excess := selection.excess(of.component, of.table, filter(convex.own, document)):
        raise Halt(
            "selection-ignored",
            f'Convex sent "{excess[0]}" of table "{of.name}", which was not asked for',
            "The server ignored the selection, as servers of before 2026 may do. Nothing was stored. "
            "Upgrade the server, or remove the selection.",
        )


def broken(what: str) -> Halt:
    """Return the error of an answer that is not what Convex promises."""
    return Halt(
        "convex-protocol",
        f"an answer of Convex is not as promised: {what}",
        "Nothing of it was stored. Check that deployment_url is a Convex deployment, and report it if it is.",
    )


class Shapes:
    """What the fields of each table were seen to hold; it only ever grows."""

    def __init__(self, schemas: Mapping[str, convex.Fields] | None = None) -> None:
        self._documents = {name: Documents(fields) for name, fields in (schemas or {}).items()}
        self._known: dict[str, tuple[convex.Fields, Table, str]] = {}

    def documents(self, name: str) -> Documents:
        """Return what reads the documents of a table, and so learns what its fields hold."""
        return self._documents.setdefault(name, Documents())

    def of(self, name: str) -> tuple[Table, str]:
        """Return the shape of a table and its fingerprint."""
        fields = self.documents(name).fields
        if name not in self._known or self._known[name][0] != fields:
            shape = convex.table(name, fields)
            self._known[name] = dict(fields), shape, shape.fingerprint()
        return self._known[name][1:]


def landed(rows: Rows, shapes: Shapes, *, snapshot: bool) -> tuple[pa.Table, dict[str, Table]]:
    """Return `rows` as rows of the log, and the shapes they name: those of the end of the page."""
    held = dict.fromkeys(name for name, gone in zip(rows.names, rows.deleted, strict=True) if not gone)
    found = {name: shapes.of(name) for name in held}
    prints = {name: print_ for name, (_, print_) in found.items()}
    upsert, delete = (Op.READ if snapshot else Op.UPDATE).value, Op.DELETE.value
    columns = {
        "component_path": rows.components,
        "table_name": rows.tables,
        "document_id": rows.ids,
        "timestamp": rows.stamps,
        "op": [delete if gone else upsert for gone in rows.deleted],
        # A delete tells nothing of a table's shape, so it names none.
        "schema_fingerprint": [
            "" if gone else prints[name] for name, gone in zip(rows.names, rows.deleted, strict=True)
        ],
        "document": rows.texts,
    }
    return pa.table(columns, schema=ARROW), {print_: shape for shape, print_ in found.values()}


def resets(tables: list[tuple[str, str]], timestamp: int = 0) -> pa.Table:
    """Return a truncate of each table: at a timestamp, or at 0, which begins a later life, below all that follows."""
    count = len(tables)
    columns = {
        "component_path": [component for component, _ in tables],
        "table_name": [table for _, table in tables],
        "document_id": [None] * count,
        "timestamp": [timestamp] * count,
        "op": [Op.TRUNCATE.value] * count,
        "schema_fingerprint": [""] * count,
        "document": [None] * count,
    }
    return pa.table(columns, schema=ARROW)
