"""The demo's shop: seeded, and valid at every step without a server to say so."""

from __future__ import annotations

from itertools import islice

from tailrace.demo.shop import TABLES, Shop


def stocked(seed: int) -> Shop:
    shop = Shop(seed, customers=40, products=20, orders=40)
    for _ in shop.first_rows():
        pass
    return shop


def test_the_same_seed_gives_the_same_shop() -> None:
    rows = [[(table, repr(rows)) for table, rows in Shop(7).first_rows()] for _ in range(2)]
    assert rows[0] == rows[1]
    assert list(islice(stocked(7).transactions(), 300)) == list(islice(stocked(7).transactions(), 300))


def test_another_seed_gives_another_shop() -> None:
    assert list(islice(stocked(1).transactions(), 20)) != list(islice(stocked(2).transactions(), 20))


def test_a_table_comes_after_those_it_refers_to_and_keys_are_unique() -> None:
    filled = dict(Shop(3, customers=40, products=20, orders=40).first_rows())
    assert [f"public.{table}" for table in filled] == list(TABLES)
    for table, rows in filled.items():
        width = 2 if table == "order_lines" else 1
        assert len({row[:width] for row in rows}) == len(rows)


def test_every_kind_of_change_happens_soon() -> None:
    shop = stocked(1)
    seen = list(islice(shop.transactions(), 400))
    text = "\n".join(statement.sql for transaction in seen for statement in transaction.statements)
    for change in (
        "INSERT INTO customers",
        "UPDATE customers",
        "DELETE FROM orders",
        "DELETE FROM carts",
        "UPDATE products SET sku",
        "UPDATE order_lines SET line_no",
    ):
        assert change in text
    assert any(transaction.rolled_back for transaction in seen)
    assert any(len(transaction.statements) > 5 for transaction in seen)
    assert "ALTER" not in text
    assert "TRUNCATE" not in text


def test_orders_have_one_more_value_after_the_column_is_added() -> None:
    shop = stocked(1)
    before = max(_widths_of_new_orders(shop, 100))
    added, *others = shop.grow().statements
    assert added.sql.startswith("ALTER TABLE orders ADD COLUMN")
    assert len(others[0].values) == before + 1
    assert set(_widths_of_new_orders(shop, 100)) == {before + 1}


def test_a_cart_from_before_the_truncate_is_never_touched_again() -> None:
    shop = stocked(1)
    old = {row[0] for row in dict(Shop(1, customers=40, products=20, orders=40).first_rows())["carts"]}
    touched = [value for t in islice(shop.transactions(), 100) for s in t.statements for value in s.values]
    assert old & {value for value in touched if not isinstance(value, list)}
    assert shop.clear_carts().statements[0].sql == "TRUNCATE carts"
    touched = [value for t in islice(shop.transactions(), 300) for s in t.statements for value in s.values]
    assert not old & {value for value in touched if not isinstance(value, list)}


def _widths_of_new_orders(shop: Shop, transactions: int) -> list[int]:
    made = [s for t in islice(shop.transactions(), transactions) for s in t.statements]
    return [len(s.values) for s in made if s.sql.startswith("INSERT INTO orders ")]
