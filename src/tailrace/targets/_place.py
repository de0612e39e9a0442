"""Where a table of Delta lies: in a folder, or under a name in a catalog."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pyspark.sql import DataFrame, SparkSession

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

    def append(self, rows: DataFrame, partitions: Sequence[str] = (), **options: str) -> None:
        """Append `rows`, matched by name, in one commit with the writer `options`; make the table if need be."""
        writer = rows.write.format("delta").mode("append").options(**options).partitionBy(*partitions)
        if self.path:
            writer.save(self.path)
        else:
            writer.saveAsTable(self.sql)


_FILE_SYSTEM = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def rooted(path: str) -> str:
    """Return `path` from its root: of a file system that it names, as in `dbfs:/lake`, else of this machine."""
    return path if _FILE_SYSTEM.match(path) else str(Path(path).absolute())
