"""TOML text to a document: the standard library reads the values, a scanner finds where they stand.

The scanner walks text that `tomllib` has accepted, so it never judges and need not be told what is valid. As in
YAML, every scalar is text until a model gives it a type: `port = 5432` and `port = "5432"` are the same.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Iterator

from tailrace.config.document import MAX_BYTES, MAX_DEPTH, Document, Node, Place
from tailrace.config.model import Loc
from tailrace.core.errors import Misconfigured

_HINT = "Write TOML 1.0: tables, arrays of tables and keys with values."
_AT = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_TWICE = ("Cannot overwrite", "Cannot declare", "Cannot mutate", "Duplicate", "Cannot redefine")


def read_toml(name: str, content: bytes) -> Document:
    """Return the document that `content` spells; `name` is what errors call the file."""
    if len(content) > MAX_BYTES:
        raise Misconfigured("file-too-large", f"{name}: file has more than {MAX_BYTES} bytes", "Is it the right file?")
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
        data = tomllib.loads(text, parse_float=str)
    except UnicodeDecodeError as error:
        raise Misconfigured(
            "not-toml", f"{name}: byte {error.start} is not UTF-8", "Save the file as UTF-8."
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise _broken(name, text, str(error)) from error
    except RecursionError as error:
        raise _too_deep(name) from error
    if not data:
        raise Misconfigured(
            "not-toml", f"{name}: file is empty", "Write a pipeline or platform file; see the examples."
        )
    document = Document(name, {key: _plain(name, value, 1) for key, value in data.items()})
    _Scanner(text, document).scan()
    return document


def _plain(name: str, value: object, depth: int) -> Node:
    if depth > MAX_DEPTH:
        raise _too_deep(name)
    match value:
        case dict():
            return {key: _plain(name, item, depth + 1) for key, item in value.items()}
        case list():
            return [_plain(name, item, depth + 1) for item in value]
        case bool():
            return "true" if value else "false"
        case datetime.date() | datetime.time():
            return value.isoformat()
        case _:
            return str(value)


def _broken(name: str, text: str, said: str) -> Misconfigured:
    found = _AT.search(said)
    what = said[: found.start()] if found else said
    if found and found[1]:
        where = f"{name}:{found[1]}:{found[2]}"
    else:
        lines = text.split("\n")
        where = f"{name}:{len(lines)}:{len(lines[-1]) + 1}"
    code = "duplicate-key" if what.startswith(_TWICE) else "not-toml"
    return Misconfigured(code, f"{where}: {what[:1].lower()}{what[1:]}", _HINT)


def _too_deep(name: str) -> Misconfigured:
    return Misconfigured("toml-too-deep", f"{name}: values nest deeper than {MAX_DEPTH} levels", _HINT)


_BLANK = re.compile(r"(?:[ \t\n,]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})' + r"|'''.*?'''(?:'{0,2})" + r'|"(?:\\.|[^"\\\n])*"' + r"|'[^'\n]*'", re.DOTALL
)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}#\n]+")


class _Scanner:
    """Notes in `document` where each key and value of `text` stands."""

    def __init__(self, text: str, document: Document) -> None:
        self.text = text
        self.document = document
        self.at = 0
        self.line, self.line_start = 1, 0
        self.elements: dict[Loc, int] = {}
        """How many tables each array of tables has so far."""

    def scan(self) -> None:
        table: Loc = ()
        self.skip(_BLANK)
        while self.at < len(self.text):
            table = self.header() if self.text[self.at] == "[" else self.pair(table)
            self.skip(_BLANK)

    def header(self) -> Loc:
        brackets = 2 if self.text.startswith("[[", self.at) else 1
        self.at += brackets
        *outer, (last, place) = self.path()
        self.at += brackets
        loc = self.descend((), outer)
        self.document.keys.setdefault((*loc, last), place)
        loc = (*loc, last)
        self.document.values.setdefault(loc, place)
        if brackets == 2:
            self.elements[loc] = self.elements.get(loc, 0) + 1
            loc = self.element(loc)
            self.document.values[loc] = place
        return loc

    def pair(self, table: Loc) -> Loc:
        """Walk over one key with its value; return `table`, to which the next one belongs as well."""
        *outer, (last, place) = self.path()
        loc = (*self.descend(table, outer), last)
        self.document.keys[loc] = place
        self.at += 1  # the sign between key and value
        self.value(loc)
        return table

    def descend(self, loc: Loc, path: list[tuple[str, Place]]) -> Loc:
        """Return where `path` leads from `loc`; of an array of tables, into the last one."""
        for step, place in path:
            loc = (*loc, step)
            self.document.keys.setdefault(loc, place)
            self.document.values.setdefault(loc, place)
            loc = self.element(loc)
        return loc

    def element(self, loc: Loc) -> Loc:
        return (*loc, self.elements[loc] - 1) if loc in self.elements else loc

    def value(self, loc: Loc) -> None:
        self.skip(_SPACE)
        self.document.values[loc] = self.place()
        match self.text[self.at]:
            case "[":
                for index, _ in enumerate(self.inside("]")):
                    self.value((*loc, index))
            case "{":
                for _ in self.inside("}"):
                    self.pair(loc)
            case '"' | "'":
                self.skip(_STRING)
            case _:
                self.skip(_SCALAR)

    def inside(self, end: str) -> Iterator[None]:
        """Yield once at each thing up to `end`, and step over that."""
        self.at += 1
        self.skip(_BLANK)
        while self.text[self.at] != end:
            yield
            self.skip(_BLANK)
        self.at += 1

    def path(self) -> list[tuple[str, Place]]:
        """Walk over a key, and what space is around it; return its names."""
        names = []
        while True:
            self.skip(_SPACE)
            place = self.place()
            quoted = self.text[self.at] in "\"'"
            raw = self.skip(_STRING if quoted else _BARE_KEY)
            names.append((next(iter(tomllib.loads(f"{raw} = 0"))) if quoted else raw, place))
            self.skip(_SPACE)
            if self.text[self.at] != ".":
                return names
            self.at += 1

    def skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise AssertionError(f"TOML that was read cannot be walked at {self.place()}")
        self.at = found.end()
        if newlines := found[0].count("\n"):
            self.line += newlines
            self.line_start = self.text.rindex("\n", 0, self.at) + 1
        return found[0]

    def place(self) -> Place:
        return Place(self.line, self.at - self.line_start + 1)
