"""What a run tells at its end, and that it always ends. (Runs with targets are in the spark tier.)"""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from tailrace.config.pipeline import RetryConfig
from tailrace.control.checkpoints import Checkpoints
from tailrace.core.checkpoint import Checkpoint, Place, Tailing
from tailrace.core.errors import Halt, NotReady, Retryable, TailraceError, Unreachable
from tailrace.core.page import Page
from tailrace.log.memory import MemoryLog
from tailrace.runtime.drain import Drain, Pace
from tailrace.runtime.fold import Counts
from tailrace.runtime.report import Silent
from tailrace.runtime.run import Job, RunReport, TargetReport, run
from tailrace.sources.memory import MemorySource
from tests.contracts.log import ITEMS, put


def job(folder: Path, source: MemorySource) -> Job:
    log = MemoryLog()
    policy = RetryConfig(max_attempts=3, initial_wait_seconds=0, max_wait_seconds=0)
    return Job("shop", source, log, log.head, Checkpoints(folder), [], policy, Silent(), lambda: None)


class Failing(MemorySource):
    """Raises what it is given, once for each, and then goes on."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__([ITEMS], [put(1), put(2)])
        self._errors = list(errors)

    def pages(self, since: Checkpoint | None, until: Place | None = None) -> Iterator[Page[pa.Table]]:
        if self._errors:
            raise self._errors.pop(0)
        yield from super().pages(since, until)


# -- the report


def test_the_slices_of_a_target_add_up() -> None:
    report = TargetReport("lake")
    report.add([Counts("a", 3, applied=3, inserted=2), Counts("b", 1, rejected=1)], 3)
    report.add([Counts("a", 4, applied=2, superseded=2, updated=1, deleted=1)], 7)
    assert (report.slices, report.upto) == (2, 7)
    assert report.tables["a"] == Counts("a", 7, applied=5, superseded=2, inserted=2, updated=1, deleted=1)
    assert report.tables["b"] == Counts("b", 1, rejected=1)


def test_what_a_topic_has_beside_its_table_is_counted_with_it() -> None:
    report = TargetReport("lake")
    report.add([Counts("a", 3, applied=3, inserted=2), Counts("a", 2, filtered=1, rejected=1)], 4)
    assert report.tables == {"a": Counts("a", 5, applied=3, filtered=1, rejected=1, inserted=2)}


def test_a_run_is_told_as_the_interface_says() -> None:
    target = TargetReport("lake", "done")
    target.add([Counts("public.orders", 10, applied=9, superseded=1, inserted=4, updated=4, deleted=1)], 9)
    report = RunReport("shop", [target], "done", 12.3456, 3, 1000, Tailing("here", "0/16B3748"))
    assert json.loads(json.dumps(report.to_json())) == {
        "pipeline_id": "shop",
        "status": "done",
        "seconds": 12.346,
        "pump": {"pages": 3, "rows": 1000, "checkpoint": {"phase": "tailing", "origin": "here", "at": "0/16B3748"}},
        "targets": [
            {
                "target": "lake",
                "status": "done",
                "slices": 1,
                "upto": "9",
                "tables": [
                    {
                        "table": "public.orders",
                        "read": 10,
                        "applied": 9,
                        "superseded": 1,
                        "filtered": 0,
                        "rejected": 0,
                        "inserted": 4,
                        "updated": 4,
                        "deleted": 1,
                    }
                ],
            }
        ],
    }


def test_tables_are_told_in_the_order_of_their_names() -> None:
    report = TargetReport("lake")
    report.add([Counts("b", 1), Counts("a", 2)], 3)
    assert report.to_json()["tables"] == [asdict(Counts("a", 2)), asdict(Counts("b", 1))]


def test_an_error_is_told_with_its_code_and_hint() -> None:
    target = TargetReport("lake", "failed", error=Halt("no-key", "there is no key", "Give it one."))
    assert target.to_json()["error"] == {"code": "no-key", "message": "there is no key", "hint": "Give it one."}


def test_the_pump_s_error_decides_before_a_target_s() -> None:
    first, second, pumped = Halt("a", "a"), NotReady("b", "b"), NotReady("c", "c")
    targets = [TargetReport("x"), TargetReport("y", error=first), TargetReport("z", error=second)]
    assert RunReport("shop", targets).first_error() is first
    assert RunReport("shop", targets, error=pumped).first_error() is pumped
    assert RunReport("shop", targets[:1]).first_error() is None


# -- the pump's side of a run


def test_a_run_of_once_ends_at_the_head(tmp_path: Path) -> None:
    source = MemorySource([ITEMS], [put(n) for n in range(1, 8)], page_rows=3)
    report = run(job(tmp_path, source), threading.Event(), once=True)
    assert (report.status, report.pages, report.rows) == ("done", 3, 7)
    assert report.checkpoint == Tailing("memory", "7")


def test_an_error_that_may_pass_is_tried_again(tmp_path: Path) -> None:
    report = run(job(tmp_path, Failing(Retryable("busy", "busy"))), threading.Event(), once=True)
    assert (report.status, report.rows) == ("done", 2)


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize(("error", "code"), [(Halt("broken", "broken"), "broken"), (ValueError("oops"), "internal")])
def test_any_other_error_ends_the_run_and_is_told(tmp_path: Path, once: bool, error: Exception, code: str) -> None:
    report = run(job(tmp_path, Failing(error)), threading.Event(), once=once)
    assert report.status == "failed"
    assert report.error is not None
    assert report.error.code == code


def test_a_stopped_run_says_so(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    report = run(job(tmp_path, MemorySource([ITEMS], [put(1)])), stop, once=False)
    assert (report.status, report.error) == ("stopped", None)


def test_a_warm_up_that_fails_is_not_the_end(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("no Java here")

    source = MemorySource([ITEMS], [put(1)])
    log = MemoryLog()
    cold = Job("shop", source, log, log.head, Checkpoints(tmp_path), [], RetryConfig(), Silent(), fail)
    assert run(cold, threading.Event(), once=True).status == "done"


# -- several targets


class Work:
    """As much of a drain as a run asks for, of a log in which nothing is new."""

    def __init__(self, target: str, asked: Any) -> None:
        self.target, self.at, self.pace = target, asked, Pace(1, 0.0)
        self.log = SimpleNamespace(reads_ahead=False)
        self.fold = SimpleNamespace(settle=lambda _: None)
        self.begin, self.maintain, self.make_tables = [lambda: None] * 3

    def next_slice(self, *_: object) -> None:
        return None


def test_a_target_that_fails_or_waits_holds_no_other_back_in_a_run_of_once(tmp_path: Path) -> None:
    other_is_done = threading.Event()

    def away() -> int:
        # Asked in turns, the other would wait for this one.
        assert other_is_done.wait(10)
        raise NotReady("unreachable", "nobody answers")

    def there() -> int:
        other_is_done.set()
        return 7

    works = [(cast("Drain", Work(*made)), RetryConfig()) for made in (("first", away), ("second", there))]
    two = replace(job(tmp_path, MemorySource([ITEMS], [put(1)])), drains=works)
    report = run(two, threading.Event(), once=True)
    assert [(target.target, target.status) for target in report.targets] == [("first", "failed"), ("second", "done")]


@dataclass(frozen=True)
class Losing:
    """As much of a drain as a run asks for, of three slices; Spark goes away while one of them is applied, as told."""

    target: str
    lives: list[int]
    """How often the first slice, and then the others, lose Spark."""
    pace: Pace = field(default_factory=lambda: Pace(8, 0.0))
    error: Exception = field(default_factory=ConnectionRefusedError)
    """Whoever is asked then knows no more than that nobody answers."""
    said: list[str] = field(default_factory=list)
    applied: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    log: Any = field(default_factory=lambda: SimpleNamespace(reads_ahead=False))
    fold: Any = field(default_factory=lambda: SimpleNamespace(settle=lambda _: None))
    report: Silent = field(default_factory=Silent)

    def at(self) -> int:
        return len(self.applied)

    def next_slice(self, after: int, _: int | None) -> Any:
        self.said.append(f"{after}: {self.pace.max_rows} rows")
        return SimpleNamespace(upto=after + 1, release=lambda: None) if after < len(self.lives) else None

    def apply(self, piece: Any) -> list[Counts]:
        place = piece.upto - 1
        if self.lives[place]:
            self.lives[place] -= 1
            self.lost.append(place)
            raise self.error
        self.applied.append(place)
        return []

    def renew(self) -> None:
        self.said.append("renewed")

    def maintain(self) -> None:
        pass

    begin = make_tables = maintain


def lost(folder: Path, work: Losing, attempts: int = 3) -> TargetReport:
    policy = RetryConfig(max_attempts=attempts, initial_wait_seconds=0, max_wait_seconds=0)
    made = replace(
        job(folder, MemorySource([ITEMS], [put(1)])),
        drains=[(cast("Drain", work), policy)],
        losses=lambda _: len(work.lost) if isinstance(work.error, ConnectionError) else 0,
    )
    return run(made, threading.Event(), once=True).targets[0]


def test_a_target_goes_on_from_what_it_has_when_spark_went_away(tmp_path: Path) -> None:
    work = Losing("lake", [1, 0, 2])
    report = lost(tmp_path, work)
    assert (report.status, report.slices, work.applied) == ("done", 3, [0, 1, 2])
    # What went away for the second time in one slice may have been too much for it.
    assert work.said == [
        "0: 8 rows", "renewed", "0: 8 rows", "1: 8 rows", "2: 8 rows", "renewed", "2: 8 rows", "renewed", "2: 4 rows",
        "3: 4 rows",
    ]  # fmt: skip


def test_a_target_that_spark_goes_away_from_again_and_again_is_given_up(tmp_path: Path) -> None:
    work = Losing("lake", [0, 9])
    report = lost(tmp_path, work)
    assert (report.status, report.error and report.error.code, work.lost) == ("failed", "spark-lost", [1, 1, 1])


def test_a_full_disk_of_spark_s_is_no_defect_and_is_waited_for(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    work = Losing("lake", [0, 2], error=full)
    assert (lost(tmp_path, work).status, work.applied, "renewed" in work.said) == ("done", [0, 1], False)
    report = lost(tmp_path, Losing("lake", [9], error=full))
    assert (report.status, report.error and report.error.code) == ("failed", "disk-full")


def test_a_run_that_goes_on_waits_for_its_source_and_once_does_not(tmp_path: Path) -> None:
    stop = threading.Event()

    class Waiting(Silent):
        tries = 0

        def retrying(self, target: str | None, error: TailraceError | None) -> None:
            self.tries += 1
            if error is None or self.tries == 20:
                stop.set()

    away = [Unreachable("connection-lost", "away") for _ in range(100)]
    waiting = Waiting()
    report = run(replace(job(tmp_path / "on", Failing(*away)), report=waiting), stop, once=False)
    assert (report.status, report.error, waiting.tries) == ("stopped", None, 20)
    report = run(job(tmp_path / "once", Failing(*away)), threading.Event(), once=True)
    assert (report.status, report.error and report.error.code) == ("failed", "connection-lost")
