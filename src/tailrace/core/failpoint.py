"""Named places where a test may kill, stop or fail the process: `failpoint("C09")`.

Off unless armed, and arming is refused outside test mode, so that no production process can carry an
armed failpoint. The names are those of the crash catalogue in docs/explanation/crashes.md.

    TAILRACE_TEST_MODE=1 TAILRACE_FAILPOINTS="C09=kill:3,C22=raise" cdc run ...

An action is `kill` (SIGKILL to ourselves), `pause` (SIGSTOP) or `raise` (a Retryable error); the number
says at which hit it happens, 1 if there is none, and each happens once. A name may be armed several times.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping

from tailrace.core.errors import Misconfigured, Retryable

_lock = threading.Lock()
_armed: dict[str, list[tuple[str, int]]] = {}


def arm(environ: Mapping[str, str]) -> None:
    """Arm what `TAILRACE_FAILPOINTS` names; refuse unless `TAILRACE_TEST_MODE` is 1."""
    spec = environ.get("TAILRACE_FAILPOINTS", "")
    if not spec:
        return
    if environ.get("TAILRACE_TEST_MODE") != "1":
        raise Misconfigured(
            "failpoints-armed",
            "TAILRACE_FAILPOINTS is set outside test mode",
            "Failpoints kill the process on purpose. Unset TAILRACE_FAILPOINTS.",
        )
    for part in spec.split(","):
        name, _, what = part.partition("=")
        action, _, hit = what.partition(":")
        if action not in ("kill", "pause", "raise") or not (hit or "1").isdecimal():
            raise Misconfigured(
                "failpoints-armed", f'failpoint "{part}" has no known action', "Use kill, pause or raise."
            )
        _armed.setdefault(name, []).append((action, int(hit or 1)))


def failpoint(name: str) -> None:
    """Do what is armed for `name`; nothing at all otherwise."""
    if not _armed:
        return
    with _lock:
        due = [(action, hits - 1) for action, hits in _armed.pop(name, [])]
        if later := [(action, hits) for action, hits in due if hits > 0]:
            _armed[name] = later
        action = next((action for action, hits in due if hits == 0), "")
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "pause":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action:
        raise Retryable("failpoint", f'failpoint "{name}" raised')
