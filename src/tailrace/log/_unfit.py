"""Whose fault it is when files cannot be read: a file's own, which then fails alone, or that of what is around it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tailrace.core.errors import Retryable, Unreachable
from tailrace.core.table import RESERVED, Table
from tailrace.spark.causes import causes_of, is_passing, no_room


class Unfit(Exception):
    """Why a file among others does not go together with the table, as `code: words`."""


def refuse_passing(error: Exception, names: Sequence[str]) -> None:
    """Raise what may not come again; it says nothing of the files, and a verdict on a file is for good."""
    causes = causes_of(error)
    files = f'file "{names[0]}"' + (f" and {len(names) - 1} others" if len(names) > 1 else "") if names else "files"
    if no_room(causes):
        raise Unreachable(
            "disk-full",
            f"there was no space left while {files} were read",
            "Nothing was applied. Free some space; they are then read again.",
        ) from error
    if is_passing(causes):
        what = causes[-1][0].rpartition(".")[2]
        raise Retryable(
            "spark-failed", f"Spark failed while {files} were read: {what}", "They are read again."
        ) from error


def problem_of(error: Exception) -> str:
    """Say why a file is not applied."""
    if isinstance(error, Unfit):
        return str(error)
    return f"malformed: the file cannot be read: {' '.join(str(error).split())[:300]}"


def refuse_odd_names(have: Table | None, found: Iterable[str], keys: Iterable[str]) -> None:
    """Raise `Unfit` if a table that has the columns of `have` cannot have those that were `found` too."""
    names = {name.lower(): name for name in (have.names() if have else ())}
    for name in found:
        if not name.strip() or name.lower().startswith(RESERVED):
            raise Unfit(f'malformed: a column is called "{name}", which no column of a table can be')
        if names.setdefault(name.lower(), name) != name:
            raise Unfit(f'malformed: columns "{names[name.lower()]}" and "{name}" cannot be told apart')
    for key in keys:
        if names.get(key.lower()) != key:
            raise Unfit(f'missing-column: the file has no column "{key}"')
