"""A run whose JVM is killed: it starts another one and goes on, and nothing is lost or doubled."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from tests.clients import FILES, in_files
from tests.e2e.kills import MODES, TABLE, Feed, told


def _jvm(parent: int) -> int:
    """Return the process of Spark below `parent`."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            ours = f"\nPPid:\t{parent}\n" in (process / "status").read_text()
            if ours and b"PythonGatewayServer" in (process / "cmdline").read_bytes():
                return int(process.name)
    raise AssertionError("it has no JVM")


@pytest.mark.timeout(900)
def test_a_run_goes_on_with_another_jvm_when_its_own_is_killed(tmp_path: Path) -> None:
    stores = {f"{kind}-{mode}": in_files(kind, tmp_path / kind / mode) for kind in FILES for mode in MODES}
    feed = Feed(tmp_path / "feed", [store.sink(name, mode=name.split("-")[1]) for name, store in stores.items()])
    for _ in range(4):
        feed.put()
    # Every target has about a slice by then, and some have one in hand.
    run = feed.start(f"C19=pause:{len(stores)},C22=pause:{len(stores) * 3}")
    try:
        for _ in range(2):
            _, status = os.waitpid(run.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), run.communicate()
            os.kill(_jvm(run.pid), signal.SIGKILL)
            run.send_signal(signal.SIGCONT)
        out, err = run.communicate(timeout=600)
    finally:
        run.kill()
        run.wait()
    report = json.loads(out.splitlines()[-1])
    assert report["status"] == "done", err[-3000:]
    assert "spark-lost" in err
    for name, store in stores.items():
        assert Counter(map(told, store.read(TABLE))) == feed.expected(4, name.split("-")[1]), name
