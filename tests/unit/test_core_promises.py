"""Promises about the source text that are cheap to keep true by reading it."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "tailrace"
FILES = sorted(SOURCE.rglob("*.py"))
TALKS = ("cli/", "demo/", "spark/jars.py")
"""Parts that may print: they talk to a person."""


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text("utf-8"))))


def calls(path: Path) -> Iterator[tuple[int, str, list[str | None]]]:
    """Yield line, dotted name and keywords of each call whose name is known."""
    for node in nodes(path):
        if isinstance(node, ast.Call):
            truths = [k.arg for k in node.keywords if isinstance(k.value, ast.Constant) and k.value.value is True]
            yield node.lineno, ast.unparse(node.func), truths


def found(test: str) -> list[str]:
    """Say where in the source a call of `test` stands."""
    return [f"{path.relative_to(SOURCE)}:{line}" for path in FILES for line, name, _ in calls(path) if name == test]


@pytest.mark.parametrize(
    "name", ["eval", "exec", "yaml.load", "tempfile.mktemp", "os.system", "os.popen", "pickle.load", "pickle.loads"]
)
def test_nothing_calls(name: str) -> None:
    assert found(name) == []


def test_nothing_runs_a_shell() -> None:
    shells = [(path.name, line) for path in FILES for line, _, truths in calls(path) if "shell" in truths]
    assert shells == []


def test_nothing_imports_pickle() -> None:
    importing = [
        path.name
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.Import | ast.ImportFrom)
        and "pickle" in [getattr(node, "module", ""), *(alias.name for alias in node.names)]
    ]
    assert importing == []


def test_nothing_checks_with_assert() -> None:
    asserting = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.Assert)
    ]
    assert asserting == []


def test_only_what_talks_to_a_person_prints() -> None:
    printing = [place for place in found("print") if not place.startswith(TALKS)]
    assert printing == []


def test_core_needs_nothing_but_the_standard_library_and_itself() -> None:
    outside = set()
    for path in (SOURCE / "core").glob("*.py"):
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and node.module:
                outside.add(node.module)
            elif isinstance(node, ast.Import):
                outside.update(alias.name for alias in node.names)
    assert {name for name in outside if name.split(".")[0] not in sys.stdlib_module_names} <= {
        f"tailrace.core.{path.stem}" for path in (SOURCE / "core").glob("*.py")
    } | {"tailrace.core"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_says_what_it_is_for(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    assert not tree.body or ast.get_docstring(tree)
