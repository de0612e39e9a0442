"""A feed of files, from the directory into a table: order, bad input, and what commands say of it.

What may go wrong with files, workers and crashes is in tests/service/test_files.py, on three targets.
"""

from __future__ import annotations

import bz2
import gzip
import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tailrace.cli.main import app
from tailrace.control import state
from tailrace.core.errors import Halt, ResyncRequired, Retryable, Unreachable
from tailrace.log import files as file_log
from tailrace.runtime.report import Silent
from tests.fanned import Killed, killed
from tests.feeds import COLUMNS, Feed

SQLITE = {"sink_type": "sqlite", "sqlite": {"path": "box.db"}}


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


@pytest.mark.parametrize(("encoding", "name"), [("utf-16", "a.csv.gz"), ("utf-16le", "a.csv"), ("latin-1", "a.csv")])
def test_a_file_in_another_encoding_is_read_row_by_row(feed: Feed, encoding: str, name: str) -> None:
    feed.source["encoding"] = encoding
    text = 'id,name,seq,op\n1,"Zo\u00eb\nand",1,I\n2,\u00df,2,I\nx,bad,3,I\n2,\u00fc,4,U\n'
    feed.source["max_reject_fraction"] = 0.5
    content = text.encode(encoding)
    feed.put(name, gzip.compress(content) if name.endswith(".gz") else content)
    assert counted(feed.run()) == (4, 3, 0, 1)
    assert feed.rows() == [(1, "Zo\u00eb\nand"), (2, "\u00fc")]


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
    feed.put("odd name [2]{a}%20#?ü.csv", "6,fay,6,I")
    feed.put("plain.csv", "5,eve,5,I")
    assert counted(feed.run()) == (6, 6, 0, 0)
    assert feed.rows() == [(1, "ann"), (2, "bob"), (3, None), (4, "dan"), (5, "eve"), (6, "fay")]


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
    two = b'{"id": 7, "seq": 9, "op": "I"}{"id": 8, "seq": 9, "op": "I"}\n'
    feed.put("b.json", b'{"id": 5, "seq": 9, "op": "I", "name": {"deep": 1}}\n\n{"id": 6, "seq"\n' + two)
    assert counted(feed.run()) == (9, 2, 0, 7)
    assert feed.rows("id, name, price, at") == [
        (5, '{"deep":1}', None, None),
        (2**60 + 1, "a\u2028b", "12345678.25", "2024-02-29 12:00:00.000000Z"),
    ]


def test_quotes_with_nothing_between_are_empty_text_and_nothing_is_null(feed: Feed) -> None:
    feed.source["columns"] = [{"name": "id"}, {"name": "name"}, {"name": "seq", "type": "bigint"}]
    feed.source["max_reject_fraction"] = 0.9
    feed.put("a.csv", '"","",1,I', "a,,1,I", 'b,"",1,I', ",c,1,I", 'd,d,"",I')
    feed.put("b.csv", '"e\nf","",1,I', "g,,1,I")
    assert counted(feed.run()) == (7, 5, 0, 2)
    assert feed.rows() == [("", ""), ("a", None), ("b", ""), ("e\nf", ""), ("g", None)]


EXACT = {
    "decimal(38,2)": (["1.50", "1.500", "15e-1", "-.5"], ["1.239", "1.501", "1239e-3", f"1.5{'0' * 40}1"]),
    "decimal(10,2)": (["1.5", "12345678.99"], [f"1.5{'0' * 40}1", "123456789.00", "1.239"]),
    "float": (["1.5", "-Infinity"], ["1e39", "x"]),
    "double": (["1e300", "NaN", "Infinity"], ["1e400", "-1e400"]),
    "tinyint": (["127", "-128"], ["128", "200", "1.5"]),
    "date": (["2024-02-29", "2024-2-1"], ["2024-1-1T23", "2024-02-30", "12345-01-01", "0000-01-01"]),
    "timestamp": (
        ["2024-02-29T12:30:00.123456Z", "2024-02-29 12:30", "2024-02-29 12:30:00.1234560+02:00", "2024-02-29"],
        ["12:30", "T12:30", "2024-02-29 12:30:00.1234567", "10000-01-01 00:00", "0000-01-01 00:00"],
    ),
    "timestamp_ntz": (
        ["2024-02-29T12:30:00.123456", "2024-02-29 12:30"],
        ["2024-02-29 12:30:00Z", "2024-02-29 12:30:00+02:00", "2024-02-29 12:30:00 UTC", "12:30"],
    ),
}


@pytest.mark.parametrize("kind", ["csv", "ndjson"])
def test_a_value_fits_its_type_exactly_or_its_row_is_rejected(feed: Feed, kind: str) -> None:
    kinds = dict(enumerate(EXACT))
    columns = [{"name": f"v{n}", "type": name} for n, name in kinds.items()]
    feed.source |= {"format": kind, "columns": [*COLUMNS, *columns], "max_reject_fraction": 1}
    values = [
        (n, value, fits) for n, name in kinds.items() for fits in (True, False) for value in EXACT[name][not fits]
    ]
    if kind == "ndjson":
        # With an exponent, Spark has such a number as a float only.
        values.append((0, "123456789012345678.12e0", False))
    if kind == "csv":
        lines = [
            f"{row},x,1,I{',' * n},{value}{',' * (len(kinds) - 1 - n)}" for row, (n, value, _) in enumerate(values)
        ]
        feed.put("a.csv", *lines, header=f"id,name,seq,op,{','.join(f'v{n}' for n in kinds)}")
    else:
        said = [value if _is_json(value) and "time" not in kinds[n] else json.dumps(value) for n, value, _ in values]
        lines = [
            f'{{"id": {row}, "seq": 1, "op": "I", "v{values[row][0]}": {text}}}\n' for row, text in enumerate(said)
        ]
        feed.put("a.json", "".join(lines).encode())
    feed.run()
    there = {row for (row,) in feed.rows("id")}
    wrong = [(kinds[n], value) for row, (n, value, fits) in enumerate(values) if fits is not (row in there)]
    assert wrong == []


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text, parse_constant=str), float | int)
    except ValueError:
        return False


@pytest.mark.parametrize("kind", ["csv", "ndjson", "parquet"])
def test_an_odd_file_among_the_first_fails_alone_and_teaches_nothing(feed: Feed, kind: str) -> None:
    feed.source |= {"format": kind, "columns": []}
    feed.cdc = {"keys": ["id"]}
    rows: list[dict[str, Any]] = [
        {"id": "1", "_cdc_x": "a"},
        {"name": "no key"},
        {"id": "4", "name": "dan"},
        {"id": "5", "Name": "eve"},
    ]
    for n, row in enumerate(rows):
        if kind == "parquet":
            pq.write_table(pa.table({name: [value] for name, value in row.items()}), feed.path / f"{n}.x")
        elif kind == "csv":
            feed.put(f"{n}.csv", ",".join(row.values()), header=",".join(row))
        else:
            feed.put(f"{n}.json", row)
    odd: dict[str, dict[str, bytes]] = {
        "csv": {"8.csv": b"", "9.csv.bz2": bz2.compress(b"id\n1\n")},
        "ndjson": {"8.json": b"no JSON\n", "9.json.bz2": bz2.compress(b'{"id": "1"}\n')},
        "parquet": {"8.x": b"", "9.x": b"PAR1 torn"},
    }
    for name, content in odd[kind].items():
        feed.put(name, content)
    feed.run()
    assert feed.rows() == [("4", "dan")]
    assert [state for _, state in sorted(feed.states().items())] == [
        *["failed"] * 2, "committed", *["failed"] * 3
    ]  # fmt: skip


def test_a_file_that_fails_and_has_nobody_beside_it_is_told_as_failed(feed: Feed) -> None:
    feed.put("a.csv", b"")
    assert feed.run() == {}
    assert feed.states() == {"a.csv": "failed"}


@pytest.mark.parametrize("content", [b"", b" \n\n"])
def test_a_file_of_json_without_a_line_is_committed_though_nothing_is_known_of_the_table(
    feed: Feed, content: bytes
) -> None:
    feed.source |= {"format": "ndjson", "columns": []}
    feed.cdc = {"keys": ["id"]}
    feed.put("0.json", content)
    assert feed.run() == {}
    with feed.opened() as pipeline:
        (row,) = cast(list[dict[str, Any]], pipeline.files_status(every=True)["files"])
    assert [row[name] for name in ("state", "rows", "applied", "superseded", "rejected")] == ["committed", 0, 0, 0, 0]
    feed.put("1.json", {"id": 1, "name": "ann"})
    assert counted(feed.run()) == (1, 1, 0, 0)


def test_a_full_disk_is_no_verdict_on_a_file(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    feed.platform["retry"] = {"initial_wait_seconds": "0", "jitter": "false"}
    feed.put("a.csv", "1,ann,1,I")
    look, full = file_log._stretches, iter(["java.io.IOException: No space left on device"])

    def finds_no_room(kept: Any) -> Any:
        for text in full:
            raise PySparkException(text)
        return look(kept)

    monkeypatch.setattr(file_log, "_stretches", finds_no_room)
    assert counted(feed.run()) == (1, 1, 0, 0)
    assert feed.states() == {"a.csv": "committed"}


def test_a_file_that_is_taken_away_while_it_is_read_is_no_malformed_file(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.put("a.csv", "1,ann,1,I")
    look = file_log._stretches

    def finds_nothing(kept: Any) -> Any:
        (feed.path / "a.csv").unlink(missing_ok=True)
        return look(kept)

    monkeypatch.setattr(file_log, "_stretches", finds_nothing)
    with pytest.raises(ResyncRequired, match=r'file "a\.csv" is gone'):
        feed.run()
    assert feed.states() == {"a.csv": "pending"}


def test_the_command_shows_the_audit_and_has_a_file_read_again(
    feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.put("1.csv", "1,old,1,I", "x,bad,1,I", "2,two,2,I")
    feed.put("2.csv", "1,new,5,U", "3,three,5,U")
    feed.run()
    feed.put("1.csv", "1,old,1,I", "2,two,2,I")
    (tmp_path / "feed.yaml").write_text(json.dumps(feed.text(SQLITE)))
    (tmp_path / "platform.yaml").write_text(json.dumps({"control": {"root": "state"}}))
    monkeypatch.chdir(tmp_path)

    def asked(*words: str) -> Any:
        told = CliRunner().invoke(app, ["files", *words, "--platform-config", "platform.yaml", "--json"])
        assert told.exit_code == 0, told.output
        return json.loads(told.stdout)

    shown = asked("status", "feed.yaml")
    assert shown["targets"] == [
        {"target": "box", "files": 2, "pending": 0, "processing": 0, "committed": 1, "failed": 1}
    ]
    assert [(row["file"], row["state"], row["rows"]) for row in shown["files"]] == [("1.csv", "failed", 3)]
    (digest,) = {row["sha256"] for row in shown["files"]}
    assert [row["requeued"] for row in asked("requeue", "feed.yaml", digest[:12], "--dry-run")] == [False]
    assert [row["file"] for row in asked("requeue", "feed.yaml", "--failed")] == ["1.csv"]
    assert asked("requeue", "feed.yaml", "--failed") == []
    assert counted(feed.run()) == (2, 1, 1, 0)
    told = asked("lineage", "feed.yaml", "1.csv")
    numbers = [[row[name] for name in ("state", "rows", "applied", "superseded", "rows_now", "keys")] for row in told]
    assert numbers == [["failed", 3, None, None, 0, []], ["committed", 2, 1, 1, 1, [["2"]]]]


def test_lineage_tells_the_run_the_commit_and_the_rows_of_every_mode(feed: Feed) -> None:
    def sink(name: str, kind: str, mode: str) -> dict[str, Any]:
        return {"sink_id": name, "sink_type": kind, "mode": mode, kind: {"path": str(feed.folder / name)}}

    feed.others = [sink("history", "sqlite", "scd2"), sink("events", "sqlite", "append"), sink("lake", "delta", "scd2")]
    feed.put("1.csv", "1,old,1,I", "2,two,2,I")
    with feed.opened() as pipeline:
        assert pipeline.run(once=True, report=Silent(), run_id="the-run").first_error() is None
    feed.put("2.csv", "1,new,5,U", "3,three,5,U", "3,tres,6,U")
    feed.run()
    with feed.opened() as pipeline:
        first, second = pipeline.files_lineage("1.csv"), pipeline.files_lineage("2.csv")
    assert {row["run_id"] for row in first} == {"the-run"}
    told = [{row["target"]: (row["rows_now"], row["keys"]) for row in rows} for rows in (first, second)]
    assert told[0] == {
        "box": (1, [["2"]]), "history": (2, [["1"], ["2"]]), "lake": (2, [["1"], ["2"]]), "events": (2, told[0]["events"][1])
    }  # fmt: skip
    assert [told[1][name][0] for name in ("box", "history", "lake", "events")] == [2, 3, 3, 3]
    commits = {row["target"]: [row["commit"], other["commit"]] for row, other in zip(first, second, strict=True)}
    assert commits == {"box": [None] * 2, "history": [None] * 2, "events": [None] * 2, "lake": [1, 2]}


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


def test_a_file_that_was_taken_away_after_its_commit_and_before_that_was_noted_is_not_missed(feed: Feed) -> None:
    feed.put("1.csv", "1,ann,1,I")
    feed.run()
    feed.put("2.csv", "2,bob,2,I")
    with killed("tailrace.control.progress.Progress.save"), pytest.raises(Killed):
        feed.run()
    for name in ("1.csv", "2.csv"):
        (feed.path / name).unlink()
    feed.put("3.csv", "3,cat,3,I")
    assert counted(feed.run()) == (1, 1, 0, 0)
    shutil.rmtree(feed.folder / "state/feed/progress")
    assert feed.run() == {}
    assert feed.rows() == [(1, "ann"), (2, "bob"), (3, "cat")]
    assert set(feed.states().values()) == {"committed"}


def test_a_catalogue_that_is_lost_halts(feed: Feed) -> None:
    feed.put("1.csv", "1,ann,1,I")
    feed.run()
    shutil.rmtree(feed.folder / "state/feed/files")
    with pytest.raises(ResyncRequired, match="catalogue"):
        feed.run()


def test_a_target_that_is_away_from_the_start_keeps_no_other_from_its_rows(feed: Feed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = server.getsockname()[1]
    away = {"host": "127.0.0.1", "port": nobody, "database": "copies"}
    feed.others = [{"sink_id": "copy", "sink_type": "postgres", "postgres": away}]
    feed.platform["retry"] = {"max_attempts": 2, "initial_wait_seconds": 0}
    for n, names in enumerate([["ann"], ["ann", "bob"]], start=1):
        feed.put(f"{n}.csv", f"{n},{names[-1]},{n},I")
        with pytest.raises(Unreachable) as failed:
            feed.run()
        assert failed.value.code == "target-unavailable"
        assert [name for _, name in feed.rows()] == names
    shutil.rmtree(feed.folder / "state/feed/files")
    # Who is away may have what a catalogue that is made anew would number otherwise.
    feed.sink = {"enabled": False}
    state.save(feed.folder / "state/feed/progress/copy.json", {"log": life_of(feed), "offset": 1, "marks": {}})
    with pytest.raises(Unreachable):
        feed.run()
    with feed.opened() as pipeline:
        assert pipeline._inlet.head(pipeline._checkpoints.life()) == -1


def life_of(feed: Feed) -> str:
    with feed.opened() as pipeline:
        life = pipeline._checkpoints.life()
    assert life is not None
    return life.log


def test_a_clean_up_that_fails_leaves_a_run_what_it_was(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    def held(*_: object) -> None:
        raise Retryable("sqlite-locked", "somebody reads the file", "Wait.")

    monkeypatch.setattr("tailrace.targets._sql.table.SqlTable.collect_tombstones", held)
    feed.put("a.csv", "1,ann,1,I")
    assert counted(feed.run()) == (1, 1, 0, 0)
    assert feed.warnings == ["sqlite-locked: somebody reads the file"]
