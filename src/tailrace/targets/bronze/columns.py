"""What bronze tables are called and made of; the bundle for Databricks is written from the same.

The sequence of an event is its timestamp, and in a later life of the pipeline a multiple of `LIFE` more: everything of
a new life sorts above everything of the old one, as positions do, and within a life timestamps do it alone. See ADR 22.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tailrace.core.table import Table
from tailrace.targets._merge import literal, quote

LIFE = 10**20
"""More than any timestamp: 63 bits of nanoseconds."""

SEQUENCE_TYPE = "decimal(28,0)"

COLUMNS = {
    "_cdc_source_id": "string",
    "_cdc_source_component": "string",
    "_cdc_source_table": "string",
    "_cdc_document_id": "string",
    "_cdc_sequence_num": SEQUENCE_TYPE,
    "_cdc_is_deleted": "boolean",
    "_cdc_schema_fingerprint": "string",
    "_cdc_raw_document_json": "string",
    "_cdc_ingested_at": "timestamp",
    "_cdc_run_id": "string",
    "_cdc_creation_time": "timestamp",
}
"""What every bronze table says of an event, before the fields of its document."""

KEYS = ("tailrace.owner", "tailrace.notes")

NOTES = {"scd": "bronze", "soft": ""}
"""What a bronze table is made with and must keep."""

APP = "app"
"""The component that the application's own tables are said to be of."""


def bronze_name(table: str) -> str:
    """Return the name of the bronze table of `table`: `convex__<component or app>__<table>__cdc`."""
    component, _, name = table.rpartition(".")
    return f"convex__{component.replace('/', '__') or APP}__{name}__cdc"


def table_names(_: object, tables: Sequence[str]) -> dict[str, str]:
    """Return the name of each table, unless the pipeline chooses another; two that are alike are refused elsewhere."""
    return {table: bronze_name(table) for table in tables}


def owner_of(pipeline_id: str, target: str, table: str) -> str:
    """Return what a table's property says of the one writer that it has."""
    return json.dumps([pipeline_id, target, table])


def notes() -> str:
    """Return what is remembered with a table from when it is made."""
    return json.dumps(NOTES)


def create_statement(sql: str, table: Table, owner: str, remembered: str) -> str:
    """Return the statement that makes the bronze table of `table`, empty, unless it is there."""
    columns = [*COLUMNS.items(), *((column.name, column.type) for column in table.columns)]
    properties = {
        "delta.appendOnly": "true",
        # Fields may have any name, and a stream that reads the table does not survive that it changes later.
        "delta.columnMapping.mode": "name",
        # The mark is read from the table's own history; a table that nothing happens to must not lose it.
        "delta.logRetentionDuration": "interval 3650 days",
        KEYS[0]: owner,
        KEYS[1]: remembered,
    }
    said = ",\n  ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())
    listed = ",\n  ".join(f"{quote(name)} {kind}" for name, kind in columns)
    return f"CREATE TABLE IF NOT EXISTS {sql} (\n  {listed}\n) USING delta TBLPROPERTIES (\n  {said}\n)"
