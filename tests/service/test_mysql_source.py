"""MariaDB read by the engine in this process: nothing lost, nothing twice, exact values, and no gap passed over."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tailrace.core.checkpoint import Checkpoint, Snapshotting, Tailing
from tailrace.core.errors import Halt, ResyncRequired, TailraceError
from tailrace.core.page import Page
from tailrace.sources._binlog_stand import stand_at
from tests.service.maria import Maria
from tests.service.reading import brief, events


def first_page(maria: Maria, since: Checkpoint | None, batch_rows: int) -> Page[Any]:
    """Read one page that has rows, and stop as a crash would."""
    source = maria.source(batch_rows=batch_rows)
    reading = source.pages(since, source.head())
    try:
        return next(page for page in reading if page.rows.num_rows)
    finally:
        reading.close()


def workload(maria: Maria, chance: random.Random) -> None:
    maria.run("SET autocommit = 0")
    for _ in range(6):
        for _ in range(chance.randint(1, 4)):
            key = chance.randint(1, 6)
            maria.run(
                chance.choice(
                    [
                        f"REPLACE INTO a VALUES ({key}, {chance.random()}), ({key + 1}, 1)",
                        f"UPDATE a SET v = v + 1 WHERE id <= {key}",
                        f"UPDATE a SET v = 1 - v WHERE id <= {key}",
                        f"DELETE FROM a WHERE id = {key}",
                        f"UPDATE IGNORE a SET id = id + 10 WHERE id = {key}",
                    ]
                )
            )
        maria.run("ROLLBACK" if chance.random() < 0.15 else "COMMIT")
    maria.run("TRUNCATE TABLE a", "ALTER TABLE a ADD COLUMN extra int DEFAULT 5", "INSERT INTO a VALUES (1, 1, 1)")
    maria.run("COMMIT", "SET autocommit = 1")


def test_a_restart_at_every_page_gives_the_events_of_an_uninterrupted_read(maria: Maria) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    maria.run("CREATE TABLE a (id int PRIMARY KEY, v double)", "CREATE TABLE b (id int PRIMARY KEY)")
    maria.run("INSERT INTO a VALUES (1, 1), (2, 2), (3, 3)")
    begun = first_page(maria, None, 2)
    assert isinstance(begun.checkpoint, Snapshotting)
    again = maria.read(begun.checkpoint)
    assert brief(again) == [("r", f"{maria.name}.a", (key,)) for key in (1, 2, 3)]
    since = start = again[-1].checkpoint
    workload(maria, random.Random(seed))
    maria.run("FLUSH BINARY LOGS", "INSERT INTO b VALUES (1)", "CREATE TABLE later (id int PRIMARY KEY)")
    whole = [{**event, "ts_ms": 0} for event in events(maria.read(start))]
    pieces: list[dict[str, Any]] = []
    while len(pieces) < len(whole):
        page = first_page(maria, since, max(1, len(whole) // 4))
        pieces += [{**event, "ts_ms": 0} for event in events([page])]
        since = page.checkpoint
    assert pieces == whole
    assert [event["source"]["place"] for event in whole] == sorted(event["source"]["place"] for event in whole)
    pages = maria.read(since)
    assert brief(pages) == []
    assert maria.read(pages[-1].checkpoint) == []
    assert maria.source().lag(pages[-1].checkpoint)["lag_bytes"] == 0


VALUES = {
    "ti": ("tinyint unsigned", "255", 255, "smallint"),
    "bu": ("bigint unsigned", "18446744073709551615", "18446744073709551615", "decimal(20,0)"),
    "d": ("decimal(30,10) unsigned", "1.0000000001", "1.0000000001", "decimal(30,10)"),
    "dx": ("decimal(65,30)", "0.000000000000000000000000000001", "0.000000000000000000000000000001", "string"),
    "f": ("double", "1e300", 1e300, "double"),
    "b": ("bit(1)", "1", True, "boolean"),
    "t": ("varchar(9) character set latin1", "'é'", "é", "string"),
    "u": ("varchar(9)", "'😀 '", "😀 ", "string"),
    "y": ("varbinary(9)", "x'00ff'", "AP8=", "binary"),
    "e": ("enum('p','q')", "'q'", "q", "string"),
    "s": ("set('p','q')", "'p,q'", "p,q", "string"),
    "day": ("date not null", "'0001-01-01'", -719162, "date"),
    "old": ("date", "'1500-02-28'", -171606, "date"),
    "clock": ("time(6)", "'-838:59:59'", -3020399000000, "string"),
    "dt": ("datetime(6)", "'9999-12-31 23:59:59.999999'", 253402300799999999, "timestamp_ntz"),
    "ts": ("timestamp(6) null", "'2024-03-31 02:30:00.000001'", "2024-03-31T02:30:00.000001Z", "timestamp"),
    "js": ("json", """'{"a": 1}'""", '{"a": 1}', "string"),
}


def test_snapshot_and_stream_give_the_same_exact_values(maria: Maria) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (kind, *_) in VALUES.items())
    row = ", ".join(text for _, text, *_ in VALUES.values())
    maria.run(f"CREATE TABLE v (id int PRIMARY KEY, {columns})", f"INSERT INTO v VALUES (1, {row})")
    maria.run("CREATE TABLE z (id int PRIMARY KEY, d date NOT NULL, t datetime NOT NULL, s timestamp NULL)")
    maria.run("SET sql_mode = ''", "INSERT INTO z VALUES (1, '0000-00-00', '0000-00-00', NULL)")
    read = maria.read()
    maria.run(f"INSERT INTO v VALUES (2, {row})", "INSERT INTO z VALUES (2, '0000-00-00', '0000-00-00', '0000-00-00')")
    read += maria.read(read[-1].checkpoint)
    rows = {(event["table"][-1], event["after"].pop("id")): event["after"] for event in events(read)}
    expected = {name: value for name, (_, _, value, _) in VALUES.items()}
    assert (rows["v", 1], rows["v", 2]) == (expected, expected)
    # No day and no time: outside of what a column of any target holds, so the row is rejected.
    assert rows["z", 1] == {"d": 2**31 - 1, "t": 2**63 - 1, "s": None}
    assert rows["z", 2] == {"d": 2**31 - 1, "t": 2**63 - 1, "s": "0000-00-00T00:00:00Z"}
    (table,) = {t for page in read for t in page.schemas.values() if t.name.endswith(".v")}
    assert {c.name: c.type for c in table.columns[1:]} == {name: kind for name, (*_, kind) in VALUES.items()}


def code(maria: Maria, **changed: Any) -> str:
    with pytest.raises(TailraceError) as found:
        maria.source(**changed).check()
    assert found.value.hint
    return found.value.code


def test_what_would_keep_a_run_from_starting_is_said_before_it(maria: Maria) -> None:
    maria.run("CREATE TABLE p (id int PRIMARY KEY)", "CREATE TABLE u (id uuid PRIMARY KEY)")
    maria.run("CREATE TABLE m (id int PRIMARY KEY) ENGINE=MyISAM")
    maria.run("CREATE TABLE c (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)")
    weak = {"username": f"weak_{maria.name}", "password": "weak"}
    maria.run(f"CREATE USER weak_{maria.name} IDENTIFIED BY 'weak'")
    tables = {name: [f"{maria.name}.{name}"] for name in ("p", "u", "m", "c", "q")}
    try:
        maria.source(tables=tables["p"]).check()
        assert code(maria, password="wrong") == "wrong-password"
        assert code(maria, port=1) == "mysql-unreachable"
        assert code(maria, tables=tables["q"]) == "unknown-table"
        assert code(maria, database="none_such") == "no-tables"
        assert code(maria, tables=tables["u"]) == "unsupported-type"
        assert code(maria, tables=tables["m"]) == "not-transactional"
        assert code(maria, tables=tables["c"]) == "cascading-key"
        assert code(maria, tables=tables["p"], **weak) == "missing-grant"
        maria.run("SET GLOBAL binlog_format = 'MIXED'")
        assert code(maria, tables=tables["p"]) == "binlog-format"
    finally:
        maria.run("SET GLOBAL binlog_format = 'ROW'", f"DROP USER weak_{maria.name}")


def refused(maria: Maria, since: Checkpoint, kind: type[Halt] = ResyncRequired) -> str:
    with pytest.raises(kind) as found:
        maria.read(since)
    assert "--resync" in found.value.hint
    return f"{found.value.code}: {found.value}"


def test_a_gap_or_a_lost_history_halts_and_no_snapshot_is_taken_instead(maria: Maria) -> None:
    maria.run("CREATE TABLE a (id int PRIMARY KEY, v int)", "INSERT INTO a VALUES (1, 1)")
    since = maria.read()[-1].checkpoint
    assert isinstance(since, Tailing)
    maria.run("INSERT INTO a VALUES (2, 2)")
    stand = stand_at(since.at)
    assert "belongs to server" in refused(maria, Tailing("another/1", since.at))
    gone = since.at.replace(stand.file, "binlog.900000")
    assert "is gone" in refused(maria, Tailing(since.origin, gone))
    assert "replaced" in refused(maria, Tailing(since.origin, since.at.replace(stand.gtids, "0-1-999999")))
    history = maria.folder / "schema-history.jsonl"
    kept = history.read_text()
    for text in (None, "", kept.splitlines()[0], "".join(kept.splitlines(keepends=True)[:-1])):
        history.write_text(text) if text is not None else history.unlink()
        assert refused(maria, since, Halt).startswith("schema-history-lost")
    # What was being written when the process died is behind the checkpoint, and goes.
    history.write_text(kept + '{"source": {"ser')
    pages = maria.read(since)
    assert brief(pages) == [("c", f"{maria.name}.a", (2,))]
    assert all(json.loads(line) for line in history.read_text().splitlines())
    maria.run("CREATE TABLE b (id int PRIMARY KEY)")
    with pytest.raises(Halt) as changed:
        maria.read(pages[-1].checkpoint, tables=[f"{maria.name}.a", f"{maria.name}.b"])
    assert changed.value.code == "tables-changed"
    maria.run(f"CREATE OR REPLACE TABLE {maria.name}.b (id inet6)", f"CREATE OR REPLACE TABLE {maria.name}.a (id int)")
    assert "CREATE OR REPLACE" in refused(maria, pages[-1].checkpoint)
