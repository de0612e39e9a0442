"""The five calls of the streaming export, over a deployment's data: arguments in, page out, nothing else.

Snapshots resolve tables and components at their own timestamp, deltas at the time of the call. A page of a
snapshot never spans two tables; a page of deltas never splits a transaction.
"""

from __future__ import annotations

import base64
import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from tailrace.testing.convex.deployment import Deployment, Entry, State, Tablet
from tailrace.testing.convex.errors import Refused, internal
from tailrace.testing.convex.held import Held
from tailrace.testing.convex.selection import Fields, Selection
from tailrace.testing.convex.values import FORMATS, Document, encode, fields_schema

_START = ""
"""Before every document id."""
_LEAST = "0" * 31
"""How a cursor writes it: the least id that there can be."""

Place = tuple[bytes, str]
"""A tablet, and the document in it after which to go on."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a page may become."""

    snapshot_rows: int = 1024
    delta_rows: int = 128


def list_snapshot(
    deployment: Deployment,
    snapshot: int | None,
    place: Place,
    selection: Selection,
    form: str,
    limits: Limits,
    *,
    components: bool = True,
) -> dict[str, object]:
    """Return one page of the documents at `snapshot`, or at the newest timestamp, from behind `place`."""
    at = deployment.head if snapshot is None else snapshot
    if at < 0:
        raise internal()
    if at > deployment.head:
        raise Refused(400, "SnapshotTooNew", f"Snapshot {at} is in the future")
    if at < min(deployment.oldest_snapshot(), deployment.head):
        raise Refused(400, "SnapshotTooOld", f"Snapshot {at} is too old")
    tables = sorted(
        (tablet.id, path, tablet, fields)
        for (path, name), tablet in deployment.tables_at(at).items()
        if (fields := selection.fields(path, name)) is not None and tablet.id >= place[0]
    )
    encoding = _encoding(form)
    if not tables:
        return {"values": [], "snapshot": at, "cursor": None, "hasMore": False}
    _, path, tablet, fields = tables[0]
    # The id of the cursor counts even if its table is not selected any more, as on the real server.
    found = list(islice(tablet.documents_at(at, place[1]), limits.snapshot_rows))
    values = [
        _row(document, fields, encoding, _names(path, tablet.name, ts, components=components))
        for _, ts, document in found
    ]
    after = None
    if len(found) == limits.snapshot_rows:
        after = _cursor(tablet, found[-1][0])
    elif len(tables) > 1:
        after = _cursor(tables[1][2], _START)
    return {"values": values, "snapshot": at, "cursor": after, "hasMore": after is not None}


def required(cursor: int | None) -> int:
    """Return the cursor of deltas, which comes before all other arguments; without it nothing is read."""
    if cursor is None:
        raise Refused(400, "DocumentDeltasCursorRequired", "document_deltas requires a cursor")
    return cursor


def document_deltas(
    deployment: Deployment,
    cursor: int,
    selection: Selection,
    form: str,
    limits: Limits,
    *,
    components: bool = True,
) -> dict[str, object]:
    """Return the revisions after `cursor`, whole transactions, until a limit is reached."""
    if cursor < 0:
        raise internal()
    if cursor + 1 < deployment.oldest_cursor():
        raise Refused(400, "InvalidWindowToReadDocuments", f"Timestamp {cursor} is outside of the retention window")
    chosen: list[tuple[Entry, str, Fields]] = []
    read, at, more = 0, deployment.head, False
    start = bisect_right(deployment.log, cursor, key=lambda entry: entry.ts)
    for n in range(start, len(deployment.log)):
        entry = deployment.log[n]
        full = read >= limits.delta_rows or len(chosen) >= limits.delta_rows
        if full and entry.ts > at:
            more = True
            break
        read, at = read + 1, entry.ts
        path = entry.tablet.component.path_at(deployment.clock)
        gone = entry.tablet.system or entry.tablet.state_at(deployment.clock) is State.DELETED
        fields = None if gone or path is None else selection.fields(path, entry.tablet.name)
        if fields is not None and path is not None:
            chosen.append((entry, path, fields))
    encoding = _encoding(form)
    values = [
        _row(
            entry.document or {"_id": entry.id},
            fields,
            encoding,
            {
                **_names(path, entry.tablet.name, entry.ts, components=components),
                "_deleted": entry.document is None,
            },
        )
        for entry, path, fields in chosen
    ]
    return {"values": values, "cursor": at if more else deployment.head, "hasMore": more}


def column_names(deployment: Deployment) -> dict[str, object]:
    """Return the tables of each component with the fields that their documents have."""
    found: dict[str, list[dict[str, object]]] = {}
    for (path, name), tablet in sorted(deployment.tables_at(deployment.clock).items()):
        columns = {"_creationTime", "_id", *tablet.held.examples()}
        found.setdefault(path, []).append({"name": name, "columns": sorted(columns)})
    return {"byComponent": found}


def json_schemas(deployment: Deployment, form: str, *, delta: bool, by_component: bool) -> dict[str, object]:
    """Return a JSON schema of each table, inferred from its documents."""
    encoding = _encoding(form)
    found: dict[str, dict[str, object]] = {
        path: {} for component in deployment.components if (path := component.path_at(deployment.clock)) is not None
    }
    for (path, name), tablet in sorted(deployment.tables_at(deployment.clock).items()):
        found[path][name] = _table_schema(tablet, encoding, delta=delta)
    if by_component:
        return dict(found)
    return {name: schema for tables in found.values() for name, schema in tables.items()}


def _table_schema(tablet: Tablet, encoding: str, *, delta: bool) -> dict[str, object]:
    held = tablet.held
    if not held.documents:
        held = Held()
        held.put("", {"_creationTime": 0.0, "_id": ""})
    if any(name.startswith("$") for name in held.examples()):
        raise Refused(400, "UnsupportedSchemaForExport", f"Table {tablet.name} has no schema that can be exported")
    shape = fields_schema(held.examples(), held.required(), encoding)
    if delta and isinstance(properties := shape["properties"], dict):
        properties |= {
            "_table": {"type": "string"},
            "_component": {"type": "string"},
            "_ts": {"type": "integer"},
            "_deleted": {"type": "boolean"},
        }
    return {"$schema": "http://json-schema.org/draft-07/schema#", **shape}


def _names(path: str, table: str, ts: int, *, components: bool) -> dict[str, object]:
    return {**({"_component": path} if components else {}), "_table": table, "_ts": ts}


def _row(document: Document, fields: Fields, encoding: str, names: Mapping[str, object]) -> dict[str, object]:
    return {name: encode(document[name], encoding) for name in sorted(document) if fields.include(name)} | dict(names)


def _encoding(form: str) -> str:
    if form not in FORMATS:
        raise Refused(400, "BadFormat", f"Unknown format {form}")
    return FORMATS[form]


def _cursor(tablet: Tablet, key: str) -> str:
    name = base64.urlsafe_b64encode(tablet.id).decode().rstrip("=")
    return json.dumps({"tablet": name, "id": key or _LEAST}, separators=(",", ":"))


def place_of(cursor: str | None) -> Place:
    """Return where a cursor of `list_snapshot` points; without one, before all tables."""
    return (b"", _START) if cursor is None else _place(cursor)


def _place(cursor: str) -> Place:
    try:
        match json.loads(cursor):
            case {"tablet": str(tablet), "id": str(key), **others} if not others and len(tablet) == 22 and key:
                return base64.b64decode(f"{tablet}==", b"-_", validate=True), _START if key == _LEAST else key
    except ValueError:
        pass
    raise Refused(400, "InvalidListSnapshotCursor", "The cursor of list_snapshot is malformed")
