"""Which tables a deployment has, and whether they are still the same ones.

When a table is dropped, or replaced by an import or a restore, Convex tells nobody: its rows just end. The only
trace is in the cursors of `list_snapshot`, which name the table where the next page begins by an internal id.
`identities` reads those ids with a few small calls.

Tables come in the order of their ids. No cursor points at the first table that fits in a page, so of that one is
known only between which others it lies: `low..high`. A table that took its place may lie there too. So of each table,
which may come to be that one, some documents are remembered, `low..high:documents`: one that was not deleted and is not
there any more was in another table. A replacement that has them all leaves nothing behind, and goes unnoticed. Of empty
tables is known only which ids they have among them, `one|other:`. If a server's cursors look different, or its pages
hold several tables, some documents of each table are all that is known, `:documents`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Collection, Iterable, Mapping
from itertools import compress

from tailrace.core.convex import Fields, fields_of, fingerprint, table_name
from tailrace.core.errors import ResyncRequired
from tailrace.sources._convex_client import FORMAT, Client
from tailrace.sources._convex_rows import Rows, broken
from tailrace.sources._convex_selection import Selection, only

Pair = tuple[str, str]
"""Component path and table."""

_MOST = 2_000
"""Calls after which the rest stays unknown."""

_DOCUMENTS, _SOME, _DIGITS = 1024, 16, 8
"""So many documents of a table are remembered, fewer of one whose id is known, by so many digits each: two documents
that look alike can hide a difference, and never make one."""


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
    if any(isinstance(listed, Mapping) and isinstance(listed.get("type"), str) for listed in components.values()):
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


def look(client: Client, selection: Selection, seen: Mapping[str, str], at: int) -> dict[str, str]:
    """Return what identifies each table now; raise if one that was seen is gone, or is another one at `at`.

    Every change up to `at` must have been read: `seen` then speaks for that moment.
    """
    known = tables(client, selection)
    try:
        now = identities(client, known, at)
        lacking = [n for pair in known if _lacks(client, pair, seen.get(n := table_name(*pair), ""), now[n], at)]
    except ResyncRequired:
        # The newest moment of an idle deployment may be older than those that it lists. Whether changes are missing is
        # for the changes to say; of a later moment, a document that is not there says nothing.
        now, lacking = identities(client, known), []
    refuse_changes(seen, now, lacking)
    return {name: narrower(seen.get(name, ""), now[name]) for name in now}


def identities(client: Client, known: list[Pair], at: int | None = None) -> dict[str, str]:
    """Return what identifies each of the tables `known`, by name; empty text where nothing is known.

    A page ends with its table, and its cursor names the next; one that ends inside its table names that. A table of
    several pages is left out of the rest of the walk, which then begins again at a small table already passed, so
    that no large table is read to its end.
    """
    found = {table_name(*pair): "" for pair in known}
    rest, small, low = set(known), None, ""
    for _ in range(_MOST):
        chosen = only(rest | {small} if small else rest)
        snapshot: object = at
        cursor, start, large = None, "", False
        empty: list[str] = []
        while rest and not large:
            page = _page(client, snapshot, cursor, chosen)
            snapshot, cursor, ids = page["snapshot"], page["cursor"], _ids(page)
            owners, following = set(_tables(page)), table_at(cursor)
            if len(owners) > 1 or (cursor is not None and not following):
                # A cursor or a page of another kind. Which page of its table this is cannot be told from it either.
                return {table_name(*pair): _by_documents(client, pair, at) for pair in known}
            owner = next(iter(owners), None)
            inside = bool(ids) and is_inside(cursor, ids[-1])
            if owner in rest:
                place = following if inside else start or f"{low}..{following}"
                found[table_name(*owner)] = _with(place, ids[:_SOME] if _exact(place) else ids)
                rest.discard(owner)
                large = inside
                low = following if inside and not small else low
                small = small if inside else owner
            elif not ids:
                empty.append(start or f"..{following}")
            start = "" if inside else following
            if cursor is None:
                break
        if not large:
            # All pages were seen, so what none of them was of has no documents.
            return found | {table_name(*pair): _with("|".join(empty), ()) for pair in rest}
    return found


def _by_documents(client: Client, pair: Pair, at: int | None) -> str:
    """Return what identifies a table where cursors say nothing: some of its documents, the first that it has."""
    page = _page(client, at, None, only([pair]))
    # A server that knows no selection sends others too.
    own = [key for key, of in zip(_ids(page), _tables(page), strict=True) if of == pair]
    return _with("", own[:_SOME]) if own else ""


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


def identified(seen: Mapping[str, str], cursor: str | None, following: str | None, rows: Rows) -> dict[str, str]:
    """Return `seen` with what a page of a snapshot, and the cursors before and after it, tell of the page's table.

    Further pages of a table tell its id again, and other documents: those of the first one stay remembered.
    """
    names = set(rows.names)
    if len(names) > 1:
        # A page of another kind: its cursors do not say whose they are.
        return {**seen, **dict.fromkeys(names, "")}
    found = {name: _identity(cursor, following, rows.ids) for name in names}
    return {**found, **seen, **{name: new for name, new in found.items() if _place(new) != _place(seen.get(name, ""))}}


def _identity(cursor: str | None, following: str | None, ids: list[str]) -> str:
    exact = following if cursor is None and is_inside(following, ids[-1]) else cursor
    place = table_at(exact) or f"..{table_at(following)}"
    return _with(place, ids[: _DOCUMENTS if cursor is None and not _exact(place) else _SOME])


def narrower(one: str, other: str) -> str:
    """Return what two identities of one table tell together; `other` is the newer one, so its documents count."""
    places = (_place(one), "" if "|" in other else _place(other))
    place = min(places, key=lambda place: (span := _span(place))[1] - span[0])
    documents = sorted(_documents(other))[:_DOCUMENTS]
    return f"{place or '..'}:{''.join(documents)}" if documents else place


def without(seen: Mapping[str, str], rows: Rows) -> dict[str, str]:
    """Return `seen` after the changes `rows`: documents that were deleted are not looked for any more."""
    deleted: dict[str, list[str]] = {}
    for name, key in compress(zip(rows.names, rows.ids, strict=True), rows.deleted):
        deleted.setdefault(name, []).append(key)
    found = dict(seen)
    for name, keys in deleted.items():
        if ":" in seen.get(name, ""):
            left = _documents(seen[name]).difference(map(_digest, keys))
            found[name] = f"{_place(seen[name])}:{''.join(sorted(left))}"
    return found


def refuse_changes(seen: Mapping[str, str], now: Mapping[str, str], lacking: Collection[str] = ()) -> None:
    """Raise if a table that was seen is gone, or cannot be the same any more; those `lacking` documents cannot.

    One that is new and may be one that is gone, under another path, is to be read anew too: what it had before it was
    moved comes with no change.
    """
    gone = sorted(seen.keys() - now.keys())
    both = seen.keys() & now.keys()
    replaced = sorted(name for name in both if name in lacking or _apart(seen[name], now[name]))
    new = now.keys() - seen.keys()
    moved = sorted(name for name in new if any(not _apart(seen[old], now[name]) for old in gone))
    told = [f'table "{name}" is gone' for name in gone] + [f'table "{name}" was replaced' for name in replaced]
    told += [f'table "{name}" may be one of them' for name in moved]
    if gone or replaced:
        tables = " ".join(f"--resync-table {shlex.quote(name)}" for name in [*gone, *replaced, *moved])
        raise ResyncRequired(
            f"Convex does not say which rows were deleted: {', '.join(told)}",
            "It was deleted, unmounted, moved, imported or restored since its snapshot. Run cdc run <file> "
            f"{tables}, which reads it anew, or cdc run <file> --resync, which takes a new snapshot of every table.",
        )


def _lacks(client: Client, pair: Pair, seen: str, now: str, at: int) -> bool:
    """Say whether a table has not got a document that it had; if need be, it is read until all are found."""
    expected = _documents(seen)
    if expected <= _documents(now) or (_exact(_place(now)) and _place(now) == _place(seen)):
        return False
    if ".." in now and ":" in now:
        return not expected <= _documents(now)
    cursor = None
    for _ in range(_MOST if expected else 0):
        page = _page(client, at, cursor, only([pair]))
        expected, cursor = expected.difference(map(_digest, _ids(page))), page["cursor"]
        if not expected or cursor is None:
            return bool(expected)
    return False


def _with(place: str, ids: Iterable[str]) -> str:
    return f"{place}:{''.join(sorted(set(map(_digest, ids))))}"


def _digest(document: str) -> str:
    return hashlib.blake2s(document.encode(), digest_size=_DIGITS // 2).hexdigest()


def _documents(identity: str) -> set[str]:
    digits = identity.partition(":")[2]
    return {digits[n : n + _DIGITS] for n in range(0, len(digits), _DIGITS)}


def _place(identity: str) -> str:
    return identity.partition(":")[0]


def _exact(place: str) -> bool:
    return bool(place) and ".." not in place


def _apart(seen: str, now: str) -> bool:
    """Say whether a table has none of the ids that it may have had."""
    least, most = _span(_place(seen))
    return all(high < least or most < low for low, high in map(_span, _place(now).split("|")))


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
    if not isinstance(page, dict) or not {"values", "snapshot", "cursor", "hasMore"} <= page.keys():
        raise broken("a page of a snapshot lacks a part")
    return page if page["hasMore"] else {**page, "cursor": None}


def _ids(page: Mapping[str, object]) -> list[str]:
    return [str(document.get("_id")) for document in _values(page)]


def _tables(page: Mapping[str, object]) -> list[Pair]:
    return [(str(document.get("_component", "")), str(document.get("_table", ""))) for document in _values(page)]


def _values(page: Mapping[str, object]) -> list[Mapping[str, object]]:
    values = page["values"]
    documents = [value for value in values if isinstance(value, Mapping)] if isinstance(values, list) else []
    if not isinstance(values, list) or len(documents) != len(values):
        raise broken("a value is no document")
    return documents
