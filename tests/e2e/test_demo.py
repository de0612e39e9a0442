"""The demo as a user starts it, and the comparison that it ends with, which must see every difference."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import psycopg
import pyarrow as pa
import pytest

from tailrace.core.checkpoint import Tailing
from tailrace.core.errors import Misconfigured
from tailrace.demo import shop
from tailrace.demo.compare import Comparison, compare, compare_all, in_delta, in_duckdb
from tailrace.demo.postgres import EmbeddedPostgres
from tailrace.demo.run import demo
from tailrace.demo.stages import tell
from tailrace.spark import session

SOURCE = str(Path(shop.__file__).parents[2])

INSTANT = datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC)

KINDS = pa.schema(
    [
        ("id", pa.int64()),
        ("part", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("wide", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("plain", pa.timestamp("us")),
        ("day", pa.date32()),
        ("yes", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        ("body", pa.string()),
        ("raw", pa.binary()),
        ("single", pa.float32()),
        ("double", pa.float64()),
    ]
)

ROWS: list[dict[str, object]] = [
    {
        "id": 1, "part": "Zoë 🦊", "price": Decimal("1.50"), "wide": "3.140", "at": INSTANT,
        "plain": INSTANT.replace(tzinfo=None), "day": date(2024, 2, 29), "yes": True, "tags": ["a,b", None, "{}", ""],
        "body": '{"n": 9007199254740993, "half": 1.0}', "raw": b"\x00\xff", "single": 0.1, "double": float("nan"),
    },
    dict.fromkeys(KINDS.names) | {"id": 2, "part": "tab\tline\nback\\slash", "tags": []},
    dict.fromkeys(KINDS.names) | {"id": 3, "part": "NULL", "body": '""', "wide": "NaN", "double": -0.0},
]  # fmt: skip


@pytest.fixture(scope="module")
def kinds(postgres: EmbeddedPostgres) -> Iterator[psycopg.Connection]:
    """A table with a column of each kind, holding ROWS; another zone and number format than the target's."""
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE kinds (id bigint, part text, price numeric(10,2), wide numeric, at timestamptz, "
            "plain timestamp, day date, yes bool, tags text[], body jsonb, raw bytea, single float4, double float8, "
            "PRIMARY KEY (part, id))"
        )
        connection.execute("SET timezone = 'Asia/Kathmandu'")
        for row in ROWS:
            places = ", ".join(["%s"] * len(row))
            connection.execute(f"INSERT INTO kinds VALUES ({places})", list(row.values()))
        yield connection
        connection.execute("DROP TABLE kinds")


def held(*rows: dict[str, object]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=KINDS)


def test_equal_values_of_every_kind_are_equal(kinds: psycopg.Connection) -> None:
    result = compare(kinds, "public.kinds", held(*ROWS))
    assert result.lines() == ["public.kinds: 3 rows, equal"]


@pytest.mark.parametrize(
    ("column", "planted"),
    [
        ("price", Decimal("1.51")),
        ("wide", "3.14"),
        ("at", INSTANT + timedelta(microseconds=-1)),
        ("at", INSTANT.replace(tzinfo=timezone(timedelta(hours=1)))),
        ("plain", None),
        ("day", date(2024, 3, 1)),
        ("yes", False),
        ("tags", ["a,b", "", "{}", ""]),
        ("body", '{"n": 9007199254740992, "half": 1.0}'),
        ("raw", b"\x00"),
        ("single", 0.2),
        ("double", 0.0),
    ],
)
def test_a_planted_value_is_found_and_its_key_named(kinds: psycopg.Connection, column: str, planted: object) -> None:
    result = compare(kinds, "public.kinds", held(ROWS[0] | {column: planted}, *ROWS[1:]))
    assert result.differing == {("Zoë 🦊", 1): (column,)}
    assert "key Zoë 🦊, 1: differs in " + column in "\n".join(result.lines())


@pytest.mark.parametrize(("column", "planted"), [("body", '""'), ("tags", None), ("double", 0.0)])
def test_null_equals_only_null(kinds: psycopg.Connection, column: str, planted: object) -> None:
    result = compare(kinds, "public.kinds", held(ROWS[0], ROWS[1] | {column: planted}, ROWS[2]))
    assert result.differing == {("tab\tline\nback\\slash", 2): (column,)}


def test_a_lost_a_doubled_and_a_left_over_row_are_found(kinds: psycopg.Connection) -> None:
    result = compare(kinds, "public.kinds", held(ROWS[0], ROWS[1], ROWS[1], ROWS[2] | {"id": 4}))
    assert result.missing == (("NULL", 3),)
    assert result.extra == (("NULL", 4), ("tab\tline\nback\\slash", 2))


def test_a_column_that_only_the_source_has_makes_tables_differ(kinds: psycopg.Connection) -> None:
    result = compare(kinds, "public.kinds", held(*ROWS).drop_columns(["yes"]))
    assert result.columns == ("yes",)
    assert not result.equal


def test_a_difference_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    same, other = Comparison("public.a", 1, 1), Comparison("public.b", 2, 1, missing=((7,),))
    assert tell({"Delta": [same], "DuckDB": [same]}, Tailing("s/1", "0/10"), 5) == 0
    assert tell({"Delta": [same, same], "DuckDB": [same, other]}, Tailing("s/1", "0/10"), 5) == 1
    printed = capsys.readouterr().out
    assert "key 7: only in the source" in printed
    assert "DuckDB public.b: 2 rows in the source, 1 in the target, DIFFERENT" in printed
    assert "source and targets are DIFFERENT at position 0/10" in printed


@dataclass(frozen=True)
class Finished:
    """What the demo left."""

    folder: Path
    done: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def finished() -> Iterator[Finished]:
    """One run of the command, in a folder that stays for the tests.

    Not below pytest's own folder: every other run of pytest closes that to the server's user.
    """
    with tempfile.TemporaryDirectory(prefix="tailrace-e2e-") as parent:
        folder = Path(parent) / "demo"
        command = [sys.executable, "-m", "tailrace.cli.main", "demo", "--seconds", "6", "--dir", str(folder)]
        environment = {**os.environ, "PYTHONPATH": SOURCE}
        done = subprocess.run(
            command, cwd=parent, env=environment, text=True, capture_output=True, timeout=280, check=False
        )
        yield Finished(folder, done)


def test_the_demo_ends_with_equal_tables(finished: Finished) -> None:
    done = finished.done
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    for table in shop.TABLES:
        for target in ("Delta", "DuckDB"):
            assert re.search(rf"^{target} {table}: \d+ rows, equal$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"watch it at http://127\.0\.0\.1:\d+/", done.stderr)
    assert re.search(r"^source and targets are equal at position [0-9A-F]+/[0-9A-F]+", done.stdout, re.MULTILINE)
    assert "add a column to orders" in done.stderr
    assert "truncate carts" in done.stderr


def test_the_demo_leaves_no_server_and_tells_no_secret(finished: Finished) -> None:
    assert not (finished.folder / "postgres" / "cluster" / "postmaster.pid").exists()
    secret = (finished.folder / "cdc.password").read_text()
    told = finished.done.stdout + finished.done.stderr + (finished.folder / "pipeline.yaml").read_text()
    assert secret not in told


def test_a_difference_planted_after_the_demo_is_found(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedPostgres(finished.folder / "postgres") as server:
        dsn = server.dsn("shop")
        with psycopg.connect(dsn) as connection:
            connection.execute("UPDATE customers SET letter = coalesce(letter, '') || '.' WHERE id = 7")
            connection.execute("INSERT INTO carts VALUES (%s, NULL, '{}', NULL, NULL)", (UUID(int=1),))
        held = {
            "Delta": in_delta(session(), finished.folder / "lake"),
            "DuckDB": in_duckdb(finished.folder / "copy.duckdb"),
        }
        results = {target: compare_all(dsn, read, shop.TABLES) for target, read in held.items()}
    assert tell(results, Tailing("s/1", "0/10"), 5) == 1
    for tables in results.values():
        assert [table.table for table in tables if not table.equal] == ["public.customers", "public.carts"]
    printed = capsys.readouterr().out
    assert "key 7: differs in letter" in printed
    assert f"key {UUID(int=1)}: only in the source" in printed


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(Misconfigured) as refused:
        demo(directory=tmp_path)
    assert refused.value.code == "folder-in-use"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
