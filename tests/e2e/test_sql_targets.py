"""Databases, and Iceberg beside them, as targets: killed at every step of a transaction, and fed by a pipeline beside each other."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import duckdb
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from dev import services
from dev.services.mariadb import MariaDb
from tailrace.demo.postgres import EmbeddedPostgres
from tests.e2e.harness import Shop
from tests.e2e.killed import expected

ROOT = Path(__file__).parents[2]


def test_a_process_killed_within_a_transaction_leaves_all_of_it_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "things.db"

    def run(failpoints: str = "") -> int:
        armed = {"TAILRACE_TEST_MODE": "1", "TAILRACE_FAILPOINTS": failpoints} if failpoints else {}
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **armed}
        command = [sys.executable, "-m", "tests.e2e.killed", str(path)]
        return subprocess.run(command, env=environment, check=False, timeout=200).returncode

    # Twice in a row within the transaction, then right after it, then in the next ones.
    for armed in ["C21=kill", "C22=kill:2", "C22=kill", "C23=kill:2", "C19=kill:2"]:
        assert run(armed) == -signal.SIGKILL, armed
        with closing(sqlite3.connect(path)) as reader:
            (state,) = reader.execute("PRAGMA integrity_check").fetchone()
        assert state == "ok"
    assert run() == 0
    with closing(sqlite3.connect(path)) as reader:
        found = dict(reader.execute("SELECT id, value FROM things"))
        commits = reader.execute("SELECT commits FROM _tailrace_tables").fetchone()
    assert found == expected()
    assert commits == (6,)


SINKS = """
- {sink_id: lite, sink_type: sqlite, schema_evolution: alter, sqlite: {path: copies/lite.db}}
- {sink_id: duck, sink_type: duckdb, schema_evolution: alter, duckdb: {path: copies/duck.db}}
- sink_id: ice
  sink_type: iceberg
  schema_evolution: alter
  iceberg: {catalog_uri: "sqlite:///copies/ice/catalog.db", warehouse: copies/ice, table_namespace: shop}
- {sink_id: log, sink_type: sqlite, mode: append, sqlite: {path: copies/log.db}}
- sink_id: copy
  sink_type: postgres
  schema_evolution: alter
  postgres: {host: 127.0.0.1, port: PORT, database: DATABASE, username: postgres, password: "${SHOP_PASSWORD}", schema: copy}
- sink_id: web
  sink_type: mysql
  schema_evolution: alter
  mysql: {host: 127.0.0.1, port: MYSQL, database: test, username: tester, password: tester-secret, schema: web}
"""

TABLES = {"items": "id,name,price,step,bio", "parts": "item,no,qty", "scratch": "id,v"}


def iced(folder: Path, table: str, columns: str) -> Counter[tuple[object, ...]]:
    place = folder / "copies" / "ice"
    catalog = SqlCatalog("default", uri=f"sqlite:///{place}/catalog.db", warehouse=str(place))
    try:
        rows = catalog.load_table(f"shop.{table}").scan().to_arrow().to_pylist()
    finally:
        catalog.engine.dispose()
    return Counter(tuple(row[name] for name in columns.split(",")) for row in rows)


@pytest.mark.timeout(900)
def test_a_pipeline_keeps_databases_current(tmp_path: Path, postgres: EmbeddedPostgres) -> None:
    with services.running("mariadb", folder=tmp_path / "servers") as up:
        keep_databases_current(tmp_path, postgres, up.mariadb)


def keep_databases_current(tmp_path: Path, postgres: EmbeddedPostgres, mariadb: MariaDb) -> None:
    shop = Shop(tmp_path, postgres, seed=11, sinks=SINKS.replace("MYSQL", str(mariadb.port)))
    shop.change()
    for _ in range(2):
        report = shop.finish()
        assert all(target["status"] == "done" for target in report["targets"])  # type: ignore[index, union-attr]
        for table, columns in TABLES.items():
            query = f"select {columns} from {table}"
            with shop.connect() as connection:
                source = Counter(connection.execute(query.encode()))
                copied = Counter(connection.execute(f"select {columns} from copy.{table}".encode()))
            with duckdb.connect(str(tmp_path / "copies" / "duck.db"), read_only=True) as ducks:
                duck = Counter(ducks.execute(query).fetchall())
            with closing(sqlite3.connect(tmp_path / "copies" / "lite.db")) as connection_lite:
                lite = Counter(connection_lite.execute(query))
            assert copied == source
            assert mysql_rows(mariadb, query) == source
            assert duck == source
            assert iced(tmp_path, table, columns) == source
            assert lite == Counter(tuple(str(v) if hasattr(v, "as_tuple") else v for v in row) for row in source)
        for _ in range(4):
            shop.change()
        with shop.connect() as connection:
            connection.execute("alter table items add column if not exists extra int default 5")
            connection.execute("update items set extra = null where id % 2 = 0")
            connection.commit()
    report = shop.finish()
    with shop.connect() as connection:
        source = Counter(connection.execute("select id, extra from items"))
        assert Counter(connection.execute("select id, extra from copy.items")) == source
    assert mysql_rows(mariadb, "select id, extra from items") == source
    assert iced(tmp_path, "items", "id,extra") == source
    with closing(sqlite3.connect(tmp_path / "copies" / "lite.db")) as lite_rows:
        assert Counter(lite_rows.execute("select id, extra from items")) == source
    with closing(sqlite3.connect(tmp_path / "copies" / "log.db")) as events:
        doubled = "select _cdc_position, id from items group by 1, 2, _cdc_op having count(*) > 1"
        assert events.execute(doubled).fetchall() == []
    again = shop.finish()
    assert all(table["applied"] == 0 for target in again["targets"] for table in target["tables"])  # type: ignore[index, union-attr]


def mysql_rows(mariadb: MariaDb, query: str) -> Counter[tuple[object, ...]]:
    with mariadb.connect("web") as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return Counter(cursor.fetchall())
