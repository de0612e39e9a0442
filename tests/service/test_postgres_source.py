"""Reading PostgreSQL: the snapshot, the hand-over, the stream, and what each kind of change looks like."""

from __future__ import annotations

import json

import pytest

from tailrace.core.checkpoint import Snapshotting, Tailing
from tailrace.core.errors import Halt, Misconfigured
from tests.service.reading import Database, brief, events


def test_snapshot_hands_over_to_the_stream(database: Database) -> None:
    database.run(
        "CREATE TABLE a (id int PRIMARY KEY, v text)",
        "CREATE TABLE b (x int, y int, v text, PRIMARY KEY (y, x))",
        "CREATE TABLE empty (id int PRIMARY KEY)",
        "INSERT INTO a SELECT i, 'a' || i FROM generate_series(1, 3) i",
        "INSERT INTO b VALUES (1, 2, 'b')",
    )
    source = database.source()
    first = database.read(source)
    assert sorted(brief(first)) == [
        ("r", "public.a", (1,)),
        ("r", "public.a", (2,)),
        ("r", "public.a", (3,)),
        ("r", "public.b", (2, 1)),
    ]
    assert isinstance(first[-1].checkpoint, Tailing)
    database.run("INSERT INTO empty VALUES (7)", "UPDATE a SET v = 'z' WHERE id = 1", "DELETE FROM b")
    second = database.read(source, first[-1].checkpoint)
    assert brief(second) == [("c", "public.empty", (7,)), ("u", "public.a", (1,)), ("d", "public.b", (2, 1))]
    assert [event["after"] for event in events(second)] == [{"id": 7}, {"id": 1, "v": "z"}, None]


def test_pages_are_a_chain_and_name_their_schemas(database: Database) -> None:
    database.run(
        "CREATE TABLE a (id int PRIMARY KEY, v text)", "INSERT INTO a SELECT i, 'x' FROM generate_series(1, 50) i"
    )
    pages = database.read(database.source(batch_rows=8), noted=True)
    assert [page.since for page in pages] == [None, *[page.checkpoint for page in pages[:-1]]]
    assert isinstance(pages[0].checkpoint, Snapshotting)
    for page in pages:
        named = {header["value"].decode() for row in page.rows.to_pylist() for header in row["headers"]}
        assert named == set(page.schemas)
        assert all(print_ == table.fingerprint() and table.keys == ("id",) for print_, table in page.schemas.items())


def test_an_empty_snapshot_still_reaches_tailing(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    source = database.source()
    pages = database.read(source)
    assert brief(pages) == []
    assert isinstance(pages[-1].checkpoint, Tailing)
    assert pages[-1].checkpoint.at == database.slot()["confirmed"]
    database.run("INSERT INTO a VALUES (1)")
    assert brief(database.read(source, pages[-1].checkpoint)) == [("c", "public.a", (1,))]


def test_a_second_epoch_begins_with_a_reset_of_each_table(database: Database) -> None:
    database.run(
        "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)", "INSERT INTO b VALUES (1)"
    )
    found = events(database.read(database.source(epoch=2)))
    assert [(event["op"], event["table"], event["key"]) for event in found[:2]] == [
        ("t", "public.a", None),
        ("t", "public.b", None),
    ]
    assert all(event["source"]["lsn"] == 0 and event["source"]["snapshot"] for event in found[:2])
    assert found[2]["op"] == "r"


def test_a_changed_key_is_a_delete_and_a_create_that_names_the_old_key(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY, v text)", "INSERT INTO a VALUES (1, 'x')")
    source = database.source()
    since = database.read(source)[-1].checkpoint
    database.run("UPDATE a SET id = 2")
    deleted, created = events(database.read(source, since))
    assert (deleted["op"], deleted["key"]) == ("d", {"id": 1})
    assert (created["op"], created["key"], created["old_key"]) == ("c", {"id": 2}, {"id": 1})
    assert created["after"] == {"id": 2, "v": "x"}


def test_the_two_halves_of_a_changed_key_are_in_one_page(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a SELECT generate_series(1, 99)")
    source = database.source(tables=["public.a"], batch_rows=7)
    start = database.read(source)[-1].checkpoint
    database.run("INSERT INTO a VALUES (1000)", "UPDATE a SET id = id + 200 WHERE id < 100")
    pages = database.read(database.source(tables=["public.a"], batch_rows=7), start)
    assert len(pages) > 9
    assert [op for op, _, _ in brief(pages)] == ["c", *["d", "c"] * 99]
    assert not [page for page in pages if brief([page])[-1:] and brief([page])[-1][0] == "d"]


def test_truncate_has_no_key_and_the_schema_of_the_rows(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    source = database.source()
    since = database.read(source)[-1].checkpoint
    database.run("TRUNCATE a, b", "INSERT INTO a VALUES (1)")
    pages = database.read(source, since)
    assert [event[0] for event in brief(pages)] == ["t", "t", "c"]
    assert {event[1] for event in brief(pages)[:2]} == {"public.a", "public.b"}
    assert all(table.keys == ("id",) for page in pages for table in page.schemas.values())
    assert len({table.name for page in pages for table in page.schemas.values()}) == 2


TOLD = {
    "t": ("text", "repeat('x', 9000)"),
    "b": ("bytea", "decode(repeat('ab', 9000), 'hex')"),
    "j": ("jsonb", "to_jsonb(repeat('x', 9000))"),
    "n": ("numeric", "repeat('7', 9000)::numeric"),
    "ta": ("text[]", "array_fill('abc'::text, ARRAY[3000])"),
    "ia": ("int[]", "array_fill(7, ARRAY[3000])"),
    "la": ("bigint[]", "array_fill(7::bigint, ARRAY[3000])"),
    "dta": ("date[]", "array_fill('2020-01-01'::date, ARRAY[3000])"),
    "ua": ("uuid[]", "array_fill('6e9d6f4e-0000-4000-8000-000000000001'::uuid, ARRAY[3000])"),
    "bya": ("bytea[]", "array_fill('abc'::bytea, ARRAY[3000])"),
}
UNTOLD = {
    "da": ("double precision[]", "array_fill(7.5::float8, ARRAY[3000])"),
    "ba": ("bool[]", "array_fill(true, ARRAY[9000])"),
    "tsa": ("timestamp[]", "array_fill('2020-01-01'::timestamp, ARRAY[3000])"),
    "na": ("numeric(10,2)[]", "array_fill(1.5::numeric(10,2), ARRAY[3000])"),
}


def toasted(database: Database, kinds: dict[str, tuple[str, str]]) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in kinds.items())
    database.run(
        f"CREATE TABLE a (id int PRIMARY KEY, v int, {columns})",
        *[f"ALTER TABLE a ALTER {name} SET STORAGE EXTERNAL" for name in kinds],
        "INSERT INTO a SELECT 1, 1, " + ", ".join(value for _, value in kinds.values()),
    )


def test_unchanged_toast_is_named_not_invented(database: Database) -> None:
    toasted(database, TOLD)
    source = database.source()
    source.check()
    first = database.read(source)
    database.run("UPDATE a SET v = 2", "UPDATE a SET id = 2")
    updated, deleted, created = events(database.read(source, first[-1].checkpoint))
    assert (updated["after"], updated["unchanged"]) == ({"id": 1, "v": 2}, list(TOLD))
    assert (deleted["op"], created["after"], created["unchanged"]) == ("d", {"id": 2, "v": 2}, list(TOLD))
    assert created["old_key"] == {"id": 1}


def test_of_a_row_as_it_was_nothing_is_told_but_what_the_database_sent(database: Database) -> None:
    database.run(
        "CREATE TABLE a (id int PRIMARY KEY, n int NOT NULL, v text NOT NULL)",
        "CREATE TABLE b (id int PRIMARY KEY, n int NOT NULL, v text NOT NULL, UNIQUE (id, n))",
        "ALTER TABLE b REPLICA IDENTITY USING INDEX b_id_n_key",
        "ALTER TABLE b ALTER v SET STORAGE EXTERNAL",
        "INSERT INTO a VALUES (1, 2, 'x')",
        "INSERT INTO b VALUES (1, 2, repeat('x', 9000))",
    )
    source = database.source()
    source.check()
    since = database.read(source)[-1].checkpoint
    database.run("DELETE FROM a", "UPDATE b SET n = 3", "DELETE FROM b")
    deleted, updated, gone = events(database.read(source, since))
    assert (deleted["before"], gone["before"]) == ({"id": 1}, {"id": 1, "n": 3})
    assert (updated["before"], updated["after"]) == ({"id": 1, "n": 2}, {"id": 1, "n": 3})
    assert updated["unchanged"] == ["v"]


def test_with_full_replica_identity_unchanged_toast_comes_whole(database: Database) -> None:
    toasted(database, {**TOLD, **UNTOLD})
    database.run("ALTER TABLE a REPLICA IDENTITY FULL")
    source = database.source()
    source.check()
    first = database.read(source)
    whole = events(first)[0]["after"]
    database.run("UPDATE a SET v = 2")
    (event,) = events(database.read(source, first[-1].checkpoint))
    assert "unchanged" not in event
    assert event["after"] == {**whole, "v": 2}
    assert event["before"] == whole


@pytest.mark.parametrize("column", UNTOLD)
def test_toast_that_could_not_be_told_from_null_is_refused(database: Database, column: str) -> None:
    toasted(database, {column: UNTOLD[column]})
    with pytest.raises(Misconfigured, match=f'column "{column}" of table "public.a"') as refused:
        database.source().check()
    assert refused.value.code == "needs-full-identity"


def test_toast_that_cannot_be_told_from_null_halts_rather_than_become_null(database: Database) -> None:
    toasted(database, UNTOLD)
    source = database.source()
    since = database.read(source)[-1].checkpoint
    database.run("UPDATE a SET v = 2")
    with pytest.raises(Halt) as halted:
        database.read(source, since)
    assert halted.value.code == "capture-failed"


def test_a_null_in_a_column_that_could_be_toasted_is_a_null(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY, v int, t text, f float8[])", "INSERT INTO a VALUES (1, 1)")
    source = database.source()
    since = database.read(source)[-1].checkpoint
    database.run("UPDATE a SET v = 2")
    (event,) = events(database.read(source, since))
    assert event["after"] == {"id": 1, "v": 2, "t": None, "f": None}
    assert "unchanged" not in event


def test_a_table_without_a_key_has_null_keys(database: Database) -> None:
    database.run(
        "CREATE TABLE a (id int UNIQUE, v text)", "ALTER TABLE a REPLICA IDENTITY FULL", "INSERT INTO a VALUES (1, 'x')"
    )
    source = database.source()
    assert source.tables() == {"public.a": ()}
    first = database.read(source)
    database.run("UPDATE a SET v = 'y'", "DELETE FROM a")
    second = database.read(source, first[-1].checkpoint)
    assert brief(first + second) == [("r", "public.a", None), ("u", "public.a", None), ("d", "public.a", None)]
    assert all(table.keys == () for page in first + second for table in page.schemas.values())


def test_only_the_tables_asked_for_are_read_whatever_their_names(database: Database) -> None:
    odd = 'Odd, "name".x%'
    quoted = '"' + odd.replace('"', '""') + '"'
    database.run(
        f'CREATE TABLE {quoted} (id int PRIMARY KEY, "co l" text)',
        "CREATE TABLE other (id int PRIMARY KEY)",
        f"INSERT INTO {quoted} VALUES (1, 'a')",
        "INSERT INTO other VALUES (1)",
    )
    source = database.source(tables=[f"public.{odd}"])
    first = database.read(source)
    database.run(f"INSERT INTO {quoted} VALUES (2, 'b')", "INSERT INTO other VALUES (2)")
    second = database.read(source, first[-1].checkpoint)
    assert brief(first + second) == [("r", f"public.{odd}", (1,)), ("c", f"public.{odd}", (2,))]
    assert events(second)[0]["after"] == {"id": 2, "co l": "b"}


def test_a_partitioned_table_is_one_table(database: Database) -> None:
    database.run(
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
        "INSERT INTO p VALUES (1, 'a'), (11, 'b')",
    )
    source = database.source()
    assert source.tables() == {"public.p": ("id",)}
    first = database.read(source)
    database.run("INSERT INTO p VALUES (2, 'c')", "UPDATE p SET v = 'd' WHERE id = 11")
    second = database.read(source, first[-1].checkpoint)
    assert sorted(brief(first)) == [("r", "public.p", (1,)), ("r", "public.p", (11,))]
    assert brief(second) == [("c", "public.p", (2,)), ("u", "public.p", (11,))]


def test_a_generated_column_is_in_no_event_as_changes_do_not_have_it(database: Database) -> None:
    generated = '"G.x" int GENERATED ALWAYS AS (v * 2) STORED'
    database.run(
        f"CREATE TABLE a (id int PRIMARY KEY, v int, {generated})",
        f"CREATE TABLE empty (id int PRIMARY KEY, v int, {generated})",
        'CREATE TABLE "A" (id int PRIMARY KEY, "g.X" int)',
        "INSERT INTO a VALUES (1, 1)",
        'INSERT INTO "A" VALUES (1, 3)',
    )
    source = database.source()
    first = database.read(source)
    database.run("UPDATE a SET v = 5")
    second = database.read(source, first[-1].checkpoint)
    rows = [event["after"] for event in events(first + second)]
    assert sorted(rows, key=str) == [{"id": 1, "g.X": 3}, {"id": 1, "v": 1}, {"id": 1, "v": 5}]
    told = [table for page in first + second for table in (*page.schemas.values(), *page.empty.values())]
    plain, twin = ("id", "v"), ("id", "g.X")
    assert {(table.name, table.names()) for table in told} == {
        ("public.a", plain), ("public.empty", plain), ("public.A", twin)
    }  # fmt: skip


def test_a_new_column_is_a_new_schema_with_its_default(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    source = database.source()
    since = database.read(source)[-1].checkpoint
    database.run(
        "INSERT INTO a VALUES (2)",
        "ALTER TABLE a ADD COLUMN n int NOT NULL DEFAULT 7, ADD COLUMN s text DEFAULT 'x', ADD COLUMN d numeric(6,2) DEFAULT 1.5",
        "INSERT INTO a VALUES (3)",
    )
    pages = database.read(source, since)
    assert [event["after"] for event in events(pages)] == [{"id": 2}, {"id": 3, "n": 7, "s": "x", "d": "1.50"}]
    tables = [table for page in pages for table in page.schemas.values()]
    newest = max(tables, key=lambda table: len(table.columns))
    assert [(column.name, column.default) for column in newest.columns] == [
        ("id", None),
        ("n", 7),
        ("s", "x"),
        ("d", "1.50"),
    ]


def test_a_new_column_has_for_rows_that_exist_what_they_were_given_and_not_the_default_of_now(
    database: Database,
) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    since = database.read(database.source())[-1].checkpoint
    database.run(
        "ALTER TABLE a ADD COLUMN dropped int NOT NULL DEFAULT 5, ADD COLUMN other text DEFAULT 'x', ADD COLUMN later int,"
        " ADD COLUMN at timestamptz NOT NULL DEFAULT now(), ADD COLUMN day date DEFAULT '2024-02-29'",
        "ALTER TABLE a ALTER dropped DROP DEFAULT, ALTER other SET DEFAULT 'y', ALTER later SET DEFAULT 9",
        "INSERT INTO a (id, dropped) VALUES (2, 6)",
    )
    pages = database.read(database.source(), since)
    (table,) = (table for page in pages for table in page.schemas.values())
    told = {column.name: column.default for column in table.columns}
    (moment,) = database.sql.execute("SELECT at::text FROM a WHERE id = 1").fetchone() or ("",)
    assert told == {"id": None, "dropped": 5, "other": "x", "later": None, "at": moment, "day": "2024-02-29"}


def test_a_null_in_a_column_with_a_default_stays_null(database: Database) -> None:
    database.run(
        "CREATE TABLE a (id int PRIMARY KEY, n int DEFAULT 7, s text DEFAULT 'x', d numeric(6,2) DEFAULT 1.5)",
        "INSERT INTO a VALUES (1, null, null, null)",
    )
    source = database.source()
    pages = database.read(source)
    database.run("INSERT INTO a VALUES (2, null, 'y', null)", "UPDATE a SET s = null WHERE id = 2")
    pages += database.read(source, pages[-1].checkpoint)
    assert [event["after"] for event in events(pages)] == [
        {"id": 1, "n": None, "s": None, "d": None},
        {"id": 2, "n": None, "s": "y", "d": None},
        {"id": 2, "n": None, "s": None, "d": None},
    ]


def test_without_a_snapshot_only_later_changes_come(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    source = database.source(snapshot_mode="never")
    first = database.read(source)
    database.run("INSERT INTO a VALUES (2)")
    second = database.read(source, first[-1].checkpoint)
    assert brief(first + second) == [("c", "public.a", (2,))]


def test_rows_have_the_columns_of_the_log(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    (page, *_) = database.read(database.source())
    (row,) = page.rows.to_pylist()
    value = json.loads(row["value"])
    assert page.rows.schema.names == ["topic", "key", "value", "timestamp", "headers"]
    assert (row["topic"], row["key"]) == ("cdc.public.a", b'{"id":1}')
    assert int(row["timestamp"].timestamp() * 1000) == value["source"]["ts_ms"]
    assert set(value) == {"op", "before", "after", "source", "ts_ms"}
