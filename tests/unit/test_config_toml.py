"""TOML as far as configuration needs it: its values as text, and a place for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.config.document import MAX_BYTES, Node, Place
from tailrace.config.load import load_pipeline, load_platform
from tailrace.config.model import Loc
from tailrace.config.toml_text import read_toml
from tailrace.core.errors import Misconfigured

EVERYTHING = (Path(__file__).parents[1] / "vectors/config/everything.toml").read_text()


def refused(content: str | bytes) -> Misconfigured:
    with pytest.raises(Misconfigured) as caught:
        read_toml("f.toml", content if isinstance(content, bytes) else content.encode())
    return caught.value


def locs(node: Node, loc: Loc = ()) -> Iterator[Loc]:
    if loc:
        yield loc
    for step, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from locs(value, (*loc, step))


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_everything_that_is_read_has_a_place_and_nothing_else_has(ending: str) -> None:
    document = read_toml("f.toml", EVERYTHING.replace("\n", ending).encode())
    assert set(document.values) == set(locs(document.data))
    assert set(document.keys) == {loc for loc in locs(document.data) if isinstance(loc[-1], str)}
    lines = EVERYTHING.split("\n")
    for loc, place in document.keys.items():
        assert str(loc[-1]) in lines[place.line - 1][place.column - 1 :].lstrip("\"'")
    for loc, place in document.values.items():
        value = document.at(loc)
        if isinstance(value, str) and value.isalnum() and value not in ("31", "1000"):
            assert value in lines[place.line - 1][place.column - 1 :]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("5432", "5432"),
        ("6.50", "6.50"),
        ("1e3", "1e3"),
        ("true", "true"),
        ("1979-05-27", "1979-05-27"),
        ("07:32:00", "07:32:00"),
        ("'''a\nb'''", "a\nb"),
        ("[1, {b = 'c'}]", ["1", {"b": "c"}]),
    ],
)
def test_a_scalar_is_text(written: str, value: object) -> None:
    assert read_toml("f.toml", f"a = {written}\n".encode()).data == {"a": value}


def test_a_place_is_where_the_value_or_the_key_begins() -> None:
    document = read_toml("f.toml", b"\xef\xbb\xbfa = 1\n[b]\n  c.d = 'x'\n[[e]]\nf = [\n 1,\n 2]\n")
    assert document.values["b", "c", "d"] == Place(3, 9)
    assert document.keys["b", "c", "d"] == Place(3, 5)
    assert document.values["e", 0, "f", 1] == Place(7, 2)
    assert document.place(("e", 0, "missing", "deeper")) == Place(4, 3)


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        ("a = ", "not-toml", "f.toml:1:5: invalid value"),
        ("a: 1", "not-toml", "f.toml:1:2: expected '='"),
        ("a = 1\n[b]\nc = [1,\n", "not-toml", "f.toml:"),
        ("a = 1\nb = 2\na = 3", "duplicate-key", "f.toml:3:6: cannot overwrite a value"),
        ("[a]\n[a]\n", "duplicate-key", "f.toml:2:"),
        ("", "not-toml", "f.toml: file is empty"),
        (b"a = '\xff'", "not-toml", "f.toml: byte 5 is not UTF-8"),
        ("a = " + "[" * 40 + "]" * 40, "toml-too-deep", "f.toml: values nest deeper than 32"),
        ("a = " + "[" * 100_000, "toml-too-deep", "f.toml: values nest deeper"),
        (".".join("a" * 40) + " = 1", "toml-too-deep", "f.toml: values nest deeper"),
        ("a = '" + "x" * MAX_BYTES + "'", "file-too-large", "f.toml: file has more than"),
    ],
)
def test_what_is_not_plain_toml_is_refused(content: str | bytes, code: str, said: str) -> None:
    error = refused(content)
    assert error.code == code
    assert said in str(error)


def test_a_pipeline_and_a_platform_may_be_written_in_toml(tmp_path: Path) -> None:
    pipeline, platform = tmp_path / "pipeline.toml", tmp_path / "platform.toml"
    pipeline.write_text("""
pipeline_id = "shop"
[source]
database = "shop"
port = 5433
password = "${PASSWORD}"
tables = ["public.orders"]
[[sinks]]
sink_id = "lake"
sink_type = "delta"
[sinks.tables."public.orders"]
primary_key = ["id"]
[sinks.delta]
path = "./lake"
""")
    platform.write_text("health_enabled = false\n[slice]\nmax_rows = 7\n")
    loaded = load_pipeline(pipeline, {"PASSWORD": "p"})
    [sink] = loaded.config.sinks
    assert (loaded.warnings, sink.tables["public.orders"].primary_key) == ((), ("id",))
    assert load_platform(platform, {}).config.slice.max_rows == 7


def test_an_unknown_key_is_told_with_its_place_and_the_nearest_one(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text("""pipeline_id = "shop"
source = { database = "shop", tabels = ["public.orders"] }
[[sinks]]
sink_id = "lake"
sink_type = "delta"
  delta.pth = "./lake"
""")
    with pytest.raises(Misconfigured) as caught:
        load_pipeline(file, {})
    said = caught.value.render().replace(f"{tmp_path}/", "")
    assert 'pipeline.toml:2:31: unknown key "tabels"\n  hint: Did you mean "tables"?' in said
    assert 'pipeline.toml:6:9: unknown key "pth"\n  hint: Did you mean "path"?' in said
