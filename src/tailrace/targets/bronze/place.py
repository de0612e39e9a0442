"""Where a table of the landing lies: in a folder, or under a name in a catalog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from tailrace.targets._merge import quote

_NOTHING = ("DELTA_MISSING_DELTA_TABLE", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_NOT_FOUND", "PATH_NOT_FOUND")


@dataclass(frozen=True, slots=True)
class Place:
    """A folder, or a name in a catalog (`path` is then empty)."""

    sql: str
    path: str = ""

    def detail(self, session: SparkSession) -> Any:
        """Return what Delta says of the table that lies here; `None` if there is none."""
        if not self.path and not session.catalog.tableExists(self.sql):
            return None
        try:
            return session.sql(f"DESCRIBE DETAIL {self.sql}").collect()[0]
        except AnalysisException as error:
            if self.path and (error.getCondition() or "").startswith(_NOTHING):
                return None
            raise

    def read(self, session: SparkSession) -> DataFrame:
        """Return the rows as stored."""
        return session.read.format("delta").load(self.path) if self.path else session.table(self.sql)

    def append(self, rows: DataFrame, **options: str) -> None:
        """Append `rows`, matched by name, in one commit with the writer `options`."""
        writer = rows.write.format("delta").mode("append").options(**options)
        if self.path:
            writer.save(self.path)
        else:
            writer.saveAsTable(self.sql)


def in_folder(root: str, segment: str) -> Place:
    """Return the place `segment` under `root`."""
    path = f"{root.rstrip('/')}/{segment}"
    return Place(f"delta.{quote(path)}", path)


def in_catalog(schema: str, name: str) -> Place:
    """Return the place `name` in `schema`, which may be `catalog.schema`."""
    return Place(".".join(quote(part) for part in [*schema.split("."), name]))
