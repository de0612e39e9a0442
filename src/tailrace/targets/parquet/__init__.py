"""Tables as Parquet files with manifests, in a folder or an object store."""

from tailrace.targets.parquet.target import MODES, Options, ParquetTarget, folds_case, open_table, open_target

__all__ = ["MODES", "Options", "ParquetTarget", "folds_case", "open_table", "open_target"]
