"""A key that the sink names, in the log that we write: the engine knows another one, or none, and splits no update."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tailrace.control.progress import Progress
from tailrace.control.rejects import Rejects
from tailrace.core.checkpoint import Tailing
from tailrace.core.page import Page
from tailrace.core.table import Column, Evolution, Table
from tailrace.envelopes import rows as landed_rows
from tailrace.log.landed import LandedLog
from tailrace.runtime.drain import Drain, Pace
from tailrace.runtime.fold import Counts, Fold
from tailrace.runtime.report import Silent
from tailrace.runtime.rules import Choice, Rules
from tailrace.targets.memory import MemoryTarget

TABLE = Table("public.t", (Column("id", "int"), Column("code", "string")), ())
TOPIC = f"cdc.{TABLE.name}"


def page(lsn: int, *changes: tuple[str, Any, Any], place: dict[str, int] | None = None) -> Page[pa.Table]:
    rows = []
    for n, (op, before, after) in enumerate(changes):
        value = {"op": op, "before": before, "after": after, "source": {"lsn": lsn + n, "ts_ms": 1, **(place or {})}}
        rows.append(
            {
                "topic": TOPIC,
                "value": json.dumps(value, separators=(",", ":")).encode(),
                "headers": [{"key": landed_rows.SCHEMA_HEADER, "value": TABLE.fingerprint().encode()}],
            }
        )
    schema = pa.schema([field for field in landed_rows.ARROW if field.name not in ("partition", "offset")])
    since = None if lsn == 1 else Tailing("here", str(lsn))
    arrow = pa.Table.from_pylist(rows, schema=schema)
    return Page(arrow, since, Tailing("here", str(lsn + len(rows))), {TABLE.fingerprint(): TABLE})


def applied(
    spark: SparkSession, log: LandedLog, target: MemoryTarget, folder: Path, keys: tuple[str, ...], max_rows: int
) -> list[Counts]:
    rejects = Rejects(folder / "rejects", enabled=False, limit=0)
    fold = Fold(lambda: spark, log, target, Rules("scd1", Evolution.ALTER, 1 << 20), rejects, Silent())
    tables = {TOPIC: Choice(TABLE.name, keys)}
    work = Drain("t", log, fold, tables, Progress(folder / "progress"), Pace(max_rows, 0.1), Silent())
    counts: list[Counts] = []
    at = work.at()
    while (piece := work.next_slice(at)) is not None:
        counts += work.apply(piece)
        at = piece.upto
    return counts


@pytest.mark.parametrize("max_rows", [1, 100])
def test_an_update_of_the_key_that_the_sink_names_leaves_no_row_behind(
    spark: SparkSession, tmp_path: Path, max_rows: int
) -> None:
    log = LandedLog(tmp_path / "log", "log", 1)
    log.recover(None)
    log.append(page(1, ("c", None, {"id": 1, "code": "a"}), ("c", None, {"id": 2, "code": "b"})))
    log.append(page(3, ("u", {"id": 1, "code": "a"}, {"id": 1, "code": "c"})))
    log.append(page(4, ("u", {"id": 2, "code": "b"}, {"id": 3, "code": "b"})))
    target = MemoryTarget("t", spark_session=spark, pipeline_id="p")
    counts = applied(spark, log, target, tmp_path, ("code",), max_rows)
    assert sorted(map(str, target.rows(TABLE.name))) == sorted(
        map(str, [{"id": 1, "code": "c"}, {"id": 3, "code": "b"}])
    )
    # The one that moved is two changes.
    assert (sum(one.read for one in counts), sum(one.applied for one in counts)) == (5, 5)


@pytest.mark.parametrize("max_rows", [1, 100])
def test_a_row_that_was_written_before_the_delete_that_it_waited_for_stays(
    spark: SparkSession, tmp_path: Path, max_rows: int
) -> None:
    log = LandedLog(tmp_path / "log", "log", 1)
    log.recover(None)
    old, new = {"id": 1, "code": "old"}, {"id": 1, "code": "new"}
    log.append(page(1, ("c", None, old)))
    log.append(page(2, ("d", old, None), place={"lsn": 30}))
    log.append(page(3, ("c", None, new), place={"lsn": 20, "behind": 39}))
    target = MemoryTarget("t", spark_session=spark, pipeline_id="p")
    applied(spark, log, target, tmp_path, ("id",), max_rows)
    assert target.rows(TABLE.name) == [new]
