"""YAML as far as configuration needs it: structure and text, nothing that acts or explodes."""

from __future__ import annotations

import pytest

from tailrace.config.document import MAX_BYTES, Place
from tailrace.config.yaml_text import read_yaml
from tailrace.core.errors import Misconfigured


def refused(content: str | bytes) -> Misconfigured:
    with pytest.raises(Misconfigured) as caught:
        read_yaml("f.yaml", content if isinstance(content, bytes) else content.encode())
    return caught.value


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("no", "no"),
        ("010", "010"),
        ("1e3", "1e3"),
        ("12:30:00", "12:30:00"),
        ("2024-01-01", "2024-01-01"),
        ("true", "true"),
        ("'null'", "null"),
        ("null", None),
        ("~", None),
        ("", None),
        ("<<", "<<"),
        ("[a, {b: c}]", ["a", {"b": "c"}]),
    ],
)
def test_a_scalar_is_text(written: str, value: object) -> None:
    assert read_yaml("f.yaml", f"a: {written}\n".encode()).data == {"a": value}


def test_every_value_and_key_has_its_place() -> None:
    document = read_yaml("f.yaml", b"a:\n  - b: 1\n    c: 2\n")
    assert document.values["a", 0, "c"] == Place(3, 8)
    assert document.keys["a", 0, "c"] == Place(3, 5)
    assert document.place(("a", 0, "missing", "deeper")) == Place(2, 5)


def test_an_alias_is_the_value_again() -> None:
    assert read_yaml("f.yaml", b"a: &x {b: 1}\nc: *x\n").data == {"a": {"b": "1"}, "c": {"b": "1"}}


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        ("a: !!python/object/apply:os.system ['true']", "yaml-tag", "f.yaml:1:4: tag"),
        ("a: !!int '3'", "yaml-tag", "f.yaml:1:4: tag"),
        ("a: !secret x", "yaml-tag", "f.yaml:1:4: tag"),
        ("? [a]\n: b", "not-yaml", "key is not a plain text"),
        ("a: 1\nb: 2\na: 3", "duplicate-key", 'f.yaml:3:1: key "a" is written twice'),
        ("a: [1, 2", "not-yaml", "f.yaml:"),
        ("a: b: c", "not-yaml", "f.yaml:1:5:"),
        ("a: 1\n---\nb: 2", "not-yaml", "f.yaml:2:1:"),
        ("- a", "not-yaml", "f.yaml:1:1: top level is not a mapping"),
        ("", "not-yaml", "file is empty"),
        ("# nothing\n", "not-yaml", "file is empty"),
        ("a: *b", "not-yaml", "f.yaml:1:4:"),
        ("a: &b [*b]", "yaml-too-large", "f.yaml:1:"),
        ("a: " + "[" * 40 + "]" * 40, "yaml-too-deep", "f.yaml:1:"),
        ("a: " + "[" * 100_000, "yaml-too-deep", "f.yaml:1:"),
        (b"a: \xff", "not-yaml", "byte 3 is not UTF-8"),
        ("a: \x07", "not-yaml", "f.yaml:"),
        ("a: " + "x" * MAX_BYTES, "file-too-large", "f.yaml: file has more than"),
    ],
    ids=range(18),
)
def test_what_is_not_plain_yaml_is_refused(content: str | bytes, code: str, said: str) -> None:
    error = refused(content)
    assert error.code == code
    assert said in str(error)


def test_aliases_that_multiply_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert refused("\n".join(lines)).code == "yaml-too-large"
