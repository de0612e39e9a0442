"""Convex values: what is encoded is decoded exactly, kinds form a lattice, and texts and fingerprints are stable."""

from __future__ import annotations

import base64
import json
import math
import random
import struct
from datetime import UTC, datetime
from typing import Any

import pytest

from tailrace.core import convex
from tailrace.core.convex import Kind
from tailrace.sources._convex_documents import Documents, encoded_text
from tailrace.testing.convex.values import encode, object_schema

INTEGERS = [0, 1, -1, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 1234567890123456789]
FLOATS = [0.0, -0.0, 1.0, 0.1, 1e300, 5e-324, float("nan"), float("inf"), float("-inf"), float(2**53)]
NAMES = ["name", "a.b", "a b", 'quo"ted', "back`tick", "x,y", "__proto__", "Name", "{}", "naïve", "integer"]


def some_value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(9 if depth < 4 else 7)
    match kind:
        case 0:
            return None
        case 1:
            return chance.random() < 0.5
        case 2:
            return chance.choice([*INTEGERS, chance.randrange(-(2**63), 2**63)])
        case 3:
            return chance.choice([*FLOATS, chance.uniform(-1e9, 1e9), struct.unpack("<d", chance.randbytes(8))[0]])
        case 4 | 5:
            return chance.choice(["", "text", "☃", '"\\', "\x00\n", '{"$integer":"AQAAAAAAAAA="}', "NaN"])
        case 6:
            return chance.randbytes(chance.randrange(12))
        case 7:
            return [some_value(chance, depth + 1) for _ in range(chance.randrange(4))]
        case _:
            return {chance.choice(NAMES): some_value(chance, depth + 1) for _ in range(chance.randrange(4))}


def same(one: object, other: object) -> bool:
    """Say whether two values are the very same: types, signs of zero and bits of NaN included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float) and isinstance(other, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return one == other


def seeds(count: int) -> range:
    first = random.randrange(1 << 32)
    return range(first, first + count)


def wire(value: Any) -> Any:
    """Return `value` as a client reads it from the server's text."""
    return json.loads(json.dumps(encode(value, "encoded")))


# -- decoding


def test_what_is_encoded_is_decoded_exactly_for_every_value() -> None:
    for seed in seeds(3000):
        value = some_value(random.Random(seed))
        assert same(convex.decode(wire(value)), value), f"seed {seed}"


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        ({"$integer": "AQAAAAAAAAA="}, 1),
        ({"$integer": "//////////8="}, -1),
        ({"$integer": "FYHpffQQIhE="}, 1234567890123456789),
        ({"$integer": "/////////38="}, 2**63 - 1),
        ({"$integer": "AAAAAAAAAIA="}, -(2**63)),
        ({"$float": "AAAAAAAAAIA="}, -0.0),
        ({"$float": "AAAAAAAAAAA="}, 0.0),
        ({"$float": "AAAAAAAA8H8="}, math.inf),
        ({"$float": "AAAAAAAA8P8="}, -math.inf),
        ({"$bytes": ""}, b""),
        (3, 3.0),
        (9007199254740993, 9007199254740992.0),
        ({"$integer": "AQAAAAAAAAA=", "b": 1.0}, {"$integer": "AQAAAAAAAAA=", "b": 1.0}),
        ({"__proto__": {"$bytes": "AA=="}}, {"__proto__": b"\x00"}),
        ({}, {}),
    ],
)
def test_worked_values(encoded: object, value: object) -> None:
    assert same(convex.decode(encoded), value)


def test_the_bits_of_a_nan_are_kept() -> None:
    bits = bytes([1, 2, 3, 0, 0, 0, 0xF8, 0x7F])
    found = convex.decode({"$float": base64.b64encode(bits).decode()})
    assert isinstance(found, float)
    assert struct.pack("<d", found) == bits


@pytest.mark.parametrize(
    "broken",
    [
        {"$integer": 1},
        {"$integer": "AQ=="},
        {"$integer": "not base64"},
        {"$integer": "AQAAAAAAAAA"},
        {"$float": "AAAAAAAA8D8="},
        {"$float": "AA=="},
        {"$bytes": None},
        {"$bytes": "é"},
        {"$set": []},
        {"$map": []},
        10**400,
        {1, 2},
    ],
)
def test_what_is_no_value_is_refused(broken: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        convex.decode(broken)


def test_a_value_that_nests_without_end_is_refused() -> None:
    deep: object = 1.0
    for _ in range(500):
        deep = [deep]
    with pytest.raises(ValueError, match="deep"):
        convex.decode(deep)


def test_missing_is_not_null() -> None:
    assert convex.widened({}, {"a": None}) == {"a": Kind.NULL}
    assert convex.widened({}, {}) == {}
    assert encoded_text({"a": None}) != encoded_text({})


# -- texts


def test_equal_documents_have_equal_texts_that_lose_nothing() -> None:
    for seed in seeds(500):
        chance = random.Random(seed)
        value = {name: some_value(chance) for name in chance.sample(NAMES, 4)}
        shuffled = {name: value[name] for name in chance.sample(list(value), 4)}
        text = encoded_text(wire(value))
        assert text == encoded_text(json.loads(json.dumps(encode(shuffled, "encoded")))), f"seed {seed}"
        assert same(convex.decode(json.loads(text)), value), f"seed {seed}"


def test_a_number_is_written_as_a_float_however_it_came() -> None:
    assert encoded_text({"b": 1, "a": [2.0, True, None]}) == '{"a":[2.0,true,null],"b":1.0}'


def test_documents_are_written_as_a_general_writer_would_and_typed_as_one_by_one() -> None:
    for seed in seeds(300):
        chance = random.Random(seed)
        table, fields = Documents(), convex.Fields()
        for _ in range(chance.randrange(1, 6)):
            document = wire({name: some_value(chance) for name in chance.sample(NAMES, 4)} | {"_id": "k"})
            own = {name: value for name, value in document.items() if convex.own(name)}
            text = json.dumps(own, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
            assert table.read(document | {"_strange": {"$set": []}}) == text == encoded_text(own), f"seed {seed}"
            fields = convex.widened(fields, document)
        assert table.fields == fields, f"seed {seed}"


def python_text(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def test_numbers_are_spelled_as_python_spells_them_wherever_they_stand() -> None:
    chance = random.Random(first := random.randrange(1 << 32))
    numbers = [float(f"{digits}e{power}") for digits in ("1", "1.5", "9.999999999999999") for power in range(-330, 308)]
    numbers += [chance.uniform(-2.0, 2.0) * 10.0 ** chance.randrange(-8, 20) for _ in range(2000)]
    numbers += [1e-4, math.nextafter(1e-4, 0), 1e16, math.nextafter(1e16, 0), 2.0**53, -0.0, 0.0, 5e-324]
    for number in [*numbers, *(-number for number in numbers)]:
        value = {"a": number, "b": [number], "c": {"d": {"e": number}}}
        text = python_text(value)
        assert Documents().read(json.loads(json.dumps(value))) == encoded_text(value) == text, f"seed {first}"


def test_texts_and_names_are_written_as_python_writes_them() -> None:
    odd = [
        *map(chr, range(0x100)),
        "\u2028",
        "\uffff",
        "\ue000",
        "\U0001f600",
        "\U0010ffff",
        "</script>",
        "é☃",
        "$x",
        "a" * 300,
    ]
    value = {**{name: name for name in odd if not name.startswith("_")}, "inner": {name: [name] for name in odd}}
    assert Documents().read(dict(reversed(value.items()))) == encoded_text(value) == python_text(value)


def test_documents_that_never_look_alike_are_all_read() -> None:
    table = Documents()
    for n in range(500):
        assert table.read({"_id": "k", f"f{n}": float(n), "_x": None}) == f'{{"_id":"k","f{n}":{n}.0}}'
    assert table.read({"_id": "k", "f0": "text"}) == '{"_id":"k","f0":"text"}'
    assert len(table.fields) == 501
    assert table.fields["f0"] is Kind.TEXT


def test_what_fields_hold_is_learned_from_documents_that_look_alike() -> None:
    table = Documents({"a": Kind.BYTES, "gone": Kind.STRING})
    payload = {"$integer": "AQAAAAAAAAA="}
    for value in (payload, {"b": payload}, {"$bytes": ""}, {"$float": "AAAAAAAAAIA="}):
        table.read({"_id": "k", "x": value, "a": {"$bytes": "AA=="}, "n": None})
        table.read({"_id": "k", "y": payload})
    expected = {
        "_id": Kind.STRING,
        "x": Kind.TEXT,
        "y": Kind.INT64,
        "a": Kind.BYTES,
        "n": Kind.NULL,
        "gone": Kind.STRING,
    }
    assert table.fields == expected


DEEP: Any = 1.0
for _ in range(70):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "value",
    [
        math.inf, math.nan, 10**400, [math.inf], {"a": {"b": -math.inf}}, DEEP, "\ud800", {"\ud800": 1.0}, {"$set": []},
        [{"$map": []}], {"$integer": "AAAA"}, {"$integer": 1}, {"$float": []}, {"$bytes": "=A"}, {"$float": "AAAAAAAA8D8="}, b"",
    ],
)  # fmt: skip
def test_a_document_with_what_is_no_value_is_refused(value: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Documents().read({"_id": "k", "a": value})


@pytest.mark.parametrize("created", [None, True, "1", -1.0, 253_402_300_800_000.0, {"$integer": "AAAAAAAAAAA="}])
def test_a_document_made_at_no_time_is_refused(created: object) -> None:
    with pytest.raises(ValueError, match="_creationTime"):
        Documents().read({"_id": "k", "_creationTime": created})


def test_nested_values_as_people_read_them() -> None:
    value = {"z": [2**60, b"\x00", math.nan, -math.inf, -0.0, 1.0], "a": {"☃": None}}
    assert convex.clean_text(value) == '{"a":{"☃":null},"z":["1152921504606846976","AA==","NaN","-Infinity",-0.0,1.0]}'


def test_clean_text_is_what_the_server_s_own_clean_format_says() -> None:
    for seed in seeds(500):
        value = some_value(random.Random(seed))
        server = json.dumps(encode(value, "json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert convex.clean_text(value) == server, f"seed {seed}"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, None), ("a", "a"), (5, "5"), (1.5, "1.5"), (True, "true"), (b"\x00", "AA=="), ([1], '["1"]'),
     (math.nan, "NaN"), (-math.inf, "-Infinity"), ({}, "{}")],
)  # fmt: skip
def test_a_column_of_several_kinds_shows_each_value_as_text(value: object, text: str | None) -> None:
    assert convex.shown(value) == text


# -- times


def test_a_creation_time_is_cut_to_microseconds() -> None:
    assert convex.created_at(1686799242010.5) == datetime(2023, 6, 15, 3, 20, 42, 10500, tzinfo=UTC)
    assert convex.created_at(0.0) == datetime(1970, 1, 1, tzinfo=UTC)
    assert convex.created_at(1000.0009) == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize("broken", [-1.0, math.nan, math.inf, "0", True, None, 1e300])
def test_what_is_no_creation_time_is_refused(broken: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        convex.created_at(broken)


# -- kinds


def test_kinds_form_a_lattice() -> None:
    for a in Kind:
        assert convex.join(a, a) is a
        assert convex.join(a, Kind.NULL) is a
        assert convex.join(a, Kind.TEXT) is Kind.TEXT
        for b in Kind:
            assert convex.join(a, b) is convex.join(b, a)
            for c in Kind:
                assert convex.join(convex.join(a, b), c) is convex.join(a, convex.join(b, c))


def test_fields_are_the_same_in_whatever_order_documents_come() -> None:
    for seed in seeds(300):
        chance = random.Random(seed)
        documents = [wire({n: some_value(chance) for n in chance.sample(NAMES, 3)}) for _ in range(5)]
        shuffled = chance.sample(documents, 5)
        one: convex.Fields = {}
        other: convex.Fields = {}
        for document, twin in zip(documents, shuffled, strict=True):
            one, other = convex.widened(one, document), convex.widened(other, twin)
        assert one == other, f"seed {seed}"
        assert one == convex.all_fields([convex.widened({}, document) for document in documents]), f"seed {seed}"


def test_a_document_widens_only_what_it_has_and_transport_fields_are_nothing() -> None:
    fields = convex.widened({"a": Kind.STRING, "b": Kind.INT64}, {"a": 1.0, "c": [], "_id": "x", "_other": 1.0})
    assert fields == {"a": Kind.TEXT, "b": Kind.INT64, "c": Kind.TEXT, "_id": Kind.STRING}


def test_a_schema_tells_at_least_the_kinds_of_the_documents_it_was_inferred_from() -> None:
    for seed in seeds(500):
        chance = random.Random(seed)
        documents = [{n: some_value(chance) for n in chance.sample(NAMES, 4)} for _ in range(chance.randint(1, 5))]
        seen = convex.all_fields(convex.widened({}, wire(document)) for document in documents)
        told = convex.fields_of(object_schema(documents, "encoded"))
        assert told == seen, f"seed {seed}"


def test_an_odd_schema_is_read_leniently() -> None:
    assert convex.fields_of(
        {"properties": {"a": {}, "b": False, "c": {"type": "object", "additionalProperties": {}}}}
    ) == {
        "a": Kind.TEXT,
        "b": Kind.NULL,
        "c": Kind.TEXT,
    }
    assert convex.fields_of({}) == convex.fields_of(None) == convex.fields_of([]) == {}


# -- tables


def test_a_table_has_its_key_first_and_no_column_for_what_was_always_null() -> None:
    shape = convex.table(
        "a.t", {"b": Kind.INT64, "_id": Kind.STRING, "_creationTime": Kind.FLOAT64, "n": Kind.NULL, "a": Kind.TEXT}
    )
    assert [(c.name, c.type, c.encoding) for c in shape.columns] == [
        ("_id", "string", "string"),
        ("a", "string", "text"),
        ("b", "bigint", "int64"),
        ("_creationTime", "timestamp", "time"),
    ]
    assert shape.keys == ("_id",)
    assert convex.table("a.t", convex.fields_in(shape)) == shape


def test_of_fields_that_differ_in_case_one_keeps_its_name_whatever_the_order() -> None:
    fields = {"name": Kind.INT64, "Name": Kind.STRING, "NAME": Kind.BYTES, "a of b": Kind.TEXT, "A of b": Kind.TEXT}
    shape = convex.table("t", fields, ())
    assert len({name.lower() for name in shape.names()}) == 6
    assert {"name", "a of b"} < set(shape.names())
    assert convex.fields_in(shape) == {"_id": Kind.STRING, **fields}
    assert convex.table("t", dict(reversed(fields.items())), ()) == shape
    kept = convex.table("t", fields, taken=["Name", "other"])
    assert "Name" in kept.names()
    assert "name" not in kept.names()
    assert convex.fields_in(kept) == {"_id": Kind.STRING, **fields}


def test_names_of_tables_tell_components_apart() -> None:
    names = [convex.table_name(*pair) for pair in (("", "a_b"), ("a", "b"), ("a/b", "c"), ("a", "b_c"), ("a_b", "c"))]
    assert names == ["a_b", "a.b", "a/b.c", "a.b_c", "a_b.c"]


# -- fingerprints


def test_a_fingerprint_ignores_words_and_order_and_nothing_else() -> None:
    one = {
        "type": "object",
        "properties": {"a": {"anyOf": [{"type": "number"}, {"type": "string", "$description": "Id(x)"}]}},
    }
    two = {
        "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "number"}], "$description": "y"}},
        "type": "object",
    }
    other = {"type": "object", "properties": {"a": {"anyOf": [{"type": "boolean"}, {"type": "number"}]}}}
    assert convex.fingerprint(one) == convex.fingerprint(two)
    assert convex.fingerprint(one) != convex.fingerprint(other)
    assert convex.fingerprint({"required": ["b", "a"]}) == convex.fingerprint({"required": ["a", "b"]})
    assert convex.fingerprint({"required": ["a"]}) != convex.fingerprint({"required": []})
