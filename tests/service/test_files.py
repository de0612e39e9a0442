"""What may happen to a feed of files, on three kinds of targets at once; after each, the audit agrees with the marks.

Most of it happens to one feed, one thing after the other, and each test looks at its own files of it.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tailrace.core.errors import Halt, NotReady, Retryable, TailraceError
from tailrace.demo.postgres import EmbeddedPostgres
from tailrace.log import files as file_log
from tailrace.log.files import FileLog
from tests import claiming
from tests.claiming import in_postgres
from tests.fanned import TARGETS, Fan, Killed, Rows, killed

_numbers = itertools.count(1)
HEADER = b"id,name,seq,op\n"


@contextmanager
def a_fan(spark: SparkSession, postgres: EmbeddedPostgres, folder: Path, **more: Any) -> Iterator[Fan]:
    name = f"fan{next(_numbers)}"
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
        yield Fan(folder, spark, server=postgres, database=name, **more)
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def fan(spark: SparkSession, postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[Callable[..., Fan]]:
    with ExitStack() as stack:
        yield lambda **more: stack.enter_context(a_fan(spark, postgres, tmp_path, **more))


def counted(counts: dict[str, Any]) -> tuple[int, ...]:
    return tuple(counts[name] for name in ("read", "applied", "superseded", "rejected"))


# -- the story


@dataclass
class Told:
    """What was seen at each step of the story."""

    errors: dict[str, TailraceError] = field(default_factory=dict)
    counts: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: dict[str, Rows] = field(default_factory=dict)
    audit: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    letters: list[dict[str, Any]] = field(default_factory=list)
    lineage: list[dict[str, Any]] = field(default_factory=list)
    states: dict[str, set[str]] = field(default_factory=dict)
    commits: dict[str, int] = field(default_factory=dict)
    """How many commits the table in the lake had."""

    def of(self, step: str, *keys: int) -> Rows:
        return [row for row in self.rows[step] if row[0] in keys]


@pytest.fixture(scope="module")
def told(spark: SparkSession, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    with a_fan(spark, postgres, tmp_path_factory.mktemp("story")) as feed:
        yield tell(feed)


def tell(feed: Fan) -> Told:
    told = Told()

    def fails(step: str) -> None:
        with pytest.raises(TailraceError) as failed:
            feed.run()
        told.errors[step] = failed.value
        if step != "missing":
            told.rows[step] = feed.rows()
            told.commits[step] = feed.commits()
            told.states[step] = {row["state"] for row in raw(feed)}
        if step in ("grown", "changed"):
            told.audit[step] = feed.audited(settled=False)

    def runs(step: str) -> None:
        told.counts[step] = feed.run()
        told.rows[step] = feed.rows(in_lake=True)
        told.commits[step] = feed.commits()
        told.audit[step] = feed.audited()

    fails("missing")
    feed.path.mkdir()
    put_first(feed)
    with killed("tailrace.runtime.fold.Fold.table"):
        fails("killed before the rows")
    with killed("tailrace.control.progress.Progress.save"):
        fails("killed after the rows")
    runs("first")
    feed.put("a2.csv", "101,B,0,U")
    feed.put("b2.csv", "111,old,10,U", "112,old,11,I", "113,,4,D", "114,four,12,I")
    runs("second")
    shutil.copy(feed.path / "a1.csv", feed.path / "a3.csv")
    feed.put("c1.csv", "121,old,1,I", "122,two,2,I")
    with feed.opened() as pipeline:
        assert [row["file"] for row in pipeline.files_requeue("c1.csv", failed=False, dry_run=False)] == ["c1.csv"]
    g1 = feed.put("g1.csv", "161,whole,1,I")
    whole = g1.read_bytes()
    with growing(g1):
        fails("grown")
    g1.write_bytes(whole)
    runs("third")
    told.lineage = lineage(feed, "c1.csv")
    feed.put("a1.csv", "101,other,9,U")
    fails("changed")
    rejects = sorted((feed.folder / "state/feed/rejects/lake").glob("*.json"))
    told.letters = [json.loads(path.read_text()) for path in rejects]
    return told


def put_first(feed: Fan) -> None:
    feed.put("a1.csv", "101,A,0,I")
    feed.put("b1.csv", "111,new,20,U", "112,x,21,I", "112,,22,D", "113,three,5,I")
    feed.put("c1.csv", "121,old,1,I", "x,bad,1,I", "122,two,2,I")
    feed.put("c2.csv", "121,new,5,U")
    feed.put("d1.csv.gz", gzip.compress(HEADER + b"131,cut,1,I\n")[:-9])
    feed.put("d2.csv.gz", gzip.compress(HEADER + b"132,gzip,1,I\n"))
    feed.put("d3.csv.zst", pa.compress(HEADER + b'133,"zstd\nand more",1,I\n134,zstd,1,I\n', "zstd", asbytes=True))
    feed.put("d4.csv.zst", pa.compress(HEADER + b"135,cut,1,I\n", "zstd", asbytes=True)[:-3])
    feed.put("e1.csv", b'\xef\xbb\xbfid,name,seq,op\r\n141,"a ""b"", c\nd",1,I\r\n142,plain,1,I\r\n')
    feed.put("e2.csv", *(f"{n},many,1,I" for n in range(200, 220)), "151,few", "152,a,b,c,d")
    feed.put("e3.csv", b'id,name,seq,op\n153,"open,1,I\n')
    feed.put("e4.csv", "154,short", header="id,name")
    feed.put("f1.csv")
    feed.put("f2.csv", b"")


def raw(feed: Fan) -> list[dict[str, Any]]:
    with feed.opened() as pipeline:
        files: Any = pipeline.files_status(every=True)["files"]
    return list(files)


def lineage(feed: Fan, name: str) -> list[dict[str, Any]]:
    with feed.opened() as pipeline:
        return pipeline.files_lineage(name)


def hashes(error: TailraceError) -> list[str]:
    return re.findall(r"\b[0-9a-f]{64}\b", str(error))


@contextmanager
def growing(path: Path) -> Iterator[None]:
    """Have a file grow once Spark has read it."""
    before = file_log._stretches

    def grow(kept: Any) -> Any:
        found = before(kept)
        with path.open("ab") as file:
            file.write(b"162,more,1,I\n")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_log, "_stretches", grow)
        yield


def test_a_directory_that_is_not_there_yet_is_told_and_read_once_it_is(told: Told) -> None:
    assert isinstance(told.errors["missing"], NotReady)
    assert told.errors["missing"].code == "feed-missing"
    assert told.of("first", 101) == [(101, "A")]


def test_a_crash_between_claim_and_apply_leaves_nothing_and_is_made_up_for(told: Told) -> None:
    assert isinstance(told.errors["killed before the rows"], Killed)
    assert (told.rows["killed before the rows"], told.commits["killed before the rows"]) == ([], 0)
    assert "processing" in told.states["killed before the rows"]
    assert "committed" not in told.states["killed before the rows"]
    assert told.of("killed after the rows", 101) == [(101, "A")]


def test_a_crash_between_the_rows_and_the_audit_is_settled_from_the_marker(told: Told) -> None:
    assert isinstance(told.errors["killed after the rows"], Killed)
    assert "committed" not in told.states["killed after the rows"]
    assert told.counts["first"] == {}
    assert told.rows["first"] == told.rows["killed after the rows"]
    assert told.commits["first"] == told.commits["killed after the rows"]
    first = told.audit["first"]["b1.csv"]
    assert (first["state"], first["rows"], first["applied"]) == ("committed", 4, 4)


def test_a_then_b_then_a_again_is_a(told: Told) -> None:
    assert [told.of(step, 101) for step in ("first", "second", "third")] == [[(101, n)] for n in "ABA"]
    assert [told.audit["third"][f"a{n}.csv"]["applied"] for n in (1, 2, 3)] == [1, 1, 1]


def test_an_older_change_and_an_older_delete_in_a_later_file_change_nothing_newer(told: Told) -> None:
    assert told.of("second", 111, 112, 113, 114) == [(111, "new"), (113, "three"), (114, "four")]
    second = told.audit["second"]["b2.csv"]
    assert [second[name] for name in ("rows", "applied", "superseded", "rejected")] == [4, 1, 3, 0]
    assert counted(told.counts["second"]) == (5, 2, 3, 0)


def test_a_failed_file_fixed_and_requeued_after_its_successors_keeps_its_place(told: Told) -> None:
    assert told.audit["second"]["c1.csv"]["error"].startswith("too-many-bad-rows: 1 of 3")
    assert told.of("second", 121, 122) == [(121, "new")]
    assert told.of("third", 121, 122) == [(121, "new"), (122, "two")]
    third = told.audit["third"]["c1.csv"]
    assert [third[name] for name in ("state", "applied", "superseded")] == ["committed", 1, 1]
    newest = [row for row in told.lineage if row["state"] == "committed"]
    assert [(row["target"], row["rows_now"], row["keys"]) for row in newest] == [(t, 1, [["122"]]) for t in TARGETS]


def test_a_file_that_grows_while_it_is_read_is_applied_in_no_part_and_halts_with_both_hashes(told: Told) -> None:
    assert told.errors["grown"].code == "file-changed"
    before, now = hashes(told.errors["grown"])
    assert before == hashlib.sha256(HEADER + b"161,whole,1,I\n").hexdigest() != now
    assert told.audit["grown"]["g1.csv"]["state"] == "pending"
    assert told.rows["grown"] == told.rows["second"]
    assert told.commits["grown"] == told.commits["second"]
    assert told.of("third", 161, 162) == [(161, "whole")]


def test_a_name_that_was_taken_with_other_content_halts_with_both_hashes(told: Told) -> None:
    assert isinstance(told.errors["changed"], Halt)
    assert told.errors["changed"].code == "file-changed"
    contents = (HEADER + b"101,A,0,I\n", HEADER + b"101,other,9,U\n")
    assert hashes(told.errors["changed"]) == [hashlib.sha256(content).hexdigest() for content in contents]
    assert told.audit["changed"] == told.audit["third"]
    assert told.rows["changed"] == told.rows["third"]
    assert told.commits["changed"] == told.commits["third"]


def test_what_is_packed_and_cut_off_fails_whole_and_holds_no_other_back(told: Told) -> None:
    found = told.audit["first"]
    for name in ("d1.csv.gz", "d4.csv.zst"):
        assert (found[name]["state"], found[name]["error"]) == ("failed", "malformed: the packed file ends too early")
    expected = [(132, "gzip"), (133, "zstd\nand more"), (134, "zstd")]
    assert told.of("first", 131, 132, 133, 134, 135) == expected


def test_a_csv_with_a_byte_order_mark_quotes_and_line_breaks_is_read(told: Told) -> None:
    assert told.of("first", 141, 142) == [(141, 'a "b", c\nd'), (142, "plain")]


def test_csv_rows_with_other_columns_than_the_header_are_rejected_by_file_and_row(told: Told) -> None:
    assert len(told.of("first", *range(200, 220))) == 20
    assert told.of("first", 151, 152) == []
    found = told.audit["first"]["e2.csv"]
    assert [found[name] for name in ("rows", "applied", "superseded", "rejected")] == [22, 20, 0, 2]
    messages = [letter["dlq.error_message"] for letter in told.letters]
    assert [text[-22:] for text in messages] == ["(file e2.csv, row 21)".rjust(22), "(file e2.csv, row 22)".rjust(22)]


def test_a_csv_without_a_column_that_it_must_have_or_with_an_open_quote_fails(told: Told) -> None:
    found = told.audit["first"]
    assert [found[name]["state"] for name in ("e3.csv", "e4.csv")] == ["failed", "failed"]
    assert found["e3.csv"]["error"] == "malformed: a quoted value does not end"
    assert found["e4.csv"]["error"] == 'missing-column: the file has no column "seq"'
    assert told.of("first", 153, 154) == []


def test_a_file_without_rows_is_committed_and_one_without_a_byte_fails(told: Told) -> None:
    found = told.audit["first"]
    assert [found["f1.csv"][name] for name in ("state", "rows", "applied")] == ["committed", 0, 0]
    assert found["f2.csv"]["state"] == "failed"
    assert "empty" in found["f2.csv"]["error"]


# -- feeds of their own


def test_a_gap_in_the_sequence_halts_with_the_missing_number_before_anything_is_applied(
    fan: Callable[..., Fan],
) -> None:
    feed = fan(source={"order": "manifest"}, cdc={"keys": ["id"]})
    feed.path.mkdir()
    for name, row in (("z.csv", "1,first,0,"), ("a.csv", "1,second,0,"), ("unlisted.csv", "9,nine,0,")):
        feed.put(name, row)
    feed.manifest(3, "z.csv")
    feed.manifest(4, "a.csv")
    feed.manifest(5, "z.csv")
    feed.run()
    assert feed.rows(in_lake=True) == [(1, "first")]
    assert feed.audited()["z.csv"]["applied"] == 1
    for n in (3, 4, 5):
        (feed.path / f"{n:04d}.manifest.json").unlink()
    feed.put("b.csv", "1,seventh,0,")
    feed.manifest(7, "b.csv")
    with pytest.raises(Halt, match="manifest number 6 is missing") as halted:
        feed.run()
    assert halted.value.code == "sequence-gap"
    assert feed.rows() == [(1, "first")]
    assert set(feed.audited()) == {"a.csv", "z.csv"}


def test_a_json_line_that_is_broken_in_the_middle_is_rejected_alone(fan: Callable[..., Fan]) -> None:
    feed = fan(source={"format": "ndjson"})
    feed.path.mkdir()
    good = [{"id": n, "name": f"n{n}", "seq": 1, "op": "I"} for n in range(20)]
    lines = [json.dumps(row).encode() + b"\n" for row in good]
    feed.put("a.json", *lines[:10], b'{"id": 99, "name": "cut\n', *lines[10:])
    feed.put("b.json", b"")
    assert counted(feed.run()) == (21, 20, 0, 1)
    assert feed.rows(in_lake=True) == [(row["id"], row["name"]) for row in good]
    found = feed.audited()
    assert found["a.json"]["rejected"] == 1
    # A file without a line says that nothing changed.
    assert [found["b.json"][name] for name in ("state", "rows", "applied")] == ["committed", 0, 0]
    letters = [json.loads(path.read_text()) for path in (feed.folder / "state/feed/rejects/store").glob("*.json")]
    assert [(one["dlq.error_type"], one["dlq.error_message"][-21:]) for one in letters] == [
        ("malformed", " (file a.json, row 11)"[-21:])
    ]


def test_parquet_files_with_other_schemas_are_widened_or_fail_alone(fan: Callable[..., Fan]) -> None:
    feed = fan(
        source={"format": "parquet", "columns": []},
        cdc={"keys": ["id"], "operation_column": "op"},
        evolution="alter",
        columns="id, size",
    )
    feed.path.mkdir()
    tables = {
        "1": {"id": pa.array([1, 2], pa.int32()), "op": ["I", "I"]},
        "2": {"id": pa.array([2, 3], pa.int64()), "op": ["D", "U"], "size": pa.array([1.5, 2.5])},
        "3": {"id": ["four", "five"], "op": ["I", "I"]},
        "4": {"size": pa.array([1.0]), "op": ["I"]},
    }
    for name, table in tables.items():
        pq.write_table(pa.table(table), feed.path / f"{name}.parquet")
    feed.put("5.parquet", b"PAR1 torn")
    feed.put("6.parquet", b"")
    pq.write_table(pa.table(tables["2"]).slice(0, 0), feed.path / "7.parquet")
    assert counted(feed.run()) == (4, 4, 0, 0)
    assert feed.rows(in_lake=True) == [(1, None), (3, 2.5)]
    found = feed.audited()
    assert [found[f"{n}.parquet"]["state"] for n in range(1, 7)] == ["committed", "committed", *["failed"] * 4]
    assert [found["7.parquet"][name] for name in ("state", "rows", "applied")] == ["committed", 0, 0]
    assert 'column "id" is not a bigint' in found["3.parquet"]["error"]
    assert 'key column "id" is null' in found["4.parquet"]["error"]
    assert "not a Parquet file" in found["5.parquet"]["error"]


# -- several workers


@dataclass
class Race:
    """What became of two workers that had one slice of one target."""

    refused: str
    taken: int
    woke: str
    rows: Rows
    audit: dict[str, Any]


@pytest.fixture(scope="module")
def race(spark: SparkSession, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Race]:
    folder = tmp_path_factory.mktemp("race")
    with a_fan(spark, postgres, folder, mode="append", columns="_cdc_offset, id, name") as feed:
        feed.path.mkdir()
        feed.put("0.csv", "0,zoe,0,I")
        feed.run()
        feed.put("1.csv", "1,ann,1,I", "2,bob,2,I")
        seen = [run_race(feed, target) for target in TARGETS]
        assert {(one.refused, one.taken) for one in seen} == {("file-claimed", 2)}
        yield Race("file-claimed", 2, ", ".join(one.woke for one in seen), feed.rows(in_lake=True), feed.audited())


def run_race(feed: Fan, name: str) -> Race:
    """Let one worker sleep right before its commit until another one has taken its claim and committed."""
    sleeper, taker = feed.worker(name), feed.worker(name)
    assert isinstance(taker.log, FileLog)
    head = taker.log.head()
    held = sleeper.next_slice(sleeper.at(), head)
    assert held is not None
    with pytest.raises(Retryable) as refused:
        taker.next_slice(taker.at(), head)
    taker.log._stale = timedelta(0)
    commit, taken = sleeper.fold.target.apply, []

    def woken(batch: Any) -> Any:
        piece = taker.next_slice(taker.at(), head)
        assert piece is not None
        taken.extend(taker.apply(piece))
        piece.release()
        return commit(batch)

    sleeper.fold.target.apply = woken  # type: ignore[method-assign]
    try:
        woke = f"applied {sum(one.inserted for one in sleeper.apply(held))}"
    except TailraceError as error:
        woke = error.code
    held.release()
    with feed.opened() as pipeline:
        # As the next run does first: the states follow the mark.
        life = pipeline._checkpoints.life()
        assert life is not None
        with feed.target(name) as target:
            pipeline._inlet.begin(life, target, lambda: -1)
    return Race(refused.value.code, sum(one.applied for one in taken), woke, [], {})


def test_of_two_processes_that_claim_the_same_files_in_postgres_one_gets_them(postgres: EmbeddedPostgres) -> None:
    opened = functools.partial(in_postgres, postgres.dsn())
    assert claiming.race(opened, [0, 1, 2]) == [1] * claiming.ROUNDS


def test_of_two_workers_on_one_feed_one_is_refused_what_the_other_has_claimed(race: Race) -> None:
    assert (race.refused, race.taken) == ("file-claimed", 2)


def test_a_stale_claim_is_taken_over_and_its_owner_that_wakes_right_before_its_commit_commits_nothing(
    race: Race,
) -> None:
    assert [row[1:] for row in race.rows] == [(0, "zoe"), (1, "ann"), (2, "bob")]
    assert [race.audit[name]["applied"] for name in ("0.csv", "1.csv")] == [1, 2]
    assert "applied 2" not in race.woke
