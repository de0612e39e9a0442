"""What every source must do, as tests: a source passes if a class that opens it inherits these.

A subclass gives `open`, a reader of the same system each time it is called, and `write`, which makes a
few changes there. What was acknowledged may be gone, so a test that reads twice does not acknowledge. A
source whose rows are not like Kafka's says how to read them: `event`, `table_of`, `schemas_of`.
"""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest

from tailrace.core.checkpoint import Checkpoint, Tailing
from tailrace.core.page import Page
from tailrace.envelopes.rows import SCHEMA_HEADER
from tailrace.runtime.pump import Source

Event = tuple[object, ...]


class SourceContract:
    """Inherit this and give `open` and `write`; `event` is what two readings of one change share."""

    def open(self) -> Source:
        """Return a new reader; whatever the last one left is as a dead process leaves it."""
        raise NotImplementedError

    def write(self, changes: int) -> None:
        """Make so many changes to rows, each in a transaction of its own."""
        raise NotImplementedError

    def event(self, row: dict[str, object]) -> Event:
        return row["topic"], row["key"], row["value"]

    def table_of(self, row: dict[str, object]) -> str:
        """Return the table that a row belongs to, perhaps with something before it."""
        return str(row["topic"])

    def schemas_of(self, row: dict[str, object]) -> list[str]:
        """Return the fingerprints of the schemas that a row names."""
        headers = row["headers"]
        assert isinstance(headers, list)
        return [header["value"].decode() for header in headers if header["key"] == SCHEMA_HEADER]

    def events(self, pages: list[Page[pa.Table]]) -> list[Event]:
        return [self.event(row) for page in pages for row in page.rows.to_pylist()]

    def read(self, since: Checkpoint | None, *, acknowledge: bool = False) -> list[Page[pa.Table]]:
        """Read from `since` to the head there is now."""
        source = self.open()
        pages = []
        for page in source.pages(since, source.head()):
            pages.append(page)
            if acknowledge:
                source.acknowledge(page.checkpoint)
        source.close()
        return pages

    @pytest.fixture
    def start(self) -> Checkpoint:
        """Return the checkpoint behind what is there at first."""
        self.write(3)
        checkpoint = self.read(None, acknowledge=True)[-1].checkpoint
        assert isinstance(checkpoint, Tailing)
        return checkpoint

    def test_each_page_follows_the_one_before(self, start: Checkpoint) -> None:
        self.write(8)
        pages = self.read(start)
        assert pages[0].since == start
        assert all(later.since == earlier.checkpoint for earlier, later in pairwise(pages))

    def test_reading_twice_from_a_checkpoint_gives_the_same_changes(self, start: Checkpoint) -> None:
        self.write(8)
        once = self.events(self.read(start))
        assert len(once) == 8
        assert self.events(self.read(start)) == once

    def test_reading_from_any_checkpoint_gives_the_rest(self, start: Checkpoint) -> None:
        self.write(8)
        pages = self.read(start)
        for n, page in enumerate(pages):
            assert self.events(self.read(page.checkpoint)) == self.events(pages[n + 1 :])

    def test_what_is_written_later_comes_after_what_was_read(self, start: Checkpoint) -> None:
        self.write(2)
        first = self.read(start, acknowledge=True)
        self.write(3)
        second = self.read(first[-1].checkpoint)
        assert len(self.events(second)) == 3
        assert not set(self.events(first)) & set(self.events(second))

    def test_acknowledging_again_or_an_older_page_takes_nothing_away(self, start: Checkpoint) -> None:
        self.write(4)
        source = self.open()
        pages = list(source.pages(start, source.head()))
        for checkpoint in (start, pages[-1].checkpoint, pages[-1].checkpoint, start):
            source.acknowledge(checkpoint)
        source.close()
        self.write(2)
        assert len(self.events(self.read(pages[-1].checkpoint))) == 2

    def test_every_row_names_a_schema_that_its_page_has(self, start: Checkpoint) -> None:
        self.write(4)
        for page in self.read(start):
            for row in page.rows.to_pylist():
                named = self.schemas_of(row)
                assert len(named) == 1
                assert self.table_of(row).endswith(page.schemas[named[0]].name)
                assert page.schemas[named[0]].fingerprint() == named[0]

    def test_closing_ends_the_pages_after_the_one_in_hand(self, start: Checkpoint) -> None:
        self.write(8)
        source = self.open()
        pages = source.pages(start)
        next(pages)
        source.close()
        assert list(pages) == []
