"""Tailrace keeps tables current; see README.md.

What is public in Python is named here and loaded when it is first used, so that `cdc --help` does not
wait for Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace import types
    from tailrace.api import (
        CDC,
        Connection,
        KafkaConnection,
        PostgresConnection,
        Target,
        connection,
        pk,
        register_connection,
        streaming_pipeline,
        table,
    )
    from tailrace.runtime.changes import ApplyResult, apply_changes, read
    from tailrace.spark import session

_PUBLIC = {
    "ApplyResult": "tailrace.runtime.changes",
    "CDC": "tailrace.api",
    "Connection": "tailrace.api",
    "KafkaConnection": "tailrace.api",
    "PostgresConnection": "tailrace.api",
    "Target": "tailrace.api",
    "apply_changes": "tailrace.runtime.changes",
    "connection": "tailrace.api",
    "pk": "tailrace.api",
    "read": "tailrace.runtime.changes",
    "register_connection": "tailrace.api",
    "session": "tailrace.spark",
    "streaming_pipeline": "tailrace.api",
    "table": "tailrace.api",
}

__all__ = [
    "CDC",
    "ApplyResult",
    "Connection",
    "KafkaConnection",
    "PostgresConnection",
    "Target",
    "apply_changes",
    "connection",
    "pk",
    "read",
    "register_connection",
    "session",
    "streaming_pipeline",
    "table",
    "types",
]


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    if name == "types":
        return import_module("tailrace.types")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
