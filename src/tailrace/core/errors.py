"""What can go wrong, grouped by what the runtime does about it.

    TailraceError
    ├── Retryable        it may work next time: wait and do the page or slice again
    │   └── Unreachable      a server is away, a file held, a disk full: wait until that is over
    ├── Reject           this event can never be applied: keep it aside, count it, go on
    └── Halt             a person must act: stop, keep everything as it is
        ├── Misconfigured    the pipeline or platform file is wrong        (exit code 2)
        ├── NotReady         a server, a right or a tool is missing        (exit code 3)
        └── ResyncRequired   the source can no longer give what we miss    (exit code 1)

Every error has a stable `code`, which is a heading in docs/reference/errors.md. The message is one
lowercase clause that says what was found; the hint says what to do.
"""

from __future__ import annotations


class TailraceError(Exception):
    """Something the operator can act on; `str()` is the message, without code and hint."""

    exit_code = 1

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint

    def render(self) -> str:
        """Return the error as the command prints it."""
        text = f"error[{self.code}]: {self}"
        return f"{text}\n  hint: {self.hint}" if self.hint else text


class Retryable(TailraceError):
    """It may work next time; nothing was changed, or what was changed will be recognised.

    `after` is how many seconds the other side asked us to wait, if it did.
    """

    def __init__(self, code: str, message: str, hint: str = "", after: float | None = None) -> None:
        super().__init__(code, message, hint)
        self.after = after


class Unreachable(Retryable):
    """A server is away, what is asked for is held by another, or a disk is full: there is nothing to do but to wait."""


class Reject(TailraceError):
    """One event that can never be applied."""


class Halt(TailraceError):
    """Go no further: going on could lose or double rows."""


class Misconfigured(Halt):
    """What the user wrote cannot be run."""

    exit_code = 2


class NotReady(Halt):
    """The environment lacks something: a server, a right, a tool, a free port."""

    exit_code = 3


class ResyncRequired(Halt):
    """The source no longer holds what comes after the stored position."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__("resync-required", message, hint)
