"""A pipeline from MariaDB to a table elsewhere: the command's own path, stopped and started again."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tailrace.config.load import load_pipeline, load_platform
from tailrace.core.errors import Halt
from tailrace.runtime.build import Pipeline, Resync, open_pipeline
from tailrace.runtime.report import Silent
from tests.service.maria import Maria


def opened(maria: Maria, folder: Path) -> Pipeline:
    sink = {
        "sink_id": "box",
        "sink_type": "sqlite",
        "sqlite": {"path": str(folder / "box.db")},
        "schema_evolution": "alter",
    }
    source = {"source_type": "mysql", **maria.settings(), "tables": [f"{maria.name}.orders"]}
    (folder / "pipeline.yaml").write_text(json.dumps({"pipeline_id": maria.name, "source": source, "sinks": [sink]}))
    platform = {"control": {"root": str(folder / "state")}, "spark": {"master": "local[2]"}}
    (folder / "platform.yaml").write_text(json.dumps(platform))
    return open_pipeline(load_pipeline(folder / "pipeline.yaml").config, load_platform(folder / "platform.yaml").config)


def run(maria: Maria, folder: Path, **how: Any) -> list[tuple[Any, ...]]:
    """Run to the head in a pipeline that is opened anew; return the rows of the target."""
    with opened(maria, folder) as pipeline:
        report = pipeline.run(once=True, report=Silent(), **how)
        assert report.first_error() is None
    with closing(sqlite3.connect(folder / "box.db")) as db:
        names = ", ".join(row[1] for row in db.execute("PRAGMA table_info(orders)") if not row[1].startswith("_cdc"))
        return [tuple(map(str, row)) for row in db.execute(f"SELECT {names} FROM orders ORDER BY id")]


def source(maria: Maria) -> list[tuple[Any, ...]]:
    return [tuple(map(str, row)) for row in maria.rows("SELECT * FROM orders ORDER BY id")]


def test_a_target_equals_its_source_through_every_operation_restarts_and_a_resync(maria: Maria, tmp_path: Path) -> None:
    maria.run("CREATE TABLE orders (id int PRIMARY KEY, total decimal(10,2), note varchar(20))")
    maria.run("INSERT INTO orders VALUES (1, 9.99, 'one'), (2, 0.01, NULL), (3, 3, 'three')")
    with opened(maria, tmp_path) as pipeline:
        assert [line.action for line in pipeline.plan()] == ["create"]
    assert run(maria, tmp_path) == source(maria)
    maria.run("BEGIN", "UPDATE orders SET total = total + 1", "UPDATE orders SET total = total * 2 WHERE id = 2")
    maria.run("INSERT INTO orders VALUES (4, 4, 'four'), (5, 5, 'five')", "DELETE FROM orders WHERE id = 3", "COMMIT")
    maria.run("UPDATE orders SET id = 40 WHERE id = 4", "ALTER TABLE orders ADD COLUMN extra int DEFAULT 7")
    maria.run("INSERT INTO orders VALUES (6, 6, 'six', 1)")
    assert run(maria, tmp_path) == source(maria)
    maria.run("TRUNCATE TABLE orders", "INSERT INTO orders VALUES (6, 7, 'anew', 2)")
    assert run(maria, tmp_path) == source(maria) == [("6", "7.00", "anew", "2")]
    with opened(maria, tmp_path) as pipeline:
        assert pipeline.measure().source["lag_bytes"] == 0
        assert pipeline.status()["checkpoint"]["at"].startswith("binlog.")  # type: ignore[index]
        maria.run("INSERT INTO orders VALUES (8, 8, 'eight', 8)")
        history = next(tmp_path.rglob("schema-history.jsonl"))
        history.unlink()
        report = pipeline.run(once=True, report=Silent())
        error = report.first_error()
        assert isinstance(error, Halt)
        assert error.code == "schema-history-lost"
    maria.run("DELETE FROM orders WHERE id = 6")
    assert run(maria, tmp_path, resync=Resync(every=True)) == source(maria)
    with opened(maria, tmp_path) as pipeline:
        assert pipeline.undeploy()[0] == "schema history"
        assert pipeline.undeploy() == []
