"""Taking files in: what is new in a directory gets its place in the catalogue, and what is known must not have changed.

A file is entered before anything of it is applied, so that its offsets are the same whoever reads it, and whenever.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from tailrace.core.errors import Halt, NotReady, Retryable
from tailrace.core.feed import Entry, Examined, Outcome, Seen
from tailrace.log import _listing
from tailrace.log._examine import examine
from tailrace.log._listing import Directory

_ENTERED_AT_ONCE = 500


class Catalogue(Protocol):
    """What the log needs of `control.audit`."""

    def about(self, name: str) -> str | None: ...
    def remember(self, name: str, value: str) -> None: ...
    def enter(self, files: Iterable[tuple[Seen, Examined, int]]) -> list[Entry]: ...
    def latest(self, name: str) -> Entry | None: ...
    def newest(self, names: Sequence[str]) -> dict[str, Entry]: ...
    def repeated(self, numbers: Sequence[int]) -> set[int]: ...
    def versions(self, name: str) -> int: ...
    def touched(self, number: int, seen: Seen) -> None: ...
    def after(self, offset: int, upto: int, most: int) -> list[Entry]: ...
    def head(self) -> int: ...
    def claim(self, target: str, numbers: Sequence[int], worker: str, run_id: str, stale: timedelta) -> bool: ...
    def beat(self, target: str, worker: str) -> None: ...
    def abandon(self, target: str, worker: str) -> None: ...
    def found(self, target: str, outcomes: Iterable[Outcome]) -> None: ...
    def failed_everywhere(self, number: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class Feed:
    """What a pipeline says of its feed."""

    directory: Directory
    kind: str
    encoding: str = "utf-8"
    max_reject_fraction: float = 0.1
    on_change: str = "halt"
    max_row_bytes: int = 32 * 1024 * 1024

    @property
    def identity(self) -> str:
        """Return what must not change while a catalogue is in use."""
        return json.dumps([str(self.directory.path), self.kind, self.directory.order])

    def examine(self, name: str) -> Examined:
        """Look at every byte of a file."""
        try:
            return examine(self.directory.path / name, self.kind, self.encoding, self.max_row_bytes)
        except OSError as error:
            raise Retryable("feed-unreadable", f'file "{name}" cannot be read: {error.strerror or error}') from error


def directory(path: str, pattern: str, order: _listing.Order, stable_seconds: float) -> Directory:
    """Return the directory of a feed; halt if it is not there."""
    place = Path(path).absolute()
    if not place.is_dir():
        raise NotReady("feed-missing", f'there is no directory "{place}"', "Make it, or mend source.path.")
    return Directory(place, pattern, order, stable_seconds)


class Intake:
    """Takes the files of a feed in."""

    def __init__(self, feed: Feed, catalogue: Catalogue) -> None:
        self.feed = feed
        self._catalogue = catalogue
        self._scanned = (0.0, 0.0)
        self._known = False
        self._lock = threading.Lock()

    def scan(self) -> None:
        """Enter files that are new, in the order of the feed."""
        with self._lock:
            began = time.monotonic()
            self._refuse_another_feed()
            ready = self.feed.directory.ready()
            for start in range(0, len(ready), _ENTERED_AT_ONCE):
                some = ready[start : start + _ENTERED_AT_ONCE]
                have = self._catalogue.newest([seen.name for seen in some])
                taken = [self._taken(seen, have.get(seen.name)) for seen in some]
                if new := [(*found, -1) for found in taken if found is not None]:
                    self._catalogue.enter(new)
            ended = time.monotonic()
            self._scanned = (ended, ended - began)

    def _taken(self, seen: Seen, have: Entry | None) -> tuple[Seen, Examined] | None:
        """Return a file with what it holds if it is to be entered; `None` if it is known."""
        if have is not None and (have.size, have.modified_ns) == (seen.size, seen.modified_ns):
            return None
        content = self.feed.examine(seen.name)
        if seen.sha256 and seen.sha256 != content.sha256:
            raise Halt(
                "file-changed",
                f'file "{seen.name}" has the hash {content.sha256}, and its manifest says {seen.sha256}',
                "The file is not the one that was sent. Put the right one there; it then goes on.",
            )
        if have is None:
            return seen, content
        if have.content.sha256 == content.sha256:
            self._catalogue.touched(have.number, seen)
            return None
        if self._catalogue.failed_everywhere(have.number):
            # Nothing of it was applied, and whoever mends a file asks for it again.
            return None
        if self.feed.on_change == "apply":
            version = self._catalogue.versions(seen.name)
            return _listing.again(seen, version, self.feed.directory.order), content
        raise changed(have, content)

    def _refuse_another_feed(self) -> None:
        if self._known:
            return
        said = self._catalogue.about("feed")
        if said is None:
            self._catalogue.remember("feed", self.feed.identity)
        elif said != self.feed.identity:
            raise Halt(
                "feed-changed",
                f"the feed was {said}, and the pipeline says {self.feed.identity} now",
                "Files of two feeds cannot be told apart by their names. Put path, format and order back, or run "
                "cdc undeploy <file> and then cdc run <file>, which reads the new feed from its beginning.",
            )
        self._known = True

    def is_time(self) -> bool:
        """Say whether to list the directory again: at most a sixth of the time goes into it."""
        ended, took = self._scanned
        return time.monotonic() - ended >= 5 * took


def changed(have: Entry, content: Examined) -> Halt:
    """Return the error of a file that was taken and has other content now."""
    return Halt(
        "file-changed",
        f'file "{have.name}" was taken with the hash {have.content.sha256} and has {content.sha256} now',
        "A file that was taken must not change. Put it back as it was and send the other under a name of its own, or "
        "set source.on_change to apply, which takes it as a file that comes after.",
    )
