"""Rows of Convex in the landed log, and the pump that brings them there: nothing lost, nothing twice."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.control.checkpoints import Checkpoints
from tailrace.core import failpoint
from tailrace.core.checkpoint import Checkpoint, Snapshotting, Tailing
from tailrace.core.errors import Halt, Retryable
from tailrace.core.page import Page
from tailrace.core.table import Table
from tailrace.envelopes import convex_rows
from tailrace.envelopes.rows import TRUNCATE
from tailrace.log import shape
from tailrace.log.landed import LandedLog
from tailrace.log.slice import Slice
from tailrace.runtime.pump import pump
from tailrace.testing.convex import Deployment, Emulator, Fault, Workload
from tailrace.testing.convex.exports import Limits
from tests.contracts.log import NOTES, Log, LogContract, page, put, tail, truncate
from tests.convex import folded, source, there

COLUMNS = ["component_path", "table_name", "document_id", "timestamp", "op", "schema_fingerprint", "document"]
CRASHES = ["C01", "C02", "C03", "C05", "C06", "C07", "C08", "C09", "C10", "C11", "C12"]


def opened(folder: Path, epoch: int = 1) -> LandedLog:
    return LandedLog(folder, "log", epoch, shape.convex("cdc"))


def files(folder: Path) -> list[Path]:
    return sorted((folder / "log" / "raw_change_log").glob("*.parquet"))


def stored(folder: Path) -> list[dict[str, Any]]:
    """Return all rows with their offsets, as the names of the files give them."""
    found = []
    for path in files(folder):
        rows = pq.ParquetFile(path).read().to_pylist()
        found += [{**row, "offset": int(path.name[:16]) + n} for n, row in enumerate(rows)]
    assert [row["offset"] for row in found] == list(range(len(found)))
    return found


# -- the log's contract, with the same rows in Convex's columns


class Translated:
    """A log of Convex's rows that takes pages of rows like Kafka's."""

    def __init__(self, log: LandedLog) -> None:
        self._log = log

    def append(self, page: Page[pa.Table]) -> None:
        rows = [self._row(row) for row in page.rows.to_pylist()]
        self._log.append(Page(pa.Table.from_pylist(rows, convex_rows.ARROW), page.since, page.checkpoint, page.schemas))

    def _row(self, row: Mapping[str, Any]) -> dict[str, object]:
        _, component, table = row["topic"].split(".")
        named = [header["value"].decode() for header in row["headers"]]
        return {
            "component_path": component,
            "table_name": table,
            "document_id": row["key"] and row["key"].decode(),
            "timestamp": 1,
            "op": json.loads(row["value"])["op"],
            "schema_fingerprint": named[0] if named else "",
            "document": row["value"].decode(),
        }

    def recover(self, saved: Checkpoint | None) -> Checkpoint | None:
        return self._log.recover(saved)

    def head(self) -> int:
        return self._log.head()

    def slice(self, after: int, max_rows: int, upto: int | None = None) -> Slice | None:
        return self._log.slice(after, max_rows, upto)

    def schema(self, fingerprint: str) -> Table:
        return self._log.schema(fingerprint)


class TestConvexLog(LogContract):
    @pytest.fixture
    def log(self, tmp_path: Path) -> Log:
        self._folder = tmp_path
        fresh = Translated(opened(tmp_path))
        fresh.recover(None)
        return fresh

    def reopened(self, log: Log) -> Log:
        return Translated(opened(self._folder))

    def stored(self, log: Log) -> list[Mapping[str, object]]:
        rows = [row for row in stored(self._folder) if row["offset"] <= log.head()]
        return [{"offset": row["offset"], "value": row["document"].encode()} for row in rows]

    def test_a_slice_says_which_topics_have_partial_rows_and_truncates(self, log: Log) -> None:
        """Convex always sends whole documents; there is no partial row to tell of."""
        log.append(page(None, tail(2), [put(1), truncate(2, NOTES)]))
        cut = log.slice(-1, 99)
        assert cut is not None
        assert [(topic, cut.has(topic, TRUNCATE)) for topic in cut.topics()] == [
            ("cdc.public.items", False),
            ("cdc.public.notes", True),
        ]


# -- through the pump


@pytest.fixture
def server() -> Iterator[Emulator]:
    with Emulator(Deployment(seed=4)) as emulator:
        emulator.behaviour.limits = Limits(7, 5)
        yield emulator


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoint._armed.clear()


def quiet(rows: int, checkpoint: Checkpoint) -> None:
    """Listen to nothing."""


def run(server: Emulator, folder: Path, epoch: int = 1) -> None:
    """Do what a new process does: open everything, pump to the head there is now."""
    reader = source(server, epoch=epoch)
    pump(reader, opened(folder, epoch), Checkpoints(folder / "control"), quiet, reader.head())


def run_to_the_end(server: Emulator, folder: Path) -> int:
    crashes = 0
    while True:
        try:
            run(server, folder)
        except Retryable:
            crashes += 1
        else:
            return crashes


def arm(spec: str) -> None:
    failpoint.arm({"TAILRACE_TEST_MODE": "1", "TAILRACE_FAILPOINTS": spec})


def assert_once(rows: list[dict[str, Any]], about: object = "") -> None:
    keys = [(row["component_path"], row["table_name"], row["document_id"], row["timestamp"]) for row in rows]
    assert len(keys) == len(set(keys)), about


def test_the_files_have_exactly_the_columns_of_a_raw_change_log(server: Emulator, tmp_path: Path) -> None:
    server.deployment.insert("users", {"n": 1})
    run(server, tmp_path)
    (path,) = files(tmp_path)
    assert path.name == "0000000000000000-0000000000000000-t.parquet"
    found = pq.read_schema(path)
    assert found.names == COLUMNS
    assert str(found.field("timestamp").type) == "int64"


def test_schemas_are_one_file_beside_the_pages(server: Emulator, tmp_path: Path) -> None:
    server.deployment.insert("users", {"n": 1})
    server.deployment.insert("notes", {"text": "x"}, "inner")
    run(server, tmp_path)
    written = json.loads((tmp_path / "log" / "raw_change_log" / "_schemas.json").read_text())
    assert {schema["name"] for schema in written.values()} == {"users", "inner.notes"}
    assert {row["schema_fingerprint"] for row in stored(tmp_path)} == set(written)
    for fingerprint in written:
        assert opened(tmp_path).schema(fingerprint).fingerprint() == fingerprint
    with pytest.raises(Halt):
        opened(tmp_path).schema("0123456789abcdef")


def test_a_slice_says_which_tables_it_holds(server: Emulator, tmp_path: Path) -> None:
    for n in range(3):
        server.deployment.insert("users", {"n": n})
    server.deployment.insert("notes", {"text": "x"}, "a/b")
    run(server, tmp_path)
    cut = opened(tmp_path).slice(-1, 100)
    assert cut is not None
    assert cut.topics() == ["cdc.a/b.notes", "cdc.users"]
    assert [cut.rows_of(topic) for topic in cut.topics()] == [1, 3]
    assert all(opened(tmp_path).schema(name).keys == ("_id",) for name in cut.fingerprints("cdc.users"))


def test_rows_of_one_table_lie_together_and_in_their_order(server: Emulator, tmp_path: Path) -> None:
    server.behaviour.limits = Limits(7, 50)
    run(server, tmp_path)
    for n in range(8):
        server.deployment.insert("users" if n % 2 else "notes", {"n": n})
    run(server, tmp_path)
    file = pq.ParquetFile(files(tmp_path)[-1])
    groups = [file.read_row_group(n).to_pylist() for n in range(file.num_row_groups)]
    assert [{row["table_name"] for row in group} for group in groups] == [{"notes"}, {"users"}]
    for group in groups:
        assert [row["timestamp"] for row in group] == sorted(row["timestamp"] for row in group)


def test_a_snapshot_is_invisible_until_it_is_complete(server: Emulator, tmp_path: Path) -> None:
    for n in range(20):
        server.deployment.insert("users", {"n": n})
    reader, log = source(server), opened(tmp_path)
    log.recover(None)
    for page_ in reader.pages(None, reader.head()):
        assert log.head() == -1
        log.append(page_)
    assert log.head() == 19


@pytest.mark.parametrize("hit", [1, 2, 3])
@pytest.mark.parametrize("name", CRASHES)
def test_after_a_crash_anywhere_each_document_is_there_once(
    server: Emulator, tmp_path: Path, name: str, hit: int
) -> None:
    workload = Workload(server.deployment, hit)
    workload.fill(30)
    arm(f"{name}=raise:{hit}")
    crashes = run_to_the_end(server, tmp_path)
    assert crashes == (0 if name == "C01" and hit > 1 else 1)
    failpoint._armed.clear()
    workload.write(12)
    run(server, tmp_path)
    assert_once(stored(tmp_path))
    assert folded(stored(tmp_path)) == there(server.deployment)


def test_a_snapshot_that_is_interrupted_goes_on_where_it_ended(server: Emulator, tmp_path: Path) -> None:
    for n in range(40):
        server.deployment.insert("users", {"n": n})
    arm("C12=raise:3")
    with pytest.raises(Retryable):
        run(server, tmp_path)
    failpoint._armed.clear()
    saved = Checkpoints(tmp_path / "control").load()
    assert isinstance(saved, Snapshotting)
    before = [path.read_bytes() for path in files(tmp_path)]
    assert len(before) == 3
    server.deployment.insert("users", {"n": 40})
    server.calls.clear()
    run(server, tmp_path)
    assert [path.read_bytes() for path in files(tmp_path)[:3]] == before
    assert server.calls["list_snapshot"] - 1 < 6
    assert_once(stored(tmp_path))
    assert folded(stored(tmp_path)) == there(server.deployment)


def test_random_crashes_faults_and_writers_lose_and_double_nothing(server: Emulator, tmp_path: Path) -> None:
    first = random.randrange(1 << 32)
    for seed in range(first, first + 10):
        chance = random.Random(seed)
        server.deployment = Deployment(seed)
        server.behaviour.limits = Limits(chance.randint(1, 9), chance.randint(1, 9))
        workload = Workload(server.deployment, seed)
        workload.fill(chance.randrange(40))
        folder = tmp_path / str(seed)
        for _ in range(chance.randint(1, 3)):
            arm(",".join(f"{name}=raise:{chance.randint(1, 4)}" for name in chance.sample(CRASHES, 3)))
            server.faults.add(
                *(Fault(chance.choice([500, "reset", "truncated"]), call=chance.randint(1, 9)) for _ in "ab")
            )
            run_to_the_end(server, folder)
            failpoint._armed.clear()
            workload.write(chance.randrange(10))
        server.faults.clear()
        run(server, folder)
        assert_once(stored(folder), f"seed {seed}")
        assert folded(stored(folder)) == there(server.deployment), f"seed {seed}"


def test_writers_in_threads_of_their_own_during_the_run(server: Emulator, tmp_path: Path) -> None:
    Workload(server.deployment, 0).fill(60)
    threads = [threading.Thread(target=Workload(server.deployment, seed).write, args=(40,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        run(server, tmp_path)
    for thread in threads:
        thread.join()
    run(server, tmp_path)
    assert_once(stored(tmp_path))
    assert folded(stored(tmp_path)) == there(server.deployment)


def test_a_server_that_fails_every_second_call_is_read_all_the_same(server: Emulator, tmp_path: Path) -> None:
    Workload(server.deployment, 5).fill(25)
    server.faults.add(Fault(503, probability=0.5))
    assert run_to_the_end(server, tmp_path) > 5
    assert_once(stored(tmp_path))
    assert folded(stored(tmp_path)) == there(server.deployment)


def test_two_generations_have_a_log_each_and_the_second_begins_with_resets(server: Emulator, tmp_path: Path) -> None:
    workload = Workload(server.deployment, 6)
    workload.fill(30)
    run(server, tmp_path / "one")
    old = stored(tmp_path / "one")
    server.deployment.clear("users")
    run(server, tmp_path / "two", epoch=2)
    new = stored(tmp_path / "two")
    assert {row["table_name"] for row in new if row["op"] == "t"} == {row["table_name"] for row in old} | {"users"}
    assert folded(new, epoch=2) == there(server.deployment)
    cut = opened(tmp_path / "two").slice(-1, 100_000)
    assert cut is not None
    assert all(cut.has(topic, TRUNCATE) for topic in cut.topics())


def test_an_empty_page_is_saved_and_takes_no_file(server: Emulator, tmp_path: Path) -> None:
    server.deployment.insert("users", {})
    run(server, tmp_path)
    for _ in range(3):
        server.deployment.write_system(9)
    run(server, tmp_path)
    assert len(files(tmp_path)) == 1
    saved = Checkpoints(tmp_path / "control").load()
    assert isinstance(saved, Tailing)
    assert saved.at == str(server.deployment.head)


def test_a_giant_transaction_is_one_file(server: Emulator, tmp_path: Path) -> None:
    server.deployment.create_table("users")
    run(server, tmp_path)
    with server.deployment.transaction() as made:
        for n in range(5000):
            made.insert("users", {"n": n})
    run(server, tmp_path)
    assert len(files(tmp_path)) == 1
    assert len(stored(tmp_path)) == 5000
