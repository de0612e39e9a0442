"""Delta's failures as ours."""

from __future__ import annotations

from tailrace.targets._failures import LIBRARY_ERRORS, Format, causes_of

__all__ = ["LIBRARY_ERRORS", "causes_of", "doing", "translate"]

_FORMAT = Format(
    "delta-failed",
    "Delta",
    ("io.delta.exceptions.", "org.apache.spark.sql.delta.Concurrent", "FileAlreadyExistsException"),
)
translate, doing = _FORMAT.translate, _FORMAT.doing
