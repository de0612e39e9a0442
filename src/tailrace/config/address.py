"""The address of a database, `postgresql://user:password@host:port/database`, taken apart into keys of a file.

A variable inside an address stands for its part as it is: `${PASSWORD}` need not be escaped, and is known not to
stand in the file. That is why an address with variables is taken apart before they are expanded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

from tailrace.config.document import Document, Node
from tailrace.config.model import Loc

KINDS = ("postgres", "mysql")
KEYS = ("host", "port", "database", "username", "password")
SETTINGS = "settings"
"""What follows the question mark."""

_VARIABLE = r"\$\{[^}]*\}"
_ADDRESS = re.compile(
    rf"(?:postgres|postgresql|mysql)://"
    rf"(?:(?P<username>(?:{_VARIABLE}|[^:/@?#\s])+)(?::(?P<password>(?:{_VARIABLE}|[^/@?#\s])*))?@)?"
    rf"(?P<host>(?:{_VARIABLE}|[^:/@?#,\[\]\s])+|\[[0-9A-Fa-f:.]+\])"
    rf"(?::(?P<port>(?:{_VARIABLE}|[0-9])+))?"
    rf"/(?P<database>(?:{_VARIABLE}|[^/@?#\s])+)"
    rf"(?:\?(?P<{SETTINGS}>[^#\s]*))?"
)


def taken_apart(url: str) -> dict[str, str] | None:
    """Return the parts of `url` by their keys; `None` if it is not the address of a database."""
    found = _ADDRESS.fullmatch(url)
    return {key: _decoded(text) for key, text in found.groupdict().items() if text} if found else None


def _decoded(text: str) -> str:
    pieces = re.split(f"({_VARIABLE})", text)
    whole = "".join(piece if index % 2 else unquote(piece) for index, piece in enumerate(pieces))
    return whole.removeprefix("[").removesuffix("]")


def take_apart(document: Document) -> None:
    """Replace each address in `document` that has variables in its parts by the keys that it stands for."""
    for loc, section in _sections(document):
        url = section.get("url")
        if section.get("kind") not in KINDS or not isinstance(url, str) or "${" not in url:
            continue
        parts = taken_apart(url)
        if parts is None or SETTINGS in parts or parts.keys() & section.keys():
            continue  # One variable for the whole, or something to be told once it is expanded.
        del section["url"]
        for key, text in parts.items():
            section[key] = text
            for places in (document.values, document.keys):
                if (*loc, "url") in places:
                    places[(*loc, key)] = places[(*loc, "url")]


def _sections(document: Document) -> Iterator[tuple[Loc, dict[str, Node]]]:
    targets = document.data.get("targets")
    listed = enumerate(targets) if isinstance(targets, list) else ()
    places: list[Loc] = [("source",), ("target",), *(("targets", index) for index, _ in listed)]
    for loc in places:
        try:
            section = document.at(loc)
        except KeyError:
            continue
        if isinstance(section, dict):
            yield loc, section
