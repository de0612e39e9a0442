"""The past of a table, from a pipeline: looked at, gone back to, tidied up; and always current again afterwards."""

from __future__ import annotations

import datetime
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.apply.target import Batch, Target
from tailrace.control.health import Health
from tailrace.control.lock import only_one
from tailrace.core import failpoint
from tailrace.core.errors import Halt, Misconfigured, NotReady, Retryable
from tailrace.runtime.lakehouse import Lakehouse, Moment
from tests.feeds import Feed

NOW = Moment()
SINKS = {
    "delta": lambda path: {"path": f"{path}/lake"},
    "iceberg": lambda path: {"catalog_uri": f"sqlite:///{path}/catalog.db", "warehouse": f"{path}/lake"},
}


class Lake:
    """A feed into one table of a lakehouse; every call is a process of its own."""

    def __init__(self, folder: Path, spark: SparkSession, kind: str, mode: str = "scd1", **more: str) -> None:
        self.maintenance = {"enabled": "true", "expire_snapshots_older_than_seconds": "0"}
        options = {**SINKS[kind](folder), "maintenance": self.maintenance, **more}
        self.feed = Feed(folder, spark, sink={"sink_type": kind, "mode": mode, kind: options})

    def at(self) -> Lakehouse:
        return self.feed.opened().lakehouse()

    def rows(self, moment: Moment = NOW) -> list[tuple[int, str]]:
        return sorted((row["id"], row["name"]) for row in self.at().query(None, None, moment, None, 100))  # type: ignore[misc]

    def told(self, moment: Moment = NOW) -> list[dict[str, Any]]:
        """Return all that the rows say, but when they were read."""
        rows = self.at().query(None, None, moment, None, 100)
        told = [{name: value for name, value in row.items() if name != "_cdc_ingested_at"} for row in rows]
        return sorted(told, key=repr)

    def target(self) -> Target:
        pipeline = self.feed.opened()
        return pipeline._drains.open_target(pipeline._config.sinks[0], ("people",))

    def mark(self) -> tuple[Any, Any]:
        """Return the mark of the table, and what the pipeline says of it."""
        pipeline = self.feed.opened()
        mark, told = self.target().mark("people"), pipeline.status()["targets"][0]["upto"]  # type: ignore[index]
        return mark and mark.offset, told

    def maintained(self) -> dict[str, int]:
        """Run with nothing to apply, when it is time to expire; return what came of it."""
        self.maintenance["expire_snapshots_interval_seconds"] = "0.001"
        health = Health("feed", "run", "files", {"box": "lake"})
        assert self.feed.opened().run(once=True, report=health).first_error() is None
        self.maintenance["expire_snapshots_interval_seconds"] = "3600"
        return health.view().targets["box"].maintenance

    def snapshots(self) -> list[dict[str, Any]]:
        return self.at().snapshots(None, None, 50)


def test_a_query_shows_values_exactly_and_knows_a_table_by_the_name_that_its_target_gives_it(
    tmp_path: Path, spark: SparkSession
) -> None:
    lake = Lake(tmp_path, spark, "iceberg", table_name="everybody")
    lake.feed.put("a.csv", "1,ann,1,I")
    lake.feed.run()
    moment = "2024-02-29 23:59:59.123456"
    asked = (
        f"SELECT CAST('12345678901234567890.0123456789' AS decimal(38,10)) AS d, array(CAST(0.10 AS decimal(4,2))) AS l, "
        f"CAST('{moment}' AS timestamp_ntz) AS t, CAST('{moment}Z' AS timestamp) AS z, id, CAST(NULL AS int) AS n FROM everybody"
    )
    (found,) = lake.at().query(None, None, NOW, asked, 9)
    assert found == {
        "d": Decimal("12345678901234567890.0123456789"),
        "l": [Decimal("0.10")],
        "t": "2024-02-29T23:59:59.123456",
        "z": "2024-02-29T23:59:59.123456Z",
        "id": 1,
        "n": None,
    }


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_goes_back_and_is_made_current_again(
    kind: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path, spark, kind)
    lake.feed.put("a.csv", "1,ann,1,I", "2,bob,2,I", "3,cid,3,I", "5,eve,4,I", "5,,5,D")
    lake.feed.run()
    lake.feed.put("b.csv", "3,,10,D", "1,anne,11,U", "2,bo,12,U", "4,dan,13,I")
    lake.feed.run()
    past, whole = [(1, "ann"), (2, "bob"), (3, "cid")], [(1, "anne"), (2, "bo"), (4, "dan")]
    now, was = [row for row in lake.snapshots() if row["upto"] is not None]
    assert (now["current"], was["current"], now["upto"] > was["upto"]) == (True, False, True)
    back = Moment(int(was["snapshot_id"]))

    # Looking back, and nothing but looking.
    found = lake.at().query(None, "people", back, "SELECT count(*) AS n, max(name) AS m FROM people", 9)
    assert found == [{"n": 3, "m": "cid"}]
    for wrong in ("DROP TABLE people", "DELETE FROM people"):
        with pytest.raises(Misconfigured) as refused:
            lake.at().query(None, None, NOW, wrong, 9)
        assert refused.value.code == "wrong-query"

    # Going back, broken off in the middle: the mark is the table's, whatever else was not done.
    with only_one(tmp_path / "state" / "feed"), pytest.raises(NotReady):
        lake.at().rollback(None, None, back)
    monkeypatch.setattr(failpoint, "_armed", {})
    failpoint.arm({"TAILRACE_TEST_MODE": "1", "TAILRACE_FAILPOINTS": "C48=raise"})
    with pytest.raises(Retryable):
        lake.at().rollback(None, None, back)
    monkeypatch.setattr(failpoint, "_armed", {})
    assert (lake.rows(), lake.mark()) == (past, (was["upto"], now["upto"]))
    at_once = Moment(None, datetime.datetime.now(datetime.UTC))
    assert lake.at().query(None, "people", at_once, "SELECT max(name) AS m FROM people", 9) == [{"m": "cid"}]
    if kind == "iceberg":
        assert lake.at().rollback(None, "people", back)["upto"] == was["upto"]
        assert lake.mark() == (was["upto"], was["upto"])
    # What is late for a delete before that place, or for one after it, is still late.
    lake.feed.put("c.csv", "3,zombie,9,U", "5,zombie,4,U")
    counts = lake.feed.run()
    assert (counts["read"], counts["superseded"], counts["rejected"]) == (6, 1, 0)
    assert lake.rows() == whole

    # Tidying up changes no row and loses no mark.
    head = lake.mark()[0]
    done = lake.at().compact(None, None, 2)
    assert done[0]["files_removed"] > done[0]["files_added"] > 0  # type: ignore[operator]
    assert lake.maintained() == {"snapshots_expired": 1}
    lake.feed.put("d.csv", "3,zombie,9,U", "6,fay,20,I")
    lake.feed.run()
    assert (lake.rows(), lake.mark()[0] > head) == ([*whole, (6, "fay")], True)

    # Where nothing leads to any more is refused, and nothing is changed.
    before = next(row for row in lake.snapshots() if row["upto"] == head)
    for moment, codes in (
        (back, ("unknown-snapshot", "snapshot-gone")),
        (Moment(int(before["snapshot_id"])), ("log-gap",)),
    ):
        with pytest.raises(Halt) as kept:
            lake.at().rollback(None, None, moment)
        assert kept.value.code in codes
        (lake.feed.path / "d.csv").unlink(missing_ok=True)
    assert lake.rows() == [*whole, (6, "fay")]


@pytest.mark.parametrize(("kind", "mode"), [("delta", "scd2"), ("iceberg", "append")])
def test_histories_and_events_go_back_and_are_made_whole_again(
    kind: str, mode: str, tmp_path: Path, spark: SparkSession
) -> None:
    lake = Lake(tmp_path, spark, kind, mode)
    lake.feed.put("a.csv", "1,ann,1,I", "2,bob,2,I", "3,cid,3,I", "3,,4,D")
    lake.feed.run()
    lake.feed.put("b.csv", "1,anne,11,U", "2,,12,D", "4,dan,13,I", "3,late,2,U")
    lake.feed.run()
    _, was = [row for row in lake.snapshots() if row["upto"] is not None]
    back = Moment(int(was["snapshot_id"]))
    past, whole = lake.told(back), lake.told()
    assert past != whole
    assert lake.at().rollback(None, None, back)["upto"] == was["upto"]
    assert (lake.told(), lake.mark()) == (past, (was["upto"], was["upto"]))
    lake.feed.run()
    assert lake.told() == whole
    if mode == "append":
        refuses_to_go_back_behind_a_replay(lake, back)


def refuses_to_go_back_behind_a_replay(lake: Lake, back: Moment) -> None:
    target = lake.target()
    mark, shape = target.mark("people"), target.have("people")
    assert mark
    assert shape
    # What a replay commits: events from beside the log, and the mark with one replay more.
    again = replace(mark, replays=mark.replays + 1)
    replayed = target.apply(Batch(shape, target.current("people").limit(1), again, replay=True)).inserted
    before = lake.told()
    with pytest.raises(Halt) as refused:
        lake.at().rollback(None, None, back)
    assert (replayed, refused.value.code, "replayed" in str(refused.value)) == (1, "log-gap", True)
    assert lake.told() == before
