"""Some tables read anew, in the middle of a life: what was replaced by an import is whole again, the others go on.

The tables are read as they are at one timestamp, and their rows carry it: it lies above everything that was read of
them before, and below every change that follows. The truncate that comes first lies just below it. What was changed at
that very timestamp is in these rows, so it is left out of the changes before them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from tailrace.core.table import Table
from tailrace.sources import _convex_inventory as inventory
from tailrace.sources import _convex_pages as pages
from tailrace.sources._convex_client import Client
from tailrace.sources._convex_inventory import Pair
from tailrace.sources._convex_pages import DeltaPage
from tailrace.sources._convex_rows import Shapes, landed, resets
from tailrace.sources._convex_selection import Selection


@dataclass(frozen=True, slots=True)
class Renewal:
    """Tables as they were at `at`: truncates and rows of the log, their shapes, and what identifies each table."""

    at: int
    rows: pa.Table
    schemas: dict[str, Table]
    seen: dict[str, str]


def read_anew(
    client: Client, selection: Selection, tables: list[Pair], shapes: Shapes, closing: Callable[[], bool]
) -> Renewal | None:
    """Read `tables` whole, also those that are gone; `None` if `closing` came first."""
    parts: list[pa.Table] = []
    schemas: dict[str, Table] = {}
    seen: dict[str, str] = {}
    page = None
    for page in pages.walk(client, selection.narrowed(tables), shapes, closing):
        page.rows.stamps = [page.at] * len(page.rows)
        rows, named = landed(page.rows, shapes, snapshot=False)
        parts.append(rows)
        schemas |= named
        seen = inventory.identified(seen, page.cursor, page.following, page.rows)
    if page is None or page.following is not None:
        return None
    return Renewal(page.at, pa.concat_tables([resets(tables, page.at - 1), *parts]), schemas, seen)


def others(changed: pa.Table, tables: list[Pair], at: int) -> pa.Table:
    """Return the changes that a renewal of `tables` at `at` does not bring itself."""
    names = ("component_path", "table_name", "timestamp")
    rows = zip(*(changed[name].to_pylist() for name in names), strict=True)
    kept = [ts != at or (component, table) not in tables for component, table, ts in rows]
    return changed.filter(pa.array(kept, pa.bool_()))


def changes_upto(
    client: Client, selection: Selection, shapes: Shapes, after: int, upto: int, closing: Callable[[], bool]
) -> Iterator[DeltaPage]:
    """Yield every change after one timestamp up to another, which the deployment has passed; the last page ends there.

    Any timestamp is a place to go on from, also one within an answer.
    """
    while after < upto and not closing():
        page = pages.deltas(client, selection, shapes, after)
        if not page.more or page.at >= upto:
            page = DeltaPage(upto, page.more, page.rows.first(bisect_right(page.rows.stamps, upto)))
        yield page
        after = page.at
