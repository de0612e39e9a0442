"""Taking files in: what is new in a directory gets its place in the catalogue, and what is known must not have changed.

A file is entered before anything of it is applied, so that its offsets are the same whoever reads it, and whenever.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

from tailrace.core.errors import Halt, Retryable
from tailrace.core.feed import Entry, Examined, Fate, Outcome, Seen, State
from tailrace.log import _listing
from tailrace.log._examine import examine
from tailrace.log._listing import Directory
from tailrace.log._place import Changed

_ENTERED_AT_ONCE = 500


class Catalogue(Protocol):
    """What the log needs of `control.audit`."""

    def about(self, name: str) -> str | None: ...
    def remember(self, name: str, value: str) -> None: ...
    def enter(self, files: Iterable[tuple[Seen, Examined, int]]) -> list[Entry]: ...
    def latest(self, name: str) -> Entry | None: ...
    def newest(self, names: Sequence[str]) -> dict[str, Entry]: ...
    def states(self, names: Sequence[str]) -> dict[str, State]: ...
    def placed(self, orders: Sequence[str]) -> Mapping[str, str]: ...
    def followed(self) -> int | None: ...
    def follow(self, sequence: int) -> None: ...
    def repeated(self, numbers: Sequence[int]) -> set[int]: ...
    def touched(self, number: int, state: State) -> None: ...
    def after(self, offset: int, upto: int, most: int) -> list[Entry]: ...
    def head(self) -> int: ...
    def claim(self, target: str, numbers: Sequence[int], worker: str, run_id: str, stale: timedelta) -> bool: ...
    def beat(self, target: str, worker: str) -> None: ...
    def abandon(self, target: str, worker: str) -> None: ...
    def found(self, target: str, worker: str, outcomes: Iterable[Outcome]) -> None: ...
    def expect(self, target: str, worker: str, fates: Iterable[Fate]) -> None: ...
    def failed_everywhere(self, number: int) -> bool: ...


class Unreadable(Retryable):
    """One file cannot be read."""


@dataclass(frozen=True, slots=True)
class Feed:
    """What a pipeline says of its feed."""

    directory: Directory
    kind: str
    encoding: str = "utf-8"
    max_reject_fraction: float = 0.1
    on_change: str = "halt"
    max_row_bytes: int = 32 * 1024 * 1024
    sequence: tuple[tuple[str, str], ...] = ()
    """The columns that rows are ordered by, with their types."""

    @property
    def identity(self) -> str:
        """Return what must not change while a catalogue is in use; positions of two sequences cannot be compared."""
        return json.dumps([str(self.directory.place), self.kind, self.directory.order, *self.sequence])

    def examine(self, name: str, state: State) -> Examined | None:
        """Look at every byte of a file; `None` if it is no longer, or not yet, what it was."""
        place = self.directory.place
        try:
            with place.open(name, state) as file:
                content = examine(file, name, self.kind, self.encoding, self.max_row_bytes)
        except (Changed, FileNotFoundError):
            return None
        except PermissionError as error:
            raise Unreadable("feed-unreadable", f'file "{name}" cannot be read: {error.strerror or error}') from error
        except OSError as error:
            raise Retryable("feed-unreadable", f'file "{name}" cannot be read: {error.strerror or error}') from error
        # What grew meanwhile was perhaps read in part.
        return content if place.states([name]).get(name) == state else None


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
            directory = self.feed.directory
            ready = directory.ready(self._catalogue)
            left = False
            for start in range(0, len(ready), _ENTERED_AT_ONCE):
                some = ready[start : start + _ENTERED_AT_ONCE]
                have = self._catalogue.newest([seen.name for seen in some])
                new: list[tuple[Seen, Examined, int]] = []
                for seen in some:
                    content = self._content(seen, have.get(seen.name))
                    left = left or (content is None and seen.listed)
                    if content is not None and (one := self._taken(seen, content, have.get(seen.name))) is not None:
                        new.append((one, content, -1))
                    if left:
                        # In the order of manifests no file is passed over.
                        break
                self._catalogue.enter(new)
                if left:
                    break
            if directory.order == "manifest" and not left and (last := directory.followed()) is not None:
                self._catalogue.follow(last)
            ended = time.monotonic()
            self._scanned = (ended, ended - began)

    def _content(self, seen: Seen, have: Entry | None) -> Examined | None:
        """Return what a file holds; `None` if it changes while it is looked at, or cannot be read, now."""
        if have is not None and have.state == seen.state:
            content: Examined | None = have.content
        else:
            content = self._examined(seen)
        if content is not None and seen.sha256 and seen.sha256 != content.sha256:
            raise Halt(
                "file-changed",
                f'file "{seen.name}" has the hash {content.sha256}, and its manifest says {seen.sha256}',
                "The file is not the one that was sent. Put the right one there; it then goes on.",
            )
        return content

    def _examined(self, seen: Seen) -> Examined | None:
        try:
            return self.feed.examine(seen.name, seen.state)
        except Unreadable as error:
            if seen.listed:
                raise
            # It stays new: the next look tries it again.
            self.feed.directory.pass_over(seen.name, str(error))
            return None

    def _taken(self, seen: Seen, content: Examined, have: Entry | None) -> Seen | None:
        """Return a file as it is to be entered; `None` if it is known."""
        if have is None:
            return seen
        if have.content.sha256 == content.sha256:
            if have.state != seen.state:
                self._catalogue.touched(have.number, seen.state)
            # The same content at another place in the order is a file of its own.
            return seen if seen.listed else None
        if self._catalogue.failed_everywhere(have.number):
            # Nothing of it was applied, and whoever mends a file asks for it again.
            return seen if seen.listed else None
        if self.feed.on_change != "apply":
            raise changed(have, content)
        return seen if seen.listed else replace(seen, order=_listing.again(seen, have.order, self.feed.directory.order))

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
                "Files of two feeds, or rows of two sequences, cannot be put in one order. Put path, format, order and "
                "sequence_by back, or run cdc undeploy <file> and then cdc run <file>, which reads the feed from its "
                "beginning.",
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
