"""What every change log must do, as tests: a log passes if a class that opens it inherits these.

A subclass gives `log`, a fresh and recovered log; `reopened`, the same log as the next process finds it;
and `stored`, the rows that readers may see, without Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import pyarrow as pa
import pytest

from tailrace.core.change import Change, Op
from tailrace.core.checkpoint import Checkpoint, Snapshotting, Tailing
from tailrace.core.errors import Halt
from tailrace.core.page import Page
from tailrace.core.position import Phase, position
from tailrace.core.table import Column, Table
from tailrace.envelopes import rows as landed_rows
from tailrace.log.slice import Slice
from tailrace.sources.memory import MemorySource

ITEMS = Table("public.items", (Column("id", "bigint"), Column("name", "string")), ("id",))
NOTES = Table("public.notes", (Column("id", "bigint"), Column("text", "string")), ("id",))
WIDER = Table(ITEMS.name, (*ITEMS.columns, Column("size", "int")), ("id",))


class Log(Protocol):
    """Both ends of a change log."""

    def recover(self, saved: Checkpoint | None) -> Checkpoint | None: ...
    def append(self, page: Page[pa.Table]) -> None: ...
    def head(self) -> int: ...
    def slice(self, after: int, max_rows: int, upto: int | None = None) -> Slice | None: ...
    def schema(self, fingerprint: str) -> Table: ...


def put(place: int, table: Table = ITEMS, key: int = 1, **kept: frozenset[str]) -> Change:
    """Return an update of a row; `unchanged` may name columns that it leaves out."""
    return Change(table.name, Op.UPDATE, position(1, Phase.CHANGE, place), (key,), {"name": f"n{place}"}, **kept)


def truncate(place: int, table: Table = ITEMS) -> Change:
    """Return a truncate of `table`."""
    return Change(table.name, Op.TRUNCATE, position(1, Phase.CHANGE, place))


def tail(place: int) -> Tailing:
    """Return the checkpoint after the change at `place`."""
    return Tailing("here", str(place))


def snap(cursor: int) -> Snapshotting:
    """Return a checkpoint inside a snapshot."""
    return Snapshotting("here", "7", str(cursor))


def page(
    since: Checkpoint | None,
    checkpoint: Checkpoint,
    changes: Sequence[Change] = (),
    tables: Sequence[Table] = (ITEMS, NOTES),
) -> Page[pa.Table]:
    """Return a page with `changes`, as a source would make it."""
    whole = next(MemorySource(tables, [*changes, put(0)], page_rows=len(changes) + 1).pages(None))
    return Page(whole.rows.slice(0, len(changes)), since, checkpoint, whole.schemas)


def chain(log: Log, *sizes: int) -> list[Page[pa.Table]]:
    """Append pages of these sizes, one after another; return them."""
    pages: list[Page[pa.Table]] = []
    place = 0
    for size in sizes:
        changes = [put(place + n + 1) for n in range(size)]
        pages.append(page(tail(place) if place else None, tail(place + size), changes))
        log.append(pages[-1])
        place += size
    return pages


class LogContract:
    """Inherit this and give the three below."""

    @pytest.fixture
    def log(self) -> Log:
        """Return a new log, recovered from nothing."""
        raise NotImplementedError

    def reopened(self, log: Log) -> Log:
        """Return the log as the next process finds it, not yet recovered."""
        raise NotImplementedError

    def stored(self, log: Log) -> list[Mapping[str, object]]:
        """Return the rows that readers may see, by offset."""
        raise NotImplementedError

    def offsets(self, log: Log) -> list[object]:
        return [row["offset"] for row in self.stored(log)]

    def test_a_new_log_is_empty(self, log: Log) -> None:
        assert log.head() == -1
        assert log.slice(-1, 10) is None

    def test_rows_get_consecutive_offsets_in_the_order_of_the_pages(self, log: Log) -> None:
        pages = chain(log, 2, 3, 1)
        assert self.offsets(log) == list(range(6))
        sent = [value for sent in pages for value in sent.rows["value"].to_pylist()]
        assert [row["value"] for row in self.stored(log)] == sent

    def test_the_next_process_finds_the_same_rows(self, log: Log) -> None:
        chain(log, 2, 3)
        again = self.reopened(log)
        assert again.recover(tail(5)) == tail(5)
        assert again.head() == 4
        again.append(page(tail(5), tail(6), [put(6)]))
        assert self.offsets(again) == list(range(6))

    def test_appending_the_newest_page_again_does_nothing(self, log: Log) -> None:
        *_, newest = chain(log, 2, 3)
        log.append(newest)
        assert self.offsets(log) == list(range(5))

    def test_a_page_that_does_not_follow_is_refused(self, log: Log) -> None:
        first, _ = chain(log, 2, 3)
        with pytest.raises(Halt) as refused:
            log.append(page(tail(9), tail(10), [put(10)]))
        assert refused.value.code == "broken-chain"
        with pytest.raises(Halt):
            log.append(first)
        assert self.offsets(log) == list(range(5))

    def test_a_page_whose_checkpoint_was_not_saved_is_known_after_a_crash(self, log: Log) -> None:
        chain(log, 2, 3)
        again = self.reopened(log)
        assert again.recover(tail(2)) == tail(5)
        again.append(page(tail(5), tail(6), [put(6)]))
        assert self.offsets(again) == list(range(6))

    def test_the_first_page_is_known_after_a_crash(self, log: Log) -> None:
        chain(log, 2)
        assert self.reopened(log).recover(None) == tail(2)

    def test_a_lost_checkpoint_is_taken_from_the_newest_page(self, log: Log) -> None:
        chain(log, 2, 3, 1)
        assert self.reopened(log).recover(None) == tail(6)

    def test_an_empty_page_moves_the_log_and_takes_no_offset(self, log: Log) -> None:
        chain(log, 2)
        log.append(page(tail(2), tail(9)))
        again = self.reopened(log)
        assert again.recover(tail(9)) == tail(9)
        again.append(page(tail(9), tail(10), [put(10)]))
        assert self.offsets(again) == [0, 1, 2]

    def test_a_snapshot_is_invisible_until_it_is_complete(self, log: Log) -> None:
        log.append(page(None, snap(1), [put(1)]))
        log.append(page(snap(1), snap(2), [put(2)]))
        assert log.head() == -1
        assert log.slice(-1, 10) is None
        log.append(page(snap(2), tail(7), [put(3)]))
        assert self.offsets(log) == [0, 1, 2]

    def test_an_empty_last_page_completes_a_snapshot(self, log: Log) -> None:
        log.append(page(None, snap(1), [put(1), put(2)]))
        log.append(page(snap(1), tail(7)))
        assert log.head() == 1
        again = self.reopened(log)
        assert again.recover(snap(1)) == tail(7)
        again.append(page(tail(7), tail(8), [put(8)]))
        assert self.offsets(again) == [0, 1, 2]
        assert [cut.upto for cut in _slices(again, 2)] == [1, 2]

    def test_a_snapshot_of_nothing_leaves_an_empty_log(self, log: Log) -> None:
        log.append(page(None, snap(0)))
        log.append(page(snap(0), tail(7)))
        assert log.head() == -1
        assert self.reopened(log).recover(tail(7)) == tail(7)

    def test_an_interrupted_snapshot_is_discarded(self, log: Log) -> None:
        log.append(page(None, snap(1), [put(1)]))
        log.append(page(snap(1), snap(2), [put(2)]))
        again = self.reopened(log)
        stands = again.recover(snap(1))
        assert isinstance(stands, Snapshotting)
        again.append(page(stands, tail(7), [put(3)]))
        assert [row["value"] for row in self.stored(again)] == page(None, snap(0), [put(3)]).rows["value"].to_pylist()

    def test_a_snapshot_taken_again_under_the_same_names_counts_its_own_rows(self, log: Log) -> None:
        log.append(page(None, snap(1), [put(1)]))
        stands = log.recover(snap(1))
        log.append(page(stands, snap(1), [put(1, NOTES)]))
        assert log.recover(stands) == snap(1)
        log.append(page(snap(1), snap(1), [put(1, NOTES)]))
        log.append(page(snap(1), tail(7)))
        assert [cut.topics() for cut in _slices(log, 10)] == [["cdc.public.notes"]]

    def test_a_complete_snapshot_outlives_an_old_checkpoint(self, log: Log) -> None:
        log.append(page(None, snap(1), [put(1)]))
        log.append(page(snap(1), tail(7), [put(2)]))
        log.append(page(tail(7), tail(8), [put(8)]))
        again = self.reopened(log)
        assert again.recover(snap(1)) == tail(8)
        assert self.offsets(again) == [0, 1, 2]

    @pytest.mark.parametrize(("max_rows", "ends"), [(1, [1, 4, 5, 9]), (5, [4, 9]), (6, [5, 9]), (99, [9])])
    def test_a_slice_is_whole_pages_of_about_so_many_rows(self, log: Log, max_rows: int, ends: list[int]) -> None:
        chain(log, 2, 3, 1, 4)
        cuts = _slices(log, max_rows)
        assert [cut.upto for cut in cuts] == ends
        assert [cut.after for cut in cuts] == [-1, *ends[:-1]]
        assert sum(cut.rows_of("cdc.public.items") for cut in cuts) == 10

    def test_a_slice_goes_no_further_than_the_page_it_was_told(self, log: Log) -> None:
        chain(log, 2, 3, 1)
        assert [cut.upto for cut in _slices(log, 99, upto=1)] == [1]
        assert [cut.upto for cut in _slices(log, 99, upto=2)] == [4]
        assert log.slice(5, 99) is None

    def test_a_slice_says_what_it_holds(self, log: Log) -> None:
        log.append(page(None, tail(2), [put(1), put(2, NOTES)]))
        log.append(page(tail(2), tail(4), [put(3), put(4)], [WIDER, NOTES]))
        cut = log.slice(-1, 99)
        assert cut is not None
        assert cut.topics() == ["cdc.public.items", "cdc.public.notes"]
        assert cut.fingerprints("cdc.public.items") == [ITEMS.fingerprint(), WIDER.fingerprint()]
        assert (cut.rows_of("cdc.public.items"), cut.rows_of("cdc.public.notes")) == (3, 1)
        assert log.schema(WIDER.fingerprint()) == WIDER

    def test_a_row_without_a_schema_is_counted_all_the_same(self, log: Log) -> None:
        bare = page(None, tail(3), [truncate(1), put(2), truncate(3, NOTES)])
        kind = landed_rows.ARROW.field("headers").type
        headers = pa.array([[], bare.rows["headers"][1].as_py(), []], kind)
        rows = bare.rows.set_column(
            bare.rows.schema.get_field_index("headers"), bare.rows.schema.field("headers"), headers
        )
        log.append(Page(rows, bare.since, bare.checkpoint, bare.schemas))
        cut = log.slice(-1, 99)
        assert cut is not None
        assert cut.contents.counts == {
            ("cdc.public.items", ""): 1,
            ("cdc.public.items", ITEMS.fingerprint()): 1,
            ("cdc.public.notes", ""): 1,
        }

    def test_a_slice_says_which_topics_have_partial_rows_and_truncates(self, log: Log) -> None:
        log.append(page(None, tail(2), [put(1, unchanged=frozenset({"name"})), truncate(2, NOTES)]))
        cut = log.slice(-1, 99)
        assert cut is not None
        found = [
            (topic, cut.has(topic, landed_rows.PARTIAL), cut.has(topic, landed_rows.TRUNCATE)) for topic in cut.topics()
        ]
        assert found == [("cdc.public.items", True, False), ("cdc.public.notes", False, True)]


def _slices(log: Log, max_rows: int, upto: int | None = None) -> list[Slice]:
    found: list[Slice] = []
    while (cut := log.slice(found[-1].upto if found else -1, max_rows, upto)) is not None:
        found.append(cut)
    return found
