"""A configuration file as read: plain values, and where in the text each of them stands.

What a format's reader must deliver, so that everything after it is the same for every format. A scalar
of a format without types of its own is text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tailrace.config.model import Loc
from tailrace.config.problem import Problem
from tailrace.core.errors import Misconfigured

MAX_BYTES = 1_000_000
MAX_DEPTH = 32
"""How large a file may be, and how deep its values may nest, whatever its format."""

Node = dict[str, "Node"] | list["Node"] | str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Place:
    """A line and a column, both counted from 1; or a `part` by its name, where there are no lines."""

    line: int
    column: int
    part: str = ""

    def after(self, name: str) -> str:
        """Return this place in the document called `name`, as errors say it."""
        return f"{name}, {self.part}" if self.part else f"{name}:{self.line}:{self.column}"


@dataclass(slots=True)
class Document:
    """The values of one file.

    `expanded` holds the locs of values that variables or secret files went into, and must not be shown;
    `outside` those of which nothing stands in the file itself.
    """

    name: str
    data: dict[str, Node]
    values: dict[Loc, Place] = field(default_factory=dict)
    keys: dict[Loc, Place] = field(default_factory=dict)
    expanded: set[Loc] = field(default_factory=set)
    outside: set[Loc] = field(default_factory=set)

    def place(self, loc: Loc, *, at_key: bool = False) -> Place | None:
        """Return where `loc` stands, or the nearest thing around it that stands anywhere."""
        if at_key and loc in self.keys:
            return self.keys[loc]
        while loc and loc not in self.values:
            loc = loc[:-1]
        return self.values.get(loc)

    def at(self, loc: Loc) -> Node:
        """Return the value at `loc`; a KeyError, IndexError or TypeError if there is none."""
        node: Node = self.data
        for step in loc:
            node = node[step]  # type: ignore[index]
        return node

    def put(self, loc: Loc, value: Node) -> None:
        """Replace the value at `loc`."""
        self.at(loc[:-1])[loc[-1]] = value  # type: ignore[index]

    def told(self, problem: Problem) -> str:
        """Return the message of `problem` with file, line and column before it."""
        place = self.place(problem.loc, at_key=problem.at_key)
        return f"{place.after(self.name) if place else self.name}: {problem.message}"

    def errors(self, problems: Iterable[Problem]) -> list[Misconfigured]:
        """Return `problems` as errors, in the order of the file."""
        placed = sorted(problems, key=self._order)
        return [Misconfigured(problem.code, self.told(problem), problem.hint) for problem in placed]

    def _order(self, problem: Problem) -> tuple[int, int]:
        place = self.place(problem.loc, at_key=problem.at_key)
        return (place.line, place.column) if place else (0, 0)
