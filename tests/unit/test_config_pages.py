"""The pages and examples that speak of configuration and errors are true."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.config.load import load_pipeline, load_platform
from tailrace.config.reference import page

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"[a-z]+(-[a-z]+)*")
REASON = re.compile(r"([a-z]+(?:-[a-z]+)*): ")


def test_the_configuration_page_is_what_the_models_say() -> None:
    written = (ROOT / "docs/reference/configuration.md").read_text()
    assert written == page(), "run: python -m tailrace.config.reference > docs/reference/configuration.md"


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*-to-*.yaml")), ids=lambda path: path.name)
def test_an_example_loads_without_warnings(example: Path) -> None:
    assert load_pipeline(example, {"SHOP_PASSWORD": "secret", "CONVEX_DEPLOY_KEY": "secret"}).warnings == ()


def test_the_example_platform_loads_without_warnings() -> None:
    assert load_platform(ROOT / "examples/platform.yaml", {}).warnings == ()


def test_every_code_is_a_heading_of_the_errors_page_and_no_heading_is_left_over() -> None:
    written = (ROOT / "docs/reference/errors.md").read_text()
    headings = re.findall(r"^### `([a-z-]+)`$", written, re.MULTILINE)
    assert headings == sorted(set(headings))
    assert set(headings) == set(_codes())


def _codes() -> Iterator[str]:
    trees = {file: ast.parse(file.read_text()) for file in sorted((ROOT / "src").rglob("*.py"))}
    raisers = {name for tree in trees.values() for name in _raisers(tree)}
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args and _name(node.func) in raisers:
                yield from (text for text in _texts(node.args[0]) if CODE.fullmatch(text))
            elif file.parent.name in ("apply", "envelopes") and isinstance(node, ast.Constant):
                found = REASON.match(str(node.value))
                yield from [found[1]] if found else []


def _raisers(tree: ast.Module) -> Iterator[str]:
    """Yield what takes a code as its first argument: the errors, and everything whose first parameter says so."""
    yield from ("__init__", "TailraceError", "Retryable", "Unreachable", "Reject", "Halt", "Misconfigured", "NotReady")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.args.args and node.args.args[0].arg == "code":
            yield node.name
        elif isinstance(node, ast.ClassDef):
            fields = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
            if fields and _name(fields[0]) == "code":
                yield node.name


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _texts(node: ast.expr) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value
