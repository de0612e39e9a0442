"""What a Delta log says: versions, properties, schema, and who made each commit; and an append behind one of them.

Reads are done on the driver, without a Spark job wherever Delta keeps a checksum of the version. These are Delta's own
classes, reached through the JVM, because no SQL statement tells the transactions of a table, and because a statement
begins at whatever version is the newest when it starts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tailrace.spark.classes import java_class

_DELTA = "org.apache.spark.sql.delta"


@dataclass(frozen=True, slots=True)
class Commit:
    """The part of one commit that says whose it is."""

    version: int
    operation: str
    metadata: str
    metrics: dict[str, int]
    at: int = 0
    """In milliseconds since 1970."""


class Snapshot:
    """The table as of one version."""

    def __init__(self, java: Any) -> None:
        self._java = java
        self.version = int(java.version())

    def properties(self) -> dict[str, str]:
        """Return the table properties, Delta's own and ours."""
        text = self._java.metadata().json()
        return dict(json.loads(text)["metaData"]["configuration"])

    def schema(self) -> StructType:
        """Return the columns, reserved ones included."""
        return StructType.fromJson(json.loads(self._java.schema().json()))

    def files(self) -> int:
        """Return how many data files there are."""
        summed = self._checksum
        return int(summed.numFiles() if summed else self._java.numOfFiles())

    def bytes(self) -> int:
        """Return the size of all data files."""
        summed = self._checksum
        return int(summed.tableSizeBytes() if summed else self._java.sizeInBytes())

    def transactions(self) -> list[tuple[str, int]]:
        """Return every application id with the version it last committed, the latest first."""
        summed = self._checksum
        listed = summed.setTransactions() if summed else None
        every = listed.get() if listed and listed.isDefined() else self._java.setTransactions()
        found = []
        for index in range(every.size()):
            action = json.loads(every.apply(index).json())["txn"]
            found.append((action.get("lastUpdated", 0), action["appId"], action["version"]))
        return [(app_id, version) for _, app_id, version in sorted(found, reverse=True)]

    @cached_property
    def _checksum(self) -> Any:
        # The file that Delta writes beside each commit; without it the figures cost three jobs.
        log = self._java.deltaLog()
        found = log.readChecksum(self.version, getattr(log, "readChecksum$default$2")())
        return found.get() if found.isDefined() else None


class DeltaLog:
    """The log of the table at `path`."""

    def __init__(self, session: SparkSession, path: str) -> None:
        self.path = path
        self._session = session
        self._option = java_class(session, "scala.Option")
        self._none = self._option.empty()
        self._java: Any = self._class(f"{_DELTA}.DeltaLog").forTable(session._jsparkSession, path)

    def snapshot(self) -> Snapshot | None:
        """Return the newest version; `None` if there is no Delta table here."""
        java = self._java.update(False, self._none, self._none)
        return Snapshot(java) if java.version() >= 0 else None

    def at(self, version: int) -> Snapshot | None:
        """Return the table as of `version`; `None` if that cannot be told any more."""
        others = (getattr(self._java, f"getSnapshotAt$default${n}")() for n in (2, 3, 4))
        try:
            return Snapshot(self._java.getSnapshotAt(version, *others))
        except Py4JJavaError as error:
            if _is_gone(error):
                return None
            raise

    def append(self, rows: DataFrame, after: Snapshot, txn: tuple[str, int] | None, metadata: str) -> None:
        """Append `rows` in a transaction that began at `after`: a conflict if the application has committed since.

        A writer's own `append` begins when it is called. A process that was stopped just before that would append
        behind a commit that it never saw.
        """
        some, none = self._option.apply, self._none
        self._class("org.apache.spark.sql.SparkSession").setActiveSession(rows.sparkSession._jsparkSession)
        begun = self._java.startTransaction(none, some(after._java))
        marks = []
        if txn is not None:
            # Having read it is what makes another commit of the same application a conflict. `txnVersion` would say so
            # too, and start three jobs to learn what the checksum tells.
            begun.readTxn().addOne(txn[0])
            # As with a writer, a version that was committed before is passed over without a word.
            if dict(after.transactions()).get(txn[0], -1) >= txn[1]:
                return
            marks = [self._class(f"{_DELTA}.actions.SetTransaction")(*txn, some(int(time.time() * 1000)))]
        files = list(self._class("scala.jdk.javaapi.CollectionConverters").asJava(begun.writeFiles(rows._jdf)))
        actions = self._class("org.apache.spark.api.python.PythonUtils").toSeq([*files, *marks])
        write = self._class(f"{_DELTA}.DeltaOperations$Write")
        mode = self._class("org.apache.spark.sql.SaveMode").Append
        begun.commit(actions, write(mode, none, none, some(metadata), none, none, none, none, none))

    def commits(self, newest: int, down_to: int = 0) -> Iterator[Commit]:
        """Yield commits from `newest` back, as far as `down_to` or as the log has been kept."""
        manager, names = self._class(f"{_DELTA}.DeltaHistoryManager"), self._class(f"{_DELTA}.util.FileNames")
        conf = self._java.newDeltaHadoopConf()
        for version in range(newest, down_to - 1, -1):
            file = names.unsafeDeltaFile(self._java.logPath(), version)
            try:
                info = manager.getCommitInfoOpt(self._java.store(), file, conf)
            except Py4JJavaError as error:
                if _is_gone(error):
                    return
                raise
            yield _commit(version, json.loads(info.get().json())["commitInfo"] if info.isDefined() else {})

    def _class(self, name: str) -> Any:
        return java_class(self._session, name)


def _commit(version: int, info: dict[str, Any]) -> Commit:
    metrics = {name: int(value) for name, value in (info.get("operationMetrics") or {}).items() if value.isdigit()}
    text, at = info.get("userMetadata") or "", int(info.get("timestamp") or 0)
    return Commit(version, str(info.get("operation", "")), text, metrics, at)


_GONE = (
    "FileNotFoundException",
    "VersionNotFoundException",
    "DeltaFileNotFoundException",
    "DeltaIllegalStateException",
)


def _is_gone(error: Py4JJavaError) -> bool:
    return str(error.java_exception.getClass().getName()).endswith(_GONE)
