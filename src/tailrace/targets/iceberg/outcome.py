"""Iceberg's failures as ours."""

from __future__ import annotations

from tailrace.targets._failures import LIBRARY_ERRORS, Format, causes_of

__all__ = ["LIBRARY_ERRORS", "causes_of", "doing", "translate"]

_EXCEPTIONS = "org.apache.iceberg.exceptions."

_FORMAT = Format(
    "iceberg-failed",
    "Iceberg",
    tuple(_EXCEPTIONS + name for name in ("CommitFailed", "AlreadyExists", "ValidationException")),
    (
        *(_EXCEPTIONS + name for name in ("CommitStateUnknown", "Service", "RuntimeIO", "REST")),
        "org.apache.iceberg.jdbc.",
        "software.amazon.awssdk.",
        "java.sql.",
    ),
)
translate, doing = _FORMAT.translate, _FORMAT.doing
