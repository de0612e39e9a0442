"""Type names that hold others: taken apart, put together, and what changed inside."""

from __future__ import annotations

import pytest

from tailrace.core.nested import added, changed, element_of, entry_of, fields_of, holds_map, lost, merged, names, struct
from tailrace.core.table import widens


def test_types_are_taken_apart() -> None:
    assert fields_of("struct<a:int,b:struct<c:decimal(10,2),d:map<string,int>>>") == {
        "a": "int",
        "b": "struct<c:decimal(10,2),d:map<string,int>>",
    }
    assert fields_of("struct<>") == {}
    assert element_of("array<struct<a:int>>") == "struct<a:int>"
    assert entry_of("map<string,array<int>>") == ("string", "array<int>")


@pytest.mark.parametrize("take", [fields_of, element_of, entry_of])
def test_a_plain_type_has_nothing_inside(take: object) -> None:
    assert take("decimal(10,2)") is None  # type: ignore[operator]


@pytest.mark.parametrize(
    ("old", "new", "both"),
    [
        ("int", "bigint", "bigint"),
        ("bigint", "int", "bigint"),
        ("string", "int", None),
        ("struct<a:int>", "struct<a:bigint,b:string>", "struct<a:bigint,b:string>"),
        ("struct<a:int,b:string>", "struct<b:string>", "struct<a:int,b:string>"),
        ("struct<a:int>", "struct<a:string>", None),
        ("array<struct<a:int>>", "array<struct<b:int>>", "array<struct<a:int,b:int>>"),
        ("map<string,int>", "map<string,bigint>", "map<string,bigint>"),
        ("map<string,int>", "map<int,int>", None),
        ("array<int>", "map<string,int>", None),
    ],
)
def test_two_types_become_the_narrowest_that_holds_both(old: str, new: str, both: str | None) -> None:
    assert merged(old, new, widens) == both


def test_fields_that_came_and_went_are_found_anywhere() -> None:
    old = "struct<a:int,b:array<struct<c:int,gone:int>>>"
    new = "struct<a:int,b:array<struct<c:int>>,d:map<string,int>>"
    assert added(old, new) == [("`d`", "map<string,int>")]
    assert lost(old, new) == ["`b`.element.`gone`"]


def test_what_has_another_type_is_found_innermost() -> None:
    assert list(changed("int", "bigint")) == [("", "bigint")]
    old, new = (
        "struct<a:array<int>,m:map<string,int>,s:string>",
        "struct<a:array<bigint>,m:map<string,bigint>,s:string>",
    )
    assert sorted(changed(old, new)) == [("`a`.element", "bigint"), ("`m`.value", "bigint")]


def test_a_map_anywhere_has_no_order() -> None:
    assert holds_map("array<struct<a:map<string,int>>>")
    assert not holds_map("array<struct<a:int>>")


def test_names_of_fields_that_are_no_plain_words_are_quoted() -> None:
    odd = {"unit price": "int", "a.b": "array<struct<`x``,y`:int>>", "c:d<e>": "string", "plain": "int"}
    kind = struct(odd)
    assert kind == "struct<`unit price`:int,`a.b`:array<struct<`x``,y`:int>>,`c:d<e>`:string,plain:int>"
    assert fields_of(kind) == odd
    assert sorted(names(f"map<string,{kind}>")) == sorted([*odd, "x`,y"])
    more = struct({**odd, "a.b": "array<struct<`x``,y`:bigint,`-`:int>>"})
    assert merged(kind, more, widens) == more
    assert added(kind, more) == [("`a.b`.element.`-`", "int")]
    assert list(changed(kind, more)) == [("`a.b`.element.`x``,y`", "bigint")]


def test_a_map_is_found_anywhere_and_a_field_called_so_is_none() -> None:
    assert all(map(holds_map, ["map<int,int>", "struct<a:array<map<int,int>>>", "variant", "struct<a:variant,b:int>"]))
    assert not any(map(holds_map, ["int", "struct<variant:int>", "struct<a:int,variant_id:int>"]))
