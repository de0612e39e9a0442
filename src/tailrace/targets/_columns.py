"""The columns that a table has in each mode: the user's, and ours beside them."""

from __future__ import annotations

from tailrace.core.table import END, SEQUENCE, START, Table

POSITION = "_cdc_position"
UNCHANGED = "_cdc_unchanged"

EVENT_COLUMNS = {
    "_cdc_table": "string",
    "_cdc_op": "string",
    "_cdc_position": "string",
    "_cdc_changed_at": "timestamp",
    "_cdc_ingested_at": "timestamp",
    "_cdc_topic": "string",
    "_cdc_partition": "int",
    "_cdc_offset": "bigint",
}
"""What an append table says of each event, before the columns of its image."""


def columns_of(table: Table, mode: str, sequence: str = "string") -> list[tuple[str, str]]:
    """Return the columns of a new table with their types: the user's, and ours for its mode."""
    user = [(column.name, column.type) for column in table.columns]
    if mode == "append":
        return [*EVENT_COLUMNS.items(), *user]
    if mode == "scd1":
        return [*user, (POSITION, "string")]
    times = [(START, sequence), (END, sequence), (SEQUENCE, sequence)]
    return [*user, *times, (POSITION, "string"), (UNCHANGED, "array<string>")]
