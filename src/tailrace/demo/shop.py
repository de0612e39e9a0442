"""A shop that keeps changing: its tables, its first rows, and an endless seeded stream of transactions.

The same seed gives the same transactions in the same order. `Shop` holds no connection: it knows which
rows exist, so every transaction it makes is valid after those before it, and tests need no server.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

Row = tuple[object, ...]

TABLES = ("public.customers", "public.products", "public.orders", "public.order_lines", "public.carts")

SCHEMA = """
CREATE TYPE order_status AS ENUM ('placed', 'paid', 'packed', 'shipped', 'delivered');
CREATE TABLE customers (
  id bigint PRIMARY KEY, name text NOT NULL, email text, born date, active boolean NOT NULL, tags text[],
  profile jsonb, letter text, joined_at timestamptz NOT NULL
);
ALTER TABLE customers ALTER COLUMN letter SET STORAGE EXTERNAL;
CREATE TABLE products (
  sku text PRIMARY KEY, title text NOT NULL, price numeric(10,2) NOT NULL, rating numeric, picture bytea, specs jsonb
);
CREATE TABLE orders (
  id bigint PRIMARY KEY, customer_id bigint NOT NULL REFERENCES customers, status order_status NOT NULL,
  total numeric(12,2) NOT NULL, gift boolean, placed_at timestamptz NOT NULL
);
CREATE TABLE order_lines (
  order_id bigint REFERENCES orders ON DELETE CASCADE, line_no integer,
  sku text NOT NULL REFERENCES products ON UPDATE CASCADE, quantity smallint NOT NULL, price numeric(10,2) NOT NULL,
  PRIMARY KEY (order_id, line_no)
);
CREATE INDEX ON orders (customer_id);
CREATE INDEX ON order_lines (sku);
CREATE TABLE carts (
  id uuid PRIMARY KEY, customer_id bigint, skus text[] NOT NULL, weight double precision, seen_at timestamp
);
"""
"""A letter is stored outside its row, so a change of the rest of the row does not carry it."""

_NAMES = (
    "Ada Lovelace", "Zoë Ångström", "李小龍", "محمد العربي", "Владимир Ω", "O'Brien \"Bo\"", "Ana\tTab\nLine",
    "back\\slash", "e\u0301 combining", "🦊🚀 emoji", "NULL", " spaces ", "नमस्ते", "\u202eright-to-left",
)  # fmt: skip
_WORDS = ("new", "vip", "it's", "a,b", "{x}", "", "null", "ø", "back\\slash", 'say "hi"')
_STATUS = ("placed", "paid", "packed", "shipped", "delivered")
_START = datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, in psycopg's notation."""

    sql: str
    values: Row = ()


@dataclass(frozen=True, slots=True)
class Transaction:
    """Statements that take effect together; not at all if `rolled_back`."""

    name: str
    statements: tuple[Statement, ...]
    rolled_back: bool = False


class Shop:
    """What the shop holds, and what happens to it next."""

    def __init__(self, seed: int, customers: int = 2000, products: int = 400, orders: int = 4000) -> None:
        self._random = random.Random(seed)
        self._sizes = (customers, products, orders)
        self._customers = 0
        self._orders = 0
        self._skus: list[str] = []
        self._lines: dict[int, list[int]] = {}
        self._order_ids: list[int] = []
        self._carts: list[uuid.UUID] = []
        self._grown = False

    def first_rows(self) -> Iterator[tuple[str, list[Row]]]:
        """Yield each table with the rows that it starts with; a table comes after those it refers to."""
        customers, products, orders = self._sizes
        yield "customers", [self._customer() for _ in range(customers)]
        yield "products", [self._product() for _ in range(products)]
        placed = [self._order() for _ in range(orders)]
        yield "orders", [order for order, _ in placed]
        yield "order_lines", [line for _, lines in placed for line in lines]
        yield "carts", [self._cart() for _ in range(customers // 4)]

    def transactions(self) -> Iterator[Transaction]:
        """Yield what happens next, without end; take one only when those before it have been executed."""
        kinds: Sequence[tuple[Callable[[], Iterable[Statement]], int]] = (
            (self._buy, 30), (self._advance, 25), (self._edit, 15), (self._fill_cart, 15), (self._join, 8),
            (self._reprice, 8), (self._cancel, 6), (self._give_back, 6), (self._swap_lines, 5), (self._abandon, 5),
            (self._replace_cart, 4), (self._rename_product, 3), (self._audit, 2), (self._mistake, 3),
        )  # fmt: skip
        makers, weights = zip(*kinds, strict=True)
        while True:
            maker = self._random.choices(makers, weights)[0]
            if statements := tuple(maker()):
                name = maker.__name__.removeprefix("_").replace("_", " ")
                yield Transaction(name, statements, rolled_back=maker == self._mistake)

    def grow(self) -> Transaction:
        """Give orders a column with a default; orders made from now on have a value of their own."""
        self._grown = True
        column = Statement("ALTER TABLE orders ADD COLUMN channel text NOT NULL DEFAULT 'web'")
        return Transaction("add a column to orders", (column, *self._buy()))

    def clear_carts(self) -> Transaction:
        """Empty all carts at once, and start a new one in the same transaction."""
        self._carts.clear()
        return Transaction("truncate carts", (Statement("TRUNCATE carts"), *self._fill_cart()))

    # -- rows

    def _customer(self) -> Row:
        rng = self._random
        self._customers += 1
        tags = None if rng.random() < 0.2 else rng.sample(_WORDS, rng.randrange(4))
        letter = rng.randbytes(2000).hex() if rng.random() < 0.05 else rng.choice((None, "", "hello"))
        born = None if rng.random() < 0.3 else date(1950, 1, 1) + timedelta(days=rng.randrange(20_000))
        email = None if rng.random() < 0.1 else f"c{self._customers}@example.org"
        return (
            self._customers,
            rng.choice(_NAMES),
            email,
            born,
            rng.random() < 0.9,
            tags,
            self._json(),
            letter,
            self._at(),
        )

    def _product(self) -> Row:
        rng = self._random
        sku = self._sku()
        self._skus.append(sku)
        rating = rng.choice((None, Decimal("NaN"), Decimal("4.50"), Decimal("3.14159265358979323846264338327950288")))
        return (sku, rng.choice(_NAMES), self._price(), rating, rng.randbytes(rng.randrange(6)), self._json())

    def _order(self) -> tuple[Row, list[Row]]:
        rng = self._random
        self._orders += 1
        number = self._orders
        lines: list[Row] = [
            (number, line, rng.choice(self._skus), rng.randint(1, 9), self._price())
            for line in range(1, rng.randint(2, 6))
        ]
        self._lines[number] = list(range(1, len(lines) + 1))
        self._order_ids.append(number)
        customer = rng.randint(1, self._customers)
        return (number, customer, "placed", self._price(), rng.choice((None, True, False)), self._at()), lines

    def _cart(self) -> Row:
        rng = self._random
        cart = uuid.UUID(int=rng.getrandbits(128), version=4)
        self._carts.append(cart)
        weight = rng.choice((None, 0.1, rng.random(), 1e-300, float("inf")))
        skus = rng.choices(self._skus, k=rng.randrange(4))
        return (cart, rng.randint(1, self._customers), skus, weight, self._at().replace(tzinfo=None))

    # -- transactions

    def _buy(self) -> Iterator[Statement]:
        order, lines = self._order()
        if self._grown:
            yield _insert("orders", (*order, self._random.choice(("web", "app", "Läden"))))
        else:
            yield _insert("orders", order)
        yield from (_insert("order_lines", line) for line in lines)

    def _advance(self) -> Iterator[Statement]:
        for number in self._some_orders(8):
            status = self._random.choice(_STATUS)
            yield Statement("UPDATE orders SET status = %s, total = %s WHERE id = %s", (status, self._price(), number))

    def _edit(self) -> Iterator[Statement]:
        customer = self._random.randint(1, self._customers)
        match self._random.randrange(4):
            case 0:
                yield Statement("UPDATE customers SET profile = %s WHERE id = %s", (self._json(), customer))
            case 1:
                yield Statement("UPDATE customers SET tags = %s WHERE id = %s", (list(_WORDS[:3]), customer))
            case 2:
                yield Statement("UPDATE customers SET letter = NULL, email = NULL WHERE id = %s", (customer,))
            case _:
                name = self._random.choice(_NAMES)
                yield Statement("UPDATE customers SET name = %s, active = NOT active WHERE id = %s", (name, customer))

    def _fill_cart(self) -> Iterator[Statement]:
        yield _insert("carts", self._cart())
        added = Statement("UPDATE carts SET skus = skus || %s::text WHERE id = %s", (self._any_sku(), self._carts[-1]))
        yield from [added] * self._random.randrange(4)

    def _join(self) -> Iterator[Statement]:
        yield from (_insert("customers", self._customer()) for _ in range(self._random.randint(1, 5)))

    def _reprice(self) -> Iterator[Statement]:
        for _ in range(self._random.randint(1, 20)):
            yield Statement("UPDATE products SET price = %s WHERE sku = %s", (self._price(), self._any_sku()))

    def _cancel(self) -> Iterator[Statement]:
        for number in self._some_orders(3):
            self._order_ids.remove(number)
            del self._lines[number]
            yield Statement("DELETE FROM orders WHERE id = %s", (number,))

    def _give_back(self) -> Iterator[Statement]:
        for number in self._some_orders(1):
            if lines := self._lines[number]:
                line = lines.pop(self._random.randrange(len(lines)))
                yield Statement("DELETE FROM order_lines WHERE order_id = %s AND line_no = %s", (number, line))

    def _swap_lines(self) -> Iterator[Statement]:
        for number in self._some_orders(1):
            if len(lines := self._lines[number]) > 1:
                one, other = self._random.sample(lines, 2)
                for old, new in ((one, -1), (other, one), (-1, other)):
                    yield Statement(
                        "UPDATE order_lines SET line_no = %s WHERE order_id = %s AND line_no = %s", (new, number, old)
                    )

    def _abandon(self) -> Iterator[Statement]:
        if self._carts:
            cart = self._carts.pop(self._random.randrange(len(self._carts)))
            yield Statement("DELETE FROM carts WHERE id = %s", (cart,))

    def _replace_cart(self) -> Iterator[Statement]:
        if self._carts:
            cart = self._random.choice(self._carts)
            yield Statement("DELETE FROM carts WHERE id = %s", (cart,))
            yield _insert("carts", (cart, None, [], None, None))

    def _rename_product(self) -> Iterator[Statement]:
        which, new = self._random.randrange(len(self._skus)), self._sku()
        old, self._skus[which] = self._skus[which], new
        yield Statement("UPDATE products SET sku = %s WHERE sku = %s", (new, old))

    def _audit(self) -> Iterator[Statement]:
        part = self._random.randrange(20)
        yield Statement("UPDATE orders SET gift = NOT gift WHERE id %% 20 = %s", (part,))

    def _mistake(self) -> Iterator[Statement]:
        yield Statement("UPDATE customers SET name = 'never seen' WHERE id <= 10")
        yield Statement("DELETE FROM order_lines WHERE order_id %% 50 = 0")

    # -- values

    def _some_orders(self, most: int) -> list[int]:
        count = min(self._random.randint(1, most), len(self._order_ids))
        return self._random.sample(self._order_ids, count)

    def _any_sku(self) -> str:
        return self._random.choice(self._skus)

    def _sku(self) -> str:
        return f"{self._random.choice(('tee', 'Übergröße', 'mug', '茶'))}-{self._random.getrandbits(40):010x}"

    def _price(self) -> Decimal:
        return Decimal(self._random.randrange(100_000_00)).scaleb(-2)

    def _at(self) -> datetime:
        return _START + timedelta(microseconds=self._random.randrange(10**13))

    def _json(self) -> str | None:
        rng = self._random
        if rng.random() < 0.1:
            return None
        value = {
            "n": rng.getrandbits(62),
            "half": 0.5,
            "who": rng.choice(_NAMES),
            "deep": [None, {"a": rng.choice(_WORDS)}],
        }
        return json.dumps(value, ensure_ascii=False)


def _insert(table: str, row: Row) -> Statement:
    return Statement(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(row))})", row)
