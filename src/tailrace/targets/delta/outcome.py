"""Delta's failures as ours."""

from __future__ import annotations

from tailrace.targets._failures import LIBRARY_ERRORS, Format, causes_of

__all__ = ["LIBRARY_ERRORS", "causes_of", "translate"]

translate = Format(
    "delta-failed",
    "Delta",
    ("io.delta.exceptions.", "org.apache.spark.sql.delta.Concurrent", "FileAlreadyExistsException"),
).translate
