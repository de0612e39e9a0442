"""What a run tells: bars for people, lines for machines, and never an error of its own."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass

import pytest
from rich.console import Console as Terminal
from rich.progress import Progress

from tailrace.control.lag import Lag, TargetLag
from tailrace.core.checkpoint import Snapshotting, Tailing
from tailrace.core.errors import Halt, Retryable
from tailrace.core.offsets import Offsets
from tailrace.core.subjects import Registered, SchemaChange
from tailrace.runtime.report import Console, JsonLines, Reporter, Several, Silent, reporting


@dataclass(frozen=True)
class Counts:
    table: str
    read: int
    applied: int = 0
    superseded: int = 0
    filtered: int = 0
    rejected: int = 0


def tell(report: Reporter) -> None:
    report.begun(["lake", "other"])
    report.page(10, Snapshotting("o", "0/1", "c"), 40)
    report.behind("lake", 5, 15)
    report.page(3, Tailing("o", "0/2"))
    report.slice("lake", 18, [Counts("a", 9, 8, 1), Counts("b", 4, 3, 0, 0, 1)], 0.25)
    report.slice("other", 13, [Counts("a", 13, 13)], 0.25)
    report.warning("look")
    report.evolved("lake", "a", ["added x"])
    report.measured(Lag({"at": "0/2"}, (TargetLag("lake", 4, 7), TargetLag("other", 7, 7))))
    report.measured(Lag(error=Retryable("lost", "it went away")))
    report.registered(Registered(changes=(SchemaChange("t-value", 1, 2, 7, "gone"), SchemaChange("t-key", 1, 2, 8))))
    report.registered(Registered(error=Retryable("registry-unreachable", "it is away")))
    report.retrying("lake", Retryable("busy", "busy"))
    report.failed("lake", Halt("a-b", "it stops", "Do."))
    report.failed("lake", Halt("type-changed", "it differs", "Do."))
    report.halted("source", Halt("c-d", "it ends", "Do."))
    report.event("retry", attempt=2)


def test_json_lines_have_time_level_run_and_fields() -> None:
    stream = io.StringIO()
    tell(JsonLines(stream, "shop"))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == [
        "run begun",
        "page appended",
        "target behind",
        "page appended",
        "slice applied",
        "pipeline.sink_write_error",
        "slice applied",
        "warning",
        "schema.version_changed",
        "consumer.lag",
        "consumer.lag",
        "schema.version_changed",
        "schema.incompatible_change_detected",
        "schema.version_changed",
        "schema.registry_unreachable",
        "pipeline.sink_write_error",
        "schema.incompatible_change_detected",
        "pipeline.sink_write_error",
        "pump halted",
        "retry",
    ]
    assert {line["pipeline_id"] for line in lines} == {"shop"}
    assert len({line["run_id"] for line in lines}) == 1
    assert lines[1]["checkpoint"]["phase"] == "snapshotting"
    assert (lines[4]["read"], lines[4]["applied"], lines[4]["rejected"]) == (13, 11, 1)
    assert {"level": "error", "target": "lake", "table": "b", "dead_letters": 1}.items() <= lines[5].items()
    assert (lines[9]["level"], lines[9]["total_lag"], lines[9]["source"]) == ("info", 3, {"at": "0/2"})
    assert lines[9]["partitions"][0] == {"sink_id": "lake", "lag": 3, "offset": 4}
    assert (lines[10]["level"], lines[10]["code"]) == ("warning", "lost")
    assert [line["level"] for line in lines[11:15]] == ["warning", "error", "info", "warning"]
    changed = {"subject": "t-value", "previous_version": 1, "new_version": 2, "schema_id": 7, "compatible": False}
    assert changed.items() <= lines[11].items()
    assert lines[12]["message"] == "gone"
    assert (lines[15]["level"], lines[15]["code"]) == ("error", "a-b")
    assert (lines[18]["level"], lines[18]["part"], lines[18]["code"]) == ("error", "source", "c-d")


def test_partitions_are_told_of_when_they_are_first_met() -> None:
    stream = io.StringIO()
    lines = JsonLines(stream, "shop")
    lines.behind("lake", -1, Offsets({"t:0": 5, "t:1": -1}))
    for partitions in ({"t:0": 5, "t:1": 0}, {"t:0": 5, "t:1": 0, "u:0": 0}):
        lines.measured(Lag({}, (TargetLag("lake", -1, Offsets(partitions)),)))
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assigned = [line["partitions"] for line in told if line["event"] == "pipeline.partitions_assigned"]
    first = [{"topic": "t", "partition": 0}, {"topic": "t", "partition": 1}]
    assert assigned == [first, [{"topic": "u", "partition": 0}]]


def test_lines_carry_the_run_that_they_are_given() -> None:
    stream = io.StringIO()
    tell(JsonLines(stream, "shop", "r1"))
    assert {json.loads(line)["run_id"] for line in stream.getvalue().splitlines()} == {"r1"}


def test_several_reporters_are_told_the_same() -> None:
    first, second = io.StringIO(), io.StringIO()
    tell(Several(JsonLines(first, "shop", "r1"), JsonLines(second, "shop", "r1")))

    def events(stream: io.StringIO) -> list[object]:
        return [{**json.loads(line), "at": None} for line in stream.getvalue().splitlines()]

    alone = io.StringIO()
    tell(JsonLines(alone, "shop", "r1"))
    assert events(first) == events(second) == events(alone)


def test_a_terminal_shows_no_measurements() -> None:
    text = io.StringIO()
    progress = Progress(console=Terminal(file=text, force_terminal=False, width=100), auto_refresh=False)
    console = Console(progress)
    console.begun(["lake"])
    console.evolved("lake", "a", ["added x"])
    console.measured(Lag({}, (TargetLag("lake", 4, 7),)))
    console.retrying("lake", Retryable("busy", "busy"))
    assert text.getvalue() == ""


def test_bars_follow_the_rows() -> None:
    terminal = Terminal(file=io.StringIO(), force_terminal=True, width=100)
    progress = Progress(console=terminal, auto_refresh=False)
    tell(Console(progress))
    bars = {task.description: (task.completed, task.total) for task in progress.tasks}
    assert bars == {"snapshot": (10, 40), "captured": (3, None), "lake": (13, 13), "other": (13, None)}


def test_a_terminal_that_went_away_does_not_stop_a_run() -> None:
    stream = io.StringIO()
    stream.close()
    tell(JsonLines(stream, "shop"))


def test_silence_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    tell(Silent())
    printed = capsys.readouterr()
    assert printed.out + printed.err == ""


def test_a_stream_that_is_no_terminal_gets_lines() -> None:
    with reporting(io.StringIO(), "shop") as report:
        assert isinstance(report, JsonLines)
