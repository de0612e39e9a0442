"""Which type a column of the engine has here, and how its value is written."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.core.table import Column, Table
from tailrace.envelopes import connect
from tailrace.runtime import fold
from tailrace.sources._debezium.schema import table_of
from tailrace.sources._debezium.stand import Stand, lsn_number, lsn_text, stand_at


def column(kind: str, semantic: str = "", declared: str = "", **more: Any) -> Column:
    length, scale = more.pop("length", None), more.pop("scale", None)
    parameters = {"type": declared, "length": length, "scale": scale}
    described = {
        "name": "c",
        "type": kind,
        "semantic": semantic,
        "optional": True,
        "text": False,
        "parameters": {f"__debezium.source.column.{key}": value for key, value in parameters.items() if value},
        **more,
    }
    return table_of({"table": "public.t", "keys": [], "columns": [described]}).columns[0]


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        (column("int16"), ("smallint", "")),
        (column("int64"), ("bigint", "")),
        (column("float32"), ("float", "")),
        (column("boolean"), ("boolean", "")),
        (column("bytes"), ("binary", "base64")),
        (column("bytes", "io.debezium.data.Bits"), ("binary", "base64")),
        (column("bytes", text=True), ("string", "")),
        (column("struct", text=True), ("string", "")),
        (column("int32", "io.debezium.time.Date"), ("date", "date-days")),
        (column("int64", "io.debezium.time.MicroTimestamp"), ("timestamp_ntz", "timestamp-micros")),
        (column("string", "io.debezium.time.ZonedTimestamp"), ("timestamp", "timestamp-iso")),
        (column("int64", "io.debezium.time.MicroTime"), ("string", "time-micros")),
        (column("string", "io.debezium.data.Json"), ("string", "")),
        (column("string", declared="NUMERIC", length="10", scale="2"), ("decimal(10,2)", "decimal-text")),
        (column("string", declared="NUMERIC", length="38"), ("decimal(38,0)", "decimal-text")),
        (column("string", declared="NUMERIC", length="39", scale="2"), ("string", "")),
        (column("string", declared="NUMERIC", length="2", scale="5"), ("string", "")),
        (column("string", declared="NUMERIC", length="3", scale="-2"), ("string", "")),
        (column("string", declared="NUMERIC"), ("string", "")),
        (column("string", declared="VARCHAR", length="10"), ("string", "")),
    ],
)
def test_type_and_encoding(described: Column, expected: tuple[str, str]) -> None:
    assert (described.type, described.encoding) == expected


def test_a_document_is_told_from_other_text() -> None:
    assert column("string", "io.debezium.data.Json").json
    assert not column("string").json
    fields = [{"field": name, "type": "string", "name": kind} for name, kind in (("a", connect.JSON), ("b", None))]
    assert [column.json for column in connect.table_of("t", fields, []).columns] == [True, False]


def test_what_one_writer_does_not_call_a_document_is_none_and_neither_is_a_key() -> None:
    def table(**documents: bool) -> Table:
        return Table("t", tuple(Column(name, "string", json=json) for name, json in documents.items()), ("id",))

    older, newer = table(id=True, a=True, b=False, gone=True), table(id=True, a=True, b=True, new=True)
    want = Table("t", tuple(Column(name, "string") for name in ("id", "a", "b", "gone", "new", "mark")), ("id",))
    marked = fold._marked(want, [older, newer])
    assert [c.name for c in marked.columns if c.json] == ["a", "gone", "new"]


def test_an_array_carries_the_encoding_of_its_elements() -> None:
    dates = {"name": "element", "type": "int32", "semantic": "io.debezium.time.Date", "optional": True, "text": False}
    numbers = {"name": "element", "type": "string", "semantic": "", "optional": True, "text": False}
    plain = {**numbers, "type": "int32"}
    found = [
        column("array", element=dates),
        column("array", declared="_NUMERIC", length="10", scale="2", element=numbers),
        column("array", element=plain),
    ]
    assert [(each.type, each.encoding) for each in found] == [
        ("array<date>", "array:date-days"),
        ("array<decimal(10,2)>", "array:decimal-text"),
        ("array<int>", ""),
    ]


def test_a_default_is_kept_only_where_json_says_it_exactly() -> None:
    assert column("int32", default=7).default == 7
    assert column("string", default="x").default == "x"
    assert column("string", declared="NUMERIC", length="6", scale="2", default="1.50").default == "1.50"
    assert column("int32", "io.debezium.time.Date", default=18000).default is None
    assert column("float64", default="NaN").default is None


@pytest.mark.parametrize("stand", [Stand(0), Stand(0x16B3748), Stand(5 << 32, 771, (5 << 32) + 9, 2)])
def test_a_place_reads_back(stand: Stand) -> None:
    assert stand_at(stand.place()) == stand


def test_lsn_is_written_as_postgres_writes_it() -> None:
    assert lsn_text(0x1_016B3748) == "1/16B3748"
    assert lsn_number("1/16B3748") == 0x1_016B3748


@pytest.mark.parametrize("text", ["", "0", "0/", "0/1+", "0/1+2:0/1", "0/1+x:0/1:1", "g/1"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a place"):
        stand_at(text)
