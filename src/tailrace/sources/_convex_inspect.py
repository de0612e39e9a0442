"""A look into a deployment: its schemas, one page of its documents, one page of its changes. Nothing is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tailrace.core import convex
from tailrace.sources import _convex_inventory as inventory
from tailrace.sources._convex_client import Client
from tailrace.sources._convex_rows import Shapes, broken, rows_of
from tailrace.sources._convex_selection import Selection

_RECENT = 600 * 10**9
"""How long ago changes are shown from, in nanoseconds, if nobody says."""


def schemas(client: Client, selection: Selection) -> list[dict[str, object]]:
    """Return each selected table with its columns and the fingerprint of what the server says of it."""
    return [
        {
            "component": component,
            "table": table,
            "fingerprint": fingerprint,
            "columns": {column.name: column.type for column in convex.table("", fields).columns},
        }
        for (component, table), (fingerprint, fields) in inventory.schemas(client, selection).items()
    ]


def snapshot_page(
    client: Client, selection: Selection, limit: int, snapshot: int | None, cursor: str | None
) -> dict[str, object]:
    """Return a page of the documents, of which `limit` are shown."""
    arguments = {"snapshot": snapshot, "cursor": cursor, "selection": selection.wire}
    answer = client.post("list_snapshot", arguments)
    return _page(answer, selection, limit, "snapshot", delta=False)


def delta_page(client: Client, selection: Selection, limit: int, cursor: int | None) -> dict[str, object]:
    """Return a page of the changes after `cursor`, or of the last ten minutes; `limit` of them are shown."""
    if cursor is None:
        nothing = client.post("list_snapshot", {"snapshot": None, "cursor": None, "selection": {"_other": "excl"}})
        head = nothing.get("snapshot") if isinstance(nothing, Mapping) else None
        cursor = max(0, head - _RECENT) if isinstance(head, int) else 0
    answer = client.post("document_deltas", {"cursor": cursor, "selection": selection.wire})
    return {"after": str(cursor), **_page(answer, selection, limit, "cursor", delta=True)}


def _page(answer: object, selection: Selection, limit: int, place: str, *, delta: bool) -> dict[str, object]:
    values = answer.get("values") if isinstance(answer, Mapping) else None
    if not isinstance(answer, Mapping) or not isinstance(values, list):
        raise broken("a page has no values")
    rows = rows_of(values, selection, Shapes(), delta=delta)
    return {
        # As text: these numbers are beyond what JSON readers keep exactly.
        place: str(answer.get(place)),
        **({} if delta else {"cursor": answer.get("cursor")}),
        "has_more": answer.get("hasMore"),
        "rows": len(rows),
        "documents": [
            {
                "table": rows.names[n],
                "op": "d" if rows.deleted[n] else "u" if delta else "r",
                "timestamp": str(rows.stamps[n]),
                "document": json.loads(rows.texts[n]),
            }
            for n in range(min(len(rows), limit))
        ],
    }
