"""What is behind an error of Spark: the classes and texts of its causes, and whether it would come with any data."""

from __future__ import annotations

import re
from typing import Any

from py4j.protocol import Py4JJavaError

_DISK_FULL = ("No space left on device", "Disk quota exceeded")
# Texts hold names of files, so a word alone is no sign.
_PASSING = re.compile(
    r"\bOutOfMemoryError$|\bSparkOutOfMemoryError$|java\.lang\.OutOfMemoryError:|ExecutorLostFailure \(|FetchFailed\("
    r"|(^|: |\()(Too many open files|Input/output error|Stale file handle)|\bJob \d+ cancelled\b"
)


def causes_of(error: Exception) -> list[tuple[str, str]]:
    """Return class and text of what `error` stands for, and of what caused that, in order."""
    java: Any = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    found: list[tuple[str, str]] = []
    while java is not None and len(found) < 20:
        found.append((str(java.getClass().getName()), str(java.getMessage() or "")))
        java = java.getCause()
    return found or [(type(error).__name__, str(error))]


def no_room(causes: list[tuple[str, str]]) -> bool:
    """Say whether a disk was full."""
    return any(phrase in text for _, text in causes for phrase in _DISK_FULL)


def is_passing(causes: list[tuple[str, str]]) -> bool:
    """Say whether the machine was at its limits, whatever it was at work on."""
    return any(_PASSING.search(said) for cause in causes for said in cause)
