"""Signals: the first one stops the work, the second one the process."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tailrace.cli.signals import attend

PRELUDE = """
import ctypes, os, signal, sys, threading
from tailrace.cli.signals import attend
stop = threading.Event()
"""

WAITS = """
def work():
    print("ready", flush=True)
    stop.wait(60)
    return "finished"
print(attend(work, stop.set), flush=True)
"""

DEAF = """
def work():
    print("ready", flush=True)
    threading.Event().wait(60)
attend(work, lambda: print("asked", flush=True))
"""

OVERRIDDEN = """
def work():
    ctypes.CDLL(None).signal(signal.SIGTERM, 1)
    while not stop.is_set():
        os.kill(os.getpid(), signal.SIGTERM)
        stop.wait(1)
    return "finished"
print(attend(work, stop.set), flush=True)
"""


def started(script: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PRELUDE + script]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_the_work_finish(number: signal.Signals) -> None:
    with started(WAITS) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, told = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "finished\n")
    assert "stopping" in told


def test_the_second_signal_ends_the_process() -> None:
    with started(DEAF) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 130


def test_a_library_that_takes_the_signals_does_not_keep_them() -> None:
    with started(OVERRIDDEN) as process:
        out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "finished\n")


def test_the_result_and_the_error_of_the_work_are_passed_on() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert attend(lambda: 7, lambda: None) == 7
    with pytest.raises(ZeroDivisionError):
        attend(lambda: 1 // 0, lambda: None)
    assert signal.getsignal(signal.SIGTERM) is before


LEAVES = """
import atexit, sys, threading
from tailrace.cli.main import command
atexit.register(lambda: print("tidied"))
threading.Thread(target=threading.Event().wait, args=(60,)).start()
sys.argv = ["cdc", *sys.argv[1:]]
command()
"""


@pytest.mark.parametrize(("words", "code"), [(["--help"], 0), (["validate", "missing.yaml"], 2)])
def test_the_command_tidies_up_and_leaves_whatever_threads_do(words: list[str], code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVES, *words], capture_output=True, text=True, check=False, timeout=50
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (code, "tidied")
