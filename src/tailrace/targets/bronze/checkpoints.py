"""The control table: how far the source had been read when the events before it were landed.

Rows are only ever added, after the events that they speak of. A crash in between leaves a control table that is behind
its bronze tables and never ahead; the repeat adds the row. Several pipelines may share the table: each has its own
`source_id`, and one writer.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tailrace.core.checkpoint import Checkpoint, Snapshotting
from tailrace.spark.frame import frame
from tailrace.targets.bronze.place import Place

NAME = "connector_checkpoint"
LATEST = "connector_checkpoint_latest"

COLUMNS = {
    "source_id": "string",
    "phase": "string",
    "snapshot_ts": "bigint",
    "snapshot_cursor": "string",
    "delta_cursor": "bigint",
    "schema_hash": "string",
    "run_id": "string",
    "updated_at": "timestamp",
}

_Said = tuple[str, int | None, str | None, int | None, str]
"""Phase, snapshot, its cursor, the cursor of deltas, the hash of the schemas."""


def create_statement(sql: str) -> str:
    """Return the statement that makes the control table unless it is there."""
    listed = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    return f"CREATE TABLE IF NOT EXISTS {sql} ({listed}) USING delta TBLPROPERTIES ('delta.appendOnly' = 'true')"


def view_statement(sql: str, of: str) -> str:
    """Return the statement that makes the view of the newest row of each source."""
    names = ", ".join(COLUMNS)
    newest = "row_number() OVER (PARTITION BY source_id ORDER BY updated_at DESC)"
    # The one writer of a source never writes a time that is not later than its last: see `add`.
    return (
        f"CREATE OR REPLACE VIEW {sql} AS SELECT {names} "
        f"FROM (SELECT {names}, {newest} AS newest FROM {of}) WHERE newest = 1"
    )


class CheckpointTable:
    """The control table as one source writes it."""

    def __init__(self, session: SparkSession, table: Place, view: Place | None, source_id: str) -> None:
        self._session = session
        self._table = table
        self._view = view
        self._source_id = source_id
        self._last: tuple[_Said, datetime] | None = None
        self._there = False

    def add(self, checkpoint: Checkpoint, schema_hash: str, run_id: str) -> None:
        """Say that everything before `checkpoint` is landed; saying it again adds nothing."""
        self._make()
        said = _said(checkpoint, schema_hash)
        last, self._last = self._last or self._newest(), None
        now = datetime.now(UTC)
        if last is not None:
            now = max(now, last[1] + timedelta(microseconds=1))
        if last is None or last[0] != said:
            row = (self._source_id, *said, run_id, now)
            declared = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
            self._table.append(frame(self._session, [row], declared))
            last = said, now
        self._last = last

    def _make(self) -> None:
        if not self._there:
            self._session.sql(create_statement(self._table.sql))
            if self._view is not None:
                self._session.sql(view_statement(self._view.sql, self._table.sql))
            self._there = True

    def _newest(self) -> tuple[_Said, datetime] | None:
        rows = self._table.read(self._session).where(F.col("source_id") == self._source_id)
        for row in rows.orderBy(F.desc("updated_at")).limit(1).collect():
            said = (row["phase"], row["snapshot_ts"], row["snapshot_cursor"], row["delta_cursor"], row["schema_hash"])
            return said, row["updated_at"].astimezone(UTC)
        return None


def _said(checkpoint: Checkpoint, schema_hash: str) -> _Said:
    if isinstance(checkpoint, Snapshotting):
        return "snapshotting", int(checkpoint.snapshot), checkpoint.cursor, None, schema_hash
    return "tailing", None, None, int(checkpoint.at), schema_hash
