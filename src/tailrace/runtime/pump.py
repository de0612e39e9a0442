"""The first loop: copy what is new in a source to the change log.

Append, save, acknowledge, in that order. What is acknowledged may be forgotten by the source, so it
must be durable here; what is saved need not be read again, so it must be in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import pyarrow as pa

from tailrace.control.checkpoints import Checkpoints
from tailrace.core.checkpoint import Checkpoint, Place
from tailrace.core.failpoint import failpoint
from tailrace.core.page import Page


class Source(Protocol):
    """A system whose changes can be read, in order, from a checkpoint onward."""

    name: str

    def pages(self, since: Checkpoint | None, until: Place | None = None) -> Iterator[Page[pa.Table]]:
        """Yield what is new since `since` (`None`: from the beginning), up to `until` or until closed.

        Reading twice from the same checkpoint yields the same changes, though perhaps in pages of
        different size. Each page follows the one before it: its `since` is the other's `checkpoint`.
        """
        ...

    def acknowledge(self, checkpoint: Checkpoint) -> None:
        """Let the source forget what lies before `checkpoint`; doing it again does nothing."""
        ...

    def head(self) -> Place:
        """Return the newest place the source knows of."""
        ...

    def close(self) -> None:
        """Make `pages` end after the page in hand; may be called from another thread."""
        ...


class Log(Protocol):
    """The end of a change log that is written."""

    def recover(self, saved: Checkpoint | None) -> Checkpoint | None:
        """Return where the log stands, which may be one page beyond `saved`."""
        ...

    def append(self, page: Page[pa.Table]) -> None:
        """Make `page` durable and visible; appending it again does nothing."""
        ...


def pump(
    source: Source,
    log: Log,
    checkpoints: Checkpoints,
    appended: Callable[[int, Checkpoint], None],
    until: Place | None = None,
) -> None:
    """Copy what is new in `source` to `log`, up to `until` or until the source is closed; tell `appended`.

    A crash before the append repeats the page; a crash after it does not, for the log knows the
    checkpoint of its newest page and `recover` returns it. What was left to save and acknowledge is done
    first: a source that is idle now would otherwise keep that page until something happens.
    """
    saved = checkpoints.load()
    since = log.recover(saved)
    failpoint("C01")
    if since is not None:
        if since != saved:
            checkpoints.save(since)
        source.acknowledge(since)
    for page in source.pages(since, until):
        failpoint("C03")
        log.append(page)
        checkpoints.save(page.checkpoint)
        failpoint("C11")
        source.acknowledge(page.checkpoint)
        failpoint("C12")
        appended(page.rows.num_rows, page.checkpoint)
