"""The landed log: pages that are there whole or not at all, and damage that never goes unnoticed."""

from __future__ import annotations

import json
import os
import random
import resource
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tailrace.core import failpoint
from tailrace.core.errors import Halt, Retryable
from tailrace.log.landed import LandedLog
from tests.contracts.log import ITEMS, NOTES, Log, LogContract, chain, page, put, snap, tail


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "log" / "pages").iterdir())


def opened(folder: Path) -> LandedLog:
    return LandedLog(folder, "log", 1)


@pytest.fixture
def log(tmp_path: Path) -> LandedLog:
    fresh = opened(tmp_path)
    fresh.recover(None)
    return fresh


@pytest.fixture
def armed() -> Iterator[None]:
    yield
    failpoint._armed.clear()


class TestLandedLog(LogContract):
    @pytest.fixture
    def log(self, tmp_path: Path) -> Log:
        self._folder = tmp_path
        fresh = opened(tmp_path)
        fresh.recover(None)
        return fresh

    def reopened(self, log: Log) -> Log:
        return opened(self._folder)

    def stored(self, log: Log) -> list[Mapping[str, object]]:
        rows = [row for name in names_in(self._folder) for row in _rows(self._folder / "log" / "pages" / name)]
        visible = [row for row in rows if row["offset"] <= log.head()]
        return [*sorted(visible, key=lambda row: row["offset"])]


def _rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
    return rows


def test_a_place_in_the_log_says_where_the_source_stood(log: LandedLog, tmp_path: Path) -> None:
    assert log.reached(-1) is None
    log.append(page(None, snap(1), [put(1)]))
    log.append(page(snap(1), snap(2), [put(2)]))
    # Nobody sees the pages of a snapshot before its end, so nothing of it is reached.
    assert [log.reached(offset) for offset in (-1, 0, 1)] == [None] * 3
    log.append(page(snap(2), tail(7)))
    log.append(page(tail(7), tail(8), [put(8)]))
    log.append(page(tail(8), tail(9)))
    assert [log.reached(offset) for offset in (0, 1, 2, 3)] == [snap(1), tail(7), tail(9), None]
    again = opened(tmp_path)
    again.recover(tail(9))
    assert again.reached(2) == tail(9)


def test_a_source_without_rows_is_reached_too(log: LandedLog) -> None:
    log.append(page(None, tail(7)))
    assert log.reached(-1) == tail(7)


# -- names and files


def test_a_file_s_name_carries_its_range_and_its_phase(log: LandedLog, tmp_path: Path) -> None:
    log.append(page(None, snap(2), [put(1), put(2)]))
    log.append(page(snap(2), tail(7)))
    log.append(page(tail(7), tail(8), [put(8)]))
    assert names_in(tmp_path) == [
        "0000000000000000-0000000000000001-s.parquet",
        "0000000000000002-0000000000000001-t.parquet",
        "0000000000000002-0000000000000002-t.parquet",
    ]


def test_each_topic_of_a_page_has_a_row_group_of_its_own(log: LandedLog, tmp_path: Path) -> None:
    log.append(page(None, tail(4), [put(1), put(2, NOTES), put(3), put(4, NOTES)]))
    (name,) = names_in(tmp_path)
    file = pq.ParquetFile(tmp_path / "log" / "pages" / name)
    groups = [file.read_row_group(n) for n in range(file.num_row_groups)]
    assert [pc.unique(group["topic"]).to_pylist() for group in groups] == [["cdc.public.items"], ["cdc.public.notes"]]
    assert [group["offset"].to_pylist() for group in groups] == [[0, 2], [1, 3]]


def test_a_page_has_the_columns_of_a_kafka_row(log: LandedLog, tmp_path: Path) -> None:
    log.append(page(None, tail(1), [put(1)]))
    (name,) = names_in(tmp_path)
    assert pq.read_schema(tmp_path / "log" / "pages" / name).names == [
        "topic",
        "partition",
        "offset",
        "key",
        "value",
        "timestamp",
        "headers",
    ]


def test_schemas_are_kept_beside_the_pages(log: LandedLog, tmp_path: Path) -> None:
    chain(log, 1)
    assert opened(tmp_path).schema(ITEMS.fingerprint()) == ITEMS


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"name": "x", "keys": [], "columns": [{"unknown": 1}]}'])
def test_a_damaged_schema_halts(log: LandedLog, tmp_path: Path, text: str) -> None:
    chain(log, 1)
    (tmp_path / "log" / "schemas" / f"{ITEMS.fingerprint()}.json").write_text(text)
    with pytest.raises(Halt) as found:
        opened(tmp_path).schema(ITEMS.fingerprint())
    assert found.value.code == "corrupt-log"


def test_tables_without_rows_are_known_after_a_restart(log: LandedLog, tmp_path: Path) -> None:
    assert log.empty() == {}
    log.append(replace(page(None, tail(0)), empty={"cdc.public.notes": NOTES}))
    assert opened(tmp_path).empty() == log.empty() == {"cdc.public.notes": NOTES}
    (tmp_path / "log" / "empty.json").write_text("[")
    with pytest.raises(Halt) as halted:
        opened(tmp_path).empty()
    assert halted.value.code == "corrupt-log"


def test_a_missing_schema_halts(log: LandedLog) -> None:
    with pytest.raises(Halt) as found:
        log.schema("0123456789abcdef")
    assert found.value.code == "corrupt-log"


def test_files_that_are_not_pages_are_left_alone(log: LandedLog, tmp_path: Path) -> None:
    chain(log, 2)
    (tmp_path / "log" / "pages" / "README.txt").write_text("hello")
    again = opened(tmp_path)
    assert again.recover(tail(2)) == tail(2)
    assert again.head() == 1


# -- crashes


def test_what_a_crash_left_half_written_is_ignored_and_removed(log: LandedLog, tmp_path: Path) -> None:
    chain(log, 2)
    (tmp_path / "log" / "pages" / ".0000000000000002-0000000000000004-t.parquet.tmp").write_bytes(b"PAR1 and then")
    again = opened(tmp_path)
    assert again.head() == 1
    again.recover(tail(2))
    assert names_in(tmp_path) == ["0000000000000000-0000000000000001-t.parquet"]


@pytest.mark.parametrize("name", ["C05", "C06", "C07", "C08"])
def test_a_page_that_fails_before_it_is_renamed_was_never_there(
    log: LandedLog, tmp_path: Path, armed: None, name: str
) -> None:
    chain(log, 2)
    before = names_in(tmp_path)
    failpoint.arm({"TAILRACE_TEST_MODE": "1", "TAILRACE_FAILPOINTS": f"{name}=raise"})
    with pytest.raises(Retryable):
        log.append(page(tail(2), tail(3), [put(3)]))
    assert names_in(tmp_path) == before
    assert log.head() == opened(tmp_path).head() == 1
    assert opened(tmp_path).recover(tail(2)) == tail(2)


def test_a_page_that_fails_after_it_is_renamed_is_there(log: LandedLog, tmp_path: Path, armed: None) -> None:
    chain(log, 2)
    failpoint.arm({"TAILRACE_TEST_MODE": "1", "TAILRACE_FAILPOINTS": "C09=raise"})
    with pytest.raises(Retryable):
        log.append(page(tail(2), tail(3), [put(3)]))
    assert opened(tmp_path).head() == 2
    assert log.recover(tail(2)) == tail(3)


def test_a_crash_while_a_snapshot_is_discarded_leaves_one_that_is_discarded(log: LandedLog, tmp_path: Path) -> None:
    for n in range(3):
        log.append(page(snap(n) if n else None, snap(n + 1), [put(n)]))
    newest = names_in(tmp_path)[-1]
    (tmp_path / "log" / "pages" / newest).unlink()
    again = opened(tmp_path)
    again.recover(snap(3))
    assert names_in(tmp_path) == []


@contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    """Make this process fail to write longer files, as on a disk that fills up; Python ignores the signal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_finds_no_room_may_be_tried_again_and_leaves_the_log_readable(
    log: LandedLog, tmp_path: Path
) -> None:
    chain(log, 2)
    before = names_in(tmp_path)
    large = page(tail(2), tail(52), [put(n) for n in range(50)])
    for _ in range(2):
        with files_no_longer_than(700), pytest.raises(Retryable) as failed:
            log.append(large)
        assert failed.value.code == "log-write"
        assert names_in(tmp_path) == before
        assert log.recover(tail(2)) == tail(2)
        assert log.slice(-1, 99) is not None
    log.append(large)
    assert opened(tmp_path).head() == 51


# -- damage


def test_a_torn_page_halts_whatever_its_length(log: LandedLog, tmp_path: Path) -> None:
    chain(log, 2, 30, 2)
    torn = tmp_path / "log" / "pages" / names_in(tmp_path)[1]
    whole = torn.read_bytes()
    seed = random.randrange(1 << 32)
    lengths = {0, 1, 4, 8, len(whole) - 1, *random.Random(seed).sample(range(len(whole)), 40)}
    for length in sorted(lengths):
        torn.write_bytes(whole[:length])
        with pytest.raises(Halt) as found:
            opened(tmp_path).slice(-1, 99)
        assert found.value.code == "corrupt-log", f"seed {seed} length {length}"


def test_a_torn_newest_page_halts_the_pump_too(log: LandedLog, tmp_path: Path) -> None:
    chain(log, 2, 3)
    newest = tmp_path / "log" / "pages" / names_in(tmp_path)[-1]
    newest.write_bytes(newest.read_bytes()[:-9])
    with pytest.raises(Halt) as found:
        opened(tmp_path).recover(tail(5))
    assert found.value.code == "corrupt-log"


def test_a_page_without_our_footer_halts(log: LandedLog, tmp_path: Path) -> None:
    chain(log, 2)
    path = tmp_path / "log" / "pages" / names_in(tmp_path)[0]
    pq.write_table(pq.ParquetFile(path).read().replace_schema_metadata(None), path)
    with pytest.raises(Halt) as found:
        opened(tmp_path).slice(-1, 99)
    assert found.value.code == "corrupt-log"


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_page_halts_wherever_it_was(log: LandedLog, tmp_path: Path, missing: int) -> None:
    chain(log, 2, 3, 1, 4)
    (tmp_path / "log" / "pages" / names_in(tmp_path)[missing]).unlink()
    with pytest.raises(Halt) as found:
        opened(tmp_path).slice(-1, 99)
    assert found.value.code == "log-gap"


def test_a_reader_ahead_of_the_log_halts(log: LandedLog) -> None:
    chain(log, 2)
    with pytest.raises(Halt) as found:
        log.slice(5, 99)
    assert found.value.code == "log-gap"


def test_a_log_that_is_gone_is_not_begun_anew(log: LandedLog, tmp_path: Path) -> None:
    chain(log, 2)
    with pytest.raises(Halt) as found:
        opened(tmp_path / "elsewhere").recover(tail(2))
    assert found.value.code == "log-gap"
    assert not (tmp_path / "elsewhere").exists()


# -- expiry


def age(folder: Path, *names: str) -> None:
    for name in names:
        os.utime(folder / "log" / "pages" / name, (1_000_000, 1_000_000))


def test_old_pages_that_every_target_has_are_removed(log: LandedLog, tmp_path: Path) -> None:
    chain(log, 2, 3, 1, 4)
    age(tmp_path, *names_in(tmp_path)[:2])
    assert log.expire(9, timedelta(days=1)) == 2
    assert [cut.upto for cut in [log.slice(4, 99)] if cut] == [9]
    assert opened(tmp_path).recover(tail(10)) == tail(10)


def test_a_page_that_a_target_still_needs_stays(log: LandedLog, tmp_path: Path) -> None:
    chain(log, 2, 3, 1)
    age(tmp_path, *names_in(tmp_path))
    assert log.expire(3, timedelta(0)) == 1
    assert log.expire(-1, timedelta(0)) == 0


def test_the_newest_page_never_expires(log: LandedLog, tmp_path: Path) -> None:
    chain(log, 2, 3)
    age(tmp_path, *names_in(tmp_path))
    assert log.expire(99, timedelta(0)) == 1
    assert opened(tmp_path).recover(tail(2)) == tail(5)


def test_a_reader_that_missed_expired_pages_halts(log: LandedLog, tmp_path: Path) -> None:
    chain(log, 2, 3)
    age(tmp_path, *names_in(tmp_path))
    log.expire(99, timedelta(0))
    with pytest.raises(Halt) as found:
        log.slice(-1, 99)
    assert found.value.code == "log-gap"


def test_the_log_knows_where_its_snapshot_is_complete(log: LandedLog, tmp_path: Path) -> None:
    assert log.whole_from() is None
    log.append(page(None, snap(1), [put(1), put(2)]))
    assert log.whole_from() is None
    log.append(page(snap(1), tail(1), [put(3)]))
    for stands in (1, 2):
        log.append(page(tail(stands), tail(stands + 1), [put(9)]))
        assert opened(tmp_path).whole_from() == 2
    # Whoever has what is left has passed what is gone.
    age(tmp_path, *names_in(tmp_path))
    log.expire(2, timedelta(0))
    assert log.whole_from() == log.begins() == 2


# -- readers beside the pump


def test_readers_beside_the_pump_see_a_growing_log_without_holes(log: LandedLog) -> None:
    heads: list[int] = []
    done = threading.Event()

    def follow() -> None:
        while not done.is_set():
            heads.append(log.head())

    reader = threading.Thread(target=follow)
    reader.start()
    for n in range(15):
        stands = log.recover(tail(n) if n else None)
        log.append(page(stands, tail(n + 1), [put(n)]))
    done.set()
    reader.join()
    assert heads == sorted(heads)
    assert log.head() == 14


def test_waiting_ends_when_a_page_is_appended(log: LandedLog) -> None:
    waiter = threading.Thread(target=log.wait, args=(60,))
    waiter.start()
    place = 0
    while waiter.is_alive():
        log.append(page(tail(place) if place else None, tail(place + 1), [put(place)]))
        place += 1
    assert log.head() == place - 1


def test_the_footer_of_a_page_is_json_that_names_both_checkpoints(log: LandedLog, tmp_path: Path) -> None:
    chain(log, 2, 1)
    footer = json.loads(pq.read_metadata(tmp_path / "log" / "pages" / names_in(tmp_path)[1]).metadata[b"tailrace"])
    assert footer["since"] == {"phase": "tailing", "origin": "here", "at": "2"}
    assert footer["checkpoint"] == {"phase": "tailing", "origin": "here", "at": "3"}
    assert footer["counts"] == [["cdc.public.items", ITEMS.fingerprint(), 1]]
