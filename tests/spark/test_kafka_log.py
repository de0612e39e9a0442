"""The log of topics: what a slice is, what halts, what is put aside. Kafka is in memory here; tests/service has a real one."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tailrace.control.deliveries import Deliveries
from tailrace.core.errors import Halt, ResyncRequired, Retryable
from tailrace.core.offsets import Offsets, covers
from tailrace.envelopes import debezium_json
from tailrace.envelopes.custom import Custom
from tailrace.envelopes.maxwell import Maxwell
from tailrace.log._broker import Partition
from tailrace.log._kafka_slice import KafkaSlice
from tailrace.log._memory_cluster import MemoryCluster
from tailrace.log._routing import Routing
from tailrace.runtime.fold import Fold
from tailrace.runtime.report import Silent
from tailrace.runtime.rules import Choice, Rules
from tailrace.spark.frame import frame
from tailrace.targets import webhook
from tailrace.targets.memory import MemoryTarget
from tests.receiver import receiving
from tests.topics_in_memory import Pipeline, total

TOPIC, TABLE = "cdc.public.orders", "public.orders"


def event(key: int, op: str, lsn: int, table: str = "orders", **row: Any) -> tuple[bytes, bytes]:
    """Return key and value of a Debezium message without schema block."""
    after = None if op in "dt" else {"id": key, **row}
    before = {"id": key} if op == "d" else None
    source = {
        "connector": "postgresql",
        "schema": "public",
        "table": table,
        "lsn": lsn,
        "ts_ms": 1,
        "snapshot": "false",
    }
    body = {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1}
    return json.dumps({"id": key}).encode(), json.dumps(body).encode()


@pytest.fixture
def cluster() -> MemoryCluster:
    made = MemoryCluster()
    made.create(TOPIC, 2)
    return made


@pytest.fixture
def pipeline(cluster: MemoryCluster, spark: SparkSession, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, tmp_path, cluster, [TOPIC], [TABLE])


def fill(cluster: MemoryCluster, keys: range, lsn: int = 1000, **row: Any) -> None:
    for key in keys:
        cluster.put(TOPIC, key % 2, *event(key, "c", lsn + key, **row))


def test_an_empty_log_has_no_slice(pipeline: Pipeline) -> None:
    assert pipeline.log.head() == -1
    assert pipeline.log.slice(-1, 10) is None


def test_slices_chain_share_out_and_end_at_the_head(pipeline: Pipeline, cluster: MemoryCluster) -> None:
    fill(cluster, range(20))
    cluster.put(TOPIC, 0, *event(99, "c", 5))
    log, at, sizes = pipeline.log, -1, []
    while (piece := log.slice(at, 6)) is not None:
        assert piece.after == at
        assert covers(piece.upto, at)
        sizes.append(piece.rows_of(TABLE))
        assert sizes[-1] <= 6
        at = piece.upto
        piece.release()
    assert at == log.head() == Offsets({f"{TOPIC}:0": 10, f"{TOPIC}:1": 9})
    assert sum(sizes) == 21


def test_a_slice_goes_no_further_than_it_was_told(pipeline: Pipeline, cluster: MemoryCluster) -> None:
    fill(cluster, range(4))
    head = pipeline.log.head()
    fill(cluster, range(4, 10))
    piece = pipeline.log.slice(-1, 100, head)
    assert piece is not None
    assert piece.upto == head
    assert pipeline.log.slice(piece.upto, 100, head) is None


def test_reading_a_slice_twice_gives_the_same_rows(
    pipeline: Pipeline, cluster: MemoryCluster, spark: SparkSession
) -> None:
    fill(cluster, range(6))
    piece = pipeline.log.slice(-1, 100)
    assert isinstance(piece, KafkaSlice)
    once, again = (piece.rows(spark.newSession(), TABLE).orderBy("partition", "offset").collect() for _ in range(2))
    assert once == again
    assert len(once) == 6
    plan = piece.rows(spark.newSession(), TABLE)._jdf.queryExecution().executedPlan().toString()
    assert "Scan ExistingRDD" in plan, "the messages are read from Kafka again"
    assert "from_json" not in plan, "the messages are looked into again"
    places = [(TOPIC, 1, 1), (TOPIC, 0, 2)]
    found = {(row["topic"], row["partition"], row["offset"]) for row in piece.messages(spark, places)}
    assert found >= set(places)


NO_ROWS = ['{"type":"struct"}', '{"fields":[]}', "[]", '{"fields":[{"field":"after","fields":[{"type":7}]}]}']


def test_a_block_that_describes_no_row_is_put_aside_and_stops_nobody(
    pipeline: Pipeline, cluster: MemoryCluster
) -> None:
    fill(cluster, range(2))
    for n, block in enumerate(NO_ROWS):
        key, value = event(7 + n, "c", 3000 + n)
        cluster.put(TOPIC, n % 2, key, b'{"schema":' + block.encode() + b',"payload":' + value + b"}")
    counts = pipeline.drain()
    assert (total(counts, "applied"), total(counts, "rejected")) == (2, len(NO_ROWS))
    assert {letter["dlq.error_type"] for letter in pipeline.rejects.letters("box")} == {"bad-schema"}
    assert [row["id"] for row in pipeline.rows(TABLE)] == [0, 1]


def test_truncates_of_two_schemas_in_one_slice_are_both_read(pipeline: Pipeline, cluster: MemoryCluster) -> None:
    fill(cluster, range(4), lsn=10)
    for n in (1, 2):
        key, value = event(0, "t", 50 + n)
        block = b'{"type":"struct","version":%d}' % n
        cluster.put(TOPIC, 0, key, b'{"schema":' + block + b',"payload":' + value + b"}")
    cluster.put(TOPIC, 0, *event(9, "c", 60))
    counts = pipeline.drain()
    assert (total(counts, "read"), total(counts, "applied")) == (7, 7)
    assert [row["id"] for row in pipeline.rows(TABLE)] == [9]


def test_a_truncate_alone_is_sent_on_by_who_keeps_no_table(pipeline: Pipeline, cluster: MemoryCluster) -> None:
    cluster.put(TOPIC, 0, *event(0, "t", 50))
    with receiving() as receiver:
        options = webhook.Options(url=receiver.address, allow_http=True, allow_private=True)
        notes = Deliveries(pipeline.folder / "deliveries", "box")
        sent = webhook.open_target("box", options, pipeline_id="p", mode="append", notes=notes, stop=Event())
        rules = Rules("append", pipeline.evolution, 100_000)
        fold = Fold(lambda: pipeline.spark, pipeline.log, sent, rules, pipeline.rejects, Silent())
        piece = pipeline.log.slice(-1, 10)
        assert piece is not None
        assert fold.table(piece, TABLE, Choice(TABLE)).applied == 1
        assert [got.json["value"]["op"] for got in receiver.got] == ["t"]


def test_partitions_added_later_are_read_from_their_beginning(pipeline: Pipeline, cluster: MemoryCluster) -> None:
    fill(cluster, range(4))
    pipeline.drain()
    cluster.grow(TOPIC, 4)
    cluster.put(TOPIC, 3, *event(50, "c", 2000))
    pipeline.drain()
    assert [row["id"] for row in pipeline.rows(TABLE)] == [0, 1, 2, 3, 50]


def test_a_topic_made_anew_halts(pipeline: Pipeline, cluster: MemoryCluster) -> None:
    fill(cluster, range(4))
    pipeline.drain()
    cluster.create(TOPIC, 2)
    fill(cluster, range(9))
    with pytest.raises(ResyncRequired, match="made anew"):
        pipeline.drain()


def test_another_cluster_halts(pipeline: Pipeline, cluster: MemoryCluster) -> None:
    fill(cluster, range(4))
    pipeline.drain()
    cluster.id = "another"
    with pytest.raises(ResyncRequired, match="cluster"):
        pipeline.drain()


def test_expired_offsets_halt_and_what_was_read_may_expire(pipeline: Pipeline, cluster: MemoryCluster) -> None:
    fill(cluster, range(4))
    pipeline.drain()
    cluster.expire(TOPIC, 0, 2)
    fill(cluster, range(4, 10))
    pipeline.drain(2)
    cluster.expire(TOPIC, 0, 5)
    for file in (pipeline.folder / "progress").iterdir():
        file.unlink()
    fill(cluster, range(10, 20))
    mark = pipeline.target.mark(TABLE)
    assert mark is not None
    pipeline.log.require(mark.offset)
    cluster.expire(TOPIC, 0, 8)
    with pytest.raises(ResyncRequired, match="begins at offset 8"):
        pipeline.log.require(mark.offset)


def test_a_topic_that_was_not_read_for_a_while_is_read_on_from_where_it_was(
    pipeline: Pipeline, cluster: MemoryCluster
) -> None:
    cluster.create("cdc.public.lines", 1)
    for key in range(4):
        cluster.put("cdc.public.lines", 0, *event(key, "c", 10 + key, table="lines"))
    fill(cluster, range(2))
    pipeline.topics, pipeline.tables = [TOPIC, "cdc.public.lines"], [TABLE, "public.lines"]
    assert total(pipeline.drain(), "applied") == 6
    pipeline.topics = [TOPIC]
    fill(cluster, range(2, 4))
    assert total(pipeline.drain(), "read") == 2
    pipeline.topics = [TOPIC, "cdc.public.lines"]
    assert total(pipeline.drain(), "read") == 0
    pipeline.topics = [TOPIC]
    fill(cluster, range(4, 6))
    pipeline.drain()
    cluster.put("cdc.public.lines", 0, *event(9, "c", 20, table="lines"))
    cluster.put("cdc.public.lines", 0, *event(10, "c", 21, table="lines"))
    cluster.expire("cdc.public.lines", 0, 5)
    pipeline.topics = [TOPIC, "cdc.public.lines"]
    with pytest.raises(ResyncRequired, match="begins at offset 5, and 4 is needed"):
        pipeline.drain()


def test_a_table_that_is_dropped_is_never_built_from_half_of_its_log(
    pipeline: Pipeline, cluster: MemoryCluster
) -> None:
    fill(cluster, range(4))
    running = pipeline.steps(2)
    next(running)
    kept = dict(pipeline.state.tables)
    pipeline.state.tables.clear()
    with pytest.raises(Halt, match="while the target ran"):
        next(running)
    pipeline.state.tables.update(kept)
    pipeline.drain()
    pipeline.state.tables.clear()
    cluster.expire(TOPIC, 0, 2)
    with pytest.raises(ResyncRequired, match="begins at offset 2"):
        pipeline.drain()
    assert pipeline.state.tables == {}


def test_a_log_that_is_shorter_than_it_was_halts(pipeline: Pipeline, cluster: MemoryCluster) -> None:
    fill(cluster, range(4))
    with pytest.raises(ResyncRequired, match="ends before"):
        pipeline.log.slice(Offsets({f"{TOPIC}:0": 7}), 10)


def test_poison_is_put_aside_and_counted_while_good_rows_are_applied(
    pipeline: Pipeline, cluster: MemoryCluster
) -> None:
    fill(cluster, range(4), name="x")
    key, good = event(9, "c", 9000, name="y")
    poison: dict[str, bytes] = {
        "malformed": b"{not json",
        "not utf-8": b'{"op":"c\xff"}',
        "avro": b"\x00\x00\x00\x00\x01\x02",
        "unknown-op": good.replace(b'"op": "c"', b'"op": "z"'),
        "unknown-table": event(1, "c", 1, table="strangers")[1],
        "missing-image": good.replace(b'"after": {"id": 9, "name": "y"}', b'"after": null'),
        "missing-position": good.replace(b'"lsn": 9000, ', b""),
        "too-large": good.replace(b'"y"', b'"' + b"y" * 10_000_000 + b'"'),
        "delete of nothing": good.replace(b'"op": "c"', b'"op": "d"'),
        "missing-key": good.replace(b'"op": "c"', b'"op": "d"').replace(b'"id": 9', b'"id": null'),
        "absurd": good.replace(b'"ts_ms": 1,', b'"ts_ms": 9223372036854775807,').replace(b'"lsn": 9000, ', b""),
        "number": b"42",
        "list": b"[]",
        "long op": good.replace(b'"op": "c"', b'"op": "' + b"z" * 5000 + b'"'),
        "long table": event(1, "c", 1, table="t" * 5000)[1],
    }
    for value in poison.values():
        cluster.put(TOPIC, 0, None, value)
    cluster.put(TOPIC, 1, key, None)
    cluster.put(TOPIC, 1, key, good)
    counts = pipeline.drain()
    assert (total(counts, "rejected"), total(counts, "filtered"), total(counts, "applied")) == (len(poison), 1, 5)
    assert total(counts, "read") == pipeline.log.head() + 1
    assert [count.table for count in counts] == [TABLE]
    assert [row["id"] for row in pipeline.rows(TABLE)] == [0, 1, 2, 3, 9]
    letters = [json.loads(path.read_text()) for path in (pipeline.folder / "rejects" / "box").glob("*.json")]
    kinds = {letter["dlq.error_type"] for letter in letters}
    known = {
        "malformed",
        "unknown-op",
        "unknown-table",
        "missing-image",
        "missing-position",
        "too-large",
        "missing-key",
    }
    assert kinds == known
    assert len(letters) == len(poison)
    assert max(len(letter["dlq.error_message"]) for letter in letters) < 150


class Faulty(MemoryCluster):
    """A cluster that can be told to fail as Spark does when a broker is gone."""

    down = False

    def read(self, spark: SparkSession, ranges: Mapping[Partition, tuple[int, int]]) -> DataFrame:
        if self.down:
            raise PySparkException("org.apache.kafka.common.errors.TimeoutException: no broker answers")
        return super().read(spark, ranges)


def test_a_broker_that_is_gone_while_messages_are_put_aside_is_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    cluster = Faulty()
    cluster.create(TOPIC, 1)
    cluster.put(TOPIC, 0, None, b"{not json")
    piece = Pipeline(spark, tmp_path, cluster, [TOPIC], [TABLE]).log.slice(-1, 10)
    assert isinstance(piece, KafkaSlice)
    cluster.down = True
    with pytest.raises(Retryable) as found:
        list(piece.messages(spark, [(TOPIC, 0, 0)]))
    assert found.value.code == "kafka-unreachable"


def test_what_is_beyond_the_limit_is_not_passed_though_the_rest_was_purged(
    pipeline: Pipeline, cluster: MemoryCluster
) -> None:
    pipeline.limit = 5
    for _ in range(8):
        cluster.put(TOPIC, 0, None, b"{not json")
    for _ in range(2):
        with pytest.raises(Halt) as found:
            pipeline.drain()
        assert found.value.code == "too-many-rejects"
        pipeline.rejects.forget("box", None)
    assert pipeline.progress.load("box", "log") == -1


def test_a_type_never_flips(pipeline: Pipeline, cluster: MemoryCluster) -> None:
    fill(cluster, range(2), price=1.5, note=None, big=2**60, tags=["a"], deep={"a": [1]})
    pipeline.drain()
    fill(cluster, range(2, 4), price=2, note="n", big=1, tags=[], deep={"a": [1], "b": 2})
    pipeline.drain()
    have = pipeline.target.have(TABLE)
    assert have is not None
    kinds = {column.name: column.type for column in have.columns}
    assert kinds == {
        "id": "bigint", "price": "double", "big": "bigint", "tags": "array<string>", "deep": "string", "note": "string",
    }  # fmt: skip
    assert [(row["price"], row["note"]) for row in pipeline.rows(TABLE)] == [
        (1.5, None),
        (1.5, None),
        (2.0, "n"),
        (2.0, "n"),
    ]
    assert json.loads(pipeline.rows(TABLE)[3]["deep"]) == {"a": [1], "b": 2}
    fill(cluster, range(4, 6), big="text")
    fill(cluster, range(6, 8), big=1.5)
    fill(cluster, range(8, 9), big=7)
    counts = pipeline.drain()
    assert (total(counts, "applied"), total(counts, "rejected")) == (1, 4)
    reasons = {letter["dlq.error_message"] for letter in pipeline.rejects.letters("box")}
    assert reasons == {'bad-value: column "big" is not a bigint'}
    assert pipeline.rows(TABLE)[-1]["big"] == 7


def test_a_truncate_before_any_row_is_nothing_to_learn_from(pipeline: Pipeline, cluster: MemoryCluster) -> None:
    cluster.put(TOPIC, 0, None, event(0, "t", 5)[1])
    assert total(pipeline.drain(), "applied") == 1
    fill(cluster, range(2), name="x")
    for _ in range(2):
        # From before the truncate, read after it: with the rows that make the table, and once it is there.
        cluster.put(TOPIC, 1, *event(9, "c", 4, name="gone since"))
        pipeline.drain()
    assert [row["id"] for row in pipeline.rows(TABLE)] == [0, 1]
    cluster.put(TOPIC, 0, None, event(0, "t", 5000)[1])
    cluster.put(TOPIC, 0, *event(7, "c", 5001, name="y"))
    pipeline.drain()
    assert pipeline.rows(TABLE) == [{"id": 7, "name": "y"}]


def test_a_truncate_before_any_row_ends_what_lay_below_it_in_a_history(
    cluster: MemoryCluster, spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = Pipeline(spark, tmp_path, cluster, [TOPIC], [TABLE], mode="scd2")
    cluster.put(TOPIC, 0, None, event(0, "t", 5)[1])
    pipeline.drain()
    cluster.put(TOPIC, 0, *event(1, "c", 10, name="new"))
    pipeline.drain()
    cluster.put(TOPIC, 1, *event(9, "c", 4, name="gone since"))
    pipeline.drain()
    assert [row["id"] for row in pipeline.rows(TABLE) if row["__END_AT"] is None] == [1]


def test_a_truncate_before_any_row_outlives_an_attempt_that_only_made_the_table(
    pipeline: Pipeline, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.put(TOPIC, 0, None, event(0, "t", 5)[1])
    pipeline.drain()
    cluster.put(TOPIC, 1, *event(9, "c", 4, name="gone since"))
    cluster.put(TOPIC, 1, *event(1, "c", 10, name="new"))

    def breaks(*_: object) -> None:
        raise Retryable("no-answer", "the target went away", "Wait.")

    with monkeypatch.context() as broken:
        broken.setattr(MemoryTarget, "apply", breaks)
        with pytest.raises(Retryable):
            pipeline.drain()
    pipeline.drain()
    assert [row["id"] for row in pipeline.rows(TABLE)] == [1]


def test_many_tables_in_one_topic(cluster: MemoryCluster, spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline(spark, tmp_path, cluster, [TOPIC], ["public.orders", "public.items"])
    fill(cluster, range(3), name="order")
    for key in range(2):
        cluster.put(TOPIC, 0, *event(key, "c", 10 + key, table="items", size=key))
    pipeline.drain()
    assert len(pipeline.rows("public.orders")) == 3
    assert [row["size"] for row in pipeline.rows("public.items")] == [0, 1]


@pytest.mark.parametrize("seed", range(3))
def test_redelivery_over_partitions_converges(
    seed: int, cluster: MemoryCluster, spark: SparkSession, tmp_path: Path
) -> None:
    dice = random.Random(seed)
    expected: dict[int, str] = {}
    sent: list[tuple[int, tuple[bytes, bytes]]] = []
    for lsn in range(1, 60):
        key = dice.randrange(6)
        if dice.random() < 0.3:
            expected.pop(key, None)
            made = event(key, "d", lsn)
        else:
            expected[key] = f"v{lsn}"
            made = event(key, "u", lsn, name=expected[key])
        sent.append((key % 2, made))
        cluster.put(TOPIC, key % 2, *made)
        if dice.random() < 0.15:
            # A connector that starts again sends a suffix again, in its order.
            for partition, message in sent[-dice.randrange(1, 12) :]:
                cluster.put(TOPIC, partition, *message)
    pipeline = Pipeline(spark, tmp_path, cluster, [TOPIC], [TABLE])
    for max_rows in (dice.randrange(5, 20), 1000):
        counts = pipeline.drain(max_rows)
    assert counts == []
    assert {row["id"]: row["name"] for row in pipeline.rows(TABLE)} == expected


@pytest.mark.parametrize("max_rows", [1, 1000])
def test_a_row_that_was_written_before_the_delete_that_it_waited_for_stays(
    max_rows: int, pipeline: Pipeline, cluster: MemoryCluster
) -> None:
    key, value = event(1, "c", 20, name="new")
    cluster.put(TOPIC, 1, *event(1, "c", 10, name="old"))
    cluster.put(TOPIC, 1, *event(1, "d", 30))
    cluster.put(TOPIC, 1, key, value.replace(b'"lsn": 20', rb'"lsn": 20, "sequence": "[\"40\",\"20\"]"'))
    pipeline.drain(max_rows)
    assert [row["name"] for row in pipeline.rows(TABLE)] == ["new"]


@pytest.mark.parametrize("max_rows", [1, 1000])
def test_rows_of_an_incremental_snapshot_win_over_what_they_show_and_not_over_what_was_open(
    max_rows: int, pipeline: Pipeline, cluster: MemoryCluster
) -> None:
    def put(key: int, op: str, lsn: int, last: int, name: str, snapshot: str = "false") -> None:
        sent, value = event(key, op, lsn, name=name)
        sequence = rf'"lsn": {lsn}, "sequence": "[\"{last}\",\"{lsn}\"]"'.encode()
        value = value.replace(f'"lsn": {lsn}'.encode(), sequence)
        cluster.put(TOPIC, 0, sent, value.replace(b'"snapshot": "false"', f'"snapshot": "{snapshot}"'.encode()))

    put(1, "u", 20, 15, "shown with what was missed since")
    put(1, "r", 38, 30, "mended", "incremental")
    put(2, "r", 38, 30, "as it was", "incremental")
    put(2, "u", 10, 30, "written before, committed after")
    put(3, "r", 38, 30, "as it was", "incremental")
    put(3, "u", 35, 30, "written beside, committed after")
    pipeline.drain(max_rows)
    assert sorted((row["id"], row["name"]) for row in pipeline.rows(TABLE)) == [
        (1, "mended"), (2, "written before, committed after"), (3, "written beside, committed after")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("snapshot", "sequence", "place"),
    [
        ("false", '["40","20"]', f"2.{39:016x}.{20:016x}"),
        ("false", '["15","20"]', f"2.{20:016x}"),
        ("false", '[null,"20"]', f"2.{20:016x}"),
        ("false", None, f"2.{20:016x}"),
        ("false", "nothing known", f"2.{20:016x}"),
        ("incremental", '["15","20"]', f"2.{14:016x}"),
        ("incremental", None, f"2.{19:016x}"),
        ("last", '["40","20"]', f"1.{39:016x}.{20:016x}"),
    ],
)
def test_a_place_in_postgres_follows_the_commits(
    snapshot: str, sequence: str | None, place: str, spark: SparkSession
) -> None:
    columns = "connector string, snapshot string, lsn bigint, sequence string, file string, pos bigint"
    rows = frame(spark, [("postgresql", snapshot, 20, sequence, None, None, 7)], f"{columns}, offset bigint")
    rows = rows.selectExpr("named_struct('source', struct(*)) AS m", "offset")
    assert rows.select(debezium_json.position(1)).collect()[0][0] == f"0001.{place}"


def test_maxwell(cluster: MemoryCluster, spark: SparkSession, tmp_path: Path) -> None:
    def put(kind: str, data: dict[str, Any] | None, **more: Any) -> None:
        key = json.dumps({"database": "shop", "table": "items", "pk.id": (data or {}).get("id")}).encode()
        body = {"database": "shop", "table": "items", "type": kind, "ts": 1700000000, "data": data, **more}
        cluster.put(TOPIC, 0, key, json.dumps(body).encode())

    put("bootstrap-start", None)
    put("bootstrap-insert", {"id": 1, "name": "a"})
    put("bootstrap-insert", {"id": 2, "name": "b"})
    put("bootstrap-complete", None)
    put("insert", {"id": 3, "name": "c"}, xid=7, xoffset=0)
    put("update", {"id": 3, "name": "d"}, xid=7, commit=True, old={"name": "c"})
    put("delete", {"id": 1, "name": "a"}, xid=8, commit=True)
    put("update", {"id": 3, "name": "stale"}, xid=6, commit=True)
    put("update", {"id": 3, "name": "nowhere"}, ts=None)
    put("insert", {"id": 4, "name": "e"}, xid=9, commit=True)
    put("update", {"id": 5, "name": "e"}, xid=10, commit=True, old={"id": 4})
    put("table-alter", {"id": 3})
    # What Maxwell sends unless told otherwise: no place in a transaction but for its last row.
    put("insert", {"id": 6, "name": "a"}, xid=11)
    put("update", {"id": 6, "name": "b"}, xid=11, old={"name": "a"})
    put("update", {"id": 6, "name": "c"}, xid=11, commit=True, old={"name": "b"})
    put("update", {"id": 6, "name": "b"}, xid=11, old={"name": "a"})
    # Not even transactions.
    put("insert", {"id": 7, "name": "a"}, ts=1700000001)
    put("update", {"id": 7, "name": "late"}, ts=1700000000, old={"name": "a"})
    put("update", {"id": 7, "name": "b"}, ts=1700000001, old={"name": "a"})
    pipeline = Pipeline(spark, tmp_path, cluster, [TOPIC], ["shop.items"], Maxwell())
    counts = pipeline.drain()
    assert {row["id"]: row["name"] for row in pipeline.rows("shop.items")} == {2: "b", 3: "d", 5: "e", 6: "c", 7: "b"}
    assert (total(counts, "filtered"), total(counts, "rejected")) == (3, 1)


def test_maxwell_goes_by_the_place_in_the_binlog_where_it_is_sent(
    cluster: MemoryCluster, spark: SparkSession, tmp_path: Path
) -> None:
    for name, place in (("a", "master.000009:400"), ("c", "master.000010:90"), ("b", "master.000010:80")):
        body = {
            "database": "shop",
            "table": "items",
            "type": "update",
            "ts": 1,
            "position": place,
            "data": {"id": 1, "name": name},
        }
        cluster.put(TOPIC, 0, b'{"pk.id":1}', json.dumps(body).encode())
    pipeline = Pipeline(spark, tmp_path, cluster, [TOPIC], ["shop.items"], Maxwell())
    pipeline.drain()
    assert pipeline.rows("shop.items") == [{"id": 1, "name": "c"}]


def test_a_custom_message(cluster: MemoryCluster, spark: SparkSession, tmp_path: Path) -> None:
    words = {"INSERT": "c", "UPDATE": "u", "DELETE": "d"}
    envelope = Custom("action", "new_state", "new_state.id", "old_state", "meta.changed_at", words)

    def put(action: str, old: Any, new: Any, at: Any) -> None:
        body = {"action": action, "old_state": old, "new_state": new, "meta": {"changed_at": at}}
        cluster.put(TOPIC, 0, None, json.dumps(body).encode())

    put("INSERT", None, {"id": 1, "name": "a"}, 1700000000000)
    put("INSERT", None, {"id": 2, "name": "b"}, 1700000000000)
    put("UPDATE", {"id": 1}, {"id": 1, "name": "late"}, 1699999999999)
    put("UPDATE", {"id": 1}, {"id": 1, "name": "same time, later in the log"}, 1700000000000)
    put("DELETE", {"id": 2, "name": "b"}, None, "2023-11-14T22:13:21Z")
    put("UPDATE", {"id": 1}, {"id": 1, "name": "a part of it later"}, 1700000000000.5)
    put("UPDATE", {"id": 1}, {"id": 1, "name": "before that"}, "2023-11-14T22:13:20.000250Z")
    put("INSERT", None, {"id": 4, "name": "c"}, 1700000000003)
    put("UPDATE", {"id": 4}, {"id": 5, "name": "moved"}, 1700000000004)
    # A number that grows, past where a time would turn from seconds into milliseconds.
    put("INSERT", None, {"id": 6, "name": "below"}, 99_999_999_999)
    put("UPDATE", {"id": 6}, {"id": 6, "name": "above"}, 100_000_000_001)
    # A float would not tell these two apart.
    put("INSERT", None, {"id": 8, "name": "later"}, "1700000000.123456789")
    put("UPDATE", {"id": 8}, {"id": 8, "name": "earlier"}, "1700000000.123456788")
    put("INSERT", None, {"id": 7, "name": "later"}, -1.25)
    put("UPDATE", {"id": 7}, {"id": 7, "name": "earlier"}, -1.5)
    put("DELETE", None, None, 1700000005000)
    put("REPLACE", None, {"id": 3}, 1700000005000)
    put("INSERT", None, {"id": 3}, 10**19)
    pipeline = Pipeline(spark, tmp_path, cluster, [TOPIC], [TOPIC], envelope)
    counts = pipeline.drain()
    assert pipeline.rows(TOPIC) == [
        {"id": 1, "name": "a part of it later"},
        {"id": 5, "name": "moved"},
        {"id": 6, "name": "above"},
        {"id": 7, "name": "later"},
        {"id": 8, "name": "later"},
    ]
    assert total(counts, "rejected") == 3


def test_the_group_is_shown_where_the_slowest_target_is(pipeline: Pipeline, cluster: MemoryCluster) -> None:
    pipeline.log.commit("group", Offsets({f"{TOPIC}:0": 4, f"{TOPIC}:1": -1, "other:0": 9}))
    assert cluster.committed["group"] == {(TOPIC, 0): 5, (TOPIC, 1): 0}


def test_messages_are_routed_and_filtered_and_all_of_them_counted(
    cluster: MemoryCluster, spark: SparkSession, tmp_path: Path
) -> None:
    cluster.create("eu", 1)
    cluster.put("eu", 0, *event(1, "c", 10, name="routed"))
    cluster.put("eu", 0, *event(2, "c", 11, table="lines", name="routed too"))
    cluster.put(TOPIC, 0, *event(3, "c", 12, name="stays"))
    cluster.put(TOPIC, 0, *event(3, "d", 13))
    cluster.put(TOPIC, 0, *event(4, "c", 14, table="lines", name="of another table"))
    routing = Routing({"eu": "eu.orders"}, ("r", "c", "u"), leave_others=True)
    pipeline = Pipeline(spark, tmp_path, cluster, [TOPIC, "eu"], [TABLE, "eu.orders"], routing=routing)
    counts = pipeline.drain()
    assert {name: total(counts, name) for name in ("read", "applied", "filtered", "rejected")} == {
        "read": 5, "applied": 3, "filtered": 2, "rejected": 0,
    }  # fmt: skip
    assert {count.table: count.filtered for count in counts} == {TABLE: 2, "eu.orders": 0}
    assert [row["name"] for row in pipeline.rows("eu.orders")] == ["routed", "routed too"]
    assert [row["name"] for row in pipeline.rows(TABLE)] == ["stays"]
