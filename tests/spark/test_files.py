"""A feed of files, from the directory into a table: order, repeats, bad input, and what the audit says of it."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tailrace.core.errors import Halt, ResyncRequired, Retryable
from tailrace.log.files import FileLog
from tests.feeds import COLUMNS, Feed


@pytest.fixture
def feed(tmp_path: Path, spark: SparkSession) -> Feed:
    return Feed(tmp_path, spark)


def counted(counts: dict[str, int]) -> tuple[int, ...]:
    return tuple(counts[name] for name in ("read", "applied", "superseded", "rejected"))


def test_a_file_becomes_rows_once_and_the_audit_says_so(feed: Feed) -> None:
    feed.put("a.csv", "1,ann,1,I", "2,bob,2,I", '3,"x, ""y""",3,I', "2,,4,D")
    assert counted(feed.run()) == (4, 4, 0, 0)
    assert feed.rows() == [(1, "ann"), (3, 'x, "y"')]
    assert feed.states() == {"a.csv": "committed"}
    assert feed.run() == {}
    os.utime(feed.path / "a.csv")
    assert feed.run() == {}


def test_an_older_file_that_comes_later_changes_nothing_newer(feed: Feed) -> None:
    feed.put("b.csv", "1,new,20,U", "2,gone,21,D", "3,three,5,I")
    feed.run()
    feed.put("c.csv", "1,old,10,U", "2,old,11,I", "3,,4,D", "4,four,12,I")
    assert counted(feed.run()) == (4, 1, 3, 0)
    assert feed.rows() == [(1, "new"), (3, "three"), (4, "four")]


def test_the_same_bytes_under_a_new_name_are_applied(feed: Feed) -> None:
    """T14: A, then B, then A again."""
    feed.cdc = {"keys": ["id"], "operation_column": "op"}
    feed.put("1.csv", "1,A,0,I")
    feed.run()
    feed.put("2.csv", "1,B,0,U")
    feed.run()
    shutil.copy(feed.path / "1.csv", feed.path / "3.csv")
    assert counted(feed.run()) == (1, 1, 0, 0)
    assert feed.rows() == [(1, "A")]


def test_without_a_sequence_the_order_is_that_of_names_and_rows_whenever_a_file_comes(feed: Feed) -> None:
    feed.cdc = {"keys": ["id"]}
    feed.put("2.csv", "1,late,0,", "1,latest,0,", "2,two,0,")
    feed.run()
    feed.put("1.csv", "1,early,0,", "3,three,0,")
    feed.put("sub/0.csv", "2,after,0,")
    assert counted(feed.run()) == (3, 2, 1, 0)
    assert feed.rows() == [(1, "latest"), (2, "after"), (3, "three")]


def test_equal_sequences_of_one_key_are_settled_by_the_row(feed: Feed) -> None:
    feed.put("a.csv", *(f"1,n{n},7,U" for n in range(50)))
    feed.run()
    assert feed.rows() == [(1, "n49")]


def test_a_file_that_was_taken_and_changed_halts_with_both_hashes_or_is_applied(feed: Feed) -> None:
    feed.put("a.csv", "1,ann,1,I")
    feed.run()
    feed.put("a.csv", "1,anna,2,U")
    with pytest.raises(Halt, match=r"[0-9a-f]{64} and has [0-9a-f]{64} now") as halted:
        feed.run()
    assert halted.value.code == "file-changed"
    assert feed.rows() == [(1, "ann")]
    feed.source["on_change"] = "apply"
    assert counted(feed.run()) == (1, 1, 0, 0)
    assert feed.rows() == [(1, "anna")]


def test_bad_rows_are_put_aside_with_file_row_and_column(feed: Feed) -> None:
    feed.source["max_reject_fraction"] = 0.9
    bad = [
        "x,not a number,1,I",
        "2,no such op,2,Z",
        ",no key,3,I",
        "4,no sequence,,I",
        "5,too few",
        "6,a,b,c,too many",
        "7,,7,",
    ]
    feed.put("a.csv", "1,ann,1,I", *bad, "8,ok,8,I")
    assert counted(feed.run()) == (9, 2, 0, 7)
    assert feed.rows() == [(1, "ann"), (8, "ok")]
    letters = [json.loads(path.read_text()) for path in sorted((feed.folder / "state/feed/rejects/box").glob("*.json"))]
    kinds = [letter["dlq.error_type"] for letter in letters]
    assert kinds == [
        "bad-value",
        "unknown-op",
        "missing-key",
        "missing-position",
        "malformed",
        "malformed",
        "unknown-op",
    ]
    assert letters[0]["dlq.error_message"].endswith('column "id" is not a bigint (file a.csv, row 2)')
    assert "not a number" in letters[0]["value"]
    assert feed.states() == {"a.csv": "committed"}


def test_a_file_that_is_mostly_bad_fails_whole_and_holds_no_other_back(feed: Feed) -> None:
    feed.put("a.csv", "1,ann,1,I", "x,bad,1,I")
    feed.put("b.csv", "2,bob,2,I")
    feed.put("c.csv", "3,cut", header="id,name")
    feed.put("d.csv.gz", gzip.compress(b"id,name,seq,op\n4,dan,4,I\n")[:-9])
    feed.put("e.csv.gz", gzip.compress(b"id,name,seq,op\n5,eve,5,I\n"))
    feed.put("f.csv", b"")
    feed.put("g.csv", b'id,name,seq,op\n7,"open,7,I\n')
    feed.put("h.csv", b'id,name,seq,op\n8,"two\nlines",8,I\n')
    assert counted(feed.run()) == (3, 3, 0, 0)
    assert feed.rows() == [(2, "bob"), (5, "eve"), (8, "two\nlines")]
    states = feed.states()
    assert [name for name, state in states.items() if state == "failed"] == [
        "a.csv",
        "c.csv",
        "d.csv.gz",
        "f.csv",
        "g.csv",
    ]
    assert len(feed.warnings) == 5


def test_a_failed_file_is_mended_and_asked_for_again_after_its_successors(feed: Feed) -> None:
    feed.put("1.csv", "1,old,1,I", "x,bad,1,I", "2,two,2,I")
    feed.put("2.csv", "1,new,5,U")
    feed.run()
    feed.put("1.csv", "1,old,1,I", "2,two,2,I")
    assert feed.run() == {}
    with feed.opened() as pipeline:
        assert [row["file"] for row in pipeline.files_requeue(None, failed=True, dry_run=True)] == ["1.csv"]
        assert [row["file"] for row in pipeline.files_requeue(None, failed=True, dry_run=False)] == ["1.csv"]
        assert pipeline.files_requeue(None, failed=True, dry_run=False) == []
    assert counted(feed.run()) == (2, 1, 1, 0)
    assert feed.rows() == [(1, "new"), (2, "two")]
    with feed.opened() as pipeline:
        told = pipeline.files_lineage("1.csv")
    assert [(row["state"], row["rows_now"], row["keys"]) for row in told] == [
        ("failed", 1, [["2"]]),
        ("committed", 1, [["2"]]),
    ]


def test_manifests_give_the_order_and_a_gap_halts_with_the_missing_number(feed: Feed) -> None:
    feed.source["order"] = "manifest"
    feed.cdc = {"keys": ["id"]}
    feed.put("z.csv", "1,first,0,")
    feed.put("a.csv", "1,second,0,")
    feed.put("unlisted.csv", "9,nine,0,")
    feed.manifest(3, "z.csv")
    feed.manifest(4, "a.csv")
    feed.run()
    assert feed.rows() == [(1, "second")]
    feed.put("b.csv", "1,third,0,")
    feed.manifest(6, "b.csv")
    with pytest.raises(Halt, match="manifest number 5 is missing") as halted:
        feed.run()
    assert halted.value.code == "sequence-gap"


def test_a_file_that_fails_halts_where_manifests_give_the_order_until_it_is_mended(feed: Feed) -> None:
    feed.source["order"] = "manifest"
    feed.put("a.csv", "x,bad,1,I")
    feed.put("b.csv", "2,bob,2,I")
    feed.manifest(1, "a.csv")
    feed.manifest(2, "b.csv")
    with pytest.raises(Halt, match=r'nothing of file "a\.csv" is applied: too-many-bad-rows: 1 of 1') as halted:
        feed.run()
    assert halted.value.code == "file-failed"
    assert feed.rows() == []
    feed.put("a.csv", "1,ann,1,I")
    with feed.opened() as pipeline:
        pipeline.files_requeue("a.csv", failed=False, dry_run=False)
    assert counted(feed.run()) == (2, 2, 0, 0)
    assert feed.rows() == [(1, "ann"), (2, "bob")]


def test_a_file_that_is_still_written_waits_unless_a_sidecar_says_that_it_is_whole(feed: Feed) -> None:
    feed.source["stable_seconds"] = 3600
    feed.put("a.csv", "1,ann,1,I")
    feed.put("b.csv", "2,bob,1,I")
    feed.put("c.csv", "3,cat,1,I")
    os.utime(feed.path / "c.csv", (1, 1))
    (feed.path / "b.csv.done").touch()
    feed.put("d.csv.tmp", b"half")
    feed.put(".hidden.csv", "4,x,1,I")
    (feed.path / "link.csv").symlink_to(feed.path / "a.csv")
    feed.run()
    assert feed.rows() == [(2, "bob"), (3, "cat")]


def test_columns_are_found_by_name_whatever_their_order(feed: Feed) -> None:
    feed.put("a.csv", "I,1,ann,1", header="op,seq,name,id")
    feed.put("b.csv", "2,bob,2,I,more", header="id,name,seq,op,new")
    feed.put("c.csv", "3,3,I", header="id,seq,op")
    feed.put("odd name [1]{a}%20#?ü.csv", "4,dan,4,I")
    feed.run()
    assert feed.rows() == [(1, "ann"), (2, "bob"), (3, None), (4, "dan")]


def test_json_lines_and_exact_types(feed: Feed) -> None:
    feed.source |= {
        "format": "ndjson",
        "columns": [*COLUMNS, {"name": "price", "type": "decimal(10,2)"}, {"name": "at", "type": "timestamp"}],
        "max_reject_fraction": 0.9,
    }
    good = {
        "id": 2**60 + 1,
        "name": "a\u2028b",
        "seq": 1,
        "op": "I",
        "price": 12345678.25,
        "at": "2024-02-29T12:00:00Z",
    }
    feed.put(
        "a.json",
        good,
        good | {"id": 2, "price": 1.239},
        good | {"id": 3, "at": "never"},
        good | {"id": "four"},
        [1],
        42,
    )
    feed.put("b.json", b'{"id": 5, "seq": 9, "op": "I", "name": {"deep": 1}}\n\n{"id": 6, "seq"\n')
    assert counted(feed.run()) == (8, 2, 0, 6)
    assert feed.rows("id, name, price, at") == [
        (5, '{"deep":1}', None, None),
        (2**60 + 1, "a\u2028b", "12345678.25", "2024-02-29 12:00:00.000000Z"),
    ]


def test_parquet_and_columns_that_are_learned(feed: Feed) -> None:
    feed.source |= {"format": "parquet", "columns": []}
    feed.sink["schema_evolution"] = "alter"
    feed.cdc = {"keys": ["id"], "operation_column": "op"}
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int32()), "op": ["I", "I"]}), feed.path / "1.parquet")
    feed.run()
    wider = {"id": pa.array([2, 3], pa.int64()), "op": ["D", "U"], "size": pa.array([1.5, 2.5])}
    pq.write_table(pa.table(wider), feed.path / "2.parquet")
    feed.put("3.parquet", b"PAR1 torn")
    feed.run()
    assert feed.rows("id, size") == [(1, None), (3, 2.5)]
    assert feed.states() == {"1.parquet": "committed", "2.parquet": "committed", "3.parquet": "failed"}


def test_a_slice_is_whole_files_and_a_run_goes_on_where_the_target_is(feed: Feed) -> None:
    for n in range(3):
        feed.put(f"{n}.csv", f"{n},n{n},{n},I", f"0,zero{n},{n},U")
    feed.platform["slice"] = {"max_rows": 4}
    assert feed.run(max_slices=1)["read"] == 2
    assert sorted(feed.states().values()) == ["committed", *["pending"] * 2]
    shutil.rmtree(feed.folder / "state/feed/progress")
    feed.run()
    assert feed.rows()[0] == (0, "zero2")
    assert len(feed.rows()) == 3


def test_a_file_that_is_gone_before_it_was_applied_halts(feed: Feed) -> None:
    feed.put("1.csv", "1,ann,1,I")
    feed.put("2.csv", "2,bob,2,I")
    feed.platform["slice"] = {"max_rows": 1}
    feed.run(max_slices=1)
    (feed.path / "1.csv").unlink()
    (feed.path / "2.csv").unlink()
    with pytest.raises(ResyncRequired, match=r'file "2\.csv" is gone'):
        feed.run()


def test_a_catalogue_that_is_lost_halts(feed: Feed) -> None:
    feed.put("1.csv", "1,ann,1,I")
    feed.run()
    shutil.rmtree(feed.folder / "state/feed/files")
    with pytest.raises(ResyncRequired, match="catalogue"):
        feed.run()


def test_a_claim_of_a_living_worker_is_refused_and_a_stale_owner_that_wakes_doubles_nothing(feed: Feed) -> None:
    """C35, C36: two workers hold the same slice; one commits it, and the other then changes nothing."""
    feed.sink["mode"] = "append"
    feed.put("0.csv", "0,zoe,0,I")
    feed.run()
    feed.put("1.csv", "1,ann,1,I", "2,bob,2,I")
    sleeper, taker = feed.worker(), feed.worker()
    assert isinstance(sleeper.log, FileLog)
    assert isinstance(taker.log, FileLog)
    head = sleeper.log.head()
    held = sleeper.next_slice(sleeper.at(), head)
    assert held is not None
    with pytest.raises(Retryable, match="another process is at work"):
        taker.next_slice(taker.at(), head)
    taker.log._stale = timedelta(0)
    taken = taker.next_slice(taker.at(), head)
    assert taken is not None
    assert [count.applied for count in taker.apply(taken)] == [2]
    assert [(count.applied, count.superseded) for count in sleeper.apply(held)] == [(0, 2)]
    for piece in (held, taken):
        piece.release()
    assert feed.rows("id, name") == [(0, "zoe"), (1, "ann"), (2, "bob")]


def test_into_delta_rows_and_the_place_in_the_feed_are_one_commit(feed: Feed, spark: SparkSession) -> None:
    feed.sink = {"sink_type": "delta", "delta": {"path": str(feed.folder / "lake")}}
    feed.put("1.csv", "1,A,1,I", "2,two,2,I")
    feed.put("2.csv", "1,B,3,U", "2,,4,D")
    assert counted(feed.run()) == (4, 4, 0, 0)
    shutil.rmtree(feed.folder / "state/feed/progress")
    feed.put("3.csv", "1,late,2,U", "2,late,1,U", "3,three,9,I")
    assert counted(feed.run()) == (7, 1, 6, 0)
    rows = spark.read.format("delta").load(str(feed.folder / "lake/people")).select("id", "name").orderBy("id")
    assert [tuple(row) for row in rows.collect()] == [(1, "B"), (3, "three")]
