"""Names from outside become names of files and tables: never the same for two, never special."""

from __future__ import annotations

import random
import re
import unicodedata
from pathlib import Path

import pytest

from tailrace.config.load import pipeline_from
from tailrace.config.yaml_text import read_yaml
from tailrace.core.errors import Misconfigured
from tailrace.core.table import file_name, target_names, told_apart
from tailrace.targets._place import folds_case

HOSTILE = [
    "../../x", "..", ".", "", "/", "a/b", "a\\b", "a.b", "a_b", "A_B", "a%2eb", "%2e%2e", "%", "%25", "CON", "con", "nul",
    "COM1", "lpt9", "aux", "%63on", "x" * 300, "x" * 299 + "y", "ü" * 300, "x" * 120, "x" * 121, "trailing.", "trailing ",
    " ", "\n", "\x00", "\x1b[31m", '"', "`", "'", ";--", "]", "select", "~", "*", "?", ":", "🦀", "\ud800", "\u202e",
    unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é"), "K", "K",
]  # fmt: skip
DEVICES = {"con", "prn", "aux", "nul"}


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_file_name_is_one_harmless_segment(name: str) -> None:
    made = file_name(name)
    assert 0 < len(made) <= 120
    assert all(char.isascii() and (char.isalnum() or char in "_-%.") for char in made)
    assert not made.startswith(".")
    assert not made.endswith(".")
    assert made.lower() not in DEVICES
    assert (Path("/root") / made).resolve().parent == Path("/root")


def test_no_two_names_share_a_file_name() -> None:
    assert len({file_name(name) for name in HOSTILE}) == len(set(HOSTILE))


def test_no_two_random_names_share_a_file_name() -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    names = {"".join(chance.choices("aA.%2e_/é", k=chance.randrange(6))) for _ in range(5000)}
    assert len({file_name(name) for name in names}) == len(names), f"seed {seed}"


def test_a_plain_name_stays_as_it_is() -> None:
    assert file_name("order_lines-2") == "order_lines-2"


def test_a_table_keeps_its_own_name() -> None:
    assert target_names(["public.orders", "public.items"], {}) == {"public.orders": "orders", "public.items": "items"}


def test_tables_of_one_name_get_their_schema_in_front() -> None:
    names = target_names(["shop.orders", "old.Orders", "shop.items"], {})
    assert names == {"shop.orders": "shop_orders", "old.Orders": "old_Orders", "shop.items": "items"}


def test_tables_that_differ_in_case_keep_their_names_where_the_target_tells_them_apart() -> None:
    tables = ["users", "Users", "billing.users", "billing.Users"]
    assert list(target_names(tables, {}, folds=False).values()) == [
        "users", "Users", "billing_users", "billing_Users",
    ]  # fmt: skip


def test_elsewhere_the_first_keeps_its_name_and_the_others_get_digits_of_their_own() -> None:
    names = target_names(["users", "Users", "USERS", "orders"], {})
    assert (names["users"], names["orders"]) == ("users", "orders")
    assert names["Users"].startswith("Users_")
    assert len({name.lower() for name in names.values()}) == 4
    assert target_names(["users", "Users"], {})["Users"] == names["Users"]


def test_a_table_that_comes_later_changes_no_name() -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    tables = list(dict.fromkeys("".join(chance.choices("aAbB", k=chance.randrange(1, 4))) for _ in range(80)))
    for folds in (True, False):
        whole = target_names(tables, {}, folds=folds)
        for count in range(len(tables)):
            names = target_names(tables[:count], {}, folds=folds)
            assert names == {table: whole[table] for table in tables[:count]}, f"seed {seed}"
    assert len({name.lower() for name in told_apart(tables).values()}) == len(tables), f"seed {seed}"


def test_a_chosen_name_wins() -> None:
    names = target_names(["a.orders", "b.orders"], {"a.orders": "sales"})
    assert names == {"a.orders": "sales", "b.orders": "b_orders"}


@pytest.mark.parametrize(
    ("tables", "chosen"),
    [
        (["a.x", "b.y"], {"b.y": "x"}),
        (["a.x", "b.y"], {"b.y": "X"}),
        (["a.x", "b.x", "c.a_x"], {}),
        (["a.b_c", "a_b.c"], {"a.b_c": "c"}),
    ],
)
def test_two_tables_are_never_written_to_one_name(tables: list[str], chosen: dict[str, str]) -> None:
    with pytest.raises(Misconfigured) as refused:
        target_names(tables, chosen)
    assert refused.value.code == "name-collision"


# -- where case is told apart


def names_in(sink: str, options: str, tables: list[str]) -> dict[str, str]:
    text = f"pipeline_id: p\nsource: {{source_type: memory}}\nsinks:\n  - {{sink_id: t, sink_type: {sink}, {sink}: {options}}}\n"
    return pipeline_from(read_yaml("p", text.encode()), {}).config.sinks[0].names(tables)


def test_a_folder_tells_case_apart_as_its_file_system_does(tmp_path: Path) -> None:
    tables = ["users", "Users"]
    for name, sink in (("lake", "delta"), ("files", "parquet"), ("staged", "staging")):
        folder = tmp_path / name
        assert not folds_case(str(folder))
        assert names_in(sink, f"{{path: '{folder}'}}", tables) == {"users": "users", "Users": "Users"}
        folder.mkdir()
        # So a file system looks that takes both for one.
        (tmp_path / name.upper()).symlink_to(folder)
        assert folds_case(str(folder))
        assert folds_case(f"file://{folder}")
        assert folds_case(str(folder / "not" / "there" / "1"))
        assert names_in(sink, f"{{path: '{folder}'}}", tables)["Users"].startswith("Users_")
    assert not folds_case("s3://bucket/lake")


@pytest.mark.parametrize(
    ("sink", "options", "apart"),
    [
        ("delta", "{catalog: lake}", False),
        ("sqlite", "{path: a.db}", False),
        ("duckdb", "{path: a.duckdb}", False),
        ("postgres", "{host: h, database: d, username: u, password: p}", True),
        ("mysql", "{host: h, database: d, username: u, password: p}", False),
        ("iceberg", "{warehouse: w, catalog: hadoop}", False),
        ("bronze", "{path: raw}", False),
    ],
)
def test_a_target_that_may_fold_case_gets_names_that_differ_in_more(sink: str, options: str, apart: bool) -> None:
    names = names_in(sink, options, ["users", "Users"])
    assert len({name if apart else name.lower() for name in names.values()}) == 2
    assert ("Users" in names.values()) is apart


def test_names_of_bronze_tables_have_the_digits_in_the_name_of_the_table() -> None:
    names = names_in("bronze", "{path: raw}", ["a/b.users", "a/B.users"])
    assert names["a/b.users"] == "convex__a__b__users__cdc"
    assert re.fullmatch("convex__a__B__users_[0-9a-f]{8}__cdc", names["a/B.users"])
