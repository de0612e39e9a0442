"""Rows of Convex's answers, checked, as rows of the change log.

A row that breaks what the server promises halts: a wrong guess about order or identity would lose changes.
Types are learned here: `Shapes` knows every field that a table was seen with, and each row names the shape that
its table had by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from tailrace.core import convex
from tailrace.core.change import Op
from tailrace.core.errors import Halt
from tailrace.core.table import Table
from tailrace.envelopes.convex_rows import ARROW
from tailrace.sources._convex_selection import Selection


class Row(NamedTuple):
    """One document of an answer; without a document it is a delete."""

    component: str
    table: str
    id: str
    ts: int
    document: Mapping[str, object]
    text: str
    deleted: bool

    @property
    def name(self) -> str:
        """The table's name among those of all components."""
        return convex.table_name(self.component, self.table)


def row_of(value: object, selection: Selection, *, delta: bool) -> Row:
    """Return a value of an answer as a row; halt if it is none, or one that was not asked for."""
    if not isinstance(value, Mapping):
        raise broken("a value is no document")
    component, table, ts = value.get("_component", ""), value.get("_table"), value.get("_ts")
    key, deleted = value.get(convex.ID), value.get("_deleted", False)
    if not isinstance(component, str) or not isinstance(table, str) or not isinstance(key, str) or not key:
        raise broken("a document has no table or no id")
    if not isinstance(ts, int) or isinstance(ts, bool) or not 0 < ts < 1 << 63:
        raise broken("a document has no timestamp")
    if not isinstance(deleted, bool) or delta != ("_deleted" in value):
        raise broken("a document does not say whether it is deleted")
    try:
        document = convex.plain_document(value)
        text = convex.text_of(document)
        text.encode()
    except ValueError as error:
        raise broken(f'a document of table "{convex.table_name(component, table)}" cannot be read: {error}') from error
    if excess := selection.excess(component, table, document):
        raise Halt(
            "selection-ignored",
            f'Convex sent "{excess[0]}" of table "{convex.table_name(component, table)}", which was not asked for',
            "The server ignored the selection, as servers of before 2026 may do. Nothing was stored. "
            "Upgrade the server, or remove the selection.",
        )
    return Row(component, table, key, ts, document, text, deleted)


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
        self._fields = dict(schemas or {})
        self._tables: dict[str, tuple[Table, str]] = {}

    def of(self, name: str) -> tuple[Table, str]:
        """Return the shape of a table and its fingerprint."""
        if name not in self._tables:
            shape = convex.table(name, self._fields.get(name, {}))
            self._tables[name] = shape, shape.fingerprint()
        return self._tables[name]

    def see(self, name: str, document: Mapping[str, object]) -> None:
        """Widen the shape of the table `name` to what `document` holds."""
        have = self._fields.get(name, {})
        if not convex.held(have, document):
            self._fields[name] = convex.widened(have, document)
            self._tables.pop(name, None)


def landed(rows: list[Row], shapes: Shapes, *, snapshot: bool) -> tuple[pa.Table, dict[str, Table]]:
    """Return `rows` as rows of the log, and the shapes they name: those of the end of the page."""
    names = [row.name for row in rows]
    # A delete tells nothing of a table's shape, so none is made for it.
    for name, row in zip(names, rows, strict=True):
        if not row.deleted:
            shapes.see(name, row.document)
    found = {name: shapes.of(name) for name, row in zip(names, rows, strict=True) if not row.deleted}
    upsert = Op.READ if snapshot else Op.UPDATE
    columns = {
        "component_path": [row.component for row in rows],
        "table_name": [row.table for row in rows],
        "document_id": [row.id for row in rows],
        "timestamp": [row.ts for row in rows],
        "op": [Op.DELETE.value if row.deleted else upsert.value for row in rows],
        "schema_fingerprint": ["" if row.deleted else found[name][1] for name, row in zip(names, rows, strict=True)],
        "document": [row.text for row in rows],
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
