"""What a run tells: bars for people, lines for machines, and never an error of its own."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass

import pytest
from rich.console import Console as Terminal
from rich.progress import Progress

from tailrace.core.checkpoint import Snapshotting, Tailing
from tailrace.core.errors import Halt
from tailrace.runtime.report import Console, JsonLines, Reporter, Silent, reporting


@dataclass(frozen=True)
class Counts:
    table: str
    read: int
    applied: int = 0
    superseded: int = 0
    filtered: int = 0
    rejected: int = 0


def tell(report: Reporter) -> None:
    report.page(10, Snapshotting("o", "0/1", "c"), 40)
    report.behind("lake", 5, 15)
    report.page(3, Tailing("o", "0/2"))
    report.slice("lake", 18, [Counts("a", 9, 8, 1), Counts("b", 4, 3, 0, 0, 1)], 0.25)
    report.slice("other", 13, [Counts("a", 13, 13)], 0.25)
    report.warning("look")
    report.failed("lake", Halt("a-b", "it stops", "Do."))
    report.event("retry", attempt=2)


def test_json_lines_have_time_level_run_and_fields() -> None:
    stream = io.StringIO()
    tell(JsonLines(stream, "shop"))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == [
        "page appended",
        "target behind",
        "page appended",
        "slice applied",
        "slice applied",
        "warning",
        "pipeline.sink_write_error",
        "retry",
    ]
    assert {line["pipeline_id"] for line in lines} == {"shop"}
    assert len({line["run_id"] for line in lines}) == 1
    assert lines[0]["checkpoint"]["phase"] == "snapshotting"
    assert (lines[3]["read"], lines[3]["applied"], lines[3]["rejected"]) == (13, 11, 1)
    assert (lines[6]["level"], lines[6]["code"]) == ("error", "a-b")


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
