"""Tables in Apache Iceberg, in a catalog, kept current by MERGE or filled by append."""

from tailrace.targets.iceberg.options import Options
from tailrace.targets.iceberg.target import IcebergTarget, jars, open_table, open_target, table_names

__all__ = ["IcebergTarget", "Options", "jars", "open_table", "open_target", "table_names"]
