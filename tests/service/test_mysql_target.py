"""The MySQL target passes the contract on a MariaDB server, and its tables are plain tables to anyone else."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest
from pyspark.sql import SparkSession

import tailrace
from dev.services.mariadb import MariaDb
from tailrace.apply.target import Target
from tailrace.core.change import Change, Op
from tailrace.core.errors import Halt, NotReady, Retryable
from tailrace.core.table import Column, Table
from tailrace.spark.frame import frame
from tailrace.targets import _mysql_session
from tailrace.targets._sql.target import SqlTarget
from tailrace.targets.mysql import Options, open_target
from tests.contracts.sql import SqlContract
from tests.contracts.target import ITEMS, TABLES, Image, at, batch, drop, put
from tests.every_type import KINDS, VALUES, write_every_type

_numbers = itertools.count(1)
TEXT_KEY = Table("public.w", (Column("id", "string"), Column("n", "int")), ("id",))


class TestMySqlTarget(SqlContract):
    holds_nan = False

    @pytest.fixture(autouse=True)
    def _store(self, spark: SparkSession, mariadb: MariaDb) -> Iterator[None]:
        self.spark = spark
        self.mariadb = mariadb
        self.schema = f"a `schema' {next(_numbers)}"
        self.quoted = "`" + self.schema.replace("`", "``") + "`"
        yield
        with mariadb.connect() as admin:
            admin.cursor().execute(f"DROP DATABASE IF EXISTS {self.quoted}")

    def options(self, **other: Any) -> Options:
        given = {
            "host": self.mariadb.host,
            "port": self.mariadb.port,
            "database": self.mariadb.database,
            "username": self.mariadb.user,
            "password": self.mariadb.password,
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
        with self.mariadb.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE {self.quoted}")
            cursor.execute(statement)
            return list(cursor.fetchall())

    @property
    def dsn(self) -> str:
        return f"mysql://{self.mariadb.user}:{self.mariadb.password}@{self.mariadb.host}:{self.mariadb.port}/test"

    def address(self, table: str) -> str:
        return f"mysql:{self.dsn}#{self.schema}.{table}"

    def test_values_are_what_another_client_expects(self) -> None:
        write_every_type(self.spark, self.open(), nan=-0.0)
        names = ", ".join(f"`{name}`" for name in KINDS)
        first, second = self.sql(f"SELECT {names} FROM `all` ORDER BY id")
        as_json = {
            "tags": '["a \\"b\\" \\\\",null,"","NULL"]',
            "numbers": "[1,null,3]",
            "nested": '{"a":1,"b":[1.50,null],"c":null}',
            "pairs": '{"k":1}',
        }
        expected = {**VALUES, **as_json, "nan": -0.0, "moment": VALUES["moment"].replace(tzinfo=None)}
        assert dict(zip(KINDS, first, strict=True)) == expected
        assert second == (2, *[None] * (len(KINDS) - 1))
        kinds = {row[0]: row[1] for row in self.sql("SHOW COLUMNS FROM `all`")}
        assert (kinds["flag"], kinds["amount"], kinds["bytes"]) == ("tinyint(1)", "decimal(38,10)", "longblob")
        assert (kinds["moment"], kinds["local"], kinds["text"]) == ("datetime(6)", "datetime(6)", "longtext")

    def test_keys_that_differ_in_case_or_by_a_space_are_different_keys(self) -> None:
        target = self.opened(TEXT_KEY)
        keys = ["a", "A", "a ", "ä", "a\t", ""]

        def change(place: int, key: str, op: Op = Op.UPDATE) -> Change:
            return Change("public.w", op, at(place), (key,), {"id": key, "n": place} if op is Op.UPDATE else None)

        target.apply(batch(self.spark, [change(1, key) for key in keys], 1, TEXT_KEY))
        target.apply(batch(self.spark, [change(2, "A"), change(3, "a ", Op.DELETE)], 2, TEXT_KEY))
        found = {row["id"]: row["n"] for row in self.read(target, TEXT_KEY)}
        assert found == {"a": 1, "A": 2, "ä": 1, "a\t": 1, "": 1}
        near = target.known("public.w", {"id": ("A", "a ")}).collect()
        assert {row["id"]: row["_cdc_alive"] for row in near} == {"A": True, "a": True, "a\t": True, "a ": False}

    def test_values_that_do_not_fit_halt_and_leave_no_trace(self) -> None:
        self.opened(Table("public.lines", ITEMS.columns, ITEMS.keys))
        self.sql("CREATE TABLE items (id bigint PRIMARY KEY, name varchar(3), size int, real_ double)")
        target = self.open()
        shape = self.reshape(target, Table(ITEMS.name, (*ITEMS.columns, Column("real_", "double")), ITEMS.keys))
        target.apply(batch(self.spark, [put(1, 1, "abc")], 1, shape))
        # The last two would be cut with a warning, or make a statement that is none.
        for name, real in [("abcd", 1.0), ("ab  ", 1.0), ("ab", float("nan")), ("ab", float("-inf"))]:
            image = {"id": 2, "name": name, "size": 1, "real_": real}
            fine = Change(ITEMS.name, Op.CREATE, at(2), (3,), {**image, "id": 3, "name": "", "real_": 0.0})
            with pytest.raises(Halt) as halted:
                target.apply(batch(self.spark, [fine, Change(ITEMS.name, Op.CREATE, at(2), (2,), image)], 2, shape))
            assert halted.value.code == "value-refused"
        assert self.sql("SELECT id, name FROM items") == [(1, "abc")]

    def test_a_table_that_somebody_has_in_a_transaction_is_not_waited_for_in_silence(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target = self.filled()
        made = batch(self.spark, [put(2, 2, "y")], 2)
        monkeypatch.setitem(_mysql_session._SETTINGS, "innodb_lock_wait_timeout", "1")
        with self.mariadb.connect() as other:
            other.begin()
            other.cursor().execute(f"SELECT * FROM {self.quoted}._tailrace_tables FOR UPDATE")
            with pytest.raises(Retryable) as waited:
                target.apply(made)
            assert waited.value.code == "write-conflict"
            other.rollback()
        assert target.apply(made).updated == 1

    @pytest.mark.parametrize("value", ["x" * 769, "x" + " " * 768])
    def test_a_key_that_is_too_long_halts(self, value: str) -> None:
        target = self.opened(TEXT_KEY)
        change = Change("public.w", Op.CREATE, at(1), (value,), {"id": value, "n": 1})
        with pytest.raises(Halt) as halted:
            target.apply(batch(self.spark, [change], 1, TEXT_KEY))
        assert halted.value.code == "value-refused"

    def test_a_change_of_a_table_that_breaks_off_anywhere_can_be_repeated(self) -> None:
        defaults = (
            Column("raw", "binary", default="ab"),
            Column("seen", "timestamp", default="2024-02-29 12:00:00.000005"),
            Column("stock", "decimal(9,2)", default=5),
        )
        wide = tuple(Column(c.name, "bigint") if c.name == "size" else c for c in ITEMS.columns)
        grown = Table(ITEMS.name, (*wide, *defaults), ITEMS.keys)
        target = self.open()
        broken = self.repeated(target, lambda: self.reshape(target, ITEMS))
        assert broken >= 5
        target.apply(batch(self.spark, [put(1, 1), drop(1, 2)], 1))
        broken = self.repeated(target, lambda: self.reshape(target, grown))
        assert broken >= 5
        assert target.have(ITEMS.name) == Table(
            ITEMS.name, tuple(Column(c.name, c.type) for c in grown.columns), ITEMS.keys
        )
        rows = self.sql("SELECT id, name, size, raw, date_format(seen, '%T.%f'), CAST(stock AS char) FROM items")
        assert rows == [(1, "x", 1, b"ab", "12:00:00.000005", "5.00")]
        self.sql("CREATE TABLE `lines` (id bigint PRIMARY KEY, name text)")
        lines = Table("public.lines", ITEMS.columns, ITEMS.keys)
        assert self.repeated(target, lambda: self.reshape(target, lines)) >= 5
        target.apply(batch(self.spark, [put(1, 1)], 1, lines))
        assert self.rows(target, lines) == [{"id": 1, "name": "x", "size": 1}]

    def repeated(self, target: SqlTarget, change: Callable[[], object]) -> int:
        """Do `change`, broken off after the first statement, then after the second, and so on; return how often."""
        database = target._database
        connect = database.connect

        def broken_after(count: int) -> Any:
            @contextmanager
            def broken(*, write: bool) -> Any:
                left = itertools.count(count, -1)
                with connect(write=write) as session:
                    run = session.run

                    def some(*given: Any) -> int:
                        if next(left) == 0:
                            raise pymysql.OperationalError(2013, "cut")
                        return run(*given)

                    session.run = some  # type: ignore[method-assign]
                    yield session

            return broken

        for count in itertools.count():
            database.connect = broken_after(count)  # type: ignore[method-assign]
            try:
                change()
            except Retryable:
                continue
            finally:
                database.connect = connect  # type: ignore[method-assign]
            return count
        raise AssertionError

    def test_a_column_of_somebody_else_is_left_alone(self) -> None:
        target = self.filled()
        self.sql("ALTER TABLE items ADD COLUMN stock varchar(9) DEFAULT 'mine'")
        grown = Table(ITEMS.name, (*ITEMS.columns, Column("Stock", "int", default=5)), ITEMS.keys)
        for _ in range(2):
            with pytest.raises(Halt) as halted:
                self.reshape(target, grown)
            assert halted.value.code == "sql-failed"
        assert self.sql("SELECT id, stock FROM items") == [(1, "mine"), (2, "mine")]

    def test_history_is_kept(self) -> None:
        place = self.address("history")
        schema = "id string, v int, seq struct<a:int,b:string>, op string"
        for rows in ([("a", 1, (1, "x"), "u"), ("A", 1, (1, "x"), "u")], [("a", 2, (3, ""), "u"), ("A", None, (2, "y"), "d")],
                     [("a", 3, (2, "late"), "u")]):  # fmt: skip
            tailrace.apply_changes(
                frame(self.spark, rows, schema), place, keys=["id"], sequence_by="seq",
                apply_as_deletes="op = 'd'", except_column_list=["seq", "op"], stored_as_scd_type=2,
            )  # fmt: skip
        found = sorted((r["id"], r["v"], r["__START_AT"]["a"], r["__END_AT"] and r["__END_AT"]["a"]) for r in tailrace.read(place).collect())  # fmt: skip
        assert found == [("A", 1, 1, 2), ("a", 1, 1, 2), ("a", 2, 3, None), ("a", 3, 2, 3)]

    @pytest.mark.parametrize(
        ("wrong", "code"),
        [({"password": "wrong"}, "wrong-password"), ({"database": "nowhere"}, "unknown-database")],
    )
    def test_a_login_that_is_refused_is_told(self, wrong: dict[str, str], code: str) -> None:
        with pytest.raises(NotReady) as halted:
            self.open(**wrong).mark(ITEMS.name)
        assert halted.value.code == code
        assert self.mariadb.password not in halted.value.render()

    def test_a_right_that_is_missing_is_told(self) -> None:
        self.opened()
        reader = {"username": self.mariadb.replication_user, "password": self.mariadb.replication_password}
        assert self.open(**reader).have(ITEMS.name) == ITEMS
        with pytest.raises(NotReady) as halted:
            self.open(**reader).apply(batch(self.spark, [put(1, 1)], 1))
        assert halted.value.code == "missing-grant"

    def test_a_server_that_does_not_answer_is_tried_again(self) -> None:
        with pytest.raises(Retryable) as lost:
            self.open(port=1).mark(ITEMS.name)
        assert lost.value.code == "target-unavailable"

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
                    self.sql(f"KILL {session.ask('SELECT CONNECTION_ID()')[0][0]}")
                yield session

        database.connect = unlucky  # type: ignore[method-assign]
        with pytest.raises(Retryable):
            target.apply(made)
        assert target.apply(made).updated == 1

    def test_names_that_do_not_fit_stay_apart(self) -> None:
        long = "n" * 70
        names = {"a.a": long + "1", "a.b": long + "2", "a.c": "😀", "a.d": "😁 "}
        target = open_target(
            "lake", self.options(), spark=lambda: self.spark, pipeline_id="shop", tables=names, mode="scd1"
        )
        for table in names:
            self.reshape(target, Table(table, ITEMS.columns, ITEMS.keys))
        found = {name for (name,) in self.sql("SHOW TABLES") if not name.startswith("_tailrace")}
        assert len(found) == 4
        assert {len(name) for name in found} == {64, 14, 15}

    def test_no_password_is_in_a_message(self) -> None:
        for place in (self.address("missing"), f"mysql:{self.dsn}", f"mysql:{self.dsn}?x=1#t", f"mysql:{self.dsn}#x."):
            with pytest.raises(Halt) as halted:
                tailrace.read(place)
            assert self.mariadb.password not in halted.value.render()
