"""A disk that is full, really: each write of ours says so, leaves nothing half done, and works once there is room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.apply.target import Mark
from tailrace.control.checkpoints import Checkpoints
from tailrace.control.progress import Progress
from tailrace.control.rejects import Rejected, Rejects
from tailrace.core.errors import Unreachable
from tailrace.log.landed import LandedLog
from tailrace.targets.parquet.store import Store
from tests.contracts.log import page, put, tail
from tests.disks import Disk, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path / "disk", "256k") as mounted:
        yield mounted


def refused(work: Callable[[], object]) -> None:
    # A run that goes on waits for room without end.
    with pytest.raises(Unreachable) as failed:
        work()
    assert failed.value.code == "disk-full"
    assert failed.value.hint


def files(disk: Disk) -> dict[str, bytes]:
    found = (path for path in disk.root.rglob("*") if path.is_file() and path.name != "ballast")
    return {str(path.relative_to(disk.root)): path.read_bytes() for path in found}


@pytest.mark.parametrize("leave", [0, 4096, 8192])
def test_a_page_is_appended_whole_or_not_at_all(disk: Disk, leave: int) -> None:
    log = LandedLog(disk.root, "log", 1)
    log.recover(None)
    log.append(page(None, tail(1), [put(1)]))
    # Numbers that do not compress, so that the page is longer than what is left.
    large = page(tail(1), tail(3001), [put(n * 7919 % 100_003, key=n) for n in range(3000)])
    disk.fill(leave)
    before = files(disk)
    for _ in range(2):
        refused(lambda: log.append(large))
        assert {name: data for name, data in files(disk).items() if "/pages/" in name} == {
            name: data for name, data in before.items() if "/pages/" in name
        }
        assert LandedLog(disk.root, "log", 1).head() == 0
    disk.free()
    log.append(large)
    assert LandedLog(disk.root, "log", 1).head() == 3000
    assert not [name for name in files(disk) if name.endswith(".tmp")]


def test_state_is_replaced_whole_or_not_at_all(disk: Disk) -> None:
    checkpoints, progress = Checkpoints(disk.root / "control"), Progress(disk.root / "progress")
    rejects = Rejects(disk.root / "rejects", enabled=True, limit=9)
    marks = {f"public.t{n}": Mark("log", n) for n in range(200)}
    checkpoints.save(tail(1))
    progress.save("t", "log", 1, {})
    disk.fill()
    before = files(disk)
    letter = Rejected("cdc.public.a", 0, 7, b"{}", b"x" * 9000, "bad-value: words")
    refused(lambda: checkpoints.save(tail(2)))
    refused(lambda: progress.save("t", "log", 2, marks))
    refused(lambda: rejects.put("t", "log", [letter]))
    assert files(disk) == before
    assert (checkpoints.load(), progress.load("t", "log"), rejects.count("t")) == (tail(1), 1, 0)
    disk.free()
    checkpoints.save(tail(2))
    progress.save("t", "log", 2, marks)
    rejects.put("t", "log", [letter])
    assert (checkpoints.load(), progress.load("t", "log"), rejects.count("t")) == (tail(2), 2, 1)


def test_a_file_of_a_table_is_written_whole_or_not_at_all(disk: Disk) -> None:
    store = Store(str(disk.root / "lake"), {})
    store.put("items/data/one", b"x")
    disk.fill()
    before = files(disk)
    refused(lambda: store.put("items/data/two", b"y" * 20_000))
    refused(lambda: store.put_new("items/manifests/1", b"y" * 20_000))
    assert files(disk) == before
    disk.free()
    assert store.put_new("items/manifests/1", b"y" * 20_000)
