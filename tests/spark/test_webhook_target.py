"""Changes go through a drain to a receiver that fails now and then, and each arrives, in the order of its row."""

from __future__ import annotations

import json
import random
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.apply.target import Batch, Mark
from tailrace.control.deliveries import Deliveries
from tailrace.core.change import Change, Op
from tailrace.core.errors import Retryable
from tailrace.core.table import Column, Table
from tailrace.spark.frame import frame
from tailrace.targets.webhook import Options, open_target
from tailrace.targets.webhook import target as webhook
from tailrace.targets.webhook.target import WebhookTarget
from tests.every_type import KINDS, VALUES
from tests.feeds import Feed
from tests.receiver import Got, Receiver, Reply, receiving
from tests.spark.drains import drained, logged
from tests.spark.histories import TABLE, packed

REFUSED = (7, 33)


def opened(receiver: Receiver, folder: Path) -> WebhookTarget:
    options = Options(url=receiver.address, allow_http=True, allow_private=True)
    notes = Deliveries(folder / "deliveries", "t")
    return open_target("t", options, pipeline_id="p", mode="append", notes=notes, stop=threading.Event())


def expected(change: Change, offset: int) -> dict[str, Any]:
    """Return the body that a change has, whose place in the log is `offset`."""
    key = dict(zip(TABLE.keys, change.key, strict=True)) if change.key else None
    image = {**dict.fromkeys(TABLE.names()), **(key or {}), **(change.after or {})}
    value = {
        "op": change.op.value,
        "before": image if change.op is Op.DELETE else None,
        "after": image if change.op not in (Op.DELETE, Op.TRUNCATE) else None,
        "source": {"table": TABLE.name, "position": change.position},
        "unchanged": sorted(change.unchanged),
    }
    return {"key": key, "value": value, "metadata": {"topic": f"cdc.{TABLE.name}", "partition": 0, "offset": offset}}


def test_every_change_arrives_in_the_order_of_its_row(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "_FIRST_WAIT", 0.001)
    seed = random.randrange(1 << 32)
    dice, lock = random.Random(seed), threading.Lock()
    changes = packed(seed, 30, 6)
    log = logged(changes, page_rows=20)
    taken: list[Got] = []
    healthy = threading.Event()

    def answer(got: Got) -> Reply:
        with lock:
            if got.offset in REFUSED:
                return Reply(422)
            if dice.random() < 0.1 or (got.offset > 100 and not healthy.is_set()):
                return Reply(dice.choice([429, 500, 503]))
            taken.append(got)
            return Reply()

    with receiving() as receiver:
        receiver.answer = answer
        with pytest.raises(Retryable):
            drained(spark, log, opened(receiver, tmp_path), tmp_path, 80, mode="append", limit=10)
        healthy.set()
        counts = drained(spark, log, opened(receiver, tmp_path), tmp_path, 80, mode="append", limit=10)
        every = receiver.got

    # What a receiver keeps that knows ids: each message when it first came.
    taken = list({got.id: got for got in reversed(taken)}.values())[::-1]
    bodies = {got.offset: json.loads(got.body) for got in taken}
    for body in bodies.values():
        del body["value"]["ts_ms"]
    assert bodies == {n: expected(c, n) for n, c in enumerate(changes) if n not in REFUSED}, f"seed {seed}"
    seen: dict[str, list[int]] = defaultdict(list)
    ends = [n for n, change in enumerate(changes) if change.op is Op.TRUNCATE]
    for got in taken:
        seen[json.dumps(got.json["key"])].append(got.offset)
    assert all(offsets == sorted(offsets) for offsets in seen.values()), f"seed {seed}"
    for end in ends:
        at = next(n for n, got in enumerate(taken) if got.offset == end)
        assert all((got.offset < end) == (n < at) for n, got in enumerate(taken) if n != at), f"seed {seed}"
    assert len({got.id for got in every}) == len(changes) == len({(got.id, got.offset) for got in every})
    assert sum(c.read for c in counts) == sum(c.applied + c.superseded + c.rejected for c in counts)
    letters = sorted((tmp_path / "rejects").rglob("*.json"))
    assert [json.loads(path.read_text())["dlq.source_offset"] for path in letters] == list(REFUSED)


def test_values_of_every_type_are_json_that_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = Table("public.all", tuple(Column(name, kind) for name, kind in KINDS.items()), ("id",))
    columns = ", ".join(f"{name} {kind}" for name, kind in KINDS.items())
    ours = "_cdc_op string, _cdc_position string, _cdc_changed_at timestamp, _cdc_topic string, _cdc_partition int, _cdc_offset bigint, _cdc_unchanged array<string>"
    given = [VALUES, {**dict.fromkeys(KINDS), "id": 2}]
    rows = [("c", "1", None, "t", 0, n, [], *(row[name] for name in KINDS)) for n, row in enumerate(given)]
    with receiving() as receiver:
        batch = Batch(table, frame(spark, rows, f"{ours}, {columns}"), Mark("log", 9))
        assert opened(receiver, tmp_path).apply(batch).inserted == 2
        found = {got.json["key"]["id"]: json.loads(got.body, parse_float=str) for got in receiver.got}
    assert found[1]["value"]["after"] == {
        **{name: VALUES[name] for name in ("id", "flag", "tiny", "small", "whole", "big", "text", "empty", "tags", "numbers", "pairs")},
        "single": "0.5", "real": "0.1", "nan": "NaN", "amount": "1234567890123456789012345678.0123456789",
        "cents": "-0.50", "bytes": "AP8=", "day": "0001-01-01", "moment": "2024-02-29T23:59:59.999999Z",
        "local": "1969-07-20T20:17:40.000001", "nested": {"a": 1, "b": ["1.50", None], "c": None},
    }  # fmt: skip
    assert found[2]["value"]["after"] == {**dict.fromkeys(KINDS), "id": 2}


def test_a_pipeline_of_files_sends_in_the_order_of_its_sequence_and_remembers(
    spark: SparkSession, tmp_path: Path
) -> None:
    with receiving() as receiver:
        options = {"url": receiver.address, "allow_http": True, "allow_private": True}
        feed = Feed(tmp_path, spark, sink={"sink_type": "webhook", "webhook": options})
        feed.put("1.csv", "1,third,3,U", "1,first,1,I", "2,other,2,I")
        counts = feed.run()
        feed.put("2.csv", "1,,4,D")
        again = feed.run()
        with feed.opened() as pipeline:
            assert [line.action for line in pipeline.plan()] == ["send"]
    assert (counts["read"], counts["applied"], counts["inserted"]) == (3, 3, 3)
    assert (again["read"], again["applied"]) == (1, 1)
    of_one = [got.json["value"] for got in receiver.got if got.json["key"] == {"id": 1}]
    assert [(value["op"], (value["after"] or value["before"])["name"]) for value in of_one] == [
        ("c", "first"),
        ("u", "third"),
        ("d", None),
    ]
    assert len(receiver.got) == 4
