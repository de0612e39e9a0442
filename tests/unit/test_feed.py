"""A feed without Spark: what is data, when it is whole, what its bytes say, and what the audit keeps."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from datetime import timedelta
from pathlib import Path

import pytest

from tailrace.config.load import pipeline_from
from tailrace.config.yaml_text import read_yaml
from tailrace.control.audit import Audit
from tailrace.core.errors import Halt, Misconfigured, Retryable
from tailrace.core.feed import Examined, Outcome, Seen, manifest_order, modified_order, name_order
from tailrace.log._examine import examine
from tailrace.log._listing import Directory

NOW = timedelta(seconds=60)


def entered(audit: Audit, *names: str, rows: int = 10) -> list[int]:
    return [e.number for e in audit.enter((Seen(n, 1, 1, name_order(n)), Examined(n * 2, rows), -1) for n in names)]


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    return Audit(tmp_path / "files.db")


# -- order


def test_orders_sort_as_text_and_none_begins_another() -> None:
    names = ["a", "a.csv", "a/b", "b", "ü", "a\x01"]
    assert sorted(names, key=name_order) == sorted(names, key=lambda n: n.encode())
    assert name_order("a", 1) > name_order("a", 0)
    assert name_order("ab") > name_order("a", 9)
    assert modified_order(2, "a") > modified_order(1, "z")
    assert manifest_order(10, 0) > manifest_order(9, 12)


# -- the directory


def test_only_data_is_listed_and_no_link_is_followed(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "a.tmp", ".a.csv", "_a.csv", "a.csv.done", "a.txt", "sub/c.csv", ".git/d.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "link.csv").symlink_to(tmp_path / "a.csv")
    (tmp_path / "out").symlink_to(tmp_path.parent)
    assert [seen.name for seen in Directory(tmp_path, "*.csv").ready()] == ["a.csv", "b.csv", "sub/c.csv"]
    assert [seen.name for seen in Directory(tmp_path, "sub/*").ready()] == ["sub/c.csv"]


def test_the_order_of_times_is_that_of_times(tmp_path: Path) -> None:
    for n, name in enumerate(("c", "a", "b")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, ns=(n, n))
    assert [seen.name for seen in Directory(tmp_path, order="modified").ready()] == ["c", "a", "b"]


def test_a_file_from_the_future_is_not_taken_for_whole_at_once(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.utime(tmp_path / "a", (4e9, 4e9))
    assert Directory(tmp_path, stable_seconds=3600).ready() == []
    assert len(Directory(tmp_path, stable_seconds=0).ready()) == 1


def manifest(folder: Path, name: str, sequence: object, *names: str) -> None:
    text = json.dumps({"sequence": sequence, "files": [{"name": n} for n in names]})
    (folder / f"{name}.manifest.json").write_text(text)


def test_manifests_that_cannot_be_followed_are_refused(tmp_path: Path) -> None:
    feed = Directory(tmp_path, order="manifest")
    manifest(tmp_path, "x", 1, "../secret")
    with pytest.raises(Halt, match="no file of the feed"):
        feed.ready()
    manifest(tmp_path, "x", 1, "missing.csv")
    with pytest.raises(Retryable, match="not there"):
        feed.ready()
    (tmp_path / "x.manifest.json").write_text('{"sequ')
    with pytest.raises(Retryable, match="not a manifest"):
        feed.ready()
    manifest(tmp_path, "x", 1)
    manifest(tmp_path, "y", 1)
    with pytest.raises(Halt, match="both have number 1"):
        feed.ready()
    manifest(tmp_path, "y", 4)
    with pytest.raises(Halt, match="number 2 is missing"):
        feed.ready()


# -- the bytes


def look(path: Path, content: bytes, kind: str = "csv", most: int = 1000) -> Examined:
    path.write_bytes(content)
    found = examine(path, kind, "utf-8", most)
    assert found.sha256 == hashlib.sha256(content).hexdigest()
    return found


def test_a_header_is_read_with_mark_quotes_and_spaces(tmp_path: Path) -> None:
    found = look(tmp_path / "a.csv", b'\xef\xbb\xbfid, "na""me" ,x\r\n1,2,3\r\n')
    assert json.loads(found.header)[0] == "id"
    assert found.rows == 2
    assert not found.whole


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"id,ID\n", "twice"),
        (b'id,name\n1,"open\n', "does not end"),
        (b"id\n" + b"x" * 2000 + b"\n", "too-large"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(content: bytes, reason: str, tmp_path: Path) -> None:
    assert reason in look(tmp_path / "a.csv", content).problem


def test_a_value_over_two_lines_keeps_a_file_whole(tmp_path: Path) -> None:
    assert look(tmp_path / "a.csv", b'id,name\n1,"a\nb"\n').whole
    assert not look(tmp_path / "b.csv", b'id,name\n1,"a"\n2,"b ""c"""\n').whole


def test_packed_files_are_looked_into(tmp_path: Path) -> None:
    packed = gzip.compress(b"id\n1\n") + gzip.compress(b"2\n")
    assert (look(tmp_path / "a.csv.gz", packed).problem, look(tmp_path / "a.csv.gz", packed).rows) == ("", 3)
    for cut in range(1, len(packed)):
        if cut != len(gzip.compress(b"id\n1\n")):
            assert "malformed" in look(tmp_path / "a.csv.gz", packed[:cut]).problem
    assert "malformed" in look(tmp_path / "a.csv.gz", b"id\n1\n").problem
    assert "malformed" in look(tmp_path / "a.csv.gz", b"").problem


def test_a_packed_file_that_grows_beyond_measure_is_refused(tmp_path: Path) -> None:
    lines = (b"x" * 999 + b"\n") * 1000
    bomb = gzip.compress(lines) * 80
    assert "too-large" in look(tmp_path / "a.json.gz", bomb, "ndjson").problem


def test_bytes_that_are_no_text_are_noted(tmp_path: Path) -> None:
    assert look(tmp_path / "a.csv", b"id\n\xff\n").damaged
    assert look(tmp_path / "a.csv", b"id\n\xc3").damaged
    assert not look(tmp_path / "a.csv", "id\nü\n".encode()).damaged


def test_what_is_no_parquet_says_so(tmp_path: Path) -> None:
    assert "not a Parquet file" in look(tmp_path / "a.parquet", b"PAR1 torn", "parquet").problem


# -- the audit


def test_numbers_and_offsets_are_given_once(audit: Audit, tmp_path: Path) -> None:
    assert entered(audit, "a", "b") == [0, 1]
    again = Audit(tmp_path / "files.db")
    assert entered(again, "c", rows=0) == [2]
    assert [(e.name, e.first, e.last) for e in again.after(-1, 99, 9)] == [("a", 0, 9), ("b", 10, 19), ("c", 20, 20)]
    assert [e.name for e in again.after(9, 19, 9)] == ["b"]
    assert again.head() == 20


def test_a_file_that_two_have_seen_is_entered_once_and_a_repeat_every_time(audit: Audit) -> None:
    assert entered(audit, "a", "b") == [0, 1]
    assert entered(audit, "a", "b", "c") == [2]
    again = audit.enter([(Seen("a", 1, 1, name_order("a")), Examined("aa", 10), 0)])
    assert [(e.number, e.of) for e in again] == [(3, 0)]


def test_files_are_claimed_all_or_none_and_a_stale_claim_is_taken_over(audit: Audit) -> None:
    numbers = entered(audit, "a", "b", "c")
    assert audit.claim("box", numbers[1:], "one", "r", NOW)
    assert not audit.claim("box", numbers, "two", "r", NOW)
    assert audit.claim("box", numbers[:1], "two", "r", NOW)
    assert audit.claim("other", numbers, "two", "r", NOW)
    assert audit.claim("box", numbers, "two", "r", timedelta(0))
    assert {row["worker"] for row in audit.rows(["box"])} == {"two"}
    assert [row["attempts"] for row in audit.rows(["box"])] == [2, 2, 2]


def test_claims_that_are_let_go_are_free_at_once_and_can_still_be_settled(audit: Audit) -> None:
    numbers = entered(audit, "a", "b")
    audit.claim("box", numbers, "here/one", "r", NOW)
    audit.abandon("box", "there/")
    assert not audit.claim("box", numbers, "there/two", "r", NOW)
    audit.abandon("box", "here/")
    assert [row["state"] for row in audit.rows(["box"])] == ["pending", "pending"]
    audit.settle("box", 9, "r")
    assert [row["state"] for row in audit.rows(["box"])] == ["committed", "pending"]
    assert audit.claim("box", numbers[1:], "there/two", "r", NOW)


def test_states_follow_the_target(audit: Audit) -> None:
    numbers = entered(audit, "a", "b", "c")
    audit.claim("box", numbers[:2], "one", "r", NOW)
    audit.found("box", [Outcome(0, 10, 1), Outcome(1, 10, 9, "too-many-bad-rows: 9 of 10")])
    assert [row["state"] for row in audit.rows(["box"])] == ["processing", "failed", "pending"]
    audit.settle("box", 19, "r")
    assert [row["state"] for row in audit.rows(["box"])] == ["committed", "failed", "pending"]
    assert audit.counts(["box"]) == [
        {"target": "box", "files": 3, "pending": 1, "processing": 0, "committed": 1, "failed": 1}
    ]
    assert audit.failed_everywhere(1)
    assert not audit.failed_everywhere(0)
    assert [e.name for e in audit.failed()] == ["b"]


def test_a_crash_before_the_audit_was_told_is_settled_from_the_mark(audit: Audit) -> None:
    numbers = entered(audit, "a", "b", "c")
    audit.claim("box", numbers, "dead", "r", NOW)
    audit.settle("box", 19, "next")
    assert [row["state"] for row in audit.rows(["box"])] == ["committed", "committed", "processing"]
    audit.settle("new", 9, "next")
    assert [row["state"] for row in audit.rows(["new"])] == ["committed", "pending", "pending"]


def test_files_are_found_by_name_and_by_hash(audit: Audit) -> None:
    digest = "ab" * 32
    audit.enter([(Seen("x.csv", 1, 1, "o"), Examined(digest, 1), -1)])
    assert [e.name for e in audit.find("x.csv")] == [e.name for e in audit.find(digest[:12])] == ["x.csv"]
    assert audit.find("cd" * 8) == []


def test_a_catalogue_that_is_torn_or_newer_halts(audit: Audit, tmp_path: Path) -> None:
    (tmp_path / "files.db").write_bytes(b"not a database, whatever its name says" * 100)
    with pytest.raises(Halt, match="cannot be read"):
        audit.head()


# -- the configuration


def load(**changes: object) -> None:
    source = {"source_type": "files", "path": "in", "format": "csv", "table": "people"}
    columns = [{"name": "id", "type": "bigint"}, {"name": "ratio", "type": "double"}]
    text: dict[str, object] = {
        "pipeline_id": "p",
        "source": {**source, "columns": columns, **dict(changes.get("source", {}))},  # type: ignore[call-overload]
        "cdc": changes.get("cdc", {"keys": ["id"]}),
        "sinks": [{"sink_id": "box", "sink_type": "sqlite", "sqlite": {"path": "x.db"}}],
    }
    pipeline_from(read_yaml("p.yaml", json.dumps(text).encode()), {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cdc": {"keys": ["id"], "sequence_by": "at"}}, "has no type"),
        ({"cdc": {"keys": ["id"], "sequence_by": ["id", "ratio"]}}, "double"),
        ({"cdc": {"keys": ["nobody"]}}, "not listed"),
        ({"cdc": {}}, "have no key"),
        ({"cdc": {"keys": ["id"], "operations": {"insert": ["x"], "delete": ["x"]}}}, "two meanings"),
        ({"cdc": {"keys": ["id"], "op_field": "x"}}, "no meaning here"),
        ({"source": {"path": "s3://bucket/in"}}, "object stores"),
        ({"source": {"columns": [{"name": "id", "type": "number"}]}}, "not a type"),
        ({"source": {"format": "xml"}}, "format"),
    ],
)
def test_what_cannot_be_run_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        load(**changes)
    assert message in str(refused.value)


def test_a_feed_loads() -> None:
    load(cdc={"keys": ["id"], "sequence_by": "id", "operation_column": "op"})
