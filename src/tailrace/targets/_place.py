"""Where a table of Delta lies: in a folder, or under a name in a catalog."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from tailrace.spark.classes import java_class
from tailrace.targets._merge import quote


@dataclass(frozen=True, slots=True)
class Stored:
    """A folder, or a name in a catalog (`path` is then empty, and `schema` says in which)."""

    sql: str
    path: str = ""
    schema: str = ""

    @classmethod
    def in_folder(cls, root: str, segment: str) -> Self:
        """Return the place `segment` under `root`."""
        path = f"{root.rstrip('/')}/{segment}"
        return cls(f"delta.{quote(path)}", path)

    @classmethod
    def in_catalog(cls, schema: str, name: str) -> Self:
        """Return the place `name` in `schema`, which may be `catalog.schema`."""
        within = ".".join(quote(part) for part in schema.split("."))
        return cls(f"{within}.{quote(name)}", schema=within)

    def read(self, session: SparkSession) -> DataFrame:
        """Return the rows as stored, reserved columns included."""
        return session.read.format("delta").load(self.path) if self.path else session.table(self.sql)

    def create(self, session: SparkSession, statement: str) -> None:
        """Create the table by `statement`, also where a creation was cut off; do nothing if it is there."""
        if self.path:
            _clear(session, self.path)
        try:
            session.sql(statement)
        except AnalysisException as error:
            if error.getCondition() != _IN_THE_WAY:
                raise
            left = (error.getMessageParameters() or {}).get("tableLocation")
            if not left:
                raise
            _clear(session, left)
            session.sql(statement)

    def append(self, rows: DataFrame, partitions: Sequence[str] = (), **options: str) -> None:
        """Append `rows`, matched by name, in one commit with the writer `options`; make the table if need be."""
        writer = rows.write.format("delta").mode("append").options(**options).partitionBy(*partitions)
        if self.path:
            writer.save(self.path)
        else:
            writer.saveAsTable(self.sql)


_LOG = "_delta_log"
_IN_THE_WAY = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"


def vacant(session: SparkSession, folder: str) -> bool:
    """Say whether a table may be created in `folder`: it has nothing, or what a creation left that was cut off."""
    return _leftovers(session, folder) is not None


def _clear(session: SparkSession, folder: str) -> None:
    """Remove what a creation left in `folder` that was cut off: Delta would take it for a table, or for foreign."""
    # Who may create a table need not have the right to look at its files.
    with suppress(Py4JJavaError):
        for system, path in _leftovers(session, folder) or ():
            # Refused if somebody else's table has come into the log meanwhile.
            system.delete(path, False)


def _leftovers(session: SparkSession, folder: str) -> list[tuple[Any, Any]] | None:
    """Return what a creation left, with its file system; `None` if there is anything else."""
    if getattr(session, "_jvm", None) is None:  # a session elsewhere, which shows no files
        return []
    path = java_class(session, "org.apache.hadoop.fs.Path")(folder)
    system = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
    found = list(system.listStatus(path)) if system.exists(path) else []
    if not found:
        return []
    if [entry.getPath().getName() for entry in found] != [_LOG]:
        return None
    # Delta makes the folder of its log first, with folders in it that stay empty, and writes its first commit under a
    # hidden name until it is whole.
    within = list(system.listStatus(found[0].getPath()))
    for entry in within:
        inner = entry.getPath()
        if list(system.listStatus(inner)) if entry.isDirectory() else not inner.getName().startswith("."):
            return None
    return [(system, entry.getPath()) for entry in (*within, *found)]


_FILE_SYSTEM = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def rooted(path: str) -> str:
    """Return `path` from its root: of a file system that it names, as in `dbfs:/lake`, else of this machine."""
    return path if _FILE_SYSTEM.match(path) else str(Path(path).absolute())


def folds_case(path: str) -> bool:
    """Say whether two names under `path` that differ only in case are one; of an object store they are not.

    Nothing is written to find it out: the file system is asked for a folder that is there, by its name in other case.
    """
    local = path.removeprefix("file://").removeprefix("file:")
    if _FILE_SYSTEM.match(local):
        return False
    place = Path(local).absolute()
    for folder in (place, *place.parents):
        other = folder.parent / folder.name.swapcase()
        if other != folder and folder.exists():
            return other.exists() and other.samefile(folder)
    return False
