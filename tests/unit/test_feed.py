"""A feed without Spark: what is data, when it is whole, what its bytes say, and what the audit keeps."""

from __future__ import annotations

import errno
import functools
import gzip
import hashlib
import io
import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tailrace.config.load import pipeline_from
from tailrace.config.pipeline import PipelineConfig
from tailrace.config.platform import PlatformConfig
from tailrace.config.yaml_text import read_yaml
from tailrace.control.audit import Audit
from tailrace.control.checkpoints import Life
from tailrace.core.errors import Halt, Misconfigured, Retryable
from tailrace.core.feed import (
    Examined,
    Fate,
    Outcome,
    Seen,
    State,
    manifest_order,
    modified_order,
    name_order,
    next_version,
)
from tailrace.core.table import Column, Evolution, Table, fit
from tailrace.log._examine import examine
from tailrace.log._intake import Feed, Intake
from tailrace.log._listing import Directory, Order
from tailrace.log._place import Folder
from tailrace.runtime.feed import FileFeed
from tailrace.sources.files import Options
from tailrace.targets.memory import MemoryTarget
from tests.claiming import ROUNDS, race

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
    assert manifest_order(10, 0) > manifest_order(9, 12) > manifest_order(9, 11)
    assert manifest_order(9, 12) > next_version(manifest_order(9, 11)) > manifest_order(9, 11)
    assert name_order("ab") > next_version(name_order("a")) == name_order("a", 1)


# -- the directory


def listed(path: Path, pattern: str = "*", order: Order = "name", stable: float = 0.0) -> list[str]:
    """Return what is new in a directory that nothing was taken from."""
    catalogue = Audit(path.parent / f"{path.name}.db")
    return [seen.name for seen in Directory(Folder(path), pattern, order, stable).ready(catalogue)]


def test_only_data_is_listed_and_no_link_is_followed(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "a.tmp", ".a.csv", "_a.csv", "a.csv.done", "a.txt", "sub/c.csv", ".git/d.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "link.csv").symlink_to(tmp_path / "a.csv")
    (tmp_path / "out").symlink_to(tmp_path.parent)
    assert listed(tmp_path, "*.csv") == ["a.csv", "b.csv", "sub/c.csv"]
    assert listed(tmp_path, "sub/*") == ["sub/c.csv"]


def test_the_order_of_times_is_that_of_times(tmp_path: Path) -> None:
    for n, name in enumerate(("c", "a", "b")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, ns=(n, n))
    assert listed(tmp_path, order="modified") == ["c", "a", "b"]


def test_a_file_from_the_future_is_not_taken_for_whole_at_once(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.utime(tmp_path / "a", (4e9, 4e9))
    assert listed(tmp_path, stable=3600) == []
    assert len(listed(tmp_path)) == 1


def manifest(folder: Path, name: str, sequence: object, *names: str) -> None:
    text = json.dumps({"sequence": sequence, "files": [{"name": n} for n in names]})
    (folder / f"{name}.manifest.json").write_text(text)


def test_manifests_that_cannot_be_followed_are_refused(tmp_path: Path) -> None:
    manifest(tmp_path, "x", 1, "../secret")
    with pytest.raises(Halt, match="no file of the feed"):
        listed(tmp_path, order="manifest")
    (tmp_path / "link.csv").symlink_to(__file__)
    for absent in ("missing.csv", "link.csv"):
        manifest(tmp_path, "x", 1, absent)
        with pytest.raises(Retryable, match="not there"):
            listed(tmp_path, order="manifest")
    numbers = ("-1", "1.5", "1.0", '"1"', "true", "null")
    for broken in ('{"sequ', '{"sequence": 1}', *(f'{{"sequence": {n}, "files": []}}' for n in numbers)):
        (tmp_path / "x.manifest.json").write_text(broken)
        with pytest.raises(Retryable, match="not a manifest"):
            listed(tmp_path, order="manifest")
    manifest(tmp_path, "x", 1)
    manifest(tmp_path, "y", 1)
    with pytest.raises(Halt, match="both have number 1"):
        listed(tmp_path, order="manifest")
    manifest(tmp_path, "y", 4)
    with pytest.raises(Halt, match="number 2 is missing"):
        listed(tmp_path, order="manifest")


def intake(path: Path, order: Order = "name", on_change: str = "halt") -> tuple[Intake, Audit]:
    audit = Audit(path.parent / f"{path.name}.db")
    return Intake(Feed(Directory(Folder(path), order=order), "csv", on_change=on_change), audit), audit


def taken(audit: Audit) -> list[tuple[str, str]]:
    return [(entry.name, entry.order) for entry in audit.after(-1, 1 << 60, 100)]


def test_a_gap_is_seen_also_when_the_manifests_before_it_were_taken_away(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    manifest(tmp_path, "x", 1, "a.csv")
    manifest(tmp_path, "y", 2)
    intake(tmp_path, "manifest")[0].scan()
    for name in ("x", "y"):
        (tmp_path / f"{name}.manifest.json").unlink()
    (tmp_path / "a.csv").unlink()
    (tmp_path / "b.csv").write_text("id\n2\n")
    manifest(tmp_path, "z", 4, "b.csv")
    with pytest.raises(Halt, match="manifest number 3 is missing"):
        intake(tmp_path, "manifest")[0].scan()
    manifest(tmp_path, "z", 3, "b.csv")
    again, audit = intake(tmp_path, "manifest")
    again.scan()
    assert [name for name, _ in taken(audit)] == ["a.csv", "b.csv"]


def test_a_file_that_a_later_manifest_lists_again_has_a_place_of_its_own(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(f"id\n{name}\n")
    manifest(tmp_path, "1", 1, "a.csv", "b.csv")
    one, audit = intake(tmp_path, "manifest")
    one.scan()
    manifest(tmp_path, "2", 2, "a.csv")
    for _ in range(2):
        one.scan()
        intake(tmp_path, "manifest")[0].scan()
    expected = [("a.csv", manifest_order(1, 0)), ("b.csv", manifest_order(1, 1)), ("a.csv", manifest_order(2, 0))]
    assert taken(audit) == expected


def test_a_file_that_a_manifest_lists_in_the_place_of_another_is_not_lost(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv", "c.csv"):
        (tmp_path / name).write_text(f"id\n{name}\n")
    manifest(tmp_path, "1", 1, "a.csv", "b.csv")
    one, audit = intake(tmp_path, "manifest")
    one.scan()
    manifest(tmp_path, "1", 1, "a.csv", "c.csv", "d.csv")
    for again in (one, intake(tmp_path, "manifest")[0]):
        with pytest.raises(Halt, match=r'lists "c\.csv" where it listed "b\.csv"') as halted:
            again.scan()
        assert halted.value.code == "bad-manifest"
    assert len(taken(audit)) == 2


def test_what_is_remembered_of_a_feed_is_what_waits(tmp_path: Path) -> None:
    (tmp_path / "listed.csv").write_text("id\n1\n")
    (tmp_path / "half.csv").write_text("id\n1\n")
    (tmp_path / "half.tmp").write_text("id\n1\n")
    manifest(tmp_path, "1", 1, "listed.csv", "later.csv")
    one, audit = intake(tmp_path)
    directory = one.feed.directory
    directory.stable_seconds = 3600
    one.scan()
    one.scan()
    assert [name for name, _ in taken(audit)] == ["listed.csv"]
    assert (list(directory._hashes), list(directory._first_seen)) == (["later.csv"], ["half.csv"])
    assert all(not manifest.files for _, manifest in directory._manifests._read.values())
    (tmp_path / "half.csv").unlink()
    (tmp_path / "later.csv").write_text("id\n1\n")
    one.scan()
    one.scan()
    assert (len(taken(audit)), directory._hashes, directory._first_seen) == (2, {}, {})


@pytest.mark.parametrize("order", ["name", "modified", "manifest"])
def test_other_content_in_the_place_of_a_file_comes_after_it(order: Order, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    manifest(tmp_path, "1", 1, "a.csv")
    intake(tmp_path, order)[0].scan()
    (tmp_path / "a.csv").write_text("id\n222\n")
    with pytest.raises(Halt, match="was taken with the hash"):
        intake(tmp_path, order)[0].scan()
    _, audit = intake(tmp_path, order)
    intake(tmp_path, order, "apply")[0].scan()
    (_, first), (_, second) = taken(audit)
    assert second > first
    intake(tmp_path, order, "apply")[0].scan()
    assert len(taken(audit)) == 2


def test_a_file_that_grows_while_it_is_examined_is_not_taken_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id\n1\n")
    one, audit = intake(tmp_path)

    def grows(*args: object) -> Examined:
        found = examine(*args)  # type: ignore[arg-type]
        path.write_text(f"{path.read_text()}2\n")
        return found

    monkeypatch.setattr("tailrace.log._intake.examine", grows)
    one.scan()
    assert taken(audit) == []
    monkeypatch.undo()
    one.scan()
    assert [entry.content.rows for entry in audit.after(-1, 99, 9)] == [3]


def test_a_file_that_cannot_be_taken_holds_no_other_back_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    for name in (b"a.csv", b"b.csv", b"\xff.csv"):
        (Path(os.fsdecode(bytes(tmp_path) + b"/" + name))).write_text("id\n1\n")
    one, audit = intake(tmp_path)
    one.feed.directory.warn = warnings.append
    opened = Folder.open

    def locked(place: Folder, name: str, state: State) -> BinaryIO:
        if name == "a.csv":
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(place, name, state)

    monkeypatch.setattr(Folder, "open", locked)
    one.scan()
    one.scan()
    assert [name for name, _ in taken(audit)] == ["b.csv"]
    assert sorted(warnings) == [
        'file "\\udcff.csv" is passed over: its name is not UTF-8',
        'file "a.csv" is passed over: file "a.csv" cannot be read: Permission denied',
    ]
    monkeypatch.undo()
    one.scan()
    assert [name for name, _ in taken(audit)] == ["b.csv", "a.csv"]


def test_a_file_that_cannot_be_read_is_not_passed_over_in_the_order_of_manifests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: object) -> Examined:
        raise PermissionError(errno.EACCES, "Permission denied")

    (tmp_path / "a.csv").write_text("id\n1\n")
    manifest(tmp_path, "1", 1, "a.csv")
    monkeypatch.setattr("tailrace.log._intake.examine", locked)
    with pytest.raises(Retryable, match="Permission denied"):
        intake(tmp_path, "manifest")[0].scan()


# -- the bytes


def look(path: Path, content: bytes, kind: str = "csv", most: int = 1000) -> Examined:
    found = examine(io.BytesIO(content), path.name, kind, "utf-8", most)
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


@pytest.mark.parametrize("ending", ["bz2", "deflate", "lz4", "snappy"])
def test_what_spark_would_unpack_and_we_cannot_is_refused(ending: str, tmp_path: Path) -> None:
    assert f".{ending} is not read" in look(tmp_path / f"a.csv.{ending}", b"id\n1\n").problem
    assert "not a Parquet" in look(tmp_path / f"a.{ending}", b"id\n1\n", "parquet").problem


def test_packed_files_are_looked_into(tmp_path: Path) -> None:
    packed = gzip.compress(b"id\n1\n") + gzip.compress(b"2\n")
    assert (look(tmp_path / "a.csv.gz", packed).problem, look(tmp_path / "a.csv.gz", packed).rows) == ("", 3)
    for cut in range(1, len(packed)):
        if cut != len(gzip.compress(b"id\n1\n")):
            assert "malformed" in look(tmp_path / "a.csv.gz", packed[:cut]).problem
    assert "malformed" in look(tmp_path / "a.csv.gz", b"id\n1\n").problem
    assert "malformed" in look(tmp_path / "a.csv.gz", b"").problem


def test_what_zstd_packed_is_looked_into(tmp_path: Path) -> None:
    packed = pa.compress(b"id\n1\n", "zstd", asbytes=True)
    assert (look(tmp_path / "a.csv.zst", packed * 2).problem, look(tmp_path / "a.csv.zst", packed).rows) == ("", 2)
    for cut in range(len(packed)):
        assert "malformed" in look(tmp_path / "a.csv.zst", packed[:cut]).problem
    assert "not what zstd writes" in look(tmp_path / "a.csv.zst", b"id\n1\n").problem
    bomb = pa.compress((b"x" * 999 + b"\n") * 100_000, "zstd", asbytes=True)
    assert "too-large" in look(tmp_path / "a.json.zst", bomb, "ndjson").problem


def test_a_packed_file_that_grows_beyond_measure_is_refused(tmp_path: Path) -> None:
    lines = (b"x" * 999 + b"\n") * 1000
    bomb = gzip.compress(lines) * 80
    assert "too-large" in look(tmp_path / "a.json.gz", bomb, "ndjson").problem


def test_bytes_that_are_no_text_are_noted(tmp_path: Path) -> None:
    assert look(tmp_path / "a.csv", b"id\n\xff\n").damaged
    assert look(tmp_path / "a.csv", b"id\n\xc3").damaged
    assert not look(tmp_path / "a.csv", "id\nü\n".encode()).damaged


def test_a_file_of_two_bytes_a_character_is_counted_as_what_it_says() -> None:
    def look_into(content: bytes, encoding: str) -> Examined:
        return examine(io.BytesIO(content), "a.csv", "csv", encoding, 1000)

    # Neither the quote nor the line break is in these characters, though their bytes are.
    text = 'id,"näme"\n1,\u2222\u0a0a\n2,x\n'
    for found in (look_into(text.encode("utf-16"), "utf-16"), look_into(text.encode("utf-16-be"), "utf-16be")):
        assert (found.problem, found.rows, found.whole, json.loads(found.header)) == ("", 3, True, ["id", "näme"])
    assert "byte order mark" in look_into(text.encode("utf-16-le"), "utf-16").problem
    assert "not utf-16le" in look_into(text.encode("utf-16-le")[:-1], "utf-16le").problem


@pytest.mark.parametrize(("given", "known"), [("latin-1", "iso-8859-1"), ("UTF8", "utf-8"), ("UTF-16LE", "utf-16le")])
def test_an_encoding_goes_by_any_of_its_names(given: str, known: str) -> None:
    options = Options.model_validate({"path": "x", "format": "csv", "table": "t", "encoding": given})
    assert options.encoding == known


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


def test_of_two_processes_that_claim_the_same_files_one_gets_them(audit: Audit, tmp_path: Path) -> None:
    numbers = entered(audit, "a", "b", "c")
    assert race(functools.partial(Audit, tmp_path / "files.db"), numbers) == [1] * ROUNDS


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
    outcomes = [Outcome(0, 10, 1), Outcome(1, 10, 9, "too-many-bad-rows: 9 of 10")]
    audit.found("box", "another", outcomes)
    assert [row["state"] for row in audit.rows(["box"])] == ["processing", "processing", "pending"]
    audit.found("box", "one", outcomes)
    audit.expect("box", "one", [Fate(0, 6, 2)])
    assert [row["state"] for row in audit.rows(["box"])] == ["processing", "failed", "pending"]
    first = audit.rows(["box"])[0]
    assert [first[name] for name in ("rows", "applied", "superseded", "filtered", "rejected")] == [10, 6, 2, 0, 2]
    audit.settle("box", 19, "r")
    assert [row["state"] for row in audit.rows(["box"])] == ["committed", "failed", "pending"]
    assert [row["state"] for row in audit.rows(["box"], every=False)] == ["failed", "pending"]
    assert [row["state"] for row in audit.rows(["box"], [0, 1], every=False)] == ["failed"]
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


def load(**changes: object) -> PipelineConfig:
    source = {"source_type": "files", "path": "in", "format": "csv", "table": "people"}
    columns = [{"name": "id", "type": "bigint"}, {"name": "ratio", "type": "double"}]
    text: dict[str, object] = {
        "pipeline_id": "p",
        "source": {**source, "columns": columns, **dict(changes.get("source", {}))},  # type: ignore[call-overload]
        "cdc": changes.get("cdc", {"keys": ["id"]}),
        "sinks": [{"sink_id": "box", **dict(changes.get("sink", {"sink_type": "sqlite", "sqlite": {"path": "x.db"}}))}],  # type: ignore[call-overload]
    }
    return pipeline_from(read_yaml("p.yaml", json.dumps(text).encode()), {}).config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cdc": {"keys": ["id"], "sequence_by": "at"}}, "has no type"),
        ({"cdc": {"keys": ["id"], "sequence_by": ["id", "ratio"]}}, "double"),
        ({"cdc": {"keys": ["nobody"]}}, "not listed"),
        ({"cdc": {}}, "have no key"),
        ({"cdc": {"keys": ["id"], "operations": {"insert": ["x"], "delete": ["x"]}}}, "two meanings"),
        ({"cdc": {"keys": ["id"], "op_field": "x"}}, "no meaning here"),
        ({"source": {"path": "gs://bucket/in"}}, "should be a directory"),
        ({"source": {"path": "s3://bucket/in", "s3_access_key_id": "x"}}, "belong together"),
        (
            {"sink": {"sink_type": "webhook", "mode": "scd1", "webhook": {"url": "https://x.org"}}},
            '"webhook" has no mode',
        ),
        ({"sink": {"sink_type": "parquet", "mode": "scd2", "parquet": {"path": "x"}}}, '"parquet" has no mode'),
        ({"source": {"columns": [{"name": "id", "type": "number"}]}}, "not a type"),
        ({"source": {"columns": [{"name": "id"}, {"name": "_cdc_x"}]}}, "such names are ours"),
        ({"source": {"format": "xml"}}, "format"),
        ({"source": {"format": "ndjson", "encoding": "latin-1"}}, "encoding is for CSV"),
        ({"source": {"format": "parquet", "encoding": "utf-16"}}, "encoding is for CSV"),
    ],
)
def test_what_cannot_be_run_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        load(**changes)
    assert message in str(refused.value)


def test_a_feed_loads() -> None:
    load(cdc={"keys": ["id"], "sequence_by": "id", "operation_column": "op"})


@pytest.mark.parametrize(
    "changes",
    [
        {"cdc": {"keys": ["id"], "sequence_by": ["id", "at"]}},
        {"source": {"columns": [{"name": "id", "type": "bigint"}, {"name": "at", "type": "date"}]}},
    ],
)
def test_a_feed_whose_rows_are_ordered_otherwise_is_another_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    columns = [{"name": "id", "type": "bigint"}, {"name": "at", "type": "timestamp"}]
    one: dict[str, Any] = {"source": {"columns": columns}, "cdc": {"keys": ["id"], "sequence_by": "at"}}
    asked(tmp_path, **one)
    asked(tmp_path, **one)
    with pytest.raises(Halt, match="the feed was") as halted:
        asked(tmp_path, **{**one, **changes})
    assert halted.value.code == "feed-changed"


# -- asking for a file again

APPEND = {"sink_type": "sqlite", "mode": "append", "sqlite": {"path": "x.db"}}


def asked(folder: Path, **changes: object) -> tuple[FileFeed, Life, Audit]:
    """Return a feed with one file, `a.csv`, that was taken."""
    path = folder / "in"
    path.mkdir(exist_ok=True)
    source = {**dict(changes.pop("source", {})), "path": str(path), "stable_seconds": 0}  # type: ignore[call-overload]
    feed, life = FileFeed(load(source=source, **changes), PlatformConfig(), folder, no_spark), Life(1, "log")
    (path / "a.csv").write_text("id\n1\n")
    Intake(feed._feed(), feed.audit(life)).scan()
    return feed, life, feed.audit(life)


def no_spark() -> SparkSession:
    raise Halt("spark-start-failed", "Spark is asked for")


def requeued(feed: FileFeed, life: Life, what: str = "a.csv") -> list[object]:
    return [row["sha256"] for row in feed.requeue(life, what, failed=False, dry_run=False)]


def test_a_file_that_was_taken_and_changed_is_not_taken_again_for_what_it_was(tmp_path: Path) -> None:
    feed, life, audit = asked(tmp_path)
    audit.settle("box", 99, "r")
    (tmp_path / "in/a.csv").write_text("id\n2\n")
    with pytest.raises(Halt) as halted:
        requeued(feed, life)
    hashes = [hashlib.sha256(text).hexdigest() for text in (b"id\n1\n", b"id\n2\n")]
    assert halted.value.code == "file-changed"
    assert all(digest in str(halted.value) for digest in hashes)
    assert len(taken(audit)) == 1


def test_other_content_that_is_asked_for_again_comes_after_what_it_replaces_if_it_may(tmp_path: Path) -> None:
    feed, life, audit = asked(tmp_path, source={"on_change": "apply"})
    first = audit.after(-1, 99, 9)[0]
    audit.settle("box", 99, "r")
    (tmp_path / "in/a.csv").write_text("id\n2\n")
    requeued(feed, life)
    assert taken(audit) == [("a.csv", first.order), ("a.csv", next_version(first.order))]
    assert [entry.of for entry in audit.after(-1, 99, 9)] == [-1, -1]
    requeued(feed, life)
    assert [entry.of for entry in audit.after(-1, 99, 9)] == [-1, -1, 1]
    with pytest.raises(Halt, match="was taken with the hash"):
        requeued(feed, life, first.content.sha256)


def test_a_file_that_failed_and_was_mended_is_found_by_the_hash_that_it_had(tmp_path: Path) -> None:
    feed, life, audit = asked(tmp_path)
    (tmp_path / "in/a.csv").write_text("id\n2\n")
    audit.claim("box", [0], "one", "r", NOW)
    audit.found("box", "one", [Outcome(0, problem="malformed: it is")])
    old = audit.after(-1, 99, 9)[0].content.sha256
    mended = requeued(feed, life, old)
    assert requeued(feed, life, old) == mended != [old]
    assert [entry.of for entry in audit.after(-1, 99, 9)] == [-1, 0, 1]


def test_what_a_table_of_events_has_or_is_about_to_have_is_not_asked_for_again(tmp_path: Path) -> None:
    feed, life, audit = asked(tmp_path, cdc={}, sink=APPEND)
    audit.claim("box", [0], "one", "r", NOW)
    for _ in range(2):
        for dry_run in (True, False):
            with pytest.raises(Misconfigured, match="keeps each event"):
                feed.requeue(life, "a.csv", failed=False, dry_run=dry_run)
        # The commit may be there all the same: who let go of the claim does not know.
        audit.abandon("box", "one")
    audit.claim("box", [0], "one", "r", NOW)
    audit.found("box", "one", [Outcome(0, problem="malformed: it is")])
    assert len(requeued(feed, life)) == 1


def test_a_file_that_another_replaced_while_it_was_read_is_not_taken_for_it(tmp_path: Path) -> None:
    feed, life, audit = asked(tmp_path, source={"on_change": "apply"})
    first = audit.after(-1, 99, 9)[0]
    (tmp_path / "in/a.csv").write_text("id\n2\n")
    Intake(feed._feed(), audit).scan()
    with pytest.raises(Retryable, match="changed while it was read"):
        feed.log(life)._refuse_changing([first])


@pytest.mark.parametrize("committed", [[], ["other"]])
def test_what_was_replaced_before_it_was_read_is_left_to_what_replaced_it(tmp_path: Path, committed: list[str]) -> None:
    feed, life, audit = asked(tmp_path, source={"on_change": "apply"}, cdc={}, sink=APPEND)
    (tmp_path / "in/a.csv").write_text("id\n2\n")
    (tmp_path / "in/b.csv").write_text("x\n")
    Intake(feed._feed(), audit).scan()
    for target in committed:
        audit.settle(target, audit.after(-1, 99, 9)[0].last, "r")
    audit.claim("box", [0, 1, 2], "one", "r", NOW)
    failed = [Outcome(0, problem="replaced: the file was replaced"), Outcome(2, problem="malformed: it is")]
    audit.found("box", "one", failed)
    audit.settle("box", 99, "r")
    assert [(entry.name, entry.of) for entry in audit.after(-1, 99, 9)] == [("a.csv", -1), ("a.csv", -1), ("b.csv", -1)]
    (tmp_path / "in/b.csv").write_text("id\n3\n")
    assert [row["file"] for row in feed.requeue(life, None, failed=True, dry_run=False)] == ["b.csv"]
    assert [(entry.name, entry.of) for entry in audit.after(-1, 99, 9)][3:] == [("b.csv", 2)]


def test_lineage_starts_spark_before_it_asks_for_rows(tmp_path: Path) -> None:
    feed, life = FileFeed(load(), PlatformConfig(), tmp_path, no_spark), Life(log="log", epoch=1)
    feed.audit(life).enter([(Seen("x.csv", 1, 1, "o"), Examined("ab" * 32, 1), -1)])
    feed.audit(life).settle("box", 0, "r")
    target = MemoryTarget("box", spark_session=no_spark, pipeline_id="p")
    target.evolve("people", fit(None, Table("people", (Column("id", "bigint"),), ("id",)), Evolution.ALTER))
    with pytest.raises(Halt, match="Spark is asked for"):
        feed.lineage(life, "x.csv", [target])
