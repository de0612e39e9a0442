"""Tables in Delta Lake, one per folder or metastore name, kept current by MERGE or filled by append."""

from tailrace.targets.delta.target import DeltaTarget, Options, folds_case, open_table, open_target

__all__ = ["DeltaTarget", "Options", "folds_case", "open_table", "open_target"]
