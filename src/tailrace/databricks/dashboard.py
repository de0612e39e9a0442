"""The dashboard of a landing: where the source stands, how old that is, and what came into each bronze table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tailrace.databricks.silver import quote

Widget = dict[str, Any]


def dashboard(tables: Mapping[str, str]) -> str:
    """Return the file of the dashboard; `tables` are the bronze tables by the names that people know them by."""
    datasets = {
        "checkpoint": "SELECT source_id, phase, snapshot_ts, delta_cursor, run_id, updated_at\n"
        "FROM connector_checkpoint_latest",
        "age": "SELECT max(timestampdiff(MINUTE, updated_at, current_timestamp())) AS minutes\n"
        "FROM connector_checkpoint_latest",
        "events": _events(tables),
        "days": "SELECT date(updated_at) AS day, count(*) AS checkpoints\nFROM connector_checkpoint\nGROUP BY 1",
    }
    layout = [
        _placed(_counter("age", "minutes", "Minutes since the last checkpoint"), 0, 0, 2, 3),
        _placed(
            _table("checkpoint", ["source_id", "phase", "delta_cursor", "run_id", "updated_at"], "Where sources stand"),
            2, 0, 4, 3,
        ),
        _placed(_bar("events", "source_table", "events", "Events by table"), 0, 3, 3, 6),
        _placed(_bar("days", "day", "checkpoints", "Checkpoints by day"), 3, 3, 3, 6),
        _placed(
            _table("events", ["source_table", "events", "deletes", "last_ingested_at"], "Bronze tables"), 0, 9, 6, 6
        ),
    ]  # fmt: skip
    document = {
        "datasets": [
            {"name": name, "displayName": name, "queryLines": [f"{line}\n" for line in query.splitlines()]}
            for name, query in datasets.items()
        ],
        "pages": [{"name": "landing", "displayName": "Landing", "layout": layout}],
    }
    return json.dumps(document, indent=2) + "\n"


def _events(tables: Mapping[str, str]) -> str:
    each = [
        f"SELECT {_text(table)} AS source_table, count(*) AS events, count_if(_cdc_is_deleted) AS deletes, "
        f"max(_cdc_ingested_at) AS last_ingested_at FROM {quote(bronze)}"
        for table, bronze in tables.items()
    ]
    nothing = (
        "SELECT '' AS source_table, 0 AS events, 0 AS deletes, current_timestamp() AS last_ingested_at WHERE false"
    )
    return "\nUNION ALL\n".join(each or [nothing])


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _placed(widget: Widget, x: int, y: int, width: int, height: int) -> Widget:
    return {"widget": widget, "position": {"x": x, "y": y, "width": width, "height": height}}


def _widget(dataset: str, fields: list[str], spec: Widget, title: str) -> Widget:
    named = [{"name": name, "expression": quote(name)} for name in fields]
    query = {"datasetName": dataset, "fields": named, "disaggregated": True}
    return {
        "name": f"{dataset}-{spec['widgetType']}",
        "queries": [{"name": "main_query", "query": query}],
        "spec": {**spec, "frame": {"showTitle": True, "title": title}},
    }


def _table(dataset: str, fields: list[str], title: str) -> Widget:
    columns = [{"fieldName": name, "displayName": name} for name in fields]
    return _widget(dataset, fields, {"version": 2, "widgetType": "table", "encodings": {"columns": columns}}, title)


def _counter(dataset: str, field: str, title: str) -> Widget:
    encodings = {"value": {"fieldName": field, "displayName": field}}
    return _widget(dataset, [field], {"version": 2, "widgetType": "counter", "encodings": encodings}, title)


def _bar(dataset: str, across: str, up: str, title: str) -> Widget:
    encodings = {
        "x": {"fieldName": across, "scale": {"type": "categorical"}, "displayName": across},
        "y": {"fieldName": up, "scale": {"type": "quantitative"}, "displayName": up},
    }
    return _widget(dataset, [across, up], {"version": 3, "widgetType": "bar", "encodings": encodings}, title)
