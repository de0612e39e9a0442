"""What `up` leaves for `status` and `down`: who holds the servers, and where each of them is.

The holder keeps a lock on a file for as long as it lives. So a state file whose lock is free is a leftover, whatever
process has its number by now.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from dev.services.group import Service

FOLDER = Path(__file__).parents[2] / ".tailrace" / "services"


@dataclass(frozen=True, slots=True)
class Entry:
    """One service: the process group it runs in, `None` once it is stopped, and its addresses."""

    group: int | None
    addresses: dict[str, str]


@dataclass(frozen=True, slots=True)
class State:
    """The process that holds the services, and the services."""

    holder: int
    services: dict[str, Entry]


class AlreadyUp(Exception):
    """Services of this checkout are held by another process."""


def of(services: Mapping[str, Service]) -> State:
    """Return the state of these services, held by this process."""
    return State(os.getpid(), {name: Entry(each.group, each.addresses) for name, each in services.items()})


@contextlib.contextmanager
def holding(folder: Path = FOLDER) -> Iterator[None]:
    """Be the holder; the state file goes at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyUp('services are up already: see "status", or stop them with "down"') from None
        try:
            yield
        finally:
            (folder / "state.json").unlink(missing_ok=True)


def write(state: State, folder: Path = FOLDER) -> None:
    """Replace the state file, which holds passwords, in one step."""
    made = folder / "state.json.new"
    made.touch(0o600)
    made.write_text(json.dumps(asdict(state), indent=1))
    made.replace(folder / "state.json")


def read(folder: Path = FOLDER) -> State | None:
    """Return what the holder last wrote, or `None` if there is no holder or it is still starting."""
    try:
        content = json.loads((folder / "state.json").read_text())
    except FileNotFoundError:
        return None
    if not held(folder):
        return None
    return State(content["holder"], {name: Entry(**entry) for name, entry in content["services"].items()})


def held(folder: Path = FOLDER) -> bool:
    """Say whether a process holds services now."""
    if not (folder / "lock").exists():
        return False
    with (folder / "lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
