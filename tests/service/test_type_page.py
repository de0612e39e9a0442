"""Every type of PostgreSQL goes to every target, and its client gives back the value that PostgreSQL gives; the page says so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from psycopg.rows import dict_row
from pyspark.sql import SparkSession

from dev.services.mariadb import MariaDb
from tailrace.config.load import load_pipeline, load_platform
from tailrace.core.errors import TailraceError
from tailrace.runtime.build import open_pipeline
from tailrace.runtime.report import Silent
from tailrace.runtime.run import RunReport
from tests.clients import FILES, Store, in_files, in_mysql, in_postgres
from tests.receiver import Receiver, receiving
from tests.service.reading import Database
from tests.type_page import CASES, CHANGED, FORMS, HALTS, REFUSED, Found, exact, page

ROOT = Path(__file__).parents[2]
LOST = 1000
"""Keys from here on are of rows that have one value, which no target can hold."""


def test_every_type_is_in_every_target_what_the_page_says(
    database: Database, mariadb: MariaDb, spark: SparkSession, tmp_path: Path
) -> None:
    lost = fill(database)
    stores = {kind: in_files(kind, tmp_path / kind) for kind in FILES}
    stores["postgres"] = in_postgres(database.server, f"types_{database.name}")
    stores["mysql"] = in_mysql(mariadb, f"types_{database.name}")
    with receiving() as receiver:
        report = run(database, stores, receiver, spark, tmp_path)
    errors = {target.target: target.error and target.error.code for target in report.targets}
    assert errors == {**dict.fromkeys(FORMS), **{f"{target}-refused": code for (target, _), code in HALTS.items()}}
    found = {kind: Found(stores[kind].types("every"), by_key(stores[kind].read("every"))) for kind in stores}
    found["webhook"] = posted(receiver)

    asked = arriving(database)
    differing = [
        f"{target}, {CASES[name].declared}, row {key}: {given!r} is not {expected}"
        for target, name, key, given, expected in differences(asked, found)
    ]
    assert not differing, "\n".join(differing)

    letters = dead_letters(tmp_path / "state")
    assert {target: sorted(letters[target]) for target in FORMS} == dict.fromkeys(FORMS, sorted(lost))
    assert all(f'column "{name}"' in letters["delta"][key] for key, (name, _) in lost.items())

    told = [
        (CASES[name].declared, value.strip("'"), letters["delta"][key].partition(":")[0])
        for key, (name, value) in lost.items()
    ]
    shown = by_key(said(database, dict.fromkeys(CASES, "{}::text")))
    made = page(asked, shown, found, told, refused(database))
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build/types.md").write_text(made)
    assert (ROOT / "docs/reference/types.md").read_text() == made, "run: cp build/types.md docs/reference/types.md"


def fill(database: Database) -> dict[int, tuple[str, str]]:
    """Make the table; return the key, column and value of the rows that are to be lost."""
    database.run(
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE DOMAIN small AS int",
        "CREATE DOMAIN price AS numeric(8,2)",
        f"CREATE TABLE every (id int PRIMARY KEY, {', '.join(f'{name} {case.declared}' for name, case in CASES.items())})",
        "ALTER TABLE every REPLICA IDENTITY FULL",
        "INSERT INTO every (id) VALUES (0)",
    )
    # Row n has the n-th value of each column; where there is none, and everywhere in row 0, it is NULL.
    for n in range(max(len(case.values) for case in CASES.values())):
        values = {name: case.values[n] for name, case in CASES.items() if n < len(case.values)}
        database.run(f"INSERT INTO every (id, {', '.join(values)}) SELECT {n + 1}, {', '.join(values.values())}")
    lost = [(name, value) for name, case in CASES.items() for value in case.lost]
    for key, (name, value) in enumerate(lost, LOST):
        database.run(f"INSERT INTO every (id, {name}) VALUES ({key}, {value})")
    return dict(enumerate(lost, LOST))


def run(
    database: Database, stores: Mapping[str, Store], receiver: Receiver, spark: SparkSession, folder: Path
) -> RunReport:
    """Capture the table once, and have every target keep it."""
    sinks = [store.sink(kind, tables=columns(kind)) for kind, store in stores.items()]
    # What a target refuses goes to one of its own, which halts.
    sinks += [
        stores[kind].sink(f"{kind}-refused", tables=columns(kind, refused=True)) for kind in {k for k, _ in HALTS}
    ]
    url = {"url": receiver.address, "allow_http": True, "allow_private": True}
    sinks.append({"sink_id": "webhook", "sink_type": "webhook", "webhook": url})
    source = {
        "source_type": "postgres", "host": "127.0.0.1", "port": database.server.port, "database": database.name,
        "username": database.server.user, "password": database.server.password, "tables": ["public.every"],
        "slot_name": f"slot_{database.name}", "publication_name": f"pub_{database.name}",
    }  # fmt: skip
    file, platform = folder / "pipeline.yaml", folder / "platform.yaml"
    file.write_text(json.dumps({"pipeline_id": database.name, "source": source, "sinks": sinks}))
    platform.write_text(json.dumps({"control": {"root": str(folder / "state")}}))
    with open_pipeline(load_pipeline(file).config, load_platform(platform).config) as pipeline:
        pipeline.__dict__["_session"] = spark
        report = pipeline.run(once=True, report=Silent())
    assert report.error is None
    return report


def columns(kind: str, *, refused: bool = False) -> dict[str, Any]:
    """Return which columns a target is given: those that it refuses, or the others."""
    halts = [name for target, name in HALTS if target == kind]
    if not halts:
        return {}
    chosen = halts if refused else [name for name in CASES if name not in halts]
    return {"public.every": {"columns": ["id", *chosen], **({"name": "refused"} if refused else {})}}


def said(database: Database, queries: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return what PostgreSQL says of the rows that are to arrive."""
    chosen = ", ".join(f'{query.format(name)} AS "{name}"' for name, query in queries.items())
    with database.connect(row_factory=dict_row, options="-c TimeZone=UTC") as connection:
        return connection.execute(f"SELECT id, {chosen} FROM every WHERE id < {LOST} ORDER BY id").fetchall()


def arriving(database: Database) -> dict[int, dict[str, Any]]:
    """Return the rows as they are to be in every target."""
    rows = by_key(said(database, {name: case.query for name, case in CASES.items()}))
    for name, case in CASES.items():
        for row in rows.values():
            if case.made and row[name] is not None:
                row[name] = case.made(row[name])
    return rows


def by_key(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    found = {row["id"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def posted(receiver: Receiver) -> Found:
    """Return the rows that came as messages, with the types that JSON has."""
    bodies = [json.loads(got.body, parse_float=Decimal)["value"]["after"] for got in receiver.got]
    rows = by_key(bodies)
    names = {bool: "boolean", int: "number", Decimal: "number", str: "string", list: "array"}
    return Found({name: names[type(rows[1][name])] for name in CASES}, rows)


def differences(
    asked: Mapping[int, Mapping[str, Any]], found: Mapping[str, Found]
) -> list[tuple[str, str, int, Any, str]]:
    """Return the values that are not what PostgreSQL says, by target, column and key."""
    differing = []
    for target, form in FORMS.items():
        rows = found[target].rows
        assert sorted(rows) == sorted(asked), target
        for name, case in CASES.items():
            if (target, name) in HALTS:
                continue
            for key, row in asked.items():
                expected = exact(case.family, row[name])
                expected = CHANGED.get((target, case.family, expected), expected)
                given = rows[key][name]
                try:
                    same = exact(case.family, form.read(case.family, given)) == expected
                except (ValueError, TypeError, KeyError, ArithmeticError, AssertionError):
                    same = False
                if not same:
                    differing.append((target, name, key, given, expected))
    return differing


def dead_letters(state: Path) -> dict[str, dict[int, str]]:
    """Return why events were put aside, by target and key."""
    found: dict[str, dict[int, str]] = {}
    for file in state.rglob("rejects/**/*.json"):
        letter = json.loads(file.read_text())
        found.setdefault(letter["dlq.sink_id"], {})[json.loads(letter["key"])["id"]] = letter["dlq.error_message"]
    return found


def refused(database: Database) -> dict[str, str]:
    """Return with which error the source refuses a table that has a column of each of `REFUSED`."""
    codes = {}
    for kind in REFUSED:
        database.run(f"CREATE TABLE refused (id int PRIMARY KEY, c {kind})")
        with pytest.raises(TailraceError) as raised:
            database.source(tables=["public.refused"]).check()
        codes[kind] = raised.value.code
        database.run("DROP TABLE refused")
    return codes
