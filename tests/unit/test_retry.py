"""Trying again: only what may work next time, only so often, and not after a stop."""

from __future__ import annotations

import threading

import pytest

from tailrace.config.pipeline import RetryConfig
from tailrace.core.errors import Halt, Retryable, TailraceError, Unreachable
from tailrace.runtime.report import Silent
from tailrace.runtime.retry import attempt


class Work:
    """Fails as told, then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.tries = 0

    def __call__(self) -> str:
        self.tries += 1
        if self._errors:
            raise self._errors.pop(0)
        return "done"


class Told(Silent):
    """Remembers warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, text: str) -> None:
        self.warnings.append(text)


def busy(number: int = 1) -> Retryable:
    return Retryable("busy", f"busy {number}")


def tried(work: Work, attempts: int = 3, stop: threading.Event | None = None, report: Told | None = None) -> str:
    policy = RetryConfig(max_attempts=attempts, initial_wait_seconds=0.001, max_wait_seconds=0.002)
    return attempt(work, policy, stop or threading.Event(), report or Told())


def test_work_that_succeeds_is_done_once() -> None:
    work, report = Work(), Told()
    assert tried(work, report=report) == "done"
    assert (work.tries, report.warnings) == (1, [])


def test_work_is_done_again_while_attempts_are_left() -> None:
    work, report = Work(busy(), busy()), Told()
    assert tried(work, report=report) == "done"
    assert work.tries == 3
    assert [text.rpartition(", ")[2] for text in report.warnings] == ["2 attempts left", "1 attempts left"]


def test_the_last_error_is_raised_as_it_is() -> None:
    last = busy(3)
    work = Work(busy(1), busy(2), last, busy(4))
    with pytest.raises(Retryable) as raised:
        tried(work)
    assert raised.value is last
    assert work.tries == 3


@pytest.mark.parametrize("error", [Halt("x", "y"), TailraceError("x", "y"), ValueError("y"), OSError(28, "full")])
def test_other_errors_are_not_tried_again(error: Exception) -> None:
    work = Work(error)
    with pytest.raises(type(error)):
        tried(work)
    assert work.tries == 1


def test_one_attempt_means_one() -> None:
    work = Work(busy())
    with pytest.raises(Retryable):
        tried(work, attempts=1)
    assert work.tries == 1


def test_after_a_stop_nothing_is_tried_again() -> None:
    stop = threading.Event()
    stop.set()
    work = Work(busy())
    with pytest.raises(Retryable):
        tried(work, stop=stop)
    assert work.tries == 1


def test_a_stop_ends_the_waiting() -> None:
    stop = threading.Event()

    class Stopper(Told):
        def warning(self, text: str) -> None:
            threading.Timer(0.01, stop.set).start()

    work = Work(busy())
    patient = RetryConfig(max_attempts=5, initial_wait_seconds=3600, max_wait_seconds=3600)
    with pytest.raises(Retryable):
        attempt(work, patient, stop, Stopper())
    assert work.tries == 1


def test_waits_grow_up_to_the_longest() -> None:
    report = Told()
    policy = RetryConfig(max_attempts=5, initial_wait_seconds=0.1, multiplier=2, max_wait_seconds=0.2, jitter=False)
    stop = threading.Event()
    assert attempt(Work(busy(), busy(), busy()), policy, stop, report) == "done"
    assert [text.split(" in ")[1].split(",")[0] for text in report.warnings] == ["0.1 s", "0.2 s", "0.2 s"]


def test_a_wait_is_no_shorter_than_the_other_side_asked_for() -> None:
    work, report = Work(Retryable("busy", "busy", after=0.06)), Told()
    assert tried(work, report=report) == "done"
    assert "trying again in 0.1 s" in report.warnings[0]


def test_attempts_count_anew_when_something_was_done_in_between() -> None:
    work, report = Work(busy(), busy(), busy(), busy(), busy()), Told()
    policy = RetryConfig(max_attempts=2, initial_wait_seconds=0.001)

    assert attempt(work, policy, threading.Event(), report, lambda: work.tries) == "done"
    assert work.tries == 6
    with pytest.raises(Retryable):
        attempt(Work(busy(), busy()), policy, threading.Event(), report, lambda: 7)


def test_a_server_that_is_away_is_waited_for_without_end_where_that_is_wanted() -> None:
    away = [Unreachable("away", "away") for _ in range(2000)]
    work, report = Work(*away, busy()), Told()
    policy = RetryConfig(max_attempts=2, initial_wait_seconds=1e-9, max_wait_seconds=1e-9, multiplier=10)
    assert attempt(work, policy, threading.Event(), report, endless=True) == "done"
    assert {text.rpartition(", ")[2] for text in report.warnings} == {"until it is back", "1 attempts left"}
    work = Work(*away)
    with pytest.raises(Unreachable):
        attempt(work, policy, threading.Event(), report)
    assert work.tries == 2


def test_waiting_for_a_server_takes_no_attempts_from_other_errors() -> None:
    last = busy(2)
    work = Work(Unreachable("away", "away"), busy(1), Unreachable("away", "away"), last)
    policy = RetryConfig(max_attempts=2, initial_wait_seconds=0.001)
    with pytest.raises(Retryable) as raised:
        attempt(work, policy, threading.Event(), Told(), endless=True)
    assert raised.value is last
