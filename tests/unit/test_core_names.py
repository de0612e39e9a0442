"""Names from outside become names of files and tables: never the same for two, never special."""

from __future__ import annotations

import random
import unicodedata
from pathlib import Path

import pytest

from tailrace.core.errors import Misconfigured
from tailrace.core.table import file_name, target_names

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
