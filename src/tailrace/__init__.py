"""Tailrace keeps tables current; see README.md.

What is public in Python is named here and loaded when it is first used, so that `cdc --help` does not
wait for Spark.
"""

from __future__ import annotations

from importlib import import_module

_PUBLIC = {
    "ApplyResult": "tailrace.runtime.changes",
    "apply_changes": "tailrace.runtime.changes",
    "read": "tailrace.runtime.changes",
    "session": "tailrace.spark",
}

__all__ = ["ApplyResult", "apply_changes", "read", "session"]


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
