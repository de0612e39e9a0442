"""What the metadata of an Iceberg table says: snapshots, properties, schema; and how a staged snapshot is published.

These are Iceberg's own classes, reached through the JVM, because no SQL statement moves a table from one given
snapshot to the next. Nothing here starts a Spark job.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tailrace.spark.classes import java_class

MAIN = "main"
STAGED = "wap.id"
"""What Iceberg calls the name of a staged snapshot, in its summary."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of the rows; `sequence` grows with every one that was made."""

    id: int
    parent: int | None
    sequence: int
    summary: Mapping[str, str]
    at: int
    """When it was made, in milliseconds since 1970."""
    operation: str
    schema: int | None


class Metadata:
    """A table as it was when it was loaded; `publish` fails if it is not so any more."""

    def __init__(self, session: SparkSession, table: Any) -> None:
        self._session = session
        self.table = table
        self._operations = table.operations()
        self._base = self._operations.current()

    def properties(self) -> dict[str, str]:
        """Return the table properties, Iceberg's own and ours."""
        return dict(self._base.properties())

    def schema(self) -> StructType:
        """Return the columns in Spark's types, reserved ones included."""
        convert = java_class(self._session, "org.apache.iceberg.spark.SparkSchemaUtil").convert
        return StructType.fromJson(json.loads(convert(self._base.schema()).json()))

    def current(self) -> Snapshot | None:
        """Return the snapshot that readers see; `None` before the first."""
        return _snapshot(self._base.currentSnapshot())

    def snapshot(self, snapshot_id: int) -> Snapshot | None:
        """Return the snapshot with this id; `None` if it was expired or never was."""
        return _snapshot(self._base.snapshot(snapshot_id))

    def snapshots(self) -> list[Snapshot]:
        """Return all that there are, staged ones included."""
        every = self._base.snapshots()
        found = (_snapshot(every.get(index)) for index in range(every.size()))
        return [snapshot for snapshot in found if snapshot is not None]

    def published(self) -> set[int]:
        """Return the ids of those that readers have seen, as far as that is known."""
        return {snapshot for _, snapshot in self.led()} | {snapshot.id for snapshot in self.ancestors()}

    def led(self) -> list[tuple[int, int]]:
        """Return when readers were led to which snapshot, oldest first, as far as that is known."""
        log = self._base.snapshotLog()
        return [(entry.timestampMillis(), entry.snapshotId()) for entry in map(log.get, range(log.size()))]

    def referenced(self) -> set[int]:
        """Return the ids of those that a branch or a tag names."""
        refs = self._base.refs()
        return {refs.get(name).snapshotId() for name in refs}

    def ancestors(self, of: Snapshot | None = None) -> Iterator[Snapshot]:
        """Yield `of`, or what readers see, and what came before it, the latest first, as far as it was kept."""
        found = of or self.current()
        while found is not None:
            yield found
            found = None if found.parent is None else self.snapshot(found.parent)

    def staged(self, name: str) -> Snapshot | None:
        """Return the snapshot that was staged under `name`."""
        every = self._base.snapshots()
        for index in range(every.size() - 1, -1, -1):
            if every.get(index).summary().get(STAGED) == name:
                return _snapshot(every.get(index))
        return None

    def stage_nothing(self, name: str, summary: Mapping[str, str]) -> None:
        """Stage a snapshot under `name` that changes no row."""
        append = self.table.newFastAppend()
        for key, value in {**summary, STAGED: name}.items():
            append = append.set(key, value)
        append.stageOnly().commit()

    def publish(self, snapshot_id: int, properties: Mapping[str, str] | None = None) -> None:
        """Let readers see the snapshot, in one step with `properties`; fail if the table has changed meanwhile."""
        builder = java_class(self._session, "org.apache.iceberg.TableMetadata").buildFrom(self._base)
        builder = builder.setBranchSnapshot(snapshot_id, MAIN)
        if properties:
            builder = builder.setProperties(dict(properties))
        self._operations.commit(self._base, builder.build())

    def take_back(self, to: Snapshot, properties: Mapping[str, str], gone: Iterable[str]) -> None:
        """Let readers see `to` with the columns that it had, in one step with `properties` set and `gone` removed."""
        builder = java_class(self._session, "org.apache.iceberg.TableMetadata").buildFrom(self._base)
        if to.schema is not None:
            builder = builder.setCurrentSchema(to.schema)
        builder = builder.setBranchSnapshot(to.id, MAIN).setProperties(dict(properties))
        self._operations.commit(self._base, builder.removeProperties(set(gone) - set(properties)).build())

    def replace_column(self, old: str, new: str) -> None:
        """Drop the column `old` and give its name to the column `new`, in one step."""
        self.table.updateSchema().deleteColumn(old).renameColumn(new, old).commit()


def _snapshot(java: Any) -> Snapshot | None:
    if java is None:
        return None
    summary, made = dict(java.summary()), (java.timestampMillis(), str(java.operation()), java.schemaId())
    return Snapshot(java.snapshotId(), java.parentId(), java.sequenceNumber(), summary, *made)
