"""The PostgreSQL target passes the contract, and its tables are plain tables to anyone else."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession

import tailrace
from tailrace.apply.target import Target
from tailrace.core.change import Change, Op
from tailrace.core.errors import Halt, NotReady, Retryable
from tailrace.core.table import Column, Table
from tailrace.demo.postgres import EmbeddedPostgres
from tailrace.targets.postgres import Options, open_target
from tests.contracts.sql import ODD, SqlContract
from tests.contracts.target import ITEMS, TABLES, Image, at, batch, put
from tests.every_type import KINDS, VALUES, write_every_type
from tests.service.reading import Database


class TestPostgresTarget(SqlContract):
    holds_zero = False
    documents = "SELECT name::text FROM items WHERE pg_typeof(name) = 'json'::regtype"

    @pytest.fixture(autouse=True)
    def _store(self, spark: SparkSession, database: Database, postgres: EmbeddedPostgres) -> None:
        self.spark = spark
        self.postgres = postgres
        self.database = database.name
        self.dsn = postgres.dsn(database.name)
        self.schema = 'a "schema'

    def options(self, **other: Any) -> Options:
        given = {
            "host": "127.0.0.1",
            "port": self.postgres.port,
            "database": self.database,
            "username": self.postgres.user,
            "password": self.postgres.password,
            "schema": self.schema,
        }
        return Options(**given | other)

    def open(self, *, pipeline: str = "shop", name: str = "lake", mode: str = "scd1", **other: Any) -> Target:
        return open_target(
            name, self.options(**other), spark=lambda: self.spark, pipeline_id=pipeline, tables=TABLES, mode=mode
        )

    def read(self, target: Target, table: Table) -> list[Image]:
        return self.visible(target.current(table.name))

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("SET search_path = " + '"' + self.schema.replace('"', '""') + '"')
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description else []

    def address(self, table: str) -> str:
        return f"postgres:{self.dsn}#{self.schema}.{table}"

    @pytest.mark.parametrize("kind", ["text", "varchar(40)", "uuid"])
    def test_a_key_of_a_table_that_was_made_beforehand_is_compared_as_there(self, kind: str) -> None:
        self.opened(Table("public.lines", ITEMS.columns, ITEMS.keys))
        self.sql(f"CREATE TABLE w (id {kind} PRIMARY KEY, n bigint)")
        shape = Table("public.w", (Column("id", "string"), Column("n", "bigint")), ("id",))
        target = self.open()
        self.reshape(target, shape)
        one, two = "6e9d6f4e-0000-4000-8000-00000000000a", "6e9d6f4e-0000-4000-8000-00000000000b"

        def change(place: int, key: str, n: int) -> Change:
            return Change("public.w", Op.UPDATE, at(place), (key,), {"id": key, "n": n})

        target.apply(batch(self.spark, [change(1, one, 1), change(1, two, 1)], 1, shape))
        target.apply(batch(self.spark, [change(2, one, 2), Change("public.w", Op.DELETE, at(2), (two,))], 2, shape))
        target.apply(batch(self.spark, [change(1, two, 9)], 3, shape))
        assert [(str(key), n) for key, n in self.sql("SELECT id, n FROM w")] == [(one, 2)]
        near = target.known("public.w", {"id": (one, one)})
        assert {row["id"] for row in near.collect()} >= {one}

    @pytest.mark.parametrize("kind", ["json", "jsonb"])
    def test_documents_of_a_table_that_was_made_beforehand_are_what_it_makes_of_them(self, kind: str) -> None:
        self.opened(Table("public.lines", ITEMS.columns, ITEMS.keys))
        self.sql(f"CREATE TABLE items (id bigint PRIMARY KEY, name {kind}, size bigint)")
        target = self.open()
        shape = self.reshape(target, ITEMS)
        target.apply(batch(self.spark, [put(1, 1, ODD), put(1, 2, "1.0")], 1, shape))
        kept = Change(ITEMS.name, Op.UPDATE, at(2), (1,), {"id": 1, "name": None, "size": 2}, frozenset({"name"}))
        target.apply(batch(self.spark, [kept, put(2, 2, "[]")], 2, shape))
        assert self.sql("SELECT name::text, size FROM items ORDER BY id") == [
            (ODD if kind == "json" else '{"a": 2}', 2),
            ("[]", 1),
        ]
        assert self.sql("SELECT DISTINCT pg_typeof(name)::text FROM items") == [(kind,)]

    def test_values_are_what_another_client_expects(self) -> None:
        write_every_type(self.spark, self.open())
        names = ", ".join(f'"{name}"' for name in KINDS)
        first, second = self.sql(f'SELECT {names} FROM "all" ORDER BY id')
        found = dict(zip(KINDS, first, strict=True))
        assert math.isnan(found.pop("nan"))
        expected = {**VALUES, "nested": {"a": 1, "b": [1.5, None], "c": None}}
        expected.pop("nan")
        assert found == expected
        assert second == (2, *[None] * (len(KINDS) - 1))
        assert self.sql("SELECT nested -> 'b' ->> 0 FROM \"all\" WHERE id = 1") == [("1.50",)]
        query = (
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = '\"all\"'::regclass"
        )
        kinds = dict(self.sql(query))
        assert (kinds["amount"], kinds["tags"], kinds["nested"]) == ("numeric(38,10)", "text[]", "jsonb")
        assert (kinds["moment"], kinds["local"]) == ("timestamp with time zone", "timestamp without time zone")

    def test_a_character_that_text_cannot_hold_halts_and_leaves_no_trace(self) -> None:
        target = self.filled()
        with pytest.raises(Halt) as halted:
            target.apply(batch(self.spark, [put(2, 2, "a\x00b"), put(2, 3)], 2))
        assert halted.value.code == "value-refused"
        assert "a\x00b" not in str(halted.value)
        assert [(row["id"], row["name"]) for row in self.rows(target)] == [(1, "x"), (2, "x")]

    def test_a_constraint_of_somebody_else_halts(self) -> None:
        target = self.filled()
        self.sql("ALTER TABLE items ADD CHECK (size < 10)")
        with pytest.raises(Halt) as halted:
            target.apply(batch(self.spark, [put(2, 2, size=11)], 2))
        assert halted.value.code == "constraint-violated"

    @pytest.mark.parametrize(
        ("wrong", "code"),
        [
            ({"password": "wrong"}, "wrong-password"),
            ({"database": "nowhere"}, "unknown-database"),
            ({"username": "nobody"}, "wrong-password"),
        ],
    )
    def test_a_login_that_is_refused_is_told(self, wrong: dict[str, str], code: str) -> None:
        with pytest.raises(NotReady) as halted:
            self.open(**wrong).mark(ITEMS.name)
        assert halted.value.code == code
        assert self.postgres.password not in halted.value.render()

    def test_a_right_that_is_missing_is_told(self) -> None:
        self.sql("DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN PASSWORD 'secret'")
        with pytest.raises(NotReady) as halted:
            self.reshape(self.open(username="reader", password="secret"), ITEMS)
        assert halted.value.code == "missing-grant"

    def test_a_server_that_does_not_answer_is_tried_again(self) -> None:
        with pytest.raises(Retryable) as lost:
            self.open(port=1).mark(ITEMS.name)
        assert lost.value.code == "target-unavailable"

    def test_a_table_that_somebody_has_in_a_transaction_is_not_waited_for_in_silence(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target = self.filled()
        made = batch(self.spark, [put(2, 2, "y")], 2)
        monkeypatch.setattr("tailrace.targets.postgres.LOCK_WAIT", "100ms")
        with psycopg.connect(self.dsn) as other:
            other.execute('SELECT * FROM "a ""schema"._tailrace_tables FOR UPDATE')
            with pytest.raises(Retryable) as waited:
                target.apply(made)
            assert waited.value.code == "write-conflict"
        assert target.apply(made).updated == 1

    def test_a_key_that_the_server_would_number_by_itself_has_the_numbers_of_the_source(self) -> None:
        self.opened(Table("public.lines", ITEMS.columns, ITEMS.keys))
        self.sql("CREATE TABLE items (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text, size bigint)")
        target = self.open()
        shape = self.reshape(target, ITEMS)
        target.apply(batch(self.spark, [put(1, 7)], 1, shape))
        target.apply(batch(self.spark, [put(2, 7, "two"), put(2, 5)], 2, shape))
        assert self.sql("SELECT id, name FROM items ORDER BY id") == [(5, "x"), (7, "two")]
        self.sql("DROP TABLE items")
        self.sql("CREATE TABLE items (id bigint PRIMARY KEY, name text, size bigint GENERATED ALWAYS AS IDENTITY)")
        with pytest.raises(Halt) as halted:
            self.open().have(ITEMS.name)
        assert (halted.value.code, '"size"' in str(halted.value)) == ("foreign-table", True)

    def test_a_key_that_is_padded_is_not_taken_over(self) -> None:
        self.opened(Table("public.lines", ITEMS.columns, ITEMS.keys))
        self.sql('CREATE TABLE items (id char(9) COLLATE "C" PRIMARY KEY, name char(3))')
        with pytest.raises(Halt) as halted:
            self.open().have(ITEMS.name)
        assert (halted.value.code, "character(9)" in str(halted.value)) == ("foreign-table", True)

    def test_a_connection_that_is_cut_is_made_again(self) -> None:
        target = self.filled()
        made = batch(self.spark, [put(2, 2, "y")], 2)
        database = target._database
        connect = database.connect
        cut = iter([True])

        @contextmanager
        def unlucky(*, write: bool) -> Any:
            with connect(write=write) as session:
                if write and next(cut, False):
                    pid = session.ask("SELECT pg_backend_pid()")[0][0]
                    self.sql(f"SELECT pg_terminate_backend({pid})")
                yield session

        database.connect = unlucky  # type: ignore[method-assign]
        with pytest.raises(Retryable):
            target.apply(made)
        assert target.apply(made).updated == 1

    def test_long_names_stay_apart(self) -> None:
        long = "n" * 70
        names = {"a.a": long + "1", "a.b": long + "2"}
        target = open_target(
            "lake", self.options(), spark=lambda: self.spark, pipeline_id="shop", tables=names, mode="scd1"
        )
        for n, table in enumerate(names):
            shape = Table(table, ITEMS.columns, ITEMS.keys)
            self.reshape(target, shape)
            change = Change(table, Op.CREATE, at(1), (n,), {"id": n, "name": table, "size": n})
            target.apply(batch(self.spark, [change], 1, shape))
        for n, table in enumerate(names):
            assert self.visible(target.current(table)) == [{"id": n, "name": table, "size": n}]

    def test_no_password_is_in_a_message(self) -> None:
        assert conninfo_to_dict(self.dsn)["password"] == self.postgres.password
        for place in (self.address("missing"), f"postgres:{self.dsn}", f"nonsense:{self.dsn}#x"):
            with pytest.raises(Halt) as halted:
                tailrace.read(place)
            assert self.postgres.password not in halted.value.render()
