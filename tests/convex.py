"""What the tests of Convex share: a source over an emulator, and what its pages come to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.core import convex
from tailrace.core.change import Change, Folded, Op, fold
from tailrace.core.checkpoint import Checkpoint
from tailrace.core.page import Page
from tailrace.core.position import Phase, position
from tailrace.sources._convex_client import Bounds
from tailrace.sources.convex import ConvexSource, Options, Pace
from tailrace.testing.convex import Deployment, Emulator
from tailrace.testing.convex.values import encode

Rows = dict[str, dict[str, object]]
"""Documents by table and id, decoded."""


def options(server: Emulator, **more: Any) -> Options:
    return Options.model_validate({"deployment_url": server.url, "deploy_key": server.behaviour.key, **more})


def source(server: Emulator, *, epoch: int = 1, pace: Pace | None = None, **more: Any) -> ConvexSource:
    """Return a new reader, as a new process would open it; its calls are made once, so that a test sees them fail."""
    pace = pace or Pace(0.01, 0.0, page_rows=1)
    return ConvexSource(options(server, **more), pipeline_id="shop", epoch=epoch, pace=pace, bounds=Bounds())


def read(server: Emulator, since: Checkpoint | None = None, **more: Any) -> list[Page[pa.Table]]:
    """Read from `since` to the head that there is now."""
    opened = source(server, **more)
    pages = list(opened.pages(since, opened.head()))
    opened.close()
    return pages


def rows_of(pages: Iterable[Page[pa.Table]]) -> list[dict[str, Any]]:
    return [row for page in pages for row in page.rows.to_pylist()]


def change_of(row: Mapping[str, Any], epoch: int = 1) -> Change:
    """Return a row of the log as the change that it is."""
    op = Op(row["op"])
    phase = Phase.SNAPSHOT if op is Op.READ else Phase.CHANGE if row["timestamp"] else Phase.RESET
    document = None if row["document"] is None else convex.decode(json.loads(row["document"]))
    assert document is None or isinstance(document, dict)
    return Change(
        convex.table_name(row["component_path"], row["table_name"]),
        op,
        position(epoch, phase, row["timestamp"]),
        () if op is Op.TRUNCATE else (row["document_id"],),
        None if op is Op.DELETE else document,
    )


def folded(rows: Iterable[Mapping[str, Any]], epoch: int = 1) -> Rows:
    """Return the current documents that `rows` of a log come to."""
    tables: dict[str, Folded] = {}
    for row in rows:
        change = change_of(row, epoch)
        tables[change.table] = fold([change], tables.get(change.table))
    found = {name: {str(key[0]): _exact(row) for key, (_, row) in table.rows.items()} for name, table in tables.items()}
    return {name: rows for name, rows in found.items() if rows}


def there(deployment: Deployment) -> Rows:
    """Return the current documents of a deployment."""
    found: Rows = {}
    for (component, table), documents in deployment.dump().items():
        if documents:
            found[convex.table_name(component, table)] = {key: _exact(value) for key, value in documents.items()}
    return found


def staged(files: Iterable[Path]) -> Rows:
    """Return the documents in staged files; none of them twice."""
    found: Rows = {}
    for path in files:
        for row in pq.read_table(path, partitioning=None).to_pylist():
            rows = found.setdefault(convex.table_name(row["_component_path"], row["_table_name"]), {})
            document = json.loads(row["_document_json"])
            assert row["_document_id"] not in rows
            rows[row["_document_id"]] = {name: json.dumps(value, sort_keys=True) for name, value in document.items()}
    return found


def _exact(document: Mapping[str, Any]) -> dict[str, object]:
    """Return a document in a form whose equality tells NaN, -0.0 and types apart."""
    return {name: json.dumps(encode(value, "encoded"), sort_keys=True) for name, value in document.items()}
