"""Which tables a deployment has, and whether they are still the same ones.

When a table is dropped, or replaced by an import or a restore, Convex tells nobody: its rows just end. The only
trace is in the cursors of `list_snapshot`, which name the table where the next page begins by an internal id.
`identities` reads those ids with a few small calls.

Tables come in the order of their ids. No cursor points at the first table that fits in a page, so of that one is
known only between which others it lies: `low..high`. A replacement that happens to lie there too goes unnoticed;
so does that of an empty table. If a server's cursors look different, only tables that are gone are noticed.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Mapping

from tailrace.core.convex import Fields, fields_of, fingerprint, table_name
from tailrace.core.errors import ResyncRequired
from tailrace.sources._convex_client import FORMAT, Client
from tailrace.sources._convex_rows import broken
from tailrace.sources._convex_selection import Selection, only

Pair = tuple[str, str]
"""Component path and table."""

_MOST = 2_000
"""Calls after which the rest stays unknown."""


def tables(client: Client, selection: Selection) -> list[Pair]:
    """Return the selected tables that the deployment has now."""
    answer = client.get("get_table_column_names")
    components = answer.get("byComponent") if isinstance(answer, Mapping) else None
    if not isinstance(components, Mapping):
        raise broken("the list of tables is none")
    found = []
    for component, listed in components.items():
        for entry in listed if isinstance(listed, list) else ():
            name = entry.get("name") if isinstance(entry, Mapping) else None
            if not isinstance(component, str) or not isinstance(name, str):
                raise broken("a table has no name")
            if selection.includes(component, name):
                found.append((component, name))
    return sorted(found)


def schemas(client: Client, selection: Selection) -> dict[Pair, tuple[str, Fields]]:
    """Return of each selected table the fingerprint of the server's schema, and the selected fields by kind."""
    answer = client.get("json_schemas", format=FORMAT, byComponent="true")
    components = answer if isinstance(answer, Mapping) else {}
    if any(isinstance(listed, Mapping) and "properties" in listed for listed in components.values()):
        # A server that knows no components answers with the tables themselves.
        components = {"": components}
    found = {}
    for component, listed in sorted(components.items()):
        for table, schema in sorted(listed.items()) if isinstance(listed, Mapping) else ():
            if selection.includes(component, table):
                fields = fields_of(schema)
                hidden = selection.excess(component, table, fields)
                shown = {name: kind for name, kind in fields.items() if name not in hidden}
                found[component, table] = fingerprint(schema), shown
    return found


def identities(client: Client, known: list[Pair]) -> dict[str, str]:
    """Return what identifies each of the tables `known`, by name; empty text where nothing is known.

    A page ends with its table, and its cursor names the next; one that ends inside its table names that. A table of
    several pages is left out of the rest of the walk, which then begins again at a small table already passed, so
    that no large table is read to its end.
    """
    found = {table_name(*pair): "" for pair in known}
    rest, small, low = set(known), None, ""
    for _ in range(_MOST):
        chosen = only(rest | {small} if small else rest)
        snapshot, cursor, start, large = None, None, "", False
        while rest and not large:
            page = _page(client, snapshot, cursor, chosen)
            snapshot, cursor = page["snapshot"], page["cursor"]
            owner, at, inside = _owner(page), table_at(cursor), is_inside(cursor, _last(page["values"]))
            if owner in rest:
                found[table_name(*owner)] = at if inside else start or f"{low}..{at}"
                rest.discard(owner)
                large = inside
                low = at if inside and not small else low
                small = small if inside else owner
            start = "" if inside else at
            if cursor is None:
                break
        if not large:
            break
    return found


def table_at(cursor: object) -> str:
    """Return what identifies the table that `cursor` points at; empty if it does not say."""
    try:
        parsed = json.loads(cursor) if isinstance(cursor, str) else None
    except ValueError:
        return ""
    tablet = parsed.get("tablet") if isinstance(parsed, Mapping) else None
    return tablet if isinstance(tablet, str) else ""


def is_inside(cursor: object, last: object) -> bool:
    """Say whether `cursor` points into the table of the page before it: at the document `last` of it."""
    return isinstance(cursor, str) and isinstance(last, str) and json.dumps(last) in cursor


def identity(cursor: str | None, following: str | None, last: str) -> str:
    """Return what the cursors before and after a page of a snapshot, which ends with `last`, tell of its table."""
    exact = following if cursor is None and is_inside(following, last) else cursor
    return table_at(exact) or f"..{table_at(following)}"


def narrower(one: str, other: str) -> str:
    """Return of two identities of one table the one that says more."""
    return min(one, other, key=lambda identity: (span := _span(identity))[1] - span[0])


def refuse_changes(seen: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise if a table that was seen is gone, or cannot be the same any more."""
    gone = sorted(seen.keys() - now.keys())
    replaced = sorted(name for name in seen.keys() & now.keys() if _apart(_span(seen[name]), _span(now[name])))
    told = [f'table "{name}" is gone' for name in gone] + [f'table "{name}" was replaced' for name in replaced]
    if told:
        tables = " ".join(f"--resync-table {shlex.quote(name)}" for name in [*gone, *replaced])
        raise ResyncRequired(
            f"Convex does not say which rows were deleted: {', '.join(told)}",
            "It was deleted, unmounted, imported or restored since its snapshot. Run cdc run <file> "
            f"{tables}, which reads it anew, or cdc run <file> --resync, which takes a new snapshot of every table.",
        )


def _apart(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[1] < other[0] or other[1] < one[0]


def _span(identity: str) -> tuple[int, int]:
    """Return the first and the last id that the table may have, as numbers."""
    low, dots, high = identity.partition("..")
    if not dots and (exact := _number(identity)) is not None:
        return exact, exact
    least, most = _number(low) if dots else None, _number(high)
    return (0 if least is None else least + 1), ((1 << 128) if most is None else most - 1)


def _number(tablet: str) -> int | None:
    try:
        raw = base64.urlsafe_b64decode(f"{tablet}==")
    except ValueError:
        return None
    return int.from_bytes(raw) if len(raw) == 16 else None


def _page(client: Client, snapshot: object, cursor: object, selection: Mapping[str, object]) -> dict[str, object]:
    page = client.post("list_snapshot", {"snapshot": snapshot, "cursor": cursor, "selection": selection})
    if not isinstance(page, dict) or not {"values", "snapshot", "cursor"} <= page.keys():
        raise broken("a page of a snapshot lacks a part")
    return page


def _last(values: object) -> object:
    last = values[-1] if isinstance(values, list) and values else None
    return last.get("_id") if isinstance(last, Mapping) else None


def _owner(page: Mapping[str, object]) -> Pair:
    values = page["values"]
    first = values[0] if isinstance(values, list) and values else {}
    if not isinstance(first, Mapping):
        raise broken("a value is no document")
    return str(first.get("_component", "")), str(first.get("_table", ""))
