"""Where a table lies and whose it is: its name in SQL, its log, and the properties that make it ours.

A table is ours only if its properties say so for this pipeline, target and source table; anything else
that lies in its place halts rather than being written to.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from tailrace.apply.target import ANYONE
from tailrace.core.errors import Halt
from tailrace.targets._place import Stored, vacant
from tailrace.targets.delta.log import DeltaLog, Snapshot

KEYS = "tailrace.keys"
OWNER = "tailrace.owner"
NOTES = "tailrace.notes"
KEPT = "tailrace.kept"
"""A stamp that was written down for when Delta forgets the commit that carried it."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The one writer of a table: a source table in a target of a pipeline."""

    pipeline: str
    target: str
    table: str

    def app_id(self, log: str, turn: str = "") -> str:
        """Return the name under which batches of the change log `log` are committed, after the rollback `turn`."""
        return f"{self._start(turn)}{log}/{self.table}"

    def log_of(self, app_id: str, turn: str = "") -> str | None:
        """Return the change log that `app_id` stands for; `None` if it is not one of ours, or of another turn."""
        start, end = self._start(turn), f"/{self.table}"
        if not app_id.startswith(start) or not app_id.endswith(end) or len(app_id) <= len(start) + len(end):
            return None
        return app_id[len(start) : -len(end)]

    def _start(self, turn: str) -> str:
        return f"tailrace{turn and '~'}{turn}/{self.pipeline}/{self.target}/"

    def properties(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the table properties that say whose the table is."""
        return {KEYS: json.dumps(list(keys)), OWNER: json.dumps([self.pipeline, self.target, self.table])}


@dataclass(frozen=True, slots=True)
class Place(Stored):
    """A place whose log we read ourselves."""

    def log(self, session: SparkSession) -> DeltaLog | None:
        """Return the log that lies here; `None` if the metastore has no such table."""
        if self.path:
            return DeltaLog(session, self.path)
        if not session.catalog.tableExists(self.sql):
            return None
        detail = session.sql(f"DESCRIBE DETAIL {self.sql}").collect()[0]
        if detail["format"] != "delta":
            raise _foreign(self, f"is a table of format {detail['format']}")
        return DeltaLog(session, detail["location"])

    def read_at(self, session: SparkSession, version: int) -> DataFrame:
        """Return the rows as they were stored at `version`."""
        if self.path:
            return session.read.format("delta").option("versionAsOf", version).load(self.path)
        return session.sql(f"SELECT * FROM {self.sql} VERSION AS OF {version}")

    def overwrite(self, session: SparkSession, rows: DataFrame) -> None:
        """Replace all rows and their schema in one commit; properties and partitions of the table stay."""
        detail = session.sql(f"DESCRIBE DETAIL {self.sql}").collect()[0]
        writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        writer.partitionBy(*detail["partitionColumns"]).save(detail["location"])

    def owned(self, session: SparkSession, owner: Owner) -> tuple[DeltaLog, Snapshot] | None:
        """Return the log and newest version of our table; `None` if the place is free."""
        log = self.log(session)
        if log is None:
            return None
        snapshot = log.snapshot()
        if snapshot is None:
            if vacant(session, log.path):
                return None
            raise _foreign(self, "holds something that is not a Delta table")
        held = snapshot.properties().get(OWNER)
        if held is None:
            raise _foreign(self, "is a Delta table that Tailrace did not create")
        if owner.pipeline != ANYONE and held != owner.properties(())[OWNER]:
            raise _foreign(self, f"belongs to pipeline, target and table {held}")
        return log, snapshot


def _foreign(place: Place, what: str) -> Halt:
    return Halt(
        "foreign-table",
        f'the place "{place.path or place.sql}" {what}',
        "Nothing was written to it. Give the target another path, or the table another name under tables.",
    )
