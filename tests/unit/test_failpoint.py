"""Failpoints: off unless armed, and never armed outside tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tailrace.core import failpoint as failpoints
from tailrace.core.errors import Misconfigured, Retryable
from tailrace.core.failpoint import arm, failpoint


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints._armed.clear()


def armed(spec: str) -> None:
    arm({"TAILRACE_TEST_MODE": "1", "TAILRACE_FAILPOINTS": spec})


def hits(name: str, times: int) -> list[int]:
    """Say at which hits of `name` something was raised."""
    raised = []
    for hit in range(1, times + 1):
        try:
            failpoint(name)
        except Retryable:
            raised.append(hit)
    return raised


def test_nothing_happens_unless_armed() -> None:
    arm({})
    arm({"TAILRACE_TEST_MODE": "1"})
    assert hits("C09", 3) == []


@pytest.mark.parametrize("mode", [{}, {"TAILRACE_TEST_MODE": ""}, {"TAILRACE_TEST_MODE": "0"}])
def test_arming_is_refused_outside_test_mode(mode: dict[str, str]) -> None:
    with pytest.raises(Misconfigured) as refused:
        arm({**mode, "TAILRACE_FAILPOINTS": "C09=raise"})
    assert refused.value.code == "failpoints-armed"
    assert hits("C09", 1) == []


@pytest.mark.parametrize("spec", ["C09", "C09=", "C09=explode", "C09=raise:x", "C09=raise:²", "C09=raise,", ","])
def test_an_unknown_action_is_refused(spec: str) -> None:
    with pytest.raises(Misconfigured):
        armed(spec)


def test_it_happens_once_at_the_hit_that_was_named() -> None:
    armed("C09=raise:3,C10=raise")
    assert hits("C09", 6) == [3]
    assert hits("C10", 3) == [1]
    assert hits("C11", 3) == []


@pytest.mark.parametrize(("action", "expected"), [("kill", signal.SIGKILL), ("pause", signal.SIGSTOP)])
def test_it_stops_the_process_for_real(action: str, expected: signal.Signals) -> None:
    code = "import os; from tailrace.core.failpoint import arm, failpoint; arm(os.environ); failpoint('C09')"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TAILRACE_TEST_MODE": "1",
        "TAILRACE_FAILPOINTS": f"C09={action}",
    }
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        stopped = os.WSTOPSIG(status) if os.WIFSTOPPED(status) else os.WTERMSIG(status)
        process.kill()
    assert stopped == expected


def test_a_name_that_is_armed_several_times_acts_at_each_of_its_hits() -> None:
    armed("C01=raise,C01=raise:3")
    assert hits("C01", 4) == [1, 3]
