"""Where a table of the landing lies: in a folder, or under a name in a catalog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tailrace.targets._place import Stored

_NOTHING = ("DELTA_MISSING_DELTA_TABLE", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_NOT_FOUND", "PATH_NOT_FOUND")


@dataclass(frozen=True, slots=True)
class Place(Stored):
    """A place that is asked about through statements only, which every Delta understands."""

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
