"""Reading Convex: the properties that the public connector asserts, against the emulator, and some of our own."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from tailrace.core.checkpoint import Checkpoint, Scope, Snapshotting, Tailing, from_json, to_json
from tailrace.core.convex import table_name
from tailrace.core.errors import Halt, Misconfigured, NotReady, ResyncRequired, Retryable
from tailrace.core.page import Page
from tailrace.runtime.pump import Source
from tailrace.sources import _convex_inventory as inventory
from tailrace.sources._convex_rows import Shapes
from tailrace.sources._convex_rows import rows_of as received
from tailrace.sources._convex_selection import Selection
from tailrace.sources.convex import Pace, open_source
from tailrace.testing.convex import Deployment, Emulator, Fault, Workload, exports
from tailrace.testing.convex.exports import Limits
from tests.contracts.source import Event, SourceContract
from tests.convex import folded, options, read, rows_of, source, there


@pytest.fixture
def server() -> Iterator[Emulator]:
    with Emulator(Deployment(seed=random.randrange(1 << 16))) as emulator:
        emulator.behaviour.limits = Limits(10, 5)
        yield emulator


def seeds(count: int) -> range:
    first = random.randrange(1 << 32)
    return range(first, first + count)


class TestConvexSource(SourceContract):
    @pytest.fixture(autouse=True)
    def _server(self, server: Emulator) -> None:
        server.behaviour.limits = Limits(10, 2)
        self._emulator = server

    def open(self) -> Source:
        return source(self._emulator)

    def write(self, changes: int) -> None:
        for n in range(changes):
            self._emulator.deployment.insert("users" if n % 3 else "notes", {"n": n}, "inner" if n % 2 else "")

    def event(self, row: dict[str, object]) -> Event:
        names = ("component_path", "table_name", "document_id", "timestamp", "op", "document")
        return tuple(row[name] for name in names)

    def table_of(self, row: dict[str, object]) -> str:
        return table_name(str(row["component_path"]), str(row["table_name"]))

    def schemas_of(self, row: dict[str, object]) -> list[str]:
        return [str(row["schema_fingerprint"])]


# -- the connector's own properties


def test_initial_sync_copies_documents_from_source_to_destination(server: Emulator) -> None:
    key = server.deployment.insert("users", {"name": "ann", "n": 2**60})
    server.deployment.insert("notes", {"text": "hi"}, "inner/deep")
    pages = read(server)
    assert folded(rows_of(pages)) == there(server.deployment)
    assert set(there(server.deployment)) == {"users", "inner/deep.notes"}
    row = next(row for row in rows_of(pages) if row["document_id"] == key)
    assert (row["component_path"], row["table_name"], row["op"]) == ("", "users", "r")
    assert '"n":{"$integer":"AAAAAAAAABA="}' in row["document"]


def test_initial_sync_empty_source_works(server: Emulator) -> None:
    (page,) = read(server)
    assert page.rows.num_rows == 0
    assert isinstance(page.checkpoint, Tailing)
    server.deployment.insert("users", {})
    assert folded(rows_of(read(server, page.checkpoint))) == there(server.deployment)


@pytest.mark.parametrize("documents", [0, 1, 9, 10, 11, 29, 30, 31])
def test_sync_with_multiple_pages(server: Emulator, documents: int) -> None:
    for n in range(documents):
        server.deployment.insert("users", {"n": n})
    pages = read(server)
    assert len(rows_of(pages)) == documents
    assert folded(rows_of(pages)) == there(server.deployment)
    assert all(later.since == earlier.checkpoint for earlier, later in pairwise(pages))


@pytest.mark.parametrize("component", ["", "inner"])
def test_sync_after_adding_modifying_and_deleting_a_document(server: Emulator, component: str) -> None:
    keys = [server.deployment.insert("users", {"n": n, "old": True}, component) for n in range(3)]
    pages = read(server)
    server.deployment.insert("users", {"n": 3}, component)
    server.deployment.replace("users", keys[0], {"n": 4}, component)
    server.deployment.delete("users", keys[1], component)
    pages += read(server, pages[-1].checkpoint)
    assert [row["op"] for row in rows_of(pages)] == ["r", "r", "r", "u", "u", "d"]
    assert folded(rows_of(pages)) == there(server.deployment)


def test_resync_after_sync_and_delete(server: Emulator) -> None:
    keys = [server.deployment.insert("users", {"n": n}) for n in range(3)]
    server.deployment.insert("gone", {})
    before = rows_of(read(server))
    for key in keys:
        server.deployment.delete("users", key)
    server.deployment.create_table("new")
    again = rows_of(read(server, epoch=2))
    assert [(row["table_name"], row["op"], row["timestamp"]) for row in again[:3]] == [
        ("gone", "t", 0),
        ("new", "t", 0),
        ("users", "t", 0),
    ]
    assert before
    assert folded(again, epoch=2) == there(server.deployment)


def test_a_resync_starts_tables_anew_that_are_gone(server: Emulator) -> None:
    server.deployment.insert("users", {})
    opened = source(server, epoch=2)
    opened.know(["users", "old", "a/b.old"])
    found = rows_of(opened.pages(None, opened.head()))
    reset = [(row["component_path"], row["table_name"]) for row in found if row["op"] == "t"]
    assert reset == [("", "old"), ("", "users"), ("a/b", "old")]


def test_tables_read_anew_replace_what_was_read_of_them(server: Emulator) -> None:
    """With changes of all tables before and after, and a reader that ends after any page."""
    for seed in seeds(6):
        chance = random.Random(seed)
        server.deployment = Deployment(seed)
        workload = Workload(server.deployment, seed)
        workload.fill(chance.randrange(20, 60))
        pages = read(server)
        workload.write(chance.randrange(40))
        table = chance.choice(["users", "messages"])
        server.deployment.import_table(table, [{"n": n} for n in range(chance.randrange(25))])
        gone = chance.choice([name for name in ("users", "messages") if name != table])
        server.deployment.drop_table(gone)
        workload.write(chance.randrange(20))
        for last in (False, True):
            opened = source(server)
            opened.renew([table, gone])
            for page in opened.pages(pages[-1].checkpoint, opened.head()):
                assert page.since == pages[-1].checkpoint, f"seed {seed}"
                pages.append(page)
                if not last and chance.random() < 0.2:
                    break
        workload.write(chance.randrange(20))
        pages += read(server, pages[-1].checkpoint)
        assert folded(rows_of(pages)) == there(server.deployment), f"seed {seed}"


def test_tables_read_anew_bring_no_event_twice(server: Emulator) -> None:
    keys = [server.deployment.insert("users", {"n": n}) for n in range(3)]
    server.deployment.insert("notes", {})
    pages = read(server)
    server.deployment.patch("users", keys[0], {"n": 7})
    with server.deployment.transaction() as made:
        made.patch("users", keys[1], {"n": 8})
        made.insert("notes", {"n": 9})
        made.delete("users", keys[2])
    opened = source(server)
    opened.renew(["users"])
    pages += opened.pages(pages[-1].checkpoint, opened.head())
    found = [(row["table_name"], row["document_id"], row["timestamp"]) for row in rows_of(pages)]
    assert len(set(found)) == len(found)
    assert folded(rows_of(pages)) == there(server.deployment)


def test_can_perform_a_sync_from_an_unreliable_source(server: Emulator) -> None:
    Workload(server.deployment, 3).fill(40)
    server.faults.add(*(Fault(kind, probability=0.2) for kind in (503, "reset", "truncated")))
    since: Checkpoint | None = None
    found: list[dict[str, Any]] = []
    done = False
    while not done:
        try:
            opened = source(server)
            for page in opened.pages(since, opened.head()):
                found += rows_of([page])
                since = page.checkpoint
            done = True
        except Retryable:
            pass
    assert server.faults.struck > 10
    assert folded(found) == there(server.deployment)


def told(pages: list[Page[pa.Table]]) -> list[dict[str, Any]]:
    """Return the rows without their fingerprints, which are those of the end of a page."""
    return [row | {"schema_fingerprint": ""} for row in rows_of(pages)]


def test_answers_are_kept_together_and_an_error_loses_none_of_them(server: Emulator) -> None:
    workload = Workload(server.deployment, 4)
    workload.fill(10)
    pages = read(server)
    many = len(server.deployment.log)
    workload.write(40)
    (together,) = read(server, pages[-1].checkpoint, pace=Pace(0.01, 600.0))
    assert told([together]) == told(read(server, pages[-1].checkpoint))
    assert len(server.deployment.log) - many >= together.rows.num_rows > 5 * server.behaviour.limits.delta_rows
    server.faults.add(Fault(503, "document_deltas", call=4))
    opened = source(server, pace=Pace(0.01, 600.0))
    reader = opened.pages(pages[-1].checkpoint, opened.head())
    kept = [next(reader)]
    with pytest.raises(Retryable):
        next(reader)
    kept += read(server, kept[-1].checkpoint)
    assert told(kept) == told([together])


def test_answers_of_a_snapshot_are_kept_together_and_an_error_loses_none_of_them(server: Emulator) -> None:
    Workload(server.deployment, 4).fill(200)
    alone = read(server)
    (together,) = read(server, pace=Pace(0.01, 600.0))
    assert len(alone) > 20
    assert told([together]) == told(alone)
    assert together.checkpoint == alone[-1].checkpoint
    server.faults.add(Fault(503, "list_snapshot", call=9))
    opened = source(server, pace=Pace(0.01, 600.0))
    reader = opened.pages(None, opened.head())
    kept = [next(reader)]
    with pytest.raises(Retryable):
        next(reader)
    assert isinstance(kept[0].checkpoint, Snapshotting)
    kept += read(server, kept[-1].checkpoint)
    assert told(kept) == told(alone)
    assert kept[-1].checkpoint == alone[-1].checkpoint


def test_changes_are_kept_though_the_tables_cannot_be_looked_at(server: Emulator) -> None:
    workload = Workload(server.deployment, 5)
    workload.fill(10)
    since = read(server)[-1].checkpoint
    workload.write(20)
    expected = told(read(server, since))
    server.faults.add(Fault(503, "get_table_column_names"))
    opened = source(server, pace=Pace(0.01, 0.0))
    reader = opened.pages(since, opened.head())
    found = [next(reader)]
    with pytest.raises(Retryable):
        next(reader)
    assert told(found) == expected != []


def users_only(**fields: str) -> dict[str, Any]:
    return {"_other": "excl", "": {"_other": "excl", "users": {"_other": "incl", **fields}}}


def test_sync_with_partial_table_selection(server: Emulator) -> None:
    server.deployment.insert("users", {"name": "ann", "ssn": "1"})
    server.deployment.insert("notes", {})
    pages = read(server, selection=users_only(ssn="excl"))
    server.deployment.insert("users", {"name": "bo", "ssn": "2"})
    server.deployment.insert("notes", {})
    pages += read(server, pages[-1].checkpoint, selection=users_only(ssn="excl"))
    assert [row["table_name"] for row in rows_of(pages)] == ["users", "users"]
    assert not any("ssn" in row["document"] for row in rows_of(pages))
    assert not any("ssn" in table.names() for page in pages for table in page.schemas.values())


def test_sync_with_partial_component_selection(server: Emulator) -> None:
    server.deployment.insert("users", {})
    server.deployment.insert("users", {}, "inner")
    found = rows_of(read(server, selection={"_other": "incl", "": "excl"}))
    assert [row["component_path"] for row in found] == ["inner"]


@pytest.mark.parametrize("phase", [Snapshotting, Tailing])
def test_another_selection_is_refused_and_never_read_on_with(server: Emulator, phase: type) -> None:
    for _ in range(30):
        server.deployment.insert("users", {})
    page = next(page for page in read(server) if isinstance(page.checkpoint, phase))
    with pytest.raises(Halt) as refused:
        read(server, page.checkpoint, selection=users_only())
    assert refused.value.code == "selection-changed"


def test_state_json_roundtrips() -> None:
    for seed in seeds(300):
        chance = random.Random(seed)
        names = [chance.choice(["a", "b/c.d", "ü", ""]) + str(n) for n in range(chance.randrange(4))]
        scope = Scope(f"{chance.getrandbits(64):x}", tuple(sorted((name, chance.choice(["", "x"])) for name in names)))
        one = Snapshotting("convex https://a", str(chance.getrandbits(62)), '{"tablet":"x"}', scope)
        for checkpoint in (
            one,
            Tailing(one.origin, one.snapshot, scope),
            Tailing("o", "1"),
            Snapshotting("o", "1", "c"),
        ):
            assert from_json(to_json(checkpoint)) == checkpoint, f"seed {seed}"


STORED = {"version": 2, "phase": "tailing", "origin": "o", "at": "1", "selection": "s", "tables": {"a": ""}}


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1}, {"version": 3}, {"version": "2"}, {"version": None}, {"extra": 1}, {"at": 1}, {"phase": "x"},
        {"tables": []}, {"tables": {"a": 1}}, {"tables": None}, {"selection": None}, {"origin": None},
    ],
)  # fmt: skip
def test_refuses_unknown_state(change: dict[str, object]) -> None:
    assert from_json(STORED)
    with pytest.raises(ValueError, match="checkpoint"):
        from_json({**STORED, **change})
    for name in STORED:
        if name not in ("version", "selection", "tables"):
            with pytest.raises(ValueError, match="checkpoint"):
                from_json({key: value for key, value in STORED.items() if key != name})


def test_old_checkpoints_of_postgres_still_load() -> None:
    assert from_json({"phase": "tailing", "origin": "7/1", "at": "0/16B3748"}) == Tailing("7/1", "0/16B3748")
    stored = {"phase": "snapshotting", "origin": "7/1", "snapshot": "0/0", "cursor": "0"}
    assert from_json(stored) == Snapshotting("7/1", "0/0", "0")
    assert not Snapshotting("7/1", "0/0", "0").resumable


@pytest.mark.parametrize(
    "change",
    [
        {"deployment_url": None}, {"deploy_key": None}, {"deploy_key": ""}, {"deployment_url": "https://a.b/c"},
        {"client_name": "nodash"}, {"what": 1}, {"selection": {"": {"_other": "incl"}}},
        {"selection": {"_other": "include"}}, {"selection": {"_other": "incl", "": "incl"}},
        {"selection": {"_other": "incl", "": {"_other": "incl", "users": {"_other": "excl"}}}},
        {"selection": {"_other": "incl", "": {"_other": "incl", "users": {"ssn": "excl"}}}},
        {"selection": {"_other": "incl", "a//b": "excl"}}, {"selection": {"_other": "incl", "": {"_other": "incl", "_x": "excl"}}},
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_work_is_refused(server: Emulator, change: dict[str, Any]) -> None:
    assert options(server, deployment_url=f"{server.url}/").deployment_url == server.url
    with pytest.raises(ValidationError):
        options(server, **change)


# -- snapshots


def test_writers_during_the_snapshot_do_not_disturb_it(server: Emulator) -> None:
    for seed in seeds(8):
        chance = random.Random(seed)
        server.deployment = Deployment(seed)
        server.behaviour.limits = Limits(chance.randint(1, 8), chance.randint(1, 8))
        workload = Workload(server.deployment, seed)
        workload.fill(chance.randrange(60))
        frozen, found = there(server.deployment), []
        opened = source(server)
        pages = opened.pages(None, opened.head())
        for page in pages:
            found.append(page)
            workload.write(chance.randrange(4))
            if isinstance(page.checkpoint, Tailing):
                break
        assert folded(rows_of(found)) == frozen, f"seed {seed}"
        found += read(server, found[-1].checkpoint)
        assert folded(rows_of(found)) == there(server.deployment), f"seed {seed}"


def test_a_new_reader_at_every_checkpoint_reads_each_change_once(server: Emulator) -> None:
    for seed in seeds(8):
        chance = random.Random(seed)
        server.deployment = Deployment(seed)
        server.behaviour.limits = Limits(chance.randint(1, 12), chance.randint(1, 12))
        workload = Workload(server.deployment, seed)
        workload.fill(chance.randrange(50))
        since: Checkpoint | None = None
        found: list[dict[str, Any]] = []
        for _ in range(200):
            opened = source(server)
            page = next(opened.pages(since, opened.head()), None)
            if page is None:
                break
            assert page.since == since, f"seed {seed}"
            found += rows_of([page])
            since = from_json(to_json(page.checkpoint))
            if len(found) < 80:
                workload.write(chance.randrange(3))
        keys = [(row["component_path"], row["table_name"], row["document_id"], row["timestamp"]) for row in found]
        assert len(keys) == len(set(keys)), f"seed {seed}"
        assert folded(found) == there(server.deployment), f"seed {seed}"


def test_a_page_that_is_read_again_has_the_same_rows(server: Emulator) -> None:
    Workload(server.deployment, 1).fill(60)
    once = read(server)
    for page in once[:-1]:
        assert rows_of(read(server, page.checkpoint)) == rows_of(once[once.index(page) + 1 :])


def test_a_snapshot_that_became_too_old_needs_a_resync(server: Emulator) -> None:
    for _ in range(30):
        server.deployment.insert("users", {})
    since = read(server)[0].checkpoint
    assert isinstance(since, Snapshotting)
    server.deployment.advance(timedelta(days=6))
    server.deployment.insert("users", {})
    with pytest.raises(ResyncRequired) as found:
        read(server, since)
    assert "SnapshotTooOld" in str(found.value)


def test_a_cursor_that_left_the_retention_needs_a_resync(server: Emulator) -> None:
    since = read(server)[-1].checkpoint
    server.deployment.advance(timedelta(days=15))
    server.deployment.insert("users", {})
    with pytest.raises(ResyncRequired) as found:
        read(server, since)
    assert "InvalidWindowToReadDocuments" in str(found.value)


def test_no_other_error_means_a_resync(server: Emulator) -> None:
    since = read(server)[-1].checkpoint
    server.deployment.insert("users", {})
    for kind in (
        401,
        403,
        408,
        429,
        500,
        502,
        503,
        522,
        "reset",
        "truncated",
        "invalid",
        "SnapshotTooNew",
        "BadFormat",
    ):
        # Twice: a connection that was used before is made anew once.
        server.faults.add(Fault(kind, "document_deltas"), Fault(kind, "document_deltas"))
        with pytest.raises((Halt, Retryable)) as found:
            read(server, since)
        assert not isinstance(found.value, ResyncRequired), kind
        server.faults.clear()
    assert len(rows_of(read(server, since))) == 1


# -- deltas


def test_empty_pages_move_the_checkpoint(server: Emulator) -> None:
    since = read(server)[-1].checkpoint
    for _ in range(4):
        server.deployment.write_system(6)
    pages = read(server, since)
    assert [page.rows.num_rows for page in pages] == [0, 0, 0, 0]
    assert isinstance(pages[-1].checkpoint, Tailing)
    assert pages[-1].checkpoint.at == str(server.deployment.head)


def test_the_checkpoint_of_a_quiet_selection_follows_the_server(server: Emulator) -> None:
    server.deployment.insert("users", {})
    since = read(server, selection=users_only())[-1].checkpoint
    for _ in range(20):
        server.deployment.insert("notes", {})
        server.deployment.advance(timedelta(days=1))
        since = read(server, since, selection=users_only())[-1].checkpoint
    assert isinstance(since, Tailing)
    assert since.at == str(server.deployment.head)


def test_an_idle_source_gives_no_page(server: Emulator) -> None:
    since = read(server)[-1].checkpoint
    server.deployment.advance(timedelta(hours=1))
    assert read(server, since) == []


def test_a_giant_transaction_is_one_page(server: Emulator) -> None:
    server.deployment.create_table("users")
    since = read(server)[-1].checkpoint
    with server.deployment.transaction() as made:
        for n in range(3000):
            made.insert("users", {"n": n})
    pages = read(server, since)
    assert max(page.rows.num_rows for page in pages) == 3000
    assert folded(rows_of(pages)) == there(server.deployment)


def test_a_delete_of_an_unknown_document_is_a_change_like_any_other(server: Emulator) -> None:
    server.deployment.create_table("users")
    since = read(server)[-1].checkpoint
    with server.deployment.transaction() as made:
        key = made.insert("users", {"n": 1})
        made.delete("users", key)
    (row,) = rows_of(read(server, since))
    assert (row["op"], row["document_id"]) == ("d", key)
    assert folded([row]) == {}


def test_a_removed_field_is_absent_and_null_stays_null(server: Emulator) -> None:
    key = server.deployment.insert("users", {"a": 1, "b": None})
    since = read(server)[-1].checkpoint
    server.deployment.replace("users", key, {"b": None})
    (row,) = rows_of(read(server, since))
    assert '"b":null' in row["document"]
    assert '"a"' not in row["document"]


def test_odd_names_come_through(server: Emulator) -> None:
    odd = {"a.b": 1, "a b": 2.0, 'quo"te': "x", "back`tick": True, "Case": 1, "case": 2, "in": {"__proto__": b"x"}}
    server.deployment.insert("users", odd)
    pages = read(server)
    assert folded(rows_of(pages)) == there(server.deployment)
    (shape,) = pages[0].schemas.values()
    assert {"a.b", "a b", 'quo"te', "back`tick", "Case", "case"} < set(shape.names())


def test_without_an_end_a_source_goes_on_until_it_is_closed(server: Emulator) -> None:
    since = read(server)[-1].checkpoint
    opened = source(server)
    pages = opened.pages(since)
    for n in range(3):
        server.deployment.insert("users", {"n": n})
        page = next(pages)
        while not page.rows.num_rows:
            page = next(pages)
    opened.close()
    assert list(pages) == []


# -- types


def test_types_are_those_of_the_server_s_schema_before_any_row_shows_them(server: Emulator) -> None:
    for value in (1, "one"):
        server.deployment.insert("users", {"mixed": value, "count": 5})
    server.behaviour.limits = Limits(1, 1)
    first = read(server)[0]
    (shape,) = first.schemas.values()
    assert shape.column("mixed").type == "string"
    assert shape.column("count").type == "bigint"


def test_types_are_learned_from_rows_where_the_server_has_no_schema(server: Emulator) -> None:
    server.deployment.insert("users", {"n": 1})
    server.faults.add(Fault("UnsupportedSchemaForExport", "json_schemas", probability=1.0))
    pages = read(server)
    server.deployment.insert("users", {"n": "two", "more": b""})
    pages += read(server, pages[-1].checkpoint)
    shapes = [shape for page in pages for shape in page.schemas.values()]
    assert [shape.column("n").type for shape in shapes] == ["bigint", "string"]
    server.faults.clear()
    opened = source(server)
    assert next(page.schemas for page in opened.pages(None, opened.head()))


def test_types_are_learned_from_rows_where_the_server_does_not_know_the_call(server: Emulator) -> None:
    server.deployment.insert("users", {"n": 1})
    server.faults.add(Fault(404, "json_schemas", probability=1.0))
    (shape,) = [shape for page in read(server) for shape in page.schemas.values()]
    assert shape.column("n").type == "bigint"


def test_types_come_from_a_server_that_knows_no_components(server: Emulator) -> None:
    server.deployment.insert("users", {"n": 1})
    server.deployment.create_table("bare")
    server.behaviour.old = True
    (row,) = rows_of(pages := read(server))
    assert row["component_path"] == ""
    (shape,) = [shape for page in pages for shape in page.schemas.values()]
    assert shape.column("n").type == "bigint"


@pytest.mark.parametrize("table", ["properties", "type"])
def test_a_table_may_be_called_as_a_part_of_a_schema_is(server: Emulator, table: str) -> None:
    server.deployment.insert(table, {"n": 1})
    server.deployment.insert("users", {"n": 1}, "inner")
    for old in (False, True):
        server.behaviour.old = old
        shapes = source(server, selection=None).shapes()
        assert shapes[table].column("n").type == "bigint"


def test_a_shape_only_ever_grows_during_a_run(server: Emulator) -> None:
    for seed in seeds(10):
        server.deployment = Deployment(seed)
        workload = Workload(server.deployment, seed)
        workload.fill(40)
        opened = source(server)
        names: dict[str, set[str]] = {}
        for page in opened.pages(None, opened.head()):
            workload.write(1)
            for shape in page.schemas.values():
                assert names.get(shape.name, set()) <= set(shape.names()), f"seed {seed}"
                names[shape.name] = set(shape.names())


# -- guards


def test_a_server_that_ignores_the_selection_is_stopped_before_anything_is_stored(server: Emulator) -> None:
    server.deployment.insert("users", {"name": "ann", "ssn": "1"})
    server.deployment.insert("notes", {"text": "x"})
    since = read(server, selection=users_only(ssn="excl"))[-1].checkpoint
    server.behaviour.knows_selection = False
    server.deployment.insert("users", {"ssn": "2"})
    for start in (None, since):
        with pytest.raises(Halt) as found:
            read(server, start, selection=users_only(ssn="excl"))
        assert found.value.code == "selection-ignored"


def test_long_words_of_a_selection_are_sent_as_short_ones(server: Emulator) -> None:
    server.deployment.insert("users", {"ssn": "1"})
    server.deployment.insert("notes", {})
    server.behaviour.old = True
    words = {"_other": "excluded", "": {"_other": "excluded", "users": {"_other": "included", "ssn": "excluded"}}}
    (row,) = rows_of(read(server, selection=words))
    assert "ssn" not in row["document"]


def test_a_position_of_another_deployment_is_refused(server: Emulator) -> None:
    since = read(server)[-1].checkpoint
    with Emulator() as other, pytest.raises(Halt) as found:
        read(other, since)
    assert found.value.code == "deployment-changed"


def test_a_deployment_that_was_set_back_is_refused(server: Emulator) -> None:
    server.deployment.insert("users", {})
    since = read(server)[-1].checkpoint
    server.deployment = Deployment(9)
    opened = source(server)
    with pytest.raises(Halt) as found:
        list(opened.pages(since))
    assert found.value.code == "deployment-changed"


@pytest.mark.parametrize(("component", "table"), [("", "users"), ("inner", "notes")])
def test_a_table_that_was_dropped_is_reported(server: Emulator, component: str, table: str) -> None:
    for name in ("users", "notes", "kept"):
        server.deployment.insert(name, {})
        server.deployment.insert(name, {}, "inner")
    since = read(server)[-1].checkpoint
    server.deployment.drop_table(table, component)
    with pytest.raises(ResyncRequired) as found:
        read(server, since)
    assert f'table "{table_name(component, table)}" is gone' in str(found.value)


def test_an_unmounted_component_is_reported(server: Emulator) -> None:
    server.deployment.insert("users", {}, "inner")
    server.deployment.insert("users", {})
    since = read(server)[-1].checkpoint
    server.deployment.unmount("inner")
    with pytest.raises(ResyncRequired) as found:
        read(server, since)
    assert '"inner.users" is gone' in str(found.value)


@pytest.mark.parametrize("many", [2, 30])
def test_a_component_that_moved_is_read_anew_under_both_paths(server: Emulator, many: int) -> None:
    """Its old rows come with no change under the new path, so to read only the old path anew would lose them."""
    server.behaviour.limits = Limits(snapshot_rows=10)
    for n in range(many):
        server.deployment.insert("users", {"n": n}, "inner")
    server.deployment.insert("users", {})
    since = read(server)[-1].checkpoint
    server.deployment.move_component("inner", "outer")
    server.deployment.insert("users", {"n": -1}, "outer")
    with pytest.raises(ResyncRequired) as found:
        read(server, since)
    assert '"inner.users" is gone, table "outer.users" may be one of them' in str(found.value)
    assert "--resync-table inner.users --resync-table outer.users," in found.value.hint


def table_id(deployment: Deployment, name: str) -> bytes:
    found = deployment.table(name)
    assert found is not None
    return found.id


@pytest.mark.parametrize("rows", [3, 10, 25])
@pytest.mark.parametrize("imported", [0, 3, 12])
def test_a_table_that_an_import_replaced_is_reported_by_its_name(server: Emulator, rows: int, imported: int) -> None:
    """Any table, also the first in the server's own order; it may be all there is, and the new one of any size."""
    for seed in seeds(4):
        chance = random.Random(seed)
        server.deployment = deployment = Deployment(seed)
        tables = ["a", "b", "c", "d"][: chance.choice([1, 4])]
        for table in tables:
            deployment.create_table(table)
        tables.sort(key=lambda name: table_id(deployment, name))
        deployment.insert(tables[0], {})
        for table in tables[1:]:
            for n in range(rows):
                deployment.insert(table, {"n": n})
        since = read(server)[-1].checkpoint
        table = chance.choice(tables)
        if chance.random() < 0.5:
            deployment.import_table(table, [{"n": 7}] * imported)
        else:
            deployment.drop_table(table)
            deployment.create_table(table)
            for n in range(imported):
                deployment.insert(table, {"n": n})
        with pytest.raises(ResyncRequired) as found:
            read(server, since)
        assert f'table "{table}" was replaced' in str(found.value), f"seed {seed}"


def lowest(deployment: Deployment, table: str) -> None:
    """Have the table come first in the server's own order, before and after it is replaced."""
    found = deployment.table(table)
    assert found is not None
    found.id = bytes(15) + bytes([len(deployment.tablets)])


@pytest.mark.parametrize("rows", [9, 10, 11, 25])
@pytest.mark.parametrize("imported", [0, 1, 9, 10, 25])
def test_the_only_table_is_told_from_another_however_many_pages_they_have(
    server: Emulator, rows: int, imported: int
) -> None:
    for n in range(rows):
        server.deployment.insert("users", {"n": n})
    since = read(server)[-1].checkpoint
    server.deployment.import_table("users", [{"n": 7}] * imported)
    with pytest.raises(ResyncRequired, match='table "users" was replaced'):
        read(server, since)


@pytest.mark.parametrize("rows", [1, 12])
@pytest.mark.parametrize("imported", [0, 3, 12])
def test_a_restore_of_all_tables_names_them_all(server: Emulator, rows: int, imported: int) -> None:
    """One that was known by its id may come first now, and so have an id that nobody knows."""
    for seed in seeds(6):
        server.deployment = deployment = Deployment(seed)
        tables = ["a", "b", "c"]
        for table in tables:
            for n in range(rows):
                deployment.insert(table, {"n": n})
        since = read(server)[-1].checkpoint
        for table in tables:
            deployment.import_table(table, [{"n": 7}] * imported)
        with pytest.raises(ResyncRequired) as found:
            read(server, since)
        told = [table for table in tables if f'table "{table}" was replaced' in str(found.value)]
        assert told == tables, f"seed {seed}"


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("more", [0, 40])
def test_the_first_table_is_told_from_another_by_its_documents(server: Emulator, rows: int, more: int) -> None:
    """Deletes explain what is missing, and a replacement that has everything leaves nothing behind."""
    for seed in seeds(6):
        chance = random.Random(seed)
        server.deployment = deployment = Deployment(seed)
        for n in range(rows):
            deployment.insert("users", {"n": n})
        lowest(deployment, "users")
        deployment.insert("other", {})
        since = read(server)[-1].checkpoint
        for _ in range(3):
            for key in deployment.documents("users"):
                if chance.random() < 0.3:
                    deployment.delete("users", key)
            deployment.insert("users", {"late": True})
            since = read(server, since)[-1].checkpoint
        lost = chance.choice([None, *deployment.documents("users")])
        for n in range(more):
            deployment.insert("users", {"n": n})
        left = [document for key, document in deployment.documents("users").items() if key != lost]
        deployment.import_table("users", left)
        lowest(deployment, "users")
        assert isinstance(since, Tailing)
        assert since.scope is not None
        # One that grew beyond a page was known by its id for a while, and is told from any other that did by that.
        known = ".." not in dict(since.scope.tables)["users"] and len(left) > 10
        if lost is None and not known:
            assert folded(rows_of(read(server, since)))["users"] == there(deployment)["users"], f"seed {seed}"
        else:
            with pytest.raises(ResyncRequired, match='"users" was replaced'):
                read(server, since)


def test_a_checkpoint_of_an_earlier_release_is_read_on_and_learns_the_documents(server: Emulator) -> None:
    server.deployment.insert("users", {})
    since = read(server)[-1].checkpoint
    assert isinstance(since, Tailing)
    assert since.scope is not None
    ((name, identity),) = since.scope.tables
    old = Tailing(since.origin, since.at, Scope(since.scope.selection, ((name, identity.partition(":")[0]),)))
    assert from_json(to_json(old)) == old
    server.deployment.insert("users", {})
    since = read(server, old)[-1].checkpoint
    server.deployment.import_table("users", [{}])
    with pytest.raises(ResyncRequired):
        read(server, since)


def test_tables_are_looked_at_though_nothing_is_new_and_though_more_follows(server: Emulator) -> None:
    server.deployment.insert("users", {})
    server.deployment.insert("notes", {})
    since = read(server)[-1].checkpoint
    server.deployment.drop_table("notes")
    head = source(server).head()
    for n in range(20):
        server.deployment.insert("users", {"n": n})
    assert isinstance(since, Tailing)
    for until in (since.at, head):
        with pytest.raises(ResyncRequired):
            list(source(server).pages(since, until))


A, B, C = ("AAAAAAAAAAAAAAAAAAAAA" + letter for letter in "AQg")


@pytest.mark.parametrize(
    ("seen", "now", "replaced"),
    [
        (B, B, False), (A, B, True), ("", B, False), (B, "", False), (B, f"{A}..{C}", False), (B, f"{A}..", False),
        (B, f"..{C}", False), (B, f"..{B}", True), (B, f"{B}..", True), (A, f"{B}..{C}", True), (f"..{B}", C, True),
        (f"..{B}", A, False), ("..", C, False), (C, "odd", False), (f"..{A}", f"{A}..", True),
        (B, f"{A}|{B}:", False), (B, f"{A}|{C}:", True), (B, f"..{C}|{A}:", False), (C, f"..{B}|{A}:", True), (B, ":", False),
    ],
)  # fmt: skip
def test_a_table_is_another_one_if_it_cannot_be_the_same(seen: str, now: str, replaced: bool) -> None:
    if replaced:
        with pytest.raises(ResyncRequired):
            inventory.refuse_changes({"t": seen}, {"t": now})
    else:
        inventory.refuse_changes({"t": seen}, {"t": now})


def test_of_two_identities_the_one_that_says_more_is_kept() -> None:
    assert inventory.narrower("", f"..{C}") == inventory.narrower(f"..{C}", "") == f"..{C}"
    assert inventory.narrower(f"..{C}", B) == inventory.narrower(B, f"..{C}") == B


def test_a_table_that_was_dropped_and_made_again_is_reported(server: Emulator) -> None:
    for table in ("a", "b", "c"):
        server.deployment.insert(table, {})
    since = read(server)[-1].checkpoint
    assert isinstance(since, Tailing)
    assert since.scope is not None
    table = next(name for name, identity in since.scope.tables if ".." not in identity)
    server.deployment.drop_table(table)
    server.deployment.insert(table, {})
    with pytest.raises(ResyncRequired) as found:
        read(server, since)
    assert f'table "{table}" was replaced' in str(found.value)


def test_tables_that_stay_the_same_are_never_reported(server: Emulator) -> None:
    for seed in seeds(10):
        chance = random.Random(seed)
        server.deployment = Deployment(seed)
        server.behaviour.limits = Limits(chance.randint(1, 9), chance.randint(1, 20))
        workload = Workload(server.deployment, seed)
        workload.fill(chance.randrange(1, 60))
        since = read(server)[-1].checkpoint
        for _ in range(4):
            workload.write(chance.randrange(1, 12))
            if chance.random() < 0.3:
                server.deployment.clear("users")
            if chance.random() < 0.3:
                server.deployment.create_table(f"t{chance.randrange(9)}")
            since = ([*read(server, since)] or [None])[-1].checkpoint  # type: ignore[union-attr]


def test_an_idle_deployment_that_lists_its_newest_moment_no_more_is_no_reason_to_halt(server: Emulator) -> None:
    server.deployment.insert("users", {})
    since = read(server)[-1].checkpoint
    # The first call asks for the head.
    server.faults.add(Fault("SnapshotTooOld", "list_snapshot", call=2))
    read(server, since)
    assert server.faults.struck == 1
    server.deployment.drop_table("users")
    with pytest.raises(ResyncRequired) as found:
        read(server, since)
    assert 'table "users" is gone' in str(found.value)


def test_an_import_in_progress_is_not_reported(server: Emulator) -> None:
    server.deployment.insert("users", {})
    since = read(server)[-1].checkpoint
    started = server.deployment.begin_import("new")
    started.stage({"n": 1})
    pages = read(server, since)
    assert len(rows_of(pages)) == 1
    started.commit()
    assert read(server, pages[-1].checkpoint)


# -- what a pipeline asks for


def test_check_finds_what_is_missing(server: Emulator) -> None:
    server.deployment.insert("users", {})
    source(server).check()
    with pytest.raises(NotReady):
        source(server, deploy_key="prod:x|wrong").check()
    with pytest.raises(Misconfigured) as found:
        source(server, selection={"_other": "excl"}).check()
    assert found.value.code == "nothing-selected"
    # What was read before is gone since: a run has to say so, or to take it out of the targets.
    before = source(server, selection={"_other": "excl"})
    before.know(["users"])
    before.check()
    server.behaviour.enabled = False
    with pytest.raises(NotReady) as refused:
        source(server).check()
    assert "StreamingExportNotEnabled" in str(refused.value)


def test_tables_are_keyed_by_id_and_nothing_is_made_in_the_source(server: Emulator) -> None:
    server.deployment.insert("users", {}, "a/b")
    server.deployment.insert("users", {})
    opened = open_source(options(server), pipeline_id="shop", topic_prefix="cdc", epoch=1)
    assert opened.tables() == {"users": ("_id",), "a/b.users": ("_id",)}
    assert (opened.plan(), opened.undeploy()) == ([], [])


def test_lag_is_told_in_the_server_s_time(server: Emulator) -> None:
    server.deployment.insert("users", {})
    since = read(server)[-1].checkpoint
    server.deployment.advance(timedelta(seconds=90))
    server.deployment.insert("users", {})
    lag = source(server).lag(since)
    assert lag["head"] == str(server.deployment.head)
    assert isinstance(lag["lag_seconds"], float)
    assert 90 <= lag["lag_seconds"] < 91
    assert source(server).lag(None)["lag_seconds"] is None


def test_a_key_is_taken_without_the_space_around_it_and_with_none_inside(server: Emulator) -> None:
    assert source(server, deploy_key=f" {server.behaviour.key}\n").tables() == {}
    for key in (" \n", "prod:x|cana\nry", "prod:x|cana\x00ry", "prod:x|cana\u2028ry", "prod:x|canäry"):
        with pytest.raises(ValidationError) as found:
            options(server, deploy_key=key)
        assert "cana" not in str(found.value)
        assert "is not a deploy key" in str(found.value)


def test_the_key_is_in_no_text_of_the_source(server: Emulator) -> None:
    server.behaviour.key = "prod:emulated|canary-31"
    chosen = options(server)
    assert "canary" not in repr(chosen) + str(chosen)
    assert source(server, pace=Pace()).name == "shop"
    server.deployment.insert("users", {})
    for page in read(server):
        assert "canary" not in repr(page.checkpoint)


@pytest.mark.parametrize("said", [None, False])
def test_a_document_of_a_snapshot_need_not_say_that_it_is_not_deleted(said: bool | None) -> None:
    """Names with an underscore are the server's to add, so one more is no reason to stop."""
    value = {"_id": "k1", "_table": "users", "_component": "", "_ts": 7, "_new": {"$map": []}, "n": 1.0}
    found = received([value | ({} if said is None else {"_deleted": said})], Selection(), Shapes(), delta=False)
    assert (found.deleted, found.texts) == ([False], ['{"_id":"k1","n":1.0}'])


@pytest.mark.parametrize(("said", "delta"), [(True, False), ("no", False), (None, True), (0, True)])
def test_a_document_that_does_not_say_rightly_whether_it_is_deleted_is_refused(said: object, delta: bool) -> None:
    value = {"_id": "k1", "_table": "users", "_ts": 7} | ({} if said is None else {"_deleted": said})
    with pytest.raises(Halt, match="deleted"):
        received([value], Selection(), Shapes(), delta=delta)


def test_cursors_that_tell_nothing_make_no_table_another_one(server: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the server's own; with others than we know, tables are told apart by some of their documents."""
    inner_cursor, inner_place = exports._cursor, exports._place
    monkeypatch.setattr(exports, "_cursor", lambda *of: base64.b64encode(inner_cursor(*of).encode()).decode())
    monkeypatch.setattr(exports, "_place", lambda text: inner_place(base64.b64decode(text).decode()))
    for table in ("users", "notes", "small"):
        for n in range(3 if table == "small" else 25):
            server.deployment.insert(table, {"n": n})
    pages = read(server)
    for n in range(3):
        for table in ("users", "notes", "small"):
            for _ in range(15):
                server.deployment.insert(table, {"n": n})
        pages += read(server, pages[-1].checkpoint)
        assert folded(rows_of(pages)) == there(server.deployment)
    for table in ("users", "notes", "small"):
        for key in list(server.deployment.dump()["", table])[:20]:
            server.deployment.delete(table, key)
    pages += read(server, pages[-1].checkpoint)
    server.deployment.import_table("users", [{"n": 7}] * 3)
    server.deployment.drop_table("small")
    server.deployment.insert("small", {"n": 7})
    with pytest.raises(ResyncRequired, match='table "small" was replaced, table "users" was replaced'):
        read(server, pages[-1].checkpoint)
    server.deployment.drop_table("notes")
    with pytest.raises(ResyncRequired, match='table "notes" is gone'):
        read(server, pages[-1].checkpoint)


class Generous(Emulator):
    """A server whose pages hold several tables, and whose last page has a cursor too."""

    def answer(self, verb: str, target: str, headers: Mapping[str, str], body: bytes) -> object:
        page: Any = super().answer(verb, target, headers, body)
        if target != "/api/list_snapshot":
            return page
        while page["hasMore"] and len(page["values"]) < 25:
            asked = json.loads(body) | {"snapshot": page["snapshot"], "cursor": page["cursor"]}
            more: Any = super().answer(verb, target, headers, json.dumps(asked).encode())
            page = more | {"values": page["values"] + more["values"]}
        return page | {"cursor": page["cursor"] or "the end"}


def test_pages_of_several_tables_make_no_table_another_one() -> None:
    for seed in seeds(4):
        with Generous(Deployment(seed)) as server:
            server.behaviour.limits = Limits(10, 5)
            server.deployment = deployment = Deployment(seed)
            workload = Workload(deployment, seed)
            workload.fill(60)
            pages = read(server)
            workload.write(20)
            deployment.insert("later", {"n": 1})
            pages += read(server, pages[-1].checkpoint)
            pages += read(server, pages[-1].checkpoint)
            assert folded(rows_of(pages)) == there(deployment), f"seed {seed}"
