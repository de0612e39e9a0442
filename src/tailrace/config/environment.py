"""Variables in values: `${NAME}` and `${NAME:-default}`, replaced once, and `$${` for a plain `${`.

What a variable holds is never looked at again, so it can neither name another variable nor become
structure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tailrace.config.document import Document, Node
from tailrace.config.model import Loc
from tailrace.config.problem import Problem, quoted

_VARIABLE = re.compile(r"\$\$\{|\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^}]*)?\})?")


def expand(document: Document, environ: Mapping[str, str]) -> list[Problem]:
    """Replace the variables in `document`, and note where there were any."""
    problems: list[Problem] = []
    for loc, text in list(_texts(document.data, ())):
        expanded, found, outside = _expand(text, environ, loc)
        document.put(loc, expanded)
        document.expanded.add(loc)
        problems += found
        if outside:
            document.outside.add(loc)
    return problems


def _texts(node: Node, loc: Loc) -> Iterator[tuple[Loc, str]]:
    if isinstance(node, str):
        if "${" in node:
            yield loc, node
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from _texts(value, (*loc, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _texts(value, (*loc, index))


def _expand(text: str, environ: Mapping[str, str], loc: Loc) -> tuple[str, list[Problem], bool]:
    problems: list[Problem] = []
    written = _VARIABLE.sub("", text)

    def value(match: re.Match[str]) -> str:
        nonlocal written
        name, default = match["name"], match["default"]
        if match[0] == "$${":
            written += "${"
            return "${"
        if name is None:
            hint = "Write ${NAME} or ${NAME:-default}, or $${ for a plain ${."
            problems.append(Problem("bad-variable", loc, "a ${ does not begin a variable", hint))
            return ""
        if name in environ:
            return environ[name]
        if default is None:
            hint = f"Set it, or write ${{{name}:-default}}."
            problems.append(Problem("unset-variable", loc, f"environment variable {quoted(name)} is not set", hint))
            return ""
        written += default[2:]
        return default[2:]

    return _VARIABLE.sub(value, text), problems, not written
