"""Starting again: nothing lost, nothing twice, and the slot moves only behind what was acknowledged."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tailrace.core.checkpoint import Checkpoint, Snapshotting, Tailing
from tailrace.core.errors import NotReady, ResyncRequired, Retryable
from tailrace.core.page import Page
from tailrace.sources._debezium.stand import lsn_number, lsn_text, stand_at
from tailrace.sources.postgres import PostgresSource
from tests.service.reading import Database, brief, events


def first_page(source: PostgresSource, since: Checkpoint | None) -> Page[Any]:
    """Read one page that has rows, acknowledge nothing, and stop as a crash would."""
    reading = source.pages(since, source.head())
    try:
        return next(page for page in reading if page.rows.num_rows)
    finally:
        reading.close()


def any_page(source: PostgresSource, since: Checkpoint | None) -> Page[Any]:
    """Read one page, with rows or not, and stop as a crash would."""
    reading = source.pages(since, source.head())
    try:
        return next(reading)
    finally:
        reading.close()


def test_a_bulk_insert_that_shares_one_position_is_resumed_in_its_middle(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY, v text)")
    since: Checkpoint = database.read(database.source())[-1].checkpoint
    with database.sql.cursor() as cursor, cursor.copy("COPY a (id, v) FROM STDIN") as copy:
        for number in range(60):
            copy.write_row((number, "x"))
    keys, places = [], []
    while len(keys) < 60:
        page = any_page(database.source(batch_rows=7), since)
        keys += [event["key"]["id"] for event in events([page])]
        places += [event["source"]["lsn"] for event in events([page])]
        since = page.checkpoint
    assert keys == list(range(60))
    assert len(set(places)) < 10
    assert brief(database.read(database.source(), since)) == []


def workload(database: Database, seed: int) -> None:
    chance = random.Random(seed)
    with database.connect(autocommit=False) as connection:
        for _ in range(12):
            for _ in range(chance.randint(1, 5)):
                key = chance.randint(1, 6)
                connection.execute(
                    chance.choice(
                        [
                            f"INSERT INTO a VALUES ({key}, {chance.random()}) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
                            f"UPDATE a SET v = v + 1 WHERE id <= {key}",
                            f"DELETE FROM a WHERE id = {key}",
                            f"UPDATE a SET id = id + 10 WHERE id = {key}",
                            "TRUNCATE a",
                            "INSERT INTO b SELECT coalesce(max(id), 0) + 1 FROM b",
                        ]
                    )
                )
            connection.rollback() if chance.random() < 0.15 else connection.commit()


def overlapping(database: Database, seed: int) -> None:
    """Change rows in three transactions at a time, none of which waits for another, so that LSNs and commits differ."""
    chance = random.Random(seed)
    opened = [database.connect(autocommit=False) for _ in range(3)]
    for step in range(50):
        turn = chance.randrange(3)
        key, kind = 100 * turn + chance.randint(1, 3), chance.random()
        if kind < 0.25:
            opened[turn].rollback() if chance.random() < 0.2 else opened[turn].commit()
        elif kind < 0.35:
            # It comes at its own place, between two transactions, and ends none.
            database.run("SELECT pg_logical_emit_message(false, 'another', 'message')")
        elif kind < 0.45:
            opened[turn].execute("SAVEPOINT here")
            opened[turn].execute(f"INSERT INTO b VALUES ({10 * step})")
            opened[turn].execute("ROLLBACK TO here")
        else:
            statements = [
                f"INSERT INTO a VALUES ({key}, {step}) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
                f"UPDATE a SET v = v + 1 WHERE id BETWEEN {100 * turn} AND {key}",
                f"DELETE FROM a WHERE id = {key}",
                f"UPDATE a SET id = {1000 + step} WHERE id = {key}",
                f"INSERT INTO b SELECT generate_series({10 * step}, {10 * step + 3})",
            ]
            opened[turn].execute(chance.choice(statements))
    for connection in opened:
        connection.commit()
        connection.close()


def place(event: dict[str, Any]) -> str:
    """Return the place of a change as text, as the envelope does."""
    source = event["source"]
    return ".".join(f"{source[name]:016x}" for name in ("behind", "lsn") if name in source)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("work", [workload, overlapping])
def test_a_restart_at_every_page_gives_the_events_of_an_uninterrupted_read(
    database: Database, work: Callable[[Database, int], None], seed: int
) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY, v float8)", "CREATE TABLE b (id int PRIMARY KEY)")
    start = database.read(database.source())[-1].checkpoint
    work(database, seed)
    whole = [{**event, "ts_ms": 0} for event in events(database.read(database.source(), start, acknowledge=False))]
    places = [place(event) for event in whole]
    assert places == sorted(places)
    assert any("." in each for each in places) == (work is overlapping)
    pieces: list[dict[str, Any]] = []
    since = start
    while len(pieces) < len(whole):
        page = first_page(database.source(batch_rows=5), since)
        pieces += [{**event, "ts_ms": 0} for event in events([page])]
        since = page.checkpoint
    assert pieces == whole
    assert brief(database.read(database.source(), since)) == []


def test_a_row_that_was_written_before_another_commit_says_so(database: Database) -> None:
    # The index that makes the insert wait is older than that of the key, so the key is looked at last.
    database.run("CREATE TABLE a (id int, u int UNIQUE)", "ALTER TABLE a ADD PRIMARY KEY (id)")
    database.run("INSERT INTO a VALUES (1, 1)")
    start = database.read(database.source())[-1].checkpoint

    def insert() -> None:
        with database.connect(autocommit=False) as connection:
            connection.execute("INSERT INTO a VALUES (1, 5)")
            connection.execute("UPDATE a SET u = 6 WHERE id = 1")

    inserting = threading.Thread(target=insert)
    with database.connect(autocommit=False) as in_the_way:
        in_the_way.execute("INSERT INTO a VALUES (9, 5)")
        inserting.start()
        waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        while database.sql.execute(waits).fetchone() is None:
            time.sleep(0.01)
        database.run("DELETE FROM a WHERE id = 1")
        in_the_way.rollback()
    inserting.join()
    pages = database.read(database.source(batch_rows=1), start, acknowledge=False)
    deleted, created, updated = (event["source"] for event in events(pages))
    assert [op for op, _, _ in brief(pages)] == ["d", "c", "u"]
    assert created["lsn"] < deleted["lsn"] < created["behind"] < updated["lsn"]
    before = next(page for page in pages if brief([page])[:1] == [("d", "public.a", (1,))])
    rest = events(database.read(database.source(), before.checkpoint, acknowledge=False))
    assert [event["source"] for event in rest] == [created, updated]


def test_writers_during_the_snapshot_lose_nothing(database: Database) -> None:
    database.run(
        "CREATE TABLE a (id int PRIMARY KEY, v int)", "INSERT INTO a SELECT i, 0 FROM generate_series(1, 500) i"
    )
    open_since_before = database.connect(autocommit=False)
    open_since_before.execute("UPDATE a SET v = -1 WHERE id BETWEEN 400 AND 420")
    stop = threading.Event()

    def write(seed: int) -> None:
        chance = random.Random(seed)
        with database.connect() as connection:
            while not stop.is_set():
                key = chance.randint(1, 399)
                connection.execute(
                    chance.choice(
                        [
                            f"UPDATE a SET v = v + 1 WHERE id = {key}",
                            f"DELETE FROM a WHERE id = {key}",
                            f"INSERT INTO a VALUES ({key}, 1) ON CONFLICT DO NOTHING",
                        ]
                    )
                )

    writers = [threading.Thread(target=write, args=(seed,)) for seed in (1, 2)]
    for writer in writers:
        writer.start()
    # The slot cannot become consistent while a transaction from before is open.
    threading.Timer(1.0, lambda: (open_since_before.commit(), open_since_before.close())).start()
    source = database.source(batch_rows=64)
    pages = database.read(source)
    stop.set()
    for writer in writers:
        writer.join()
    pages += database.read(source, pages[-1].checkpoint)
    rows: dict[int, int] = {}
    for event in events(pages):
        if event["op"] == "d":
            rows.pop(event["key"]["id"], None)
        else:
            rows[event["key"]["id"]] = event["after"]["v"]
    assert rows == dict(database.sql.execute("SELECT id, v FROM a").fetchall())  # type: ignore[arg-type]


def test_an_interrupted_snapshot_is_taken_again_from_the_start(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a SELECT generate_series(1, 40)")
    page = first_page(database.source(batch_rows=8), None)
    assert isinstance(page.checkpoint, Snapshotting)
    database.run("DELETE FROM a WHERE id = 1")
    again = database.read(database.source(), page.checkpoint, noted=True)
    assert sorted(key for _, _, key in brief(again)) == [(number,) for number in range(2, 41)]
    assert again[0].since == page.checkpoint
    assert isinstance(again[-1].checkpoint, Tailing)


def test_the_slot_does_not_pass_what_was_not_acknowledged(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    source = database.source(batch_rows=2, heartbeat=0.2)
    since = database.read(source)[-1].checkpoint
    before = lsn_number(database.slot()["confirmed"])
    for number in range(6):
        database.run(f"INSERT INTO a VALUES ({number})")
    reading = source.pages(since)
    held = next(page for page in reading if page.rows.num_rows)
    time.sleep(1.5)
    assert lsn_number(database.slot()["confirmed"]) == before
    source.acknowledge(held.checkpoint)
    next(reading)
    assert lsn_number(database.slot()["confirmed"]) <= stand_at(held.checkpoint.at).commit
    reading.close()


def test_reading_on_without_acknowledging_leaves_the_slot_where_it_was(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    source = database.source()
    since = database.read(source)[-1].checkpoint
    before = database.slot()["confirmed"]
    database.run("INSERT INTO a VALUES (2)", "INSERT INTO a VALUES (3)")
    pages = database.read(source, since, acknowledge=False)
    assert database.slot()["confirmed"] == before
    assert brief(database.read(source, since)) == brief(pages)
    assert lsn_number(database.slot()["confirmed"]) > lsn_number(before)


def test_a_heartbeat_moves_the_slot_of_idle_tables(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE other (id int)")
    source = database.source(tables=["public.a"], heartbeat=0.2)
    since = database.read(source)[-1].checkpoint
    database.run("INSERT INTO other SELECT generate_series(1, 1000)")
    behind = lsn_number(database.sql.execute("SELECT pg_current_wal_lsn()::text").fetchone()[0])  # type: ignore[index]
    for page in source.pages(since):
        assert page.rows.num_rows == 0
        source.acknowledge(page.checkpoint)
        if lsn_number(database.slot()["confirmed"]) >= behind:
            source.close()


def test_a_source_can_be_opened_and_closed_again_and_again(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    since = database.read(database.source())[-1].checkpoint
    engines = threading.active_count()
    for number in range(3):
        database.run(f"INSERT INTO a VALUES ({number})")
        source = database.source()
        threading.Timer(0.1 * number, source.close).start()
        for _ in source.pages(since):
            pass
        pages = database.read(database.source(), since)
        assert brief(pages) == [("c", "public.a", (number,))]
        since = pages[-1].checkpoint
        # The server sees in its own time that the line is closed.
        deadline = time.monotonic() + 30
        while database.slot()["active"] and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not database.slot()["active"]
    assert threading.active_count() <= engines


def test_a_lost_connection_may_be_tried_again(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    source = database.source(heartbeat=0.2)
    since = database.read(source)[-1].checkpoint
    database.run("INSERT INTO a VALUES (1)")
    seen: list[Page[Any]] = []

    def read_and_cut_the_line() -> None:
        for page in source.pages(since):
            seen.append(page)
            database.run("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")

    with pytest.raises(Retryable) as lost:
        read_and_cut_the_line()
    assert lost.value.code == "connection-lost"
    database.run("INSERT INTO a VALUES (2)")
    assert brief(seen + database.read(source, seen[-1].checkpoint)) == [
        ("c", "public.a", (1,)),
        ("c", "public.a", (2,)),
    ]


def refused(database: Database, since: Checkpoint) -> ResyncRequired:
    with pytest.raises(ResyncRequired) as error:
        database.read(database.source(), since)
    assert "--resync" in error.value.hint
    return error.value


def test_a_slot_that_is_gone_re_created_or_moved_on_needs_a_resync(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    since = database.read(database.source())[-1].checkpoint
    name = f"slot_{database.name}"
    database.run("INSERT INTO a VALUES (2)", f"SELECT pg_replication_slot_advance('{name}', pg_current_wal_lsn())")
    assert "beyond the stored position" in str(refused(database, since))
    database.run(f"SELECT pg_drop_replication_slot('{name}')")
    assert "is gone" in str(refused(database, since))
    assert database.slot() == {}
    database.run(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    assert "re-created" in str(refused(database, since))


def test_another_system_or_timeline_needs_a_resync(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    since = database.read(database.source())[-1].checkpoint
    assert isinstance(since, Tailing)
    system, timeline = since.origin.split("/")
    assert "system and timeline" in str(refused(database, Tailing(f"{system}1/{timeline}", since.at)))
    assert "system and timeline" in str(refused(database, Tailing(f"{system}/{int(timeline) + 1}", since.at)))


def test_a_publication_that_is_gone_needs_a_resync(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    since = database.read(database.source(tables=["public.a"]))[-1].checkpoint
    database.run(f"DROP PUBLICATION pub_{database.name}")
    assert "publication" in str(refused(database, since))


@pytest.mark.parametrize(
    "statements",
    [
        ["DROP PUBLICATION {name}", "INSERT INTO a VALUES (1)", "CREATE PUBLICATION {name} FOR TABLE a, b"],
        [
            "ALTER PUBLICATION {name} DROP TABLE a",
            "INSERT INTO a VALUES (1)",
            "ALTER PUBLICATION {name} ADD TABLE a",
        ],
        ["DROP TABLE a", "CREATE TABLE a (id int PRIMARY KEY)", "ALTER PUBLICATION {name} ADD TABLE a"],
    ],
)
def test_what_was_changed_while_a_table_was_not_published_needs_a_resync(
    database: Database, statements: list[str]
) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    since = database.read(database.source())[-1].checkpoint
    database.run(*(statement.format(name=f"pub_{database.name}") for statement in statements))
    assert "was changed in between" in str(refused(database, since))


def test_a_key_that_was_renamed_while_changes_waited_needs_a_resync(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY, v int)")
    since = database.read(database.source())[-1].checkpoint
    assert isinstance(since, Tailing)
    database.run("INSERT INTO a VALUES (1, 1)", "ALTER TABLE a RENAME COLUMN id TO number")
    # As of a release that did not remember columns.
    assert "without the key" in str(refused(database, Tailing(since.origin, since.at)))


def test_a_renamed_column_needs_a_resync_and_one_that_is_dropped_and_added_does_not(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY, v int)")
    since = database.read(database.source())[-1].checkpoint
    database.run("ALTER TABLE a DROP COLUMN v", "ALTER TABLE a ADD COLUMN w int", "INSERT INTO a VALUES (1, 2)")
    since = database.read(database.source(), since)[-1].checkpoint
    database.run("ALTER TABLE a RENAME COLUMN w TO x", "INSERT INTO a VALUES (2, 3)")
    assert '"w" of table "public.a" was renamed to "x"' in str(refused(database, since))


def test_a_publication_that_is_set_to_what_it_covers_is_the_same(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    since = database.read(database.source())[-1].checkpoint
    database.run(f"ALTER PUBLICATION pub_{database.name} SET TABLE a, b", "INSERT INTO a VALUES (1)")
    assert brief(database.read(database.source(), since)) == [("c", "public.a", (1,))]


def test_a_checkpoint_without_a_scope_goes_on_and_gets_one(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    since = database.read(database.source())[-1].checkpoint
    assert isinstance(since, Tailing)
    database.run("INSERT INTO a VALUES (1)")
    pages = database.read(database.source(), Tailing(since.origin, since.at))
    assert brief(pages) == [("c", "public.a", (1,))]
    assert pages[-1].checkpoint.scope == since.scope


@pytest.mark.parametrize(
    "statement", ["DROP PUBLICATION {name}", "ALTER PUBLICATION {name} DROP TABLE a", "ALTER TABLE a RENAME TO z"]
)
def test_a_table_that_is_published_no_longer_ends_a_reader_that_runs(database: Database, statement: str) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    source = database.source(heartbeat=0.3, tables=["public.a", "public.b"])
    since = database.read(source)[-1].checkpoint
    reading = source.pages(since)
    next(reading)
    giving_up = threading.Timer(120, source.close)
    giving_up.start()
    database.run(statement.format(name=f"pub_{database.name}"))
    with pytest.raises(ResyncRequired, match="changed in between"):
        list(reading)
    giving_up.cancel()


def test_a_server_that_was_taken_back_to_an_earlier_state_needs_a_resync(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    since = database.read(database.source())[-1].checkpoint
    assert isinstance(since, Tailing)
    # As a copy of its disk would be: the same system and timeline, and a slot that is not beyond us.
    ahead = lsn_text(lsn_number(since.at) + (1 << 30))
    assert "earlier state" in str(refused(database, Tailing(since.origin, ahead, since.scope)))


def test_a_slot_in_use_names_who_uses_it(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.sources.postgres._PATIENCE", 0.3)
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    source = database.source(heartbeat=0.2)
    since = database.read(source)[-1].checkpoint
    reading = source.pages(since)
    held = next(reading)
    with pytest.raises(NotReady, match=str(database.slot()["active_pid"])) as busy:
        next(database.source().pages(held.checkpoint))
    assert busy.value.code == "slot-active"
    with pytest.raises(NotReady):
        database.source().undeploy()
    reading.close()
