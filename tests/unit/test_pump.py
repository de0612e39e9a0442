"""The pump: append, save, acknowledge, in that order; and a crash anywhere costs nothing and doubles nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.control.checkpoints import Checkpoints
from tailrace.core import failpoint
from tailrace.core.change import Change
from tailrace.core.checkpoint import Checkpoint, Place, Snapshotting, Tailing
from tailrace.core.errors import Halt, Retryable
from tailrace.core.page import Page
from tailrace.log.landed import LandedLog
from tailrace.log.memory import MemoryLog
from tailrace.runtime.pump import Log, pump
from tailrace.sources.memory import MemorySource
from tests.contracts.log import ITEMS, NOTES, put

BESIDE_THE_LOG = ["C01", "C03", "C10", "C11", "C12"]
IN_THE_LOG = ["C05", "C06", "C07", "C08", "C09"]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoint._armed.clear()


def arm(spec: str) -> None:
    failpoint.arm({"TAILRACE_TEST_MODE": "1", "TAILRACE_FAILPOINTS": spec})


def changes(count: int) -> list[Change]:
    return [put(n + 1, NOTES if n % 3 else ITEMS, key=n % 4) for n in range(count)]


def source_of(made: Sequence[Change], page_rows: int = 3) -> MemorySource:
    return MemorySource([ITEMS, NOTES], made, page_rows=page_rows)


def quiet(rows: int, checkpoint: Checkpoint) -> None:
    """Listen to nothing."""


class Snapshooter(MemorySource):
    """Serves its first `rows` changes as a snapshot, which starts again when it is interrupted."""

    def __init__(self, made: Sequence[Change], rows: int, page_rows: int) -> None:
        super().__init__([ITEMS, NOTES], made, page_rows=page_rows)
        self._snapshot = rows

    def pages(self, since: Checkpoint | None, until: Place | None = None) -> Iterator[Page[pa.Table]]:
        before = since
        for page in super().pages(since, until):
            after = page.checkpoint
            if isinstance(after, Tailing) and int(after.at) < self._snapshot:
                after = Snapshotting("memory", "0", after.at)
            yield Page(page.rows, before, after, page.schemas)
            before = after


class Reader:
    """What a process starts with: the files of the log and of the checkpoint, and the source."""

    def __init__(self, folder: Path, source: MemorySource, memory: MemoryLog | None = None) -> None:
        self.source = source
        self.checkpoints = Checkpoints(folder / "control")
        self._folder = folder
        self._memory = memory

    def log(self) -> MemoryLog | LandedLog:
        return self._memory or LandedLog(self._folder, "log", 1)

    def run(self) -> None:
        pump(self.source, self.log(), self.checkpoints, quiet)

    def run_to_the_end(self) -> int:
        """Start again after every crash; return how many there were."""
        crashes = 0
        while True:
            try:
                self.run()
            except Retryable:
                crashes += 1
            else:
                return crashes

    def names(self) -> list[str]:
        """Return which changes the log has, by offset, as their place in the source's history."""
        return [row["name"] for row in map(_after, self._stored())]

    def _stored(self) -> list[Mapping[str, object]]:
        if self._memory is not None:
            return [row for part in self._memory._appended for row in part.rows]
        rows = [
            row for path in self._folder.glob("log/pages/*.parquet") for row in pq.ParquetFile(path).read().to_pylist()
        ]
        rows.sort(key=lambda row: row["offset"])
        assert [row["offset"] for row in rows] == list(range(len(rows)))
        return rows


def _after(row: Mapping[str, object]) -> dict[str, str]:
    value = row["value"]
    assert isinstance(value, bytes)
    after: dict[str, str] = json.loads(value)["after"]
    return after


def expected(made: Sequence[Change]) -> list[str]:
    return [str((change.after or {})["name"]) for change in made]


@pytest.fixture(params=["memory", "landed"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[MemorySource], Reader]:
    def started(source: MemorySource) -> Reader:
        return Reader(tmp_path, source, MemoryLog() if request.param == "memory" else None)

    return started


# -- order


def test_a_page_is_appended_then_saved_then_acknowledged(tmp_path: Path) -> None:
    steps: list[str] = []

    class Watched(MemorySource):
        def acknowledge(self, checkpoint: Checkpoint) -> None:
            assert checkpoints.load() == checkpoint
            steps.append("acknowledge")

    class WatchedLog(MemoryLog):
        def append(self, page: Page[pa.Table]) -> None:
            super().append(page)
            assert checkpoints.load() == page.since
            steps.append("append")

    checkpoints = Checkpoints(tmp_path)
    log: Log = WatchedLog()
    pump(Watched([ITEMS, NOTES], changes(5), page_rows=3), log, checkpoints, lambda *_: steps.append("told"))
    assert steps == ["append", "acknowledge", "told"] * 2


def test_everything_is_copied_and_told(start: Callable[[MemorySource], Reader]) -> None:
    reader = start(source_of(changes(8)))
    told: list[tuple[int, Checkpoint]] = []
    pump(reader.source, reader.log(), reader.checkpoints, lambda *page: told.append(page))
    assert told == [(3, Tailing("memory", "3")), (3, Tailing("memory", "6")), (2, Tailing("memory", "8"))]
    assert reader.names() == expected(changes(8))
    assert reader.source.acknowledged == 8


def test_a_second_run_copies_what_is_new(start: Callable[[MemorySource], Reader]) -> None:
    made = changes(4)
    reader = start(source_of(made))
    reader.run()
    made += [put(5), put(6)]
    reader.run()
    reader.run()
    assert reader.names() == expected(made)


def test_a_run_goes_no_further_than_it_was_told(start: Callable[[MemorySource], Reader]) -> None:
    reader = start(source_of(changes(8)))
    pump(reader.source, reader.log(), reader.checkpoints, quiet, until="4")
    assert reader.names() == expected(changes(4))


def test_a_halt_of_the_log_saves_and_acknowledges_nothing(tmp_path: Path) -> None:
    class Broken(MemoryLog):
        def append(self, page: Page[pa.Table]) -> None:
            raise Halt("broken", "the log is broken")

    source = source_of(changes(4))
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(Halt):
        pump(source, Broken(), checkpoints, quiet)
    assert (checkpoints.load(), source.acknowledged) == (None, 0)


# -- crashes


@pytest.mark.parametrize("hit", [1, 2])
@pytest.mark.parametrize("name", BESIDE_THE_LOG)
def test_after_a_crash_beside_the_log_each_change_is_there_once(
    start: Callable[[MemorySource], Reader], name: str, hit: int
) -> None:
    reader = start(source_of(changes(8)))
    arm(f"{name}=raise:{hit}")
    crashes = reader.run_to_the_end()
    assert crashes == (0 if (name, hit) == ("C01", 2) else 1)
    assert reader.names() == expected(changes(8))
    assert reader.source.acknowledged == 8


@pytest.mark.parametrize("hit", [1, 2])
@pytest.mark.parametrize("name", IN_THE_LOG)
def test_after_a_crash_inside_the_log_each_change_is_there_once(tmp_path: Path, name: str, hit: int) -> None:
    reader = Reader(tmp_path, source_of(changes(8)))
    arm(f"{name}=raise:{hit}")
    assert reader.run_to_the_end() == 1
    assert reader.names() == expected(changes(8))


@pytest.mark.parametrize("name", [*BESIDE_THE_LOG, *IN_THE_LOG])
def test_a_crash_never_acknowledges_what_is_not_in_the_log(tmp_path: Path, name: str) -> None:
    reader = Reader(tmp_path, source_of(changes(8)))
    arm(f"{name}=raise:2")
    while True:
        try:
            reader.run()
        except Retryable:
            assert reader.source.acknowledged <= len(reader.names())
        else:
            break


@pytest.mark.parametrize("name", [*BESIDE_THE_LOG, *IN_THE_LOG])
def test_a_snapshot_that_is_interrupted_is_taken_again_and_is_there_once(tmp_path: Path, name: str) -> None:
    made = changes(10)
    for hit in (1, 2, 3):
        reader = Reader(tmp_path / str(hit), Snapshooter(made, rows=8, page_rows=3))
        arm(f"{name}=raise:{hit}")
        reader.run_to_the_end()
        failpoint._armed.clear()
        assert reader.names() == expected(made)


def test_a_page_of_another_size_after_a_crash_doubles_nothing(tmp_path: Path) -> None:
    for name in ("C09", "C10", "C11"):
        folder = tmp_path / name
        arm(f"{name}=raise:2")
        with pytest.raises(Retryable):
            Reader(folder, source_of(changes(8), page_rows=3)).run()
        again = Reader(folder, source_of(changes(8), page_rows=2))
        again.run()
        assert again.names() == expected(changes(8))


def random_crashes(seed: int, reader: Reader, made: list[Change], names: Sequence[str]) -> None:
    """Let the source grow while processes die at random places."""
    chance = random.Random(seed)
    for _ in range(chance.randrange(1, 4)):
        made += [put(len(made) + n + 1, key=n % 3) for n in range(chance.randrange(7))]
        reader.source._page_rows = chance.randrange(1, 5)
        arm(",".join(f"{name}=raise:{chance.randrange(1, 4)}" for name in chance.sample(names, 3)))
        reader.run_to_the_end()
        failpoint._armed.clear()
    reader.run()
    assert reader.names() == expected(made), f"seed {seed}"
    assert reader.source.acknowledged == len(made), f"seed {seed}"


def test_random_crashes_lose_and_double_nothing_in_memory(tmp_path: Path) -> None:
    first = random.randrange(1 << 32)
    for seed in range(first, first + 100):
        made: list[Change] = []
        reader = Reader(tmp_path / str(seed), source_of(made), MemoryLog())
        random_crashes(seed, reader, made, BESIDE_THE_LOG)


def test_random_crashes_lose_and_double_nothing_on_disk(tmp_path: Path) -> None:
    first = random.randrange(1 << 32)
    for seed in range(first, first + 60):
        made: list[Change] = []
        reader = Reader(tmp_path / str(seed), source_of(made))
        random_crashes(seed, reader, made, [*BESIDE_THE_LOG, *IN_THE_LOG])
