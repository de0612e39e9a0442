"""A server process: started under a keeper, waited for until it answers, stopped, killed, started again.

`stop` and the death of this process are the same thing to the server: see `keeper`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

KEEPER = Path(__file__).with_name("keeper.py")
STOP_WITHIN = timedelta(seconds=45)
ROOT = Path(__file__).parents[2]
PYTHON_ENV = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))}


class StartFailed(Exception):
    """A server did not come up; the message ends with the last lines of its log."""


class Process:
    """At most one server process at a time, under a name and with a log file."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._keeper: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._keeper is not None and self._keeper.poll() is None

    @property
    def group(self) -> int | None:
        """The process group that holds the server and nothing else."""
        return self._keeper.pid if self._keeper and self.running else None

    def start(
        self,
        command: Sequence[str],
        ready: Callable[[], object],
        env: Mapping[str, str] | None = None,
        within: timedelta = timedelta(seconds=120),
    ) -> None:
        """Start the server and return once `ready` no longer raises; on failure nothing is left running."""
        if self.running:
            return
        self.stop()  # lets go of one that ended by itself
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._keeper = subprocess.Popen(
                [sys.executable, "-E", "-S", str(KEEPER), *command],
                stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **(env or {})}, cwd=self.log.parent,
            )  # fmt: skip
        try:
            self._wait(ready, within)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ask the server to stop and wait for its end; after a while it is made to. Harmless when it does not run."""
        if keeper := self._keeper:
            with contextlib.suppress(BrokenPipeError):
                keeper.stdin.close()  # type: ignore[union-attr]
            try:
                keeper.wait(STOP_WITHIN.total_seconds())
            except subprocess.TimeoutExpired:
                self.kill()
            self._keeper = None

    def kill(self) -> None:
        """End the server as a crash would, without a chance to write anything."""
        if keeper := self._keeper:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(keeper.pid, signal.SIGKILL)
            keeper.wait()
            keeper.stdin.close()  # type: ignore[union-attr]
            self._keeper = None

    def _wait(self, ready: Callable[[], object], within: timedelta) -> None:
        deadline, last = time.monotonic() + within.total_seconds(), "it was not asked yet"
        while time.monotonic() < deadline:
            if not self.running:
                raise StartFailed(f'"{self.name}" ended while starting\n{tail(self.log)}')
            try:
                ready()
            except Exception as error:  # noqa: BLE001  any client's way of saying "not yet"
                last = f"{type(error).__name__}: {error}"
                time.sleep(0.1)
            else:
                return
        raise StartFailed(
            f'"{self.name}" does not answer after {within.total_seconds():.0f} s: {last}\n{tail(self.log)}'
        )


def run(name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
    """Run a command that prepares a server, to its end."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        done = subprocess.run(
            command, check=False, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=120,
            env={**os.environ, **(env or {})}, cwd=log.parent,
        )  # fmt: skip
    if done.returncode:
        raise StartFailed(f'"{name}" could not be prepared: status {done.returncode}\n{tail(log)}')


def python(module: str, *arguments: str) -> list[str]:
    """Return the command for a program of ours; it needs `PYTHON_ENV`."""
    return [sys.executable, "-m", module, *arguments]


def tail(log: Path, lines: int = 30) -> str:
    """Return the last lines of a log, under its name."""
    last = log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else ["(there is no log)"]
    return "\n".join([f"the end of {log}:", *(f"  {line}" for line in last)])


def ports(folder: Path, count: int) -> list[int]:
    """Return loopback ports nobody uses; they belong to the folder from now on, so an address outlives its server."""
    remembered = folder / "ports.json"
    if remembered.exists():
        return [int(port) for port in json.loads(remembered.read_text())]
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        chosen = [int(probe.getsockname()[1]) for probe in probes]
    folder.mkdir(parents=True, exist_ok=True)
    remembered.write_text(json.dumps(chosen))
    return chosen
