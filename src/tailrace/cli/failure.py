"""The one place where errors become what a person reads and an exit code."""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Iterator

from tailrace.core.errors import Halt, TailraceError

_LONGEST = 500


def exit_code_of(error: BaseException, *, debug: bool) -> int:
    """Tell `error` on standard error and return the exit code it deserves."""
    told = error if isinstance(error, TailraceError) else _translated(error)
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    print(told.render(), file=sys.stderr, flush=True)
    return told.exit_code


def _translated(error: BaseException) -> TailraceError:
    if any(_is_disk_full(cause) for cause in _causes(error)):
        return Halt(
            "disk-full",
            "a disk is full",
            "Free some space and run again. Nothing was lost: what was not written whole will be written again.",
        )
    text = " ".join(str(error).split())[:_LONGEST]
    return Halt(
        "internal",
        f"{type(error).__name__}: {text}" if text else type(error).__name__,
        "This is a defect: please report it, with what --debug shows.",
    )


def _is_disk_full(error: BaseException) -> bool:
    # An error of the JVM arrives as text.
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return full or "No space left on device" in str(error)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
