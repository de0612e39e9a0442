"""What is known of a running pipeline, and which of its parts is said not to do its work."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tailrace.config.pipeline import RetryConfig
from tailrace.control.checkpoints import Checkpoints
from tailrace.control.health import Health, View
from tailrace.control.lag import Lag, TargetLag, asked
from tailrace.control.readiness import Bounds, failing
from tailrace.core.checkpoint import Scope, Snapshotting, Tailing
from tailrace.core.errors import Halt, NotReady, Retryable
from tailrace.core.offsets import Offsets
from tailrace.core.subjects import Registered, Version
from tailrace.log.memory import MemoryLog
from tailrace.runtime.fold import Counts
from tailrace.runtime.monitor import monitored, watched
from tailrace.runtime.report import Reporter, Silent
from tailrace.runtime.retry import attempt
from tailrace.runtime.run import Job, run
from tests.contracts.log import ITEMS, put
from tests.unit.test_run import Failing


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Told:
    """A pipeline's health, with a clock that a test turns."""

    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.health = Health("shop", "r1", "postgres", {"lake": "delta", "db": "duckdb"}, self.clock)
        self.health.begun(["lake", "db"])

    def view(self) -> View:
        return self.health.view()

    def parts(self, bounds: Bounds | None = None) -> dict[str, str]:
        return {part.part: part.code for part in failing(self.view(), bounds or Bounds())}


@pytest.fixture
def told() -> Told:
    return Told()


# -- what is known


def test_health_listens_like_any_reporter(told: Told) -> None:
    reporter: Reporter = told.health
    reporter.warning("look")
    reporter.event("something", n=1)
    assert told.parts() == {}


def test_nothing_is_ready_before_the_run_has_begun() -> None:
    health = Health("shop", "r1", "postgres", {"lake": "delta"})
    assert [(part.part, part.code) for part in failing(health.view(), Bounds())] == [("pipeline", "starting")]
    health.begun(["lake"])
    assert failing(health.view(), Bounds()) == []


def test_a_run_that_was_asked_to_stop_is_not_ready(told: Told) -> None:
    told.health.stopping()
    assert told.parts() == {"pipeline": "stopping"}


def test_only_the_targets_that_take_part_are_told_of() -> None:
    health = Health("shop", "r1", "postgres", {"lake": "delta", "db": "duckdb"})
    health.begun(["db"])
    assert list(health.view().targets) == ["db"]


def test_a_page_says_where_the_source_stands(told: Told) -> None:
    told.health.page(10, Snapshotting("origin", "0/1", "cursor", Scope("s")))
    assert (told.view().phase, told.view().position) == ("snapshot", "0/1")
    told.clock.now += 5
    told.health.page(3, Tailing("origin", "0/2"))
    view = told.view()
    assert (view.phase, view.position, view.pages, view.rows) == ("tailing", "0/2", 2, 13)
    assert view.checkpoint_at == 1005


def test_slices_add_up_by_table(told: Told) -> None:
    told.health.slice("lake", 9, [Counts("a", 6, applied=5, superseded=1), Counts("b", 4, rejected=1, filtered=3)], 0.2)
    told.health.slice("lake", 12, [Counts("a", 3, applied=3)], 400.0)
    lake = told.view().targets["lake"]
    slices = lake.timings["slice"]
    assert (lake.slices, lake.upto, slices.seconds) == (2, 12, 400.2)
    assert (lake.tables["a"].read, lake.tables["a"].applied, lake.tables["a"].superseded) == (9, 8, 1)
    assert (lake.tables["b"].rejected, lake.tables["b"].filtered, lake.tables["b"].mark) == (1, 3, 9)
    assert lake.tables["a"].mark == 12
    assert sum(slices.buckets) == 1


def test_a_view_stays_as_it_was(told: Told) -> None:
    before = told.view()
    told.health.slice("lake", 9, [Counts("a", 1, applied=1)], 0.1)
    assert before.targets["lake"].slices == 0


def test_schema_changes_are_counted(told: Told) -> None:
    told.health.evolved("lake", "a", ["added x", "widened y"])
    assert told.view().targets["lake"].tables["a"].schema_changes == 2


# -- lag


def test_lag_is_what_was_measured_less_what_was_applied_since(told: Told) -> None:
    told.health.measured(Lag({}, (TargetLag("lake", 4, 20, 2, {"a": 4}), TargetLag("db", 20, 20))))
    view = told.view()
    assert (view.targets["lake"].lag_events, view.targets["lake"].dead_letters, view.head) == (16, 2, 20)
    assert view.targets["lake"].tables["a"].mark == 4
    assert view.targets["db"].lag_events == 0
    told.health.slice("lake", 14, [Counts("a", 10, applied=10)], 0.1)
    assert told.view().targets["lake"].lag_events == 6


def test_a_measurement_that_is_older_than_a_slice_takes_nothing_back(told: Told) -> None:
    told.health.slice("lake", 14, [Counts("a", 15, applied=15)], 0.1)
    told.health.measured(Lag({}, (TargetLag("lake", 4, 20, 0, {"a": 4, "b": 2}),)))
    lake = told.view().targets["lake"]
    assert (lake.upto, lake.lag_events, lake.tables["a"].mark, lake.tables["b"].mark) == (14, 6, 14, 2)


def test_the_oldest_event_waits_since_the_log_first_had_it(told: Told) -> None:
    told.health.measured(Lag({}, (TargetLag("lake", 5, 5), TargetLag("db", 5, 5))))
    assert told.view().targets["lake"].lag_seconds == 0
    told.clock.now += 10
    told.health.measured(Lag({}, (TargetLag("lake", 5, 8), TargetLag("db", 8, 8))))
    told.clock.now += 10
    told.health.measured(Lag({}, (TargetLag("lake", 5, 11), TargetLag("db", 8, 11))))
    told.clock.now += 1
    assert (told.view().targets["lake"].lag_seconds, told.view().targets["db"].lag_seconds) == (11, 1)
    told.health.slice("lake", 8, [Counts("a", 3, applied=3)], 0.1)
    assert told.view().targets["lake"].lag_seconds == 1
    told.health.slice("lake", 11, [Counts("a", 3, applied=3)], 0.1)
    assert told.view().targets["lake"].lag_seconds == 0


def test_the_wait_is_right_however_long_a_target_is_behind(told: Told) -> None:
    for n in range(1500):
        told.health.measured(Lag({}, (TargetLag("lake", -1, n), TargetLag("db", n, n))))
        told.clock.now += 1
    assert told.view().targets["lake"].lag_seconds == 1500


def test_lag_in_partitions_is_that_of_each() -> None:
    found = TargetLag("lake", Offsets({"t:0": 3}), Offsets({"t:0": 5, "t:1": 0}))
    assert found.events == 3
    assert Lag({}, (found,)).to_json() == [
        {"sink_id": "lake", "topic": "t", "partition": 0, "lag": 2, "offset": 3},
        {"sink_id": "lake", "topic": "t", "partition": 1, "lag": 1, "offset": -1},
    ]


def test_a_measurement_that_fails_leaves_the_figures(told: Told) -> None:
    told.health.measured(Lag({"slot_retained_bytes": 7}, (TargetLag("lake", 1, 3),)))
    told.health.measured(Lag(error=Retryable("connection-lost", "it went away")))
    view = told.view()
    assert (view.targets["lake"].lag_events, view.source["slot_retained_bytes"]) == (2, 7)
    assert view.unmeasured is not None
    assert told.parts() == {}


class Measurements(Silent):
    """Remembers measurements, until there are enough."""

    def __init__(self, enough: int) -> None:
        self.lags: list[Lag] = []
        self._left = enough
        self.done = threading.Event()

    def measured(self, lag: Lag) -> None:
        self.lags.append(lag)
        self._left -= 1
        if not self._left:
            self.done.set()


def test_a_monitor_goes_on_after_any_error() -> None:
    errors: list[Exception] = [Halt("broken", "broken"), ValueError("row 7 is canary-9")]

    def measure() -> Lag:
        if errors:
            raise errors.pop(0)
        return Lag({"lag_bytes": 1})

    heard = Measurements(3)
    with monitored(measure, 0.001, heard):
        assert heard.done.wait(30)
    first, second, third = heard.lags[:3]
    assert (first.error and first.error.code, second.error and second.error.code) == ("broken", "internal")
    assert "canary" not in str(second.error)
    assert third.source == {"lag_bytes": 1}


def test_a_registry_is_watched_through_any_error(told: Told) -> None:
    answers: list[Registered | Exception] = [ValueError("canary-9"), Registered((Version("t-key", 1, 5),))]
    seen = threading.Event()

    def look() -> Registered:
        found = answers.pop(0) if answers else seen.set() or Registered((Version("t-key", 2, 6),))
        if isinstance(found, Exception):
            raise found
        return found

    with watched(look, 0.001, told.health), watched(None, 0.001, told.health):
        assert seen.wait(30)
    registry = told.health.view().registry
    assert registry is not None
    assert registry.error is None
    assert registry.subjects["t-key"].version in (1, 2)


# -- what is wrong


def test_a_halted_target_is_named_and_the_others_are_not(told: Told) -> None:
    told.health.failed("lake", Halt("type-changed", "a type changed", "Mend it."))
    assert told.parts() == {"target lake": "type-changed"}
    assert told.view().targets["db"].status == "running"
    assert told.view().last_error == told.view().targets["lake"].error
    told.health.slice("lake", 1, [], 0.1)
    assert told.view().targets["lake"].status == "failed"


def test_a_halted_pump_is_named_even_if_a_target_is_called_source() -> None:
    health = Health("shop", "r1", "postgres", {"source": "delta"})
    health.begun(["source"])
    health.halted("source", Halt("capture-failed", "it ended"))
    assert [part.part for part in failing(health.view(), Bounds())] == ["source"]
    assert health.view().targets["source"].status == "running"


def test_what_is_tried_again_is_told_and_is_no_failure(told: Told) -> None:
    told.health.retrying("lake", Retryable("write-conflict", "another writer"))
    told.health.retrying(None, Retryable("connection-lost", "it went away"))
    assert told.parts() == {}
    assert (told.view().targets["lake"].status, told.view().source_status) == ("retrying", "retrying")
    told.health.retrying("lake", None)
    told.health.page(1, Tailing("o", "1"))
    view = told.view()
    assert (view.targets["lake"].status, view.targets["lake"].error) == ("running", None)
    assert (view.source_status, view.source_error) == ("running", None)
    assert view.last_error is not None
    assert view.last_error.code == "connection-lost"


def test_what_is_tried_again_for_too_long_is_named_until_it_works(told: Told) -> None:
    for _ in range(4):
        told.health.retrying(None, Retryable("connection-lost", "away"))
        told.health.retrying("db", Retryable("kafka-unreachable", "away"))
        told.clock.now += 20
    assert told.parts() == {"source": "connection-lost", "target db": "kafka-unreachable"}
    assert told.parts(Bounds(retrying_seconds=None)) == {}
    told.health.retrying(None, None)
    told.health.slice("db", 9, [Counts("a", 1, applied=1)], 0.1)
    assert told.parts() == {}
    told.health.retrying("db", Retryable("kafka-unreachable", "away"))
    assert told.parts() == {}


def test_an_attempt_tells_that_it_tries_again_and_that_it_worked(told: Told) -> None:
    seen: list[str] = []
    errors = [Retryable("busy", "busy")]

    def work() -> str:
        seen.append(told.view().targets["lake"].status)
        if errors:
            raise errors.pop()
        return "done"

    policy = RetryConfig(max_attempts=3, initial_wait_seconds=0, max_wait_seconds=0)
    assert attempt(work, policy, threading.Event(), told.health, target="lake") == "done"
    assert seen == ["running", "retrying"]
    assert told.view().targets["lake"].status == "running"


def test_a_run_tells_its_health_that_the_pump_failed(tmp_path: Path) -> None:
    health, log = Health("shop", "r1", "memory", {}), MemoryLog()
    health.begun([])
    source = Failing(Halt("broken", "broken"))
    job = Job("shop", source, log, log.head, Checkpoints(tmp_path), [], RetryConfig(), health, lambda: None)
    run(job, threading.Event(), once=True)
    assert [(part.part, part.code) for part in failing(health.view(), Bounds())] == [("source", "broken")]


def test_a_run_tells_its_health_of_pages(tmp_path: Path) -> None:
    from tailrace.sources.memory import MemorySource

    health, log = Health("shop", "r1", "memory", {}), MemoryLog()
    source = MemorySource([ITEMS], [put(n) for n in range(1, 8)], page_rows=3)
    job = Job("shop", source, log, log.head, Checkpoints(tmp_path), [], RetryConfig(), health, lambda: None)
    run(job, threading.Event(), once=True)
    assert (health.view().pages, health.view().rows, health.view().position) == (3, 7, "7")


@pytest.mark.parametrize(("bound", "parts"), [(99, {"slot": "slot-retains-too-much"}), (100, {}), (None, {})])
def test_a_slot_that_retains_too_much_is_named(told: Told, bound: int | None, parts: dict[str, str]) -> None:
    told.health.measured(Lag({"slot_retained_bytes": 100}))
    assert told.parts(Bounds(slot_bytes=bound)) == parts


@pytest.mark.parametrize(("bound", "parts"), [(29, {"lag of target lake": "lag"}), (30, {}), (None, {})])
def test_lag_over_the_bound_is_named(told: Told, bound: float | None, parts: dict[str, str]) -> None:
    told.health.measured(Lag({}, (TargetLag("lake", 0, 5), TargetLag("db", 5, 5))))
    told.clock.now += 30
    assert told.parts(Bounds(lag_seconds=bound)) == parts


def test_a_connector_or_a_task_that_failed_is_named(told: Told) -> None:
    told.health.measured(Lag({"connector": {"state": "RUNNING"}, "tasks": [{"state": "RUNNING"}, {"state": "FAILED"}]}))
    assert told.parts() == {"connector task 1": "connector-failed"}
    told.health.measured(Lag({"connector": {"state": "FAILED"}, "tasks": []}))
    assert told.parts() == {"connector": "connector-failed"}


@pytest.mark.parametrize(("state", "code"), [("MISSING", "not-deployed"), ("UNREACHABLE", "connect-unreachable")])
def test_a_connector_that_is_not_seen_is_named_also_when_the_log_is_away(told: Told, state: str, code: str) -> None:
    told.health.measured(Lag({"connector": {"state": "RUNNING"}, "tasks": []}, (TargetLag("lake", 1, 3),)))
    away = Retryable("kafka-unreachable", "away")
    told.health.measured(Lag({"connector": {"state": state}, "tasks": []}, error=away))
    assert told.parts() == {"connector": code}
    assert told.view().targets["lake"].lag_events == 2


def test_a_source_that_cannot_be_asked_is_named_and_lag_is_measured_all_the_same(told: Told) -> None:
    def refused() -> Mapping[str, object]:
        raise NotReady("postgres-unreachable", "no answer", "Start it.")

    told.health.measured(Lag(asked(refused), (TargetLag("lake", 1, 3),)))
    assert told.parts() == {"source server": "postgres-unreachable"}
    assert told.view().targets["lake"].lag_events == 2
    told.health.measured(Lag(asked(lambda: {"lag_bytes": 1})))
    assert told.parts() == {}
