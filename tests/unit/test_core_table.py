"""How the shape of one table fits another: nothing is ever cut to fit."""

from __future__ import annotations

import json
import random
from decimal import Decimal

import pytest

from tailrace.core.errors import Halt
from tailrace.core.table import Column, Evolution, Table, fit, table_from_json, widens

ID = Column("id", "bigint")


def table(*columns: Column, keys: tuple[str, ...] = ("id",)) -> Table:
    return Table("public.t", (ID, *columns), keys)


def refused(have: Table | None, want: Table, policy: Evolution = Evolution.ALTER) -> str:
    with pytest.raises(Halt) as found:
        fit(have, want, policy)
    return found.value.code


def test_a_column_that_is_expected_is_added_whatever_the_policy() -> None:
    have, want = table(), table(Column("a", "int"), Column("b", "int"))
    for policy in (Evolution.SKIP, Evolution.FAIL):
        assert fit(have, want, policy, expected=("a", "b")).add == want.columns[1:]
    assert fit(have, want, Evolution.SKIP, expected=("a",)).add == want.columns[1:2]
    with pytest.raises(Halt, match='has no column "b"'):
        fit(have, want, Evolution.FAIL, expected=("a",))


# -- storage


def test_a_table_survives_storage() -> None:
    whole = table(
        Column("a", "decimal(10,2)", False, "base64", "0.10"),
        Column('b"`é', "array<string>", default=True),
        Column("j", "string", json=True),
    )
    assert table_from_json(json.loads(json.dumps(whole.to_json()))) == whole


def test_equal_tables_share_a_fingerprint_and_others_do_not() -> None:
    shapes = [
        table(),
        table(Column("a", "int")),
        table(Column("a", "bigint")),
        table(Column("a", "int", nullable=False)),
        table(Column("a", "int", encoding="x")),
        table(Column("a", "int", default=0)),
        table(Column("a", "int"), keys=("id", "a")),
        table(Column("b", "int"), Column("a", "int")),
        table(Column("a", "int"), Column("b", "int")),
    ]
    assert len({shape.fingerprint() for shape in shapes}) == len(shapes)
    assert table(Column("a", "int")).fingerprint() == table(Column("a", "int")).fingerprint()


def test_a_column_is_found_by_its_exact_name() -> None:
    assert table(Column("Name", "string")).column("Name").type == "string"
    with pytest.raises(KeyError):
        table(Column("Name", "string")).column("name")


# -- fit


@pytest.mark.parametrize("policy", Evolution)
def test_a_table_that_is_not_there_is_created_whole(policy: Evolution) -> None:
    want = table(Column("a", "int"))
    assert fit(None, want, policy).create
    assert fit(None, want, policy).table == want


@pytest.mark.parametrize("policy", Evolution)
def test_an_equal_table_needs_nothing(policy: Evolution) -> None:
    found = fit(table(), table(), policy)
    assert (found.create, found.add, found.widen, found.skipped, found.table) == (False, (), (), (), table())


def test_a_new_column_is_added_with_its_default() -> None:
    found = fit(table(), table(Column("a", "int", nullable=False, default=7)), Evolution.ALTER)
    assert [column.name for column in found.add] == ["a"]
    assert found.table == table(Column("a", "int", default=7))


def test_a_wider_type_widens_the_column() -> None:
    found = fit(table(Column("a", "int")), table(Column("a", "bigint")), Evolution.ALTER)
    assert [(column.name, column.type) for column in found.widen] == [("a", "bigint")]
    assert found.table.column("a").type == "bigint"


def test_a_narrower_type_is_stored_in_the_target_s_own() -> None:
    found = fit(table(Column("a", "bigint")), table(Column("a", "int")), Evolution.FAIL)
    assert found.widen == ()
    assert found.table.column("a").type == "bigint"


@pytest.mark.parametrize("policy", Evolution)
def test_documents_go_into_text_as_they_are(policy: Evolution) -> None:
    found = fit(table(Column("a", "string")), table(Column("a", "string", json=True)), policy)
    assert (found.widen, found.table) == ((), table(Column("a", "string")))


def test_a_column_of_documents_becomes_text_by_policy_alone() -> None:
    have, want = table(Column("a", "string", json=True)), table(Column("a", "string"))
    assert fit(have, want, Evolution.ALTER).table == want
    assert fit(have, want, Evolution.SKIP).table == have
    assert refused(have, want, Evolution.FAIL) == "schema-refused"
    assert fit(table(), have, Evolution.ALTER).table == have


def test_a_dropped_column_stays_in_the_target() -> None:
    found = fit(table(Column("a", "int"), Column("b", "int")), table(Column("b", "int")), Evolution.FAIL)
    assert found.table.names() == ("id", "a", "b")


def test_skip_leaves_out_what_is_new_and_says_so() -> None:
    have, want = table(Column("a", "int")), table(Column("a", "bigint"), Column("b", "int"))
    found = fit(have, want, Evolution.SKIP)
    assert found.table == have
    assert [text.split('"')[1] for text in found.skipped] == ["a", "b"]


def test_fail_refuses_what_is_new() -> None:
    assert refused(table(), table(Column("a", "int")), Evolution.FAIL) == "schema-refused"
    assert refused(table(Column("a", "int")), table(Column("a", "bigint")), Evolution.FAIL) == "schema-refused"


@pytest.mark.parametrize("policy", Evolution)
@pytest.mark.parametrize(
    ("old", "new"), [("int", "string"), ("string", "int"), ("bigint", "double"), ("date", "string")]
)
def test_a_type_that_is_neither_wider_nor_narrower_halts(policy: Evolution, old: str, new: str) -> None:
    assert refused(table(Column("a", old)), table(Column("a", new)), policy) == "type-changed"


@pytest.mark.parametrize("policy", Evolution)
def test_another_key_halts(policy: Evolution) -> None:
    have = table(Column("a", "int"))
    assert refused(have, table(Column("a", "int"), keys=("id", "a")), policy) == "key-changed"
    assert refused(have, table(Column("a", "int"), keys=()), policy) == "key-changed"


def test_names_that_differ_in_case_only_halt() -> None:
    assert refused(None, table(Column("a", "int"), Column("A", "int"))) == "case-collision"
    assert refused(table(Column("a", "int")), table(Column("A", "int"))) == "case-collision"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("struct<a:int>", "struct<A:int>"),
        ("struct<a:int>", "struct<a:int,A:int>"),
        ("array<struct<x:struct<a:int>>>", "array<struct<x:struct<A:int>>>"),
        ("map<string,struct<a:int>>", "map<string,struct<A:int>>"),
    ],
)
@pytest.mark.parametrize("policy", Evolution)
def test_fields_that_differ_in_case_only_halt_with_both_names(old: str, new: str, policy: Evolution) -> None:
    with pytest.raises(Halt, match='"a" and "A" inside column "s"') as found:
        fit(table(Column("s", old)), table(Column("s", new)), policy)
    assert found.value.code == "case-collision"


def test_a_struct_with_two_fields_that_differ_in_case_only_makes_no_table() -> None:
    assert refused(None, table(Column("s", "array<struct<b:int,a:int,A:int>>"))) == "case-collision"


@pytest.mark.parametrize("policy", Evolution)
@pytest.mark.parametrize("narrower", [True, False])
def test_fields_may_come_in_another_order(policy: Evolution, narrower: bool) -> None:
    have, want = table(Column("s", "struct<a:int,b:int>")), table(Column("s", "struct<b:int,a:int>"))
    found = fit(have, want, policy, narrower=narrower)
    assert (found.table, found.widen, found.skipped) == (have, (), ())


def test_a_field_is_judged_by_itself_be_it_beside_a_new_one() -> None:
    have, want = table(Column("s", "struct<x:bigint>")), table(Column("s", "struct<x:int,y:int>"))
    with pytest.raises(Halt) as found:
        fit(have, want, Evolution.ALTER, narrower=False)
    assert found.value.code == "type-changed"
    assert fit(have, want, Evolution.ALTER).table.column("s").type == "struct<x:bigint,y:int>"


@pytest.mark.parametrize("name", ["_cdc_position", "_CDC_x", "_cdc_"])
def test_names_of_ours_halt(name: str) -> None:
    assert refused(None, table(Column(name, "int"))) == "reserved-column"


@pytest.mark.parametrize("name", ["_cdc", "cdc_", "select", "a.b", "`", '"', ";--", "🦀", " "])
def test_other_names_are_fine(name: str) -> None:
    assert fit(None, table(Column(name, "int")), Evolution.ALTER).create


def test_fitting_what_was_fitted_changes_nothing() -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    types = ["int", "bigint", "float", "double", "decimal(10,2)", "decimal(20,4)", "decimal(38,0)", "date", "string"]
    fitted = 0
    for _ in range(2000):
        have, want = (
            table(
                *(
                    Column(name, chance.choice(types), default=chance.choice([None, 1]))
                    for name in chance.sample("abc", 2)
                )
            )
            for _ in range(2)
        )
        policy = chance.choice(list(Evolution))
        try:
            once = fit(have, want, policy)
        except Halt:
            continue
        fitted += 1
        twice = fit(once.table, want, policy)
        assert (twice.table, twice.create, twice.add, twice.widen) == (once.table, False, (), ()), f"seed {seed}"
        assert all(widens(old.type, once.table.column(old.name).type) for old in have.columns), f"seed {seed}"
    assert fitted > 100


# -- widening

LIMITS = {
    "tinyint": (-(2**7), 2**7 - 1),
    "smallint": (-(2**15), 2**15 - 1),
    "int": (-(2**31), 2**31 - 1),
    "bigint": (-(2**63), 2**63 - 1),
}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tinyint", "smallint"),
        ("smallint", "int"),
        ("int", "bigint"),
        ("int", "double"),
        ("float", "double"),
        ("int", "decimal(10,0)"),
        ("bigint", "decimal(20,0)"),
        ("decimal(10,2)", "decimal(12,2)"),
        ("decimal(10,2)", "decimal(12,4)"),
        ("date", "timestamp_ntz"),
        ("date", "timestamp"),
        ("string", "string"),
    ],
)
def test_these_widen_and_do_not_narrow(old: str, new: str) -> None:
    assert widens(old, new)
    assert old == new or not widens(new, old)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bigint", "double"),
        ("int", "float"),
        ("double", "decimal(38,10)"),
        ("bigint", "decimal(18,0)"),
        ("int", "decimal(10,2)"),
        ("decimal(10,2)", "decimal(11,4)"),
        ("decimal(10,2)", "decimal(12,1)"),
        ("decimal(10,2)", "double"),
        ("timestamp", "timestamp_ntz"),
        ("timestamp_ntz", "timestamp"),
        ("int", "string"),
        ("array<int>", "array<bigint>"),
    ],
)
def test_these_lose_values_or_meaning(old: str, new: str) -> None:
    assert not widens(old, new)


@pytest.mark.parametrize("old", LIMITS)
@pytest.mark.parametrize("precision", [3, 5, 10, 18, 19, 20, 38])
def test_an_integer_widens_only_to_a_decimal_that_holds_its_limits(old: str, precision: int) -> None:
    if widens(old, f"decimal({precision},0)"):
        assert all(len(Decimal(limit).as_tuple().digits) <= precision for limit in LIMITS[old])


def test_widening_goes_on_from_type_to_type() -> None:
    types = ["tinyint", "smallint", "int", "bigint", "float", "double", "date", "timestamp_ntz", "timestamp", "string"]
    types += [f"decimal({p},{s})" for p in (3, 5, 10, 20, 38) for s in (0, 2, 4) if s <= p]
    for a in types:
        for b in types:
            for c in types:
                if widens(a, b) and widens(b, c):
                    assert widens(a, c), (a, b, c)
