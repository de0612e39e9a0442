"""The control table: how far the source had been read when the events before it were landed.

Rows are only ever added, after the events that they speak of. A crash in between leaves a control table that is behind
its bronze tables and never ahead; the repeat adds the row. Several pipelines may share the table: each has its own
`source_id`. Its rows are numbered by Delta's transactions: of two processes that add one at a time, one does (ADR 26).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple, cast

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


class _Last(NamedTuple):
    """The newest row of a source, and how many it has."""

    said: _Said | None
    at: datetime
    rows: int


def create_statement(sql: str) -> str:
    """Return the statement that makes the control table unless it is there."""
    listed = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    return f"CREATE TABLE IF NOT EXISTS {sql} ({listed}) USING delta TBLPROPERTIES ('delta.appendOnly' = 'true')"


def view_statement(sql: str, of: str) -> str:
    """Return the statement that makes the view of the newest row of each source."""
    names = ", ".join(COLUMNS)
    newest = "row_number() OVER (PARTITION BY source_id ORDER BY updated_at DESC)"
    # A writer never writes a time that is not later than the newest: see `add`.
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
        self._last: _Last | None = None
        self._there = False

    def add(self, checkpoint: Checkpoint, schema_hash: str, run_id: str) -> None:
        """Say that everything before `checkpoint` is landed; saying it again adds nothing."""
        self._make()
        said = _said(checkpoint, schema_hash)
        last, self._last = self._last or self._newest(), None
        if last.said != said:
            now = max(datetime.now(UTC), last.at + timedelta(microseconds=1))
            row = (self._source_id, *said, run_id, now)
            declared = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
            app, number = f"tailrace/{NAME}/{self._source_id}", last.rows + 1
            self._table.append(frame(self._session, [row], declared), txnAppId=app, txnVersion=str(number))
            last = _Last(said, now, number)
        self._last = last

    def _make(self) -> None:
        if not self._there:
            self._table.create(self._session, create_statement(self._table.sql))
            if self._view is not None:
                self._session.sql(view_statement(self._view.sql, self._table.sql))
            self._there = True

    def _newest(self) -> _Last:
        rows = self._table.read(self._session).where(F.col("source_id") == self._source_id)
        newest, many = rows.agg(F.max_by(F.struct(*COLUMNS), "updated_at"), F.count(F.lit(1))).collect()[0]
        if newest is None:
            return _Last(None, datetime.fromtimestamp(0, UTC), 0)
        said = tuple(
            newest[name] for name in ("phase", "snapshot_ts", "snapshot_cursor", "delta_cursor", "schema_hash")
        )
        return _Last(cast(_Said, said), newest["updated_at"].astimezone(UTC), many)


def _said(checkpoint: Checkpoint, schema_hash: str) -> _Said:
    if isinstance(checkpoint, Snapshotting):
        return "snapshotting", int(checkpoint.snapshot), checkpoint.cursor, None, schema_hash
    return "tailing", None, None, int(checkpoint.at), schema_hash
