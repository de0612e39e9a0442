"""What is wrong in a configuration, and where; every problem of a file is told at once.

Texts from a file are shown through `quoted`, so that no name can write control characters to a
terminal or a log. Values of secrets and of environment variables are never shown.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tailrace.config.model import Loc
from tailrace.core.errors import Misconfigured


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, or merely doubtful, at `loc`; `at_key` if the key itself is meant."""

    code: str
    loc: Loc
    message: str
    hint: str = ""
    at_key: bool = False


@dataclass(frozen=True, slots=True)
class Caution:
    """A problem that does not prevent a run: shown, and refused by `cdc validate --strict`."""

    code: str
    message: str
    hint: str = ""

    def render(self) -> str:
        """Return the caution as the command prints it."""
        text = f"warning[{self.code}]: {self.message}"
        return f"{text}\n  hint: {self.hint}" if self.hint else text


class Problems(Misconfigured):
    """Several things that are wrong; its code and message are those of the first."""

    def __init__(self, found: Sequence[Misconfigured]) -> None:
        super().__init__(found[0].code, str(found[0]), found[0].hint)
        self.found = tuple(found)

    def render(self) -> str:
        """Return every error as the command prints it, in the order of the file."""
        return "\n".join(error.render() for error in self.found)


def raise_all(found: Sequence[Misconfigured]) -> None:
    """Raise what was found, if anything was."""
    if len(found) == 1:
        raise found[0]
    if found:
        raise Problems(found)


def quoted(text: object) -> str:
    """Return `text` in double quotes, on one line, without control characters, cut to a readable length."""
    whole = str(text)
    shown = "".join(_safe(char) for char in whole[:80])
    return f'"{shown}…"' if len(whole) > 80 else f'"{shown}"'


def _safe(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def nearest(text: str, known: Iterable[str]) -> str | None:
    """Return the one of `known` that is most like `text`; `None` if none is like it."""
    return next(iter(difflib.get_close_matches(text, list(known), n=1)), None)
