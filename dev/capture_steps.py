"""What happens to the tables while messages are captured: one step for each thing a reader must understand."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain


@dataclass(frozen=True, slots=True)
class Step:
    """Statements in one or more transactions, and how many messages they cause, tombstones apart."""

    name: str
    transactions: tuple[tuple[str, ...], ...]
    messages: int
    tombstones: int = 0

    @property
    def statements(self) -> tuple[str, ...]:
        return tuple(chain.from_iterable(self.transactions))

    def count(self, *, tombstones: bool) -> int:
        return self.messages + (self.tombstones if tombstones else 0)


def step(name: str, *statements: str, messages: int = 1, tombstones: int = 0) -> Step:
    """Return a step of one transaction."""
    return Step(name, (statements,), messages, tombstones)


LONG = "repeat('tailrace ', 400)"
"""Longer than PostgreSQL keeps in a row: it goes to a TOAST table, and an update that leaves it alone does not carry it."""

POSTGRES_TABLES = ("public.customers", "public.documents", "public.types", "public.full_rows")
POSTGRES = (
    step(
        "snapshot",
        "CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, email text, visits bigint NOT NULL DEFAULT 0)",
        "CREATE TABLE documents (id int PRIMARY KEY, title text, body text)",
        "ALTER TABLE documents ALTER body SET STORAGE EXTERNAL",
        "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')",
        "CREATE TABLE types (id bigint PRIMARY KEY, a_bool bool, a_smallint smallint, a_int int, a_bigint bigint,"
        " a_real real, a_double float8, a_numeric numeric(20,4), a_free_numeric numeric, a_whole_numeric numeric(12,0),"
        " a_text text, a_varchar varchar(20), a_char char(5), a_bytea bytea, a_uuid uuid, a_json json, a_jsonb jsonb,"
        " a_date date, a_time time, a_timetz timetz, a_timestamp timestamp, a_timestamp3 timestamp(3),"
        " a_timestamptz timestamptz, a_interval interval, a_texts text[], a_ints int[], a_mood mood, a_inet inet)",
        "CREATE TABLE full_rows (tenant int, code text, note text, PRIMARY KEY (tenant, code))",
        "ALTER TABLE full_rows REPLICA IDENTITY FULL",
        "INSERT INTO customers VALUES (1, 'Ann', 'ann@example.com', 1), (2, 'Bo', NULL, 2), (3, 'Çağ 漢字 😀', '', 3)",
        f"INSERT INTO documents VALUES (1, 'first', {LONG})",
        "INSERT INTO types VALUES (1, true, 7, 42, 9007199254740993, 1.5, 0.1, 12345.6789, 3.14159265358979, 123456789012,"
        " 'text', 'varchar', 'abc', '\\x00ff10', '11111111-2222-3333-4444-555555555555', '{\"a\": 1}',"
        " '{\"b\": [1, 2.5, null]}', '2024-02-29', '23:59:59.123456', '10:20:30.5+02', '2024-02-29 12:34:56.789012',"
        " '2024-02-29 12:34:56.789', '2024-02-29 12:34:56.789012+02', '1 year 2 months 3 days 04:05:06.7',"
        " '{a,NULL,\"c,d\"}', '{1,2,NULL}', 'happy', '10.0.0.1')",
        "INSERT INTO full_rows VALUES (1, 'x', 'before')",
        messages=6,
    ),
    step("insert", "INSERT INTO customers VALUES (4, 'Dee', 'dee@example.com', 0)"),
    step("update", "UPDATE customers SET name = 'Anna', visits = visits + 1 WHERE id = 1"),
    step("update of nothing", "UPDATE customers SET name = name WHERE id = 2"),
    step("delete", "DELETE FROM customers WHERE id = 2", tombstones=1),
    step("key change", "UPDATE customers SET id = 30 WHERE id = 3", messages=2, tombstones=1),
    step("insert of a long value", f"INSERT INTO documents VALUES (2, 'second', {LONG})"),
    step("update that leaves a long value unchanged", "UPDATE documents SET title = 'second, again' WHERE id = 2"),
    step("update of a long value", "UPDATE documents SET body = body || 'end' WHERE id = 2"),
    step(
        "key change that leaves a long value unchanged",
        "UPDATE documents SET id = 20 WHERE id = 2",
        messages=2,
        tombstones=1,
    ),
    step(
        "insert of the least values and nulls",
        "INSERT INTO types (id) VALUES (2)",
        "INSERT INTO types VALUES (3, false, -32768, -2147483648, -9223372036854775808, -1.5, -1e300, -9999999999999999.9999,"
        " -1234567890123456789012345678901234567890.5, -999999999999, '', '', '', '', '00000000-0000-0000-0000-000000000000',"
        " 'null', 'null', '0001-01-01', '00:00', '00:00+00', '0001-01-01', '0001-01-01', '0001-01-01 00:00+00', '0', '{}',"
        " '{}', 'sad', '::1')",
        messages=2,
    ),
    step(
        "update of types",
        "UPDATE types SET a_numeric = 0.0001, a_free_numeric = 1e10, a_date = '1969-12-31' WHERE id = 1",
    ),
    step("infinity", "INSERT INTO types (id, a_timestamptz, a_date) VALUES (4, 'infinity', '-infinity')"),
    step("update with the whole old row", "UPDATE full_rows SET note = 'after' WHERE tenant = 1"),
    step("delete with the whole old row", "DELETE FROM full_rows WHERE tenant = 1", tombstones=1),
    step(
        "one row, several times in one transaction",
        "INSERT INTO customers VALUES (5, 'Eve', NULL, 0)",
        "UPDATE customers SET visits = 1 WHERE id = 5",
        "UPDATE customers SET visits = 2 WHERE id = 5",
        "DELETE FROM customers WHERE id = 5",
        "INSERT INTO customers VALUES (5, 'Eve again', NULL, 3)",
        messages=5,
        tombstones=1,
    ),
    step(
        "many rows in one statement",
        "INSERT INTO customers SELECT n, 'n' || n, NULL, n FROM generate_series(100, 104) n",
        messages=5,
    ),
    step(
        "new column",
        "ALTER TABLE customers ADD COLUMN phone text DEFAULT 'none'",
        "INSERT INTO customers VALUES (6, 'Flo', NULL, 0, '+1')",
    ),
    step("truncate", "TRUNCATE customers"),
    step("insert after truncate", "INSERT INTO customers VALUES (1, 'Ann, again', NULL, 0, NULL)"),
)

MARIADB_TABLES = ("test.customers", "test.types")
MARIADB = (
    step(
        "snapshot",
        "CREATE TABLE customers (id int PRIMARY KEY, name varchar(100) NOT NULL, email varchar(100),"
        " visits bigint NOT NULL DEFAULT 0)",
        "CREATE TABLE types (id bigint unsigned PRIMARY KEY, a_bool tinyint(1), a_tinyint tinyint, a_smallint smallint,"
        " a_int int, a_unsigned int unsigned, a_bigint bigint, a_big_unsigned bigint unsigned, a_float float,"
        " a_double double, a_decimal decimal(20,4), a_whole decimal(12,0), a_varchar varchar(20), a_char char(5), a_text text, a_blob blob,"
        " a_binary binary(4), a_bit bit(1), a_bits bit(10), a_json json, a_date date, a_time time, a_time6 time(6), a_datetime datetime,"
        " a_datetime6 datetime(6), a_timestamp timestamp NULL, a_timestamp6 timestamp(6) NULL, a_year year,"
        " an_enum enum('sad','ok','happy'), a_set set('a','b','c'))",
        "INSERT INTO customers VALUES (1, 'Ann', 'ann@example.com', 1), (2, 'Bo', NULL, 2), (3, 'Çağ 漢字 😀', '', 3)",
        "INSERT INTO types VALUES (1, true, 7, 300, 42, 4294967295, 9007199254740993, 18446744073709551615, 1.5, 0.1,"
        " 12345.6789, 123456789012, 'varchar', 'abc', 'text', x'00ff10', x'01020304', b'1', b'1000000001', '{\"a\": 1}', '2024-02-29', '23:59:59',"
        " '23:59:59.123456', '2024-02-29 12:34:56', '2024-02-29 12:34:56.789012', '2024-02-29 12:34:56',"
        " '2024-02-29 12:34:56.789012', 2024, 'happy', 'a,c')",
        messages=4,
    ),
    step("insert", "INSERT INTO customers VALUES (4, 'Dee', 'dee@example.com', 0)"),
    step("update", "UPDATE customers SET name = 'Anna', visits = visits + 1 WHERE id = 1"),
    step("delete", "DELETE FROM customers WHERE id = 2", tombstones=1),
    step("key change", "UPDATE customers SET id = 30 WHERE id = 3", messages=2, tombstones=1),
    step(
        "insert of the least values and nulls",
        "INSERT INTO types (id) VALUES (2)",
        "INSERT INTO types VALUES (3, false, -128, -32768, -2147483648, 0, -9223372036854775808, 0, -1.5, -1e300,"
        " -9999999999999999.9999, -999999999999, '', '', '', '', x'00000000', b'0', b'0', 'null', '1000-01-01', '-838:59:59', '-00:00:00.000001',"
        " '1000-01-01 00:00:00', '1000-01-01 00:00:00', '1970-01-01 00:00:01', '1970-01-01 00:00:01', 1901, 'sad', '')",
        messages=2,
    ),
    step("update of types", "UPDATE types SET a_decimal = 0.0001, an_enum = 'ok', a_set = 'b' WHERE id = 1"),
    step(
        "one row, several times in one transaction",
        "INSERT INTO customers VALUES (5, 'Eve', NULL, 0)",
        "UPDATE customers SET visits = 1 WHERE id = 5",
        "UPDATE customers SET visits = 2 WHERE id = 5",
        "DELETE FROM customers WHERE id = 5",
        "INSERT INTO customers VALUES (5, 'Eve again', NULL, 3)",
        messages=5,
        tombstones=1,
    ),
    step(
        "many rows in one statement",
        "INSERT INTO customers VALUES (100, 'a', NULL, 0), (101, 'b', NULL, 0), (102, 'c', NULL, 0)",
        messages=3,
    ),
    step(
        "new column",
        "ALTER TABLE customers ADD COLUMN phone varchar(20) DEFAULT 'none'",
        "INSERT INTO customers VALUES (6, 'Flo', NULL, 0, '+1')",
    ),
    step("truncate", "TRUNCATE customers"),
    step("insert after truncate", "INSERT INTO customers VALUES (1, 'Ann, again', NULL, 0, NULL)"),
)
