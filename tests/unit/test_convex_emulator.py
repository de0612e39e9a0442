"""The emulator gives what the real server gives: the properties that Convex's own tests assert, over HTTP."""

from __future__ import annotations

import http.client
import json
import random
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest

from tailrace.testing.convex import Deployment, Emulator, Fault, Workload, fault
from tailrace.testing.convex.exports import Limits, column_names, json_schemas

Answer = tuple[int, Any]


@pytest.fixture
def server() -> Iterator[Emulator]:
    with Emulator(Deployment(seed=1)) as emulator:
        yield emulator


def ask(
    server: Emulator,
    endpoint: str,
    body: dict[str, Any] | None = None,
    query: dict[str, Any] | None = None,
    **headers: str | None,
) -> Answer:
    """POST a body, or GET with a query; a header that is None is not sent."""
    sent = {"Authorization": f"Convex {server.behaviour.key}", "Convex-Client": "tests-1.0.0"}
    if body is not None:
        sent["Content-Type"] = "application/json"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(
        f"{server.url}/api/{endpoint}" + (f"?{urlencode(query)}" if query else ""),
        data=None if body is None else json.dumps(body).encode(),
        headers={name: value for name, value in {**sent, **named}.items() if value is not None},
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            text = error.read()
            return error.code, json.loads(text) if text else None


def page(server: Emulator, endpoint: str, **body: Any) -> dict[str, Any]:
    status, found = ask(server, endpoint, {"format": "convex_encoded_json", **body})
    assert status == 200, found
    return dict(found)


def code(answer: Answer) -> tuple[int, str]:
    return answer[0], answer[1]["code"]


def walk(server: Emulator, **body: Any) -> list[dict[str, Any]]:
    pages = [page(server, "list_snapshot", **body)]
    while pages[-1]["hasMore"]:
        pages.append(
            page(server, "list_snapshot", **{**body, "snapshot": pages[0]["snapshot"], "cursor": pages[-1]["cursor"]})
        )
    return pages


def tail(server: Emulator, cursor: int, **body: Any) -> list[dict[str, Any]]:
    pages = [page(server, "document_deltas", cursor=cursor, **body)]
    while pages[-1]["hasMore"]:
        pages.append(page(server, "document_deltas", cursor=pages[-1]["cursor"], **body))
    return pages


def values(pages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [value for one in pages for value in one["values"]]


# -- snapshots


def test_an_empty_deployment_gives_one_empty_page_at_now(server: Emulator) -> None:
    found = page(server, "list_snapshot")
    assert found == {"values": [], "snapshot": server.deployment.head, "cursor": None, "hasMore": False}


@pytest.mark.parametrize(("documents", "sizes"), [(29, [10, 10, 9]), (30, [10, 10, 10, 0]), (31, [10, 10, 10, 1])])
def test_a_table_of_an_exact_multiple_of_the_page_ends_with_an_empty_page(
    server: Emulator, documents: int, sizes: list[int]
) -> None:
    server.behaviour.limits = Limits(snapshot_rows=10)
    for n in range(documents):
        server.deployment.insert("users", {"n": n})
    pages = walk(server)
    assert [len(one["values"]) for one in pages] == sizes
    assert [one["cursor"] is None for one in pages] == [not one["hasMore"] for one in pages]
    ids = [value["_id"] for value in values(pages)]
    assert ids == sorted(ids)
    assert len(set(ids)) == documents


def test_a_page_holds_one_table_and_an_empty_table_costs_an_empty_page(server: Emulator) -> None:
    for table in ("a", "b", "c"):
        server.deployment.create_table(table)
    server.deployment.insert("b", {}, "inner")
    server.deployment.insert("c", {})
    pages = walk(server)
    assert len(pages) == 4
    assert sorted(len(one["values"]) for one in pages) == [0, 0, 1, 1]
    assert {(value["_component"], value["_table"]) for value in values(pages)} == {("inner", "b"), ("", "c")}


def test_a_snapshot_shows_what_was_there_whatever_was_written_since(server: Emulator) -> None:
    key = server.deployment.insert("users", {"v": "old"})
    first = page(server, "list_snapshot")
    server.deployment.patch("users", key, {"v": "new"})
    server.deployment.insert("users", {"v": "later"})
    server.deployment.insert("others", {"v": "later"})
    again = page(server, "list_snapshot", snapshot=first["snapshot"])
    assert again == first
    assert [value["v"] for value in again["values"]] == ["old"]
    assert all(value["_ts"] <= first["snapshot"] for value in again["values"])
    assert "_deleted" not in again["values"][0]


def test_a_table_that_is_dropped_during_the_walk_is_still_in_the_snapshot(server: Emulator) -> None:
    server.deployment.insert("users", {})
    snapshot = page(server, "list_snapshot")["snapshot"]
    server.deployment.drop_table("users")
    assert len(page(server, "list_snapshot", snapshot=snapshot)["values"]) == 1
    assert page(server, "list_snapshot")["values"] == []


def test_a_snapshot_in_the_future_or_too_old_is_refused(server: Emulator) -> None:
    server.deployment.insert("users", {})
    head = server.deployment.head
    assert code(ask(server, "list_snapshot", {"snapshot": head + 1})) == (400, "SnapshotTooNew")
    server.deployment.advance(timedelta(days=6))
    server.deployment.insert("users", {})
    assert code(ask(server, "list_snapshot", {"snapshot": head})) == (400, "SnapshotTooOld")


def test_a_cursor_names_a_table_and_a_document_of_it(server: Emulator) -> None:
    for table in ("users", "notes", "tasks"):
        server.deployment.insert(table, {})
    pages = walk(server)
    first, last = (json.loads(cursor) for cursor in (pages[0]["cursor"], pages[1]["cursor"]))
    assert list(first) == list(last) == ["tablet", "id"]
    assert {len(one["tablet"]) for one in (first, last)} == {22}
    # The least id that there could be stands for the beginning of a table.
    assert all(31 <= len(one["id"]) <= 37 and one["id"] < pages[1]["values"][0]["_id"] for one in (first, last))


@pytest.mark.parametrize(
    "cursor",
    [
        "", "x", "{}", "[]", "7", '{"tablet":"short","id":""}', '{"tablet":1,"id":""}',
        '{"tablet":"!!!!!!!!!!!!!!!!!!!!!!","id":"' + "0" * 31 + '"}',
        '{"tablet":"' + "A" * 22 + '","id":""}',
    ],
)  # fmt: skip
def test_a_malformed_cursor_is_refused(server: Emulator, cursor: str) -> None:
    assert code(ask(server, "list_snapshot", {"cursor": cursor})) == (400, "InvalidListSnapshotCursor")


# -- deltas


def test_deltas_are_ordered_and_the_cursor_is_exclusive(server: Emulator) -> None:
    start = server.deployment.head
    with server.deployment.transaction() as made:
        keys = sorted(made.insert("users", {"n": n}) for n in range(3))
    server.deployment.delete("users", keys[0])
    found = page(server, "document_deltas", cursor=start)
    assert [value["_id"] for value in found["values"]] == [*keys, keys[0]]
    assert [value["_deleted"] for value in found["values"]] == [False, False, False, True]
    assert set(found["values"][-1]) == {"_id", "_ts", "_table", "_component", "_deleted"}
    last = found["values"][-1]["_ts"]
    assert page(server, "document_deltas", cursor=last)["values"] == []
    assert len(page(server, "document_deltas", cursor=last - 1)["values"]) == 1


def test_a_transaction_is_never_split_and_has_more_needs_a_later_row(server: Emulator) -> None:
    server.behaviour.limits = Limits(delta_rows=1)
    start = server.deployment.head
    with server.deployment.transaction() as made:
        made.insert("users", {})
        made.insert("users", {})
    pages = tail(server, start)
    assert [len(one["values"]) for one in pages] == [0, 2]
    assert [one["hasMore"] for one in pages] == [True, False]
    assert pages[-1]["cursor"] == server.deployment.head


def test_rows_that_nobody_sees_count_so_that_a_page_may_be_empty_and_move_on(server: Emulator) -> None:
    server.behaviour.limits = Limits(delta_rows=5)
    start = server.deployment.head
    for _ in range(4):
        server.deployment.write_system(5)
    server.deployment.insert("users", {})
    pages = tail(server, start)
    assert [len(one["values"]) for one in pages[:4]] == [0, 0, 0, 0]
    assert [one["cursor"] for one in pages] == sorted({one["cursor"] for one in pages})
    assert len(values(pages)) == 1


def test_an_exhausted_log_gives_the_head_and_an_idle_one_the_same_again(server: Emulator) -> None:
    server.deployment.write_system()
    first = page(server, "document_deltas", cursor=server.deployment.head - 1)
    assert (first["values"], first["cursor"], first["hasMore"]) == ([], server.deployment.head, False)
    server.deployment.advance(timedelta(hours=3))
    assert page(server, "document_deltas", cursor=first["cursor"])["cursor"] == first["cursor"]


def test_a_cursor_in_the_future_is_not_refused_and_comes_back_smaller(server: Emulator) -> None:
    head = server.deployment.head
    assert page(server, "document_deltas", cursor=head + 10) == {"values": [], "cursor": head, "hasMore": False}


def test_rows_of_a_dropped_table_or_an_unmounted_component_vanish_and_the_cursor_still_moves(server: Emulator) -> None:
    start = server.deployment.head
    server.deployment.insert("users", {})
    server.deployment.insert("users", {}, "inner")
    server.deployment.insert("kept", {})
    server.deployment.drop_table("users")
    server.deployment.unmount("inner")
    found = page(server, "document_deltas", cursor=start)
    assert [value["_table"] for value in found["values"]] == ["kept"]
    assert found["cursor"] == server.deployment.head


def test_an_import_streams_its_staged_rows_and_gives_the_old_ones_no_tombstones(server: Emulator) -> None:
    old = server.deployment.insert("users", {"v": 1})
    start = server.deployment.head
    started = server.deployment.begin_import("users")
    new = started.stage({"v": 2})
    staged = page(server, "document_deltas", cursor=start)
    assert [value["_id"] for value in staged["values"]] == [new]
    assert list(server.deployment.documents("users")) == [old]
    started.commit()
    after = page(server, "document_deltas", cursor=staged["cursor"])
    assert after["values"] == []
    assert list(server.deployment.documents("users")) == [new]


def test_an_aborted_import_leaves_a_phantom(server: Emulator) -> None:
    start = server.deployment.head
    started = server.deployment.begin_import("users")
    started.stage({"v": 2})
    assert len(page(server, "document_deltas", cursor=start)["values"]) == 1
    started.abort()
    assert page(server, "document_deltas", cursor=start)["values"] == []


def test_a_document_made_and_deleted_in_one_transaction_leaves_a_lone_tombstone(server: Emulator) -> None:
    start = server.deployment.head
    with server.deployment.transaction() as made:
        made.delete("users", made.insert("users", {}))
    assert [value["_deleted"] for value in page(server, "document_deltas", cursor=start)["values"]] == [True]


def test_a_moved_component_changes_the_path_of_old_revisions_in_deltas_and_not_in_snapshots(server: Emulator) -> None:
    start = server.deployment.head
    server.deployment.insert("users", {}, "inner")
    snapshot = server.deployment.head
    server.deployment.move_component("inner", "outer")
    assert page(server, "document_deltas", cursor=start)["values"][0]["_component"] == "outer"
    assert page(server, "list_snapshot", snapshot=snapshot)["values"][0]["_component"] == "inner"


def test_deltas_need_a_cursor_inside_the_retention(server: Emulator) -> None:
    assert code(ask(server, "document_deltas", {})) == (400, "DocumentDeltasCursorRequired")
    assert ask(server, "document_deltas", {"cursor": -1})[0] == 500
    edge = server.deployment.oldest_cursor() - 1
    assert ask(server, "document_deltas", {"cursor": edge})[0] == 200
    assert code(ask(server, "document_deltas", {"cursor": edge - 1})) == (400, "InvalidWindowToReadDocuments")


# -- values


def test_values_in_three_formats(server: Emulator) -> None:
    server.deployment.insert(
        "t",
        {
            "big": 1234567890123456789,
            "low": -(1 << 63),
            "high": (1 << 63) - 1,
            "minus": -1,
            "nan": float("nan"),
            "up": float("inf"),
            "zero": -0.0,
            "one": 1.0,
            "raw": b"\x00\xff",
            "a.b c": [None, True],
        },
    )

    def shown(form: str) -> dict[str, Any]:
        return {k: v for k, v in page(server, "list_snapshot", format=form)["values"][0].items() if k[0] != "_"}

    assert shown("convex_encoded_json") == {
        "big": {"$integer": "FYHpffQQIhE="},
        "low": {"$integer": "AAAAAAAAAIA="},
        "high": {"$integer": "/////////38="},
        "minus": {"$integer": "//////////8="},
        "nan": {"$float": "AAAAAAAA+H8="},
        "up": {"$float": "AAAAAAAA8H8="},
        "zero": {"$float": "AAAAAAAAAIA="},
        "one": 1.0,
        "raw": {"$bytes": "AP8="},
        "a.b c": [None, True],
    }
    clean = shown("json")
    assert (clean["big"], clean["nan"], clean["up"], clean["raw"]) == ("1234567890123456789", "NaN", "Infinity", "AP8=")
    assert str(clean["zero"]) == "-0.0"
    assert shown("export_json")["big"] == 1234567890123456789
    assert shown("convex_json") == shown("convex_encoded_json")
    assert shown("convex_clean_json") == clean
    assert code(ask(server, "list_snapshot", {"format": "xml"})) == (400, "BadFormat")


# -- selection


def two_tables(server: Emulator) -> None:
    server.deployment.insert("users", {"name": "ann", "ssn": "1"})
    server.deployment.insert("notes", {"text": "x"})
    server.deployment.insert("users", {"name": "bo"}, "inner")


USERS = {"_other": "excl", "": {"_other": "excl", "users": {"_other": "incl", "ssn": "excl"}}}


def test_a_selection_chooses_components_tables_and_fields(server: Emulator) -> None:
    two_tables(server)
    for found in (walk(server, selection=USERS), tail(server, server.deployment.clock - 10**12, selection=USERS)):
        (value,) = values(found)
        assert (value["_table"], value["_component"], value["name"]) == ("users", "", "ann")
        assert "ssn" not in value
    inner = {"_other": "incl", "": "excl"}
    assert {value["_component"] for value in values(walk(server, selection=inner))} == {"inner"}
    timeless = {"_other": "incl", "": {"_other": "incl", "users": {"_other": "incl", "_creationTime": "excl"}}}
    assert "_creationTime" not in next(v for v in values(walk(server, selection=timeless)) if v.get("ssn"))


@pytest.mark.parametrize(
    "broken",
    [
        {"": {"_other": "excl"}},
        {"_other": "excl", "": "incl"},
        {"_other": "exclude"},
        {"_other": "excl", "": {"users": {"_other": "incl"}}},
        "excl",
    ],
)
def test_a_selection_that_cannot_be_parsed_exports_everything(server: Emulator, broken: object) -> None:
    two_tables(server)
    assert len(values(walk(server, selection=broken))) == 3
    server.behaviour.strict_selection = True
    assert ask(server, "list_snapshot", {"selection": broken})[0] == 400


def test_old_servers_know_the_short_words_only(server: Emulator) -> None:
    two_tables(server)
    long = {"_other": "excluded"}
    assert values(walk(server, selection=long)) == []
    server.behaviour.old = True
    assert len(values(walk(server, selection=long))) == 3
    assert values(walk(server, selection={"_other": "excl"})) == []


def test_a_table_without_its_ids_and_a_bad_name_are_errors_without_a_reason(server: Emulator) -> None:
    for broken in (
        {"_other": "incl", "": {"_other": "incl", "users": {"_other": "excl"}}},
        {"_other": "incl", "": {"_other": "incl", "us ers": "excl"}},
        {"_other": "incl", "a//b": "excl"},
    ):
        assert code(ask(server, "list_snapshot", {"selection": broken})) == (500, "InternalServerError")


def test_older_filters_by_table_and_component(server: Emulator) -> None:
    two_tables(server)

    def tables(**query: str) -> set[tuple[str, str]]:
        found = ask(server, "document_deltas", None, {"cursor": server.deployment.clock - 10**12, **query})[1]
        return {(value["_component"], value["_table"]) for value in found["values"]}

    everything = {("", "users"), ("", "notes"), ("inner", "users")}
    assert tables() == everything
    assert tables(tableName="users") == tables(table_name="users") == {("", "users")}
    assert tables(tableName="users", component="inner") == {("inner", "users")}
    assert tables(component="inner") == {("inner", "users")}
    assert tables(selection=json.dumps(USERS)) == everything
    assert tables(tableName="nobody") == set()
    server.behaviour.old = True
    found = ask(server, "document_deltas", None, {"cursor": server.deployment.clock - 10**12, "tableName": "users"})
    assert len(found[1]["values"]) == 3


# -- schemas


def test_columns_are_those_of_the_data_and_an_empty_table_has_two(server: Emulator) -> None:
    two_tables(server)
    server.deployment.create_table("bare")
    found = ask(server, "get_table_column_names")[1]["byComponent"]
    assert found[""] == [
        {"name": "bare", "columns": ["_creationTime", "_id"]},
        {"name": "notes", "columns": ["_creationTime", "_id", "text"]},
        {"name": "users", "columns": ["_creationTime", "_id", "name", "ssn"]},
    ]
    assert list(found) == ["", "inner"]


def test_schemas_are_those_of_the_documents_that_are_left() -> None:
    seed = random.randrange(1 << 32)
    for few in (3, 300):
        deployment, again = Deployment(seed), Deployment(seed + 1)
        workload = Workload(deployment, seed)
        workload.fill(2 * few)
        workload.write(few)
        for (component, table), documents in deployment.dump().items():
            again.create_table(table, component)
            for document in documents.values():
                again.insert(table, document, component)
        for form in ("json", "convex_encoded_json", "export_json"):
            told = (json_schemas(one, form, delta=False, by_component=True) for one in (deployment, again))
            assert len({json.dumps(one, sort_keys=True) for one in told}) == 1, f"seed {seed}"
        assert column_names(deployment) == column_names(again), f"seed {seed}"


def test_schemas_describe_the_data_seen_so_far(server: Emulator) -> None:
    server.deployment.insert("t", {"n": 1, "f": 1.0, "u": "x"})
    server.deployment.insert("t", {"f": float("nan"), "u": 1.0}, "")
    server.deployment.mount("bare")
    found = ask(server, "json_schemas", None, {"byComponent": "true", "format": "convex_encoded_json"})[1]
    assert found["bare"] == {}
    table = found[""]["t"]
    assert table["required"] == ["_creationTime", "_id", "f", "u"]
    assert "$integer" in table["properties"]["n"]["properties"]
    assert len(table["properties"]["f"]["anyOf"]) == len(table["properties"]["u"]["anyOf"]) == 2
    flat = ask(server, "json_schemas", None, {"deltaSchema": "true"})[1]
    assert flat["t"]["properties"]["_ts"] == {"type": "integer"}
    assert "_ts" not in flat["t"]["required"]
    server.behaviour.old = True
    assert "t" in ask(server, "json_schemas", None, {"byComponent": "true"})[1]


def test_one_bad_table_fails_the_call_and_a_bootstrapping_server_says_so(server: Emulator) -> None:
    server.deployment.insert("t", {"$odd": 1})
    assert code(ask(server, "json_schemas")) == (400, "UnsupportedSchemaForExport")
    server.behaviour.bootstrapping = True
    for endpoint in ("json_schemas", "get_table_column_names"):
        assert code(ask(server, endpoint)) == (503, "TableSummariesUnavailable")
    assert ask(server, "list_snapshot", {})[0] == 200


# -- keys


def test_the_connection_test_needs_a_key_that_may_see_data(server: Emulator) -> None:
    assert ask(server, "test_streaming_export_connection") == (200, None)
    bare = server.behaviour.key.removeprefix("prod:")
    for good in (f"Convex {bare}", f"convex {bare}", f"CONVEX dev:{bare}"):
        assert ask(server, "test_streaming_export_connection", Authorization=good)[0] == 200
    for key, expected in (
        (None, (403, "BadDeployKey")),
        ("Convex wrong", (401, "BadAdminKey")),
        ("Bearer x", (400, "InvalidHeaderFailure")),
        (f"Convex {server.behaviour.weak_key}", (403, "OperationNotPermitted")),
    ):
        assert code(ask(server, "test_streaming_export_connection", Authorization=key)) == expected
    assert ask(server, "json_schemas", None, {"adminKey": bare}, Authorization=None)[0] == 200


def test_checks_come_in_the_server_s_order(server: Emulator) -> None:
    wrong = {"Authorization": "Convex wrong"}
    assert code(ask(server, "list_snapshot", {}, Convex_Client="nodash", **wrong)) == (400, "InvalidClientVersion")
    assert code(ask(server, "document_deltas", None, {"cursor": "x"}, **wrong)) == (400, "BadQueryArgs")
    assert code(ask(server, "document_deltas", {}, Content_Type="text/plain", **wrong)) == (401, "BadAdminKey")
    assert code(ask(server, "document_deltas", {}, Content_Type="text/plain")) == (400, "BadJsonBody")
    server.behaviour.enabled = False
    for endpoint in ("list_snapshot", "document_deltas"):
        assert code(ask(server, endpoint, {}, Authorization=None)) == (403, "StreamingExportNotEnabled")
    server.behaviour.enabled = True
    assert code(ask(server, "document_deltas", {}, Authorization=None)) == (403, "BadDeployKey")
    without = {"_other": "excl", "": {"_other": "excl", "t": {"_other": "incl", "_id": "excl"}}}
    assert code(ask(server, "document_deltas", {"selection": without})) == (400, "DocumentDeltasCursorRequired")
    assert ask(server, "document_deltas", {"selection": without, "cursor": 0})[0] == 500
    snapshot = {"selection": without, "cursor": "x", "format": "x"}
    assert code(ask(server, "list_snapshot", snapshot)) == (400, "InvalidListSnapshotCursor")
    assert code(ask(server, "list_snapshot", {**snapshot, "cursor": None})) == (500, "InternalServerError")
    assert code(ask(server, "list_snapshot", {"snapshot": 1 << 62, "cursor": "x"})) == (
        400,
        "InvalidListSnapshotCursor",
    )
    assert code(ask(server, "list_snapshot", {"snapshot": 1 << 62, "format": "x"})) == (400, "SnapshotTooNew")
    for flag in ("deltaSchema", "byComponent"):
        assert code(ask(server, "json_schemas", None, {flag: "yes"}, **wrong)) == (400, "BadQueryArgs")
        assert ask(server, "json_schemas", None, {flag: "true"})[0] == 200


def test_a_component_that_is_mounted_again_has_its_tables(server: Emulator) -> None:
    key = server.deployment.insert("users", {"n": 1}, "inner")
    server.deployment.unmount("inner")
    assert server.deployment.documents("users", "inner") == {}
    server.deployment.mount("inner")
    assert list(server.deployment.documents("users", "inner")) == [key]
    server.deployment.mount("other")
    assert server.deployment.dump().keys() == {("inner", "users")}


def test_a_missing_client_header_is_fine_and_some_names_are_not(server: Emulator) -> None:
    assert ask(server, "test_streaming_export_connection", Convex_Client=None)[0] == 200
    assert code(ask(server, "list_snapshot", {}, Convex_Client="npm-0.1.0")) == (400, "ClientVersionUnsupported")
    assert code(ask(server, "list_snapshot", {}, Convex_Client="actions-1.0")) == (400, "ClientVersionUnsupported")


@pytest.mark.parametrize(
    ("endpoint", "wrong"),
    [
        ("list_snapshot", {"snapshot": "7"}), ("list_snapshot", {"snapshot": 7.0}), ("list_snapshot", {"cursor": 7}),
        ("list_snapshot", {"snapshot": 1 << 63}), ("list_snapshot", {"format": 1}),
        ("document_deltas", {"cursor": "7"}), ("document_deltas", {"cursor": True}),
    ],
)  # fmt: skip
def test_an_argument_of_another_type_is_found_in_the_body(
    server: Emulator, endpoint: str, wrong: dict[str, Any]
) -> None:
    assert code(ask(server, endpoint, wrong)) == (400, "BadJsonBody")
    server.behaviour.enabled = False
    assert code(ask(server, endpoint, wrong)) == (400, "BadJsonBody")


def test_an_empty_format_is_none(server: Emulator) -> None:
    for endpoint in ("list_snapshot", "json_schemas"):
        assert code(ask(server, endpoint, None, {"format": ""})) == (400, "BadFormat")
    assert ask(server, "list_snapshot", {"format": None})[0] == 200


def test_only_two_calls_can_be_posted(server: Emulator) -> None:
    for endpoint in ("json_schemas", "get_table_column_names", "test_streaming_export_connection"):
        assert ask(server, endpoint, {}) == (405, None)
    assert ask(server, "get_tables_and_columns")[0] == 404
    assert ask(server, "get_tables_and_columns", {})[0] == 404


# -- faults


def test_a_fault_strikes_the_call_that_it_names_and_no_other(server: Emulator) -> None:
    server.faults.add(Fault(503, "list_snapshot", call=2), Fault("InvalidWindowToReadDocuments", "document_deltas"))
    assert [ask(server, "list_snapshot", {})[0] for _ in range(3)] == [200, 503, 200]
    assert code(ask(server, "document_deltas", {"cursor": 0}))[1] == "InvalidWindowToReadDocuments"


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("SnapshotTooOld", 400), ("InvalidClientVersion", 400), ("BadAdminKey", 401), ("BadDeployKey", 403),
        ("OperationNotPermitted", 403), ("StreamingExportNotEnabled", 403), ("InternalServerError", 500),
        ("TableSummariesUnavailable", 503), ("OptimisticConcurrencyControlFailure", 503),
    ],
)  # fmt: skip
def test_a_refusal_that_was_asked_for_has_its_own_status(server: Emulator, word: str, status: int) -> None:
    server.faults.add(Fault(word))
    assert code(ask(server, "list_snapshot", {})) == (status, word)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("503", Fault(503)),
        ("reset@document_deltas", Fault("reset", "document_deltas")),
        ("SnapshotTooOld@list_snapshot:3", Fault("SnapshotTooOld", "list_snapshot", call=3)),
        ("slow:2", Fault("slow", call=2)),
        ("", None), ("200", None), ("503@", None), ("503:0", None), ("reset:x", None), ("a b", None),
    ],
)  # fmt: skip
def test_a_fault_has_a_text(text: str, expected: Fault | None) -> None:
    if expected is not None:
        assert fault(text) == expected
    else:
        with pytest.raises(ValueError, match="is no"):
            fault(text)


def test_cut_and_broken_answers(server: Emulator) -> None:
    server.deployment.insert("users", {"name": "x" * 1000})
    for kind in ("reset", "truncated", "invalid"):
        server.faults.add(Fault(kind))
        with pytest.raises((OSError, ValueError, http.client.HTTPException)):
            ask(server, "list_snapshot", {})
    assert ask(server, "list_snapshot", {})[0] == 200


# -- everything together


def test_the_snapshot_and_the_deltas_after_it_give_what_is_there_for_many_seeds(server: Emulator) -> None:
    first = random.randrange(1 << 32)
    for seed in range(first, first + 12):
        chance = random.Random(seed)
        deployment = Deployment(seed)
        workload = Workload(deployment, seed)
        workload.fill(chance.randrange(60))
        server.deployment = deployment
        server.behaviour.limits = Limits(chance.randint(1, 9), chance.randint(1, 9))
        state: dict[tuple[str, str, str], Any] = {}
        found = page(server, "list_snapshot")
        pages = [found]
        while pages[-1]["hasMore"]:
            workload.write(chance.randrange(3))
            pages.append(page(server, "list_snapshot", snapshot=found["snapshot"], cursor=pages[-1]["cursor"]))
        for value in values([*pages, *tail(server, found["snapshot"])]):
            at = value.pop("_component"), value.pop("_table"), value["_id"]
            value.pop("_ts")
            if value.pop("_deleted", False):
                state.pop(at, None)
            else:
                state[at] = value
        fresh = {(v.pop("_component"), v.pop("_table"), v["_id"]): v for v in values(walk(server)) if v.pop("_ts")}
        assert state == fresh, f"seed {seed}"
        assert len(fresh) == sum(len(documents) for documents in deployment.dump().values()), f"seed {seed}"
