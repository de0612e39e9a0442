"""Names and values from outside are only names and values, in every dialect; nothing is started for it but a file."""

from __future__ import annotations

import datetime
import sqlite3
import sys
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb as client
import psycopg
import pyarrow as pa
import pymysql
import pytest
from pyspark.sql import SparkSession

from tailrace.apply.target import Mark, mark_from_json
from tailrace.config.plugin import Kind, options_of
from tailrace.core.errors import Halt, Misconfigured, NotReady, Retryable, Unreachable
from tailrace.core.table import Column, Fit, Table
from tailrace.targets import _mysql_session, duckdb, mysql, postgres, sqlite
from tailrace.targets._sql import shape
from tailrace.targets._sql.control import Control, Entry
from tailrace.targets._sql.crossing import one_value
from tailrace.targets._sql.statements import Statements

NAMES = [
    "plain", "select", 'a"b', '""', "a.b", "ä ö", "`", "]", ";--", "'", "\\", "{}", "{0}", "%s", "$1", "?1", ":x", "a\nb",
    "x" * 300, "trailing ", "😀", "../../x",
]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "text", "code"),
    [
        (3, "Error writing file '/tmp/MLfd=37' (Errcode: 28 \"No space left on device\")", "disk-full"),
        (3, "Error writing file '/tmp/MYfd=142' (OS errno 28 - No space left on device)", "disk-full"),
        (1026, "Error writing file 'x' (errno: 28 \"No space left on device\")", "disk-full"),
        (1005, 'Can\'t create table `shop`.`orders` (errno: 28 "No space left on device")', "disk-full"),
        (1030, 'Got error 28 "No space left on device" from storage engine InnoDB', "disk-full"),
        (1114, "The table 'orders' is full", "disk-full"),
        (6, "Error on delete of '/tmp/#sql-1.MAI' (Errcode: 2 \"No such file or directory\")", "target-unavailable"),
        (1030, 'Got error 128 "Out of memory in engine" from storage engine Aria', "target-unavailable"),
    ],
)
def test_what_fails_in_files_of_mysql_is_tried_again(number: int, text: str, code: str) -> None:
    database = _mysql_session.MySQL({}, mysql.dialect("shop"))
    error = database.translate(pymysql.err.InternalError(number, text), "applying a batch")
    assert isinstance(error, Unreachable if code == "disk-full" else Retryable)
    assert error.code == code


@pytest.mark.parametrize(
    ("state", "code", "kind"),
    [
        ("53100", "disk-full", Unreachable),
        ("58030", "target-unavailable", Retryable),
        # What answers is not the primary, or not any more; and a server may end what takes its time.
        ("25006", "target-unavailable", Unreachable),
        ("25P03", "target-unavailable", Retryable),
        ("25P04", "target-unavailable", Retryable),
    ],
)
def test_what_a_server_of_postgresql_lacks_for_now_is_tried_again(state: str, code: str, kind: type[Retryable]) -> None:
    error = postgres.Postgres({}, "public").translate(psycopg.errors.lookup(state)("it failed"), "applying a batch")
    assert type(error) is kind
    assert error.code == code


def test_a_word_in_its_name_is_no_reason_to_take_a_file_of_duckdb_for_one_that_somebody_has_open(
    tmp_path: Path,
) -> None:
    database = duckdb.DuckDB(str(tmp_path / "blocks.duckdb"))
    (tmp_path / "blocks.duckdb").write_bytes(b"no database" * 2000)
    with pytest.raises(client.Error) as failed, database.connect(write=True):
        pass
    assert database.translate(failed.value, "applying a batch").code == "target-not-ready"


def test_a_table_that_would_have_a_name_of_sqlite_s_own_is_refused(tmp_path: Path) -> None:
    def never() -> SparkSession:
        raise AssertionError

    options = sqlite.Options(path=str(tmp_path / "copy.db"))
    with pytest.raises(Misconfigured) as refused:
        sqlite.open_target(
            "copy", options, spark=never, pipeline_id="shop", tables={"public.SQLite_log": "SQLite_log"}, mode="scd1"
        )
    assert refused.value.code == "reserved-name"


@pytest.mark.parametrize("name", NAMES)
def test_a_quoted_name_is_read_back_as_it_was(name: str) -> None:
    statement = f"CREATE TABLE {sqlite.quote(name)} ({sqlite.quote(name)} TEXT)"
    with closing(sqlite3.connect(":memory:")) as lite:
        lite.execute(statement)
        assert lite.execute("SELECT name FROM sqlite_master").fetchall() == [(name,)]
        assert [row[1] for row in lite.execute(f"PRAGMA table_info({sqlite.quote(name)})")] == [name]
    with client.connect(":memory:") as duck:
        duck.execute(f"CREATE TABLE {duckdb.quote(name)} ({duckdb.quote(name)} VARCHAR)")
        found = duck.execute("SELECT table_name, column_name FROM information_schema.columns").fetchall()
        assert found == [(name, name)]


def test_long_names_are_shortened_and_stay_apart() -> None:
    dialect = postgres.dialect("public")
    names = ["n" * 63, "n" * 64, "n" * 65, "ä" * 40, "ä" * 41, "😀" * 20]
    short = [dialect.name_of(name) for name in names]
    assert short[0] == names[0]
    assert len(set(short)) == len(names)
    assert all(len(name.encode()) <= 63 for name in short)


def test_names_that_mysql_cannot_hold_are_replaced_and_stay_apart() -> None:
    dialect = mysql.dialect("shop")
    names = ["plain", "ä ö", "a`b", "n" * 65, "n" * 66, "😀", "😁", "end ", "end\t", "\x001\x00", "_1_"]
    own = [dialect.name_of(name) for name in names]
    assert own[:3] == names[:3]
    assert len(set(own)) == len(names)
    assert all(len(name) <= 64 and name == name.strip() and max(name) <= "\uffff" for name in own)
    assert not any("\x00" in dialect.table(name) for name in names)
    assert mysql.quote("a`b") == "`a``b`"


def test_keys_of_mysql_fit_into_its_index() -> None:
    def size(sql: str) -> int:
        kind, _, rest = sql.partition("(")
        return int(rest.partition(")")[0]) * {"VARCHAR": 4, "VARBINARY": 1}[kind]

    position = size(mysql.dialect("shop").position)
    for count in range(1, 9):
        keys = [f"k{n}" for n in range(count)]
        for kind in ("string", "binary", "array<int>"):
            assert count * size(mysql.key(kind, keys)) <= 3072
            assert count * size(mysql.key(kind, [*keys, "_cdc_position"])) + position <= 3072
    assert mysql.key("decimal(12,2)", ["id"]) == "DECIMAL(12,2)"


def test_rows_for_mysql_are_text_that_says_all_of_them() -> None:
    noon = datetime.datetime(2024, 2, 29, 12, 0, 0, 5)
    batch = pa.record_batch(
        {
            "n": pa.array([1, None]),
            "s": pa.array(["it's \\ \x00", ""]),
            "d": pa.array([-0.0, 1e300]),
            "b": pa.array([b"00FF", None], pa.binary()),
            "t": pa.array([noon, None], pa.timestamp("us", "UTC")),
            "l": pa.array([noon, None], pa.timestamp("us")),
        }
    )
    first, second = _mysql_session._texts(batch).to_pylist()
    assert first == "1,'it''s \\\\ \x00','-0',x'00FF','2024-02-29 12:00:00.000005','2024-02-29 12:00:00.000005'"
    assert second == "NULL,'','1e+300',NULL,NULL,NULL"
    rows = pa.array(["a" * n for n in (1, 2, 30, 4, 5)], pa.large_string())
    pieces = [piece.to_pybytes() for piece in _mysql_session._pieces(rows, 10)]
    assert pieces == [b"a),(aa", b"a" * 30, b"aaaa),(aaaaa"]


def test_a_decimal_that_mysql_would_round_is_refused() -> None:
    assert mysql.kind("decimal(38,30)").sql == "DECIMAL(38,30)"
    with pytest.raises(Halt) as halted:
        mysql.kind("decimal(38,31)")
    assert halted.value.code == "unsupported-type"


def test_a_literal_holds_any_value() -> None:
    assert postgres.literal(5) == "5"
    assert postgres.literal("it's") == "'it''s'"
    assert "'" not in postgres.literal("back\\slash'")[3:-1].replace("''", "")
    assert postgres.literal(datetime.date(2024, 2, 29)).startswith("'2024-02-29'")


@pytest.mark.parametrize(
    ("old", "new", "stored", "expected"),
    [
        ("decimal(5,2)", "decimal(12,4)", "1.25", "1.2500"),
        ("decimal(5,0)", "decimal(12,2)", "-7", "-7.00"),
        ("decimal(5,2)", "decimal(12,2)", "1.25", "1.25"),
        ("int", "decimal(12,2)", 7, "7.00"),
        ("int", "decimal(12,0)", 7, "7"),
        ("date", "timestamp_ntz", "2024-02-29", "2024-02-29 00:00:00.000000"),
        ("date", "timestamp", "2024-02-29", "2024-02-29 00:00:00.000000Z"),
        ("int", "bigint", 7, 7),
        ("int", "double", 7, 7.0),
    ],
)
def test_a_wider_type_in_sqlite_has_the_text_that_new_values_have(
    old: str, new: str, stored: object, expected: object, tmp_path: Path
) -> None:
    def table(kind: str) -> Table:
        return Table("public.t", (Column("id", kind), Column("c", kind)), ("id",))

    database = sqlite.SQLite(f"{tmp_path}/x.db")
    place = shape.Place(database.dialect, "t")
    entry = Entry("", "scd1", table(old))
    with database.connect(write=True) as session:
        shape.create_beside(session, place, entry)
        shape.create(session, place, entry)
        session.run("INSERT INTO t VALUES (?1, ?1, 'p')", [stored])
        session.run("INSERT INTO _tailrace_beside_t VALUES (?1, 'p', 'd', '2024-01-01')", [stored])
        change = Fit(table(new), widen=table(new).columns)
        assert shape.alter(session, place, entry, change, lambda _: None).shape == table(new)
        rows = session.ask("SELECT id, c FROM t") + session.ask("SELECT id, _cdc_day FROM _tailrace_beside_t")
    assert rows == [(expected, expected), (expected, "2024-01-01")]
    assert {type(row[0]) for row in rows} == {type(expected)}


@pytest.mark.parametrize("mode", ["scd1", "scd2"])
def test_what_others_made_of_a_table_in_sqlite_outlives_a_wider_type(mode: str, tmp_path: Path) -> None:
    def table(kind: str) -> Table:
        return Table("public.t", (Column("id", "int"), Column("c", kind)), ("id",))

    database = sqlite.SQLite(f"{tmp_path}/x.db")
    place = shape.Place(database.dialect, "T")
    entry = Entry("", mode, table("int"))
    with database.connect(write=True) as session:
        shape.create_beside(session, place, entry)
        shape.create(session, place, entry)
        session.run("INSERT INTO t (id, c, _cdc_position) VALUES (1, 2, 'p')")
        session.run("CREATE VIEW seen AS SELECT id, c FROM t")
        session.run("CREATE UNIQUE INDEX one ON t (c)")
        session.run("CREATE TABLE heard (c)")
        session.run("CREATE TRIGGER hear AFTER UPDATE ON t BEGIN INSERT INTO heard VALUES (new.c); END")
        made = "SELECT type, name FROM sqlite_master ORDER BY type, name"
        before = session.ask(made)
        change = Fit(table("decimal(12,2)"), widen=(Column("c", "decimal(12,2)"),))
        shape.alter(session, place, entry, change, lambda _: None)
        session.commit()
    with database.connect(write=True) as session:
        assert session.ask(made) == before
        session.run("UPDATE t SET c = '3.50' WHERE id = 1")
        assert session.ask("SELECT * FROM seen") == [(1, "3.50")]
        assert session.ask("SELECT * FROM heard") == [("3.50",)]


@pytest.mark.parametrize(
    ("declared", "taken"),
    [
        ("(id TEXT PRIMARY KEY, n INT)", True),
        ("(id INTEGER PRIMARY KEY, n TEXT COLLATE NOCASE UNIQUE)", True),
        ("(id TEXT COLLATE NOCASE PRIMARY KEY, n INT)", False),
        ("(id TEXT COLLATE RTRIM, n INT, PRIMARY KEY (n, id))", False),
        ("(id TEXT COLLATE NOCASE PRIMARY KEY, n INT) WITHOUT ROWID", False),
    ],
)
def test_a_key_of_sqlite_that_takes_two_for_one_is_not_taken_over(declared: str, taken: bool, tmp_path: Path) -> None:
    with sqlite.SQLite(f"{tmp_path}/x.db").connect(write=True) as session:
        session.run(f'CREATE TABLE "it\'s ""mine""" {declared}')
        found = sqlite.reflect(session, 'it\'s "mine"')
    assert isinstance(found, Table) is taken
    assert taken or "COLLATE" in str(found)


@pytest.mark.parametrize("name", ["people", "o'clock", 'a"b', "select", "Ä ö"])
@pytest.mark.parametrize("module", [sqlite, duckdb])
def test_a_table_that_was_made_in_the_place_of_ours_has_no_mark_of_ours(module: Any, name: str, tmp_path: Path) -> None:
    table = Table("public.t", (Column("id", "bigint"),), ("id",))
    entry = Entry('["p", "t", "public.t"]', "scd1", table)
    database: Any = (module.SQLite if module is sqlite else module.DuckDB)(f"{tmp_path}/x.db")
    control, place = Control(database.dialect), shape.Place(database.dialect, name)
    with database.connect(write=True) as session:
        control.create(session)
        shape.create(session, place, entry)
        control.put(session, name, entry)
        assert control.move(session, name, entry, 1, Mark("log", 5))
        found = control.load(session, name, "public.t")
        assert found is not None
        assert found.mark == Mark("log", 5)
        session.run(f"DROP TABLE {place.table}")
        session.run(f"CREATE TABLE {place.table} (id bigint PRIMARY KEY)")
        assert control.load(session, name, "public.t") is None
        assert control.exists(session, name)
        session.run(f"DROP TABLE {place.table}")
        shape.create(session, place, entry)
        control.put(session, name, entry)
        # Who wrote the one that is gone may be asleep, and is to find another epoch.
        found = control.load(session, name, "public.t")
        assert found is not None
        assert (found.mark, found.epoch) == (None, 2)


def test_duckdb_has_a_type_for_what_is_nested() -> None:
    assert duckdb.native('struct<a "b:int,c:array<decimal(4,2)>>') == 'STRUCT("a ""b" INTEGER, "c" DECIMAL(4,2)[])'
    assert duckdb.native("map<string,array<timestamp>>") == "MAP(VARCHAR, TIMESTAMPTZ[])"
    assert duckdb.native("array<variant>") is None
    assert duckdb.kind("array<variant>").sql == "JSON"


def test_a_mark_survives_being_stored() -> None:
    for mark in (Mark("log", 3), Mark("log", 3, "b", "a", ("1", "2"))):
        assert mark_from_json(mark.to_json()) == mark
    assert Mark("log", 3).includes(Mark("log", 3))
    assert not Mark("log", 3).includes(Mark("log", 4))
    assert not Mark("log", 3).includes(Mark("other", 3))


def test_a_control_row_says_what_was_written_and_moves_only_for_its_epoch(tmp_path: Path) -> None:
    table = Table("public.t", (Column("id", "bigint"), Column("d", "decimal(5,2)")), ("id",))
    entry = Entry('["p", "t", "public.t"]', "scd1", table, {"sequence": "bigint"})
    database = sqlite.SQLite(f"{tmp_path}/x.db")
    control = Control(database.dialect)
    with database.connect(write=True) as session:
        assert control.load(session, "T", "public.t") is None
        control.create(session)
        shape.create(session, shape.Place(database.dialect, "T"), entry)
        control.put(session, "T", entry)
        session.commit()
    with database.connect(write=True) as session:
        assert control.load(session, "t", "public.t") == entry
        assert control.move(session, "T", entry, 1, Mark("log", 5))
        assert not control.move(session, "T", entry, 2, Mark("log", 6))
        found = control.load(session, "T", "public.t")
        assert found is not None
        assert (found.epoch, found.commits, found.mark) == (1, 1, Mark("log", 5))
    with database.connect(write=False) as session:
        assert control.load(session, "T", "public.t") == entry


@pytest.mark.parametrize("database", ["sqlite", "duckdb"])
def test_a_default_with_a_time_is_stored_as_other_times_are(database: str, tmp_path: Path) -> None:
    opened = sqlite.SQLite(f"{tmp_path}/x.db") if database == "sqlite" else duckdb.DuckDB(f"{tmp_path}/x.db")
    place = shape.Place(opened.dialect, "t")
    entry = Entry("", "scd1", Table("public.t", (Column("id", "bigint"),), ("id",)))
    noon = datetime.datetime(2024, 2, 29, 12, 0, 0, 5, datetime.UTC)
    time = pa.array([noon], pa.timestamp("us", "Europe/Berlin"))
    with opened.connect(write=True) as session:
        shape.create(session, place, entry)
        session.run("INSERT INTO t VALUES (1, 'p')")
        add = (Column("seen", "timestamp", default="2024-02-29 12:00:00.000005"),)
        shape.alter(session, place, entry, Fit(entry.shape, add=add), lambda _: one_value(time))
        batch = pa.record_batch([pa.array([2]), time], names=["id", "seen"])
        session.load("t", ["id", "seen"], [batch])
        assert session.ask("SELECT id FROM t WHERE seen = (SELECT seen FROM t WHERE id = 2) ORDER BY id") == [
            (1,),
            (2,),
        ]


def test_decimals_that_sqlite_would_round_are_kept(tmp_path: Path) -> None:
    value = str(Decimal("1234567890123456789012345678.0123456789"))
    with closing(sqlite3.connect(":memory:")) as lite:
        lite.execute(f"CREATE TABLE t (c {sqlite.kind('decimal(38,10)').sql})")
        lite.execute("INSERT INTO t VALUES (?)", [value])
        assert lite.execute("SELECT c FROM t").fetchone() == (value,)


def test_a_map_that_json_cannot_hold_is_refused() -> None:
    assert sqlite.kind("map<string,map<string,int>>").sql == "TEXT"
    for kind in ("map<int,string>", "array<map<string,map<date,int>>>"):
        with pytest.raises(Halt) as halted:
            sqlite.kind(kind)
        assert halted.value.code == "unsupported-type"
    assert duckdb.kind("map<int,string>").sql == "MAP(INTEGER, VARCHAR)"


@pytest.mark.parametrize(("name", "package"), [("duckdb", "duckdb"), ("postgres", "psycopg"), ("mysql", "pymysql")])
def test_a_package_that_is_missing_is_named(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, f"tailrace.targets.{name}")
    monkeypatch.delitem(sys.modules, f"tailrace.targets._{name}_session", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(NotReady) as halted:
        options_of(Kind.TARGET, name)
    assert halted.value.code == "missing-extra"
    assert f"tailrace[{name}]" in halted.value.hint


def test_duckdb_tells_the_two_zeros_apart() -> None:
    do = Statements(duckdb.DIALECT, "t", "g", "s", ("id",))
    with client.connect(":memory:") as base:
        base.execute("CREATE TABLE t (id INT, f DOUBLE, g DOUBLE, _cdc_position VARCHAR)")
        base.execute("INSERT INTO t SELECT n, 0.0, 0.0, CASE WHEN n = 4 THEN '9' ELSE '1' END FROM range(5) x(n)")
        ours = "_cdc_op VARCHAR, _cdc_position VARCHAR, _cdc_kept VARCHAR"
        base.execute(f"CREATE TABLE s (id INT, f DOUBLE, g DOUBLE, {ours})")
        changed, gone = (1, "-0.0", "-0.0", "u", "2", "01"), (3, "-0.0", "1.0", "d", "2", "00")
        staged = [changed, (2, "0.0", "3.0", "u", "2", "00"), gone, (4, "-0.0", "-0.0", "u", "2", "00")]
        base.executemany("INSERT INTO s VALUES ($1, $2, $3, $4, $5, $6)", staged)
        for statement in do.update(["f", "g"], ["f", "g"], ties=False):
            base.execute(statement)
        found = base.execute("SELECT id, f, g FROM t ORDER BY id").fetchall()
    assert str(found) == "[(0, 0.0, 0.0), (1, -0.0, 0.0), (2, 0.0, 3.0), (3, 0.0, 0.0), (4, 0.0, 0.0)]"
