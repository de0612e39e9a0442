"""The health server, asked over a real socket: states, metrics, the page, and what it must never say."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tailrace.control.health import SLICE_SECONDS, Health
from tailrace.control.lag import Lag, TargetLag
from tailrace.control.readiness import Bounds
from tailrace.core.checkpoint import Scope, Snapshotting, Tailing
from tailrace.core.errors import Halt, NotReady, Retryable
from tailrace.core.offsets import Offsets
from tailrace.core.subjects import Registered, SchemaChange, Version
from tailrace.runtime.fold import Counts
from tailrace.web.server import Server

SAMPLE = re.compile(r"^(?P<name>[a-z_]+)\{(?P<labels>.*)\} (?P<value>[0-9.e+-]+)$")
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')
PATHS = ("/", "/healthz", "/readyz", "/metrics", "/api/status")


@pytest.fixture
def health() -> Health:
    made = Health("shop", "r1", "postgres", {"lake": "delta", "db": "duckdb"})
    made.begun(["lake", "db"])
    return made


@pytest.fixture
def server(health: Health) -> Iterator[Server]:
    with Server(health, Bounds(lag_seconds=3600, slot_bytes=100), "1.2.3", "127.0.0.1", 0) as running:
        yield running


def asked(
    server: Server, path: str, method: str = "GET", body: bytes | None = None
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection(*server.address, timeout=30)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def told(server: Server, path: str) -> tuple[int, dict[str, Any]]:
    status, headers, body = asked(server, path)
    assert headers["Content-Type"] == "application/json"
    return status, json.loads(body)


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Read Prometheus' text format; every sample must follow the HELP and TYPE of its metric."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    family, kinds = "", {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split(" ", 3)[2]
        elif line.startswith("# TYPE "):
            _, _, name, kinds[family] = line.split(" ")
            assert name == family
        else:
            match = SAMPLE.match(line)
            assert match, line
            base = re.sub(r"_(bucket|sum|count)$", "", match["name"]) if kinds[family] == "histogram" else match["name"]
            assert base == family
            labels = LABEL.findall(match["labels"])
            assert "".join(f'{name}="{value}"{end}' for name, value, end in labels) == match["labels"]
            key = (match["name"], frozenset((name, value) for name, value, _ in labels))
            assert key not in found
            found[key] = float(match["value"])
    return found


def sample(server: Server, name: str, **labels: str) -> float | None:
    _, _, body = asked(server, "/metrics")
    return parsed(body.decode()).get((f"tailrace_{name}", frozenset({"pipeline": "shop", **labels}.items())))


def fill(health: Health) -> None:
    health.page(10, Snapshotting("origin", "0/1", "canary-cursor", Scope("s")))
    health.page(3, Tailing("canary-origin", "0/2"))
    source = {"lag_bytes": 5, "slot": "canary-slot", "slot_retained_bytes": 7, "dsn": "postgres://u:canary-dsn@h"}
    health.measured(Lag(source, (TargetLag("lake", 4, 20, 2, {"public.a": 4}), TargetLag("db", 20, 20))))
    health.slice("lake", 14, [Counts("public.a", 10, applied=8, superseded=1, rejected=1)], 0.7)
    health.failed("db", Halt("internal", "ValueError: canary-row", "This is a defect."))


# -- probes


def test_a_process_that_runs_is_alive_whatever_fails(server: Server, health: Health) -> None:
    health.halted("source", Halt("capture-failed", "it ended"))
    status, body = told(server, "/healthz")
    assert (status, body["status"], body["pipeline_id"]) == (200, "alive", "shop")


def test_a_pipeline_whose_parts_all_work_is_ready(server: Server, health: Health) -> None:
    health.measured(Lag({"slot_retained_bytes": 7}, (TargetLag("lake", 4, 20), TargetLag("db", 20, 20))))
    assert told(server, "/readyz") == (
        200,
        {
            "pipeline_id": "shop",
            "run_id": "r1",
            "status": "ready",
            "failing": [],
            "source": {"status": "running", "slot_retained_bytes": 7},
            "sinks": [{"sink_id": "lake", "status": "running"}, {"sink_id": "db", "status": "running"}],
            "consumer_lag": [
                {"sink_id": "lake", "lag": 16, "offset": 4},
                {"sink_id": "db", "lag": 0, "offset": 20},
            ],
        },
    )


def test_lag_of_topics_is_told_by_partition(server: Server, health: Health) -> None:
    health.measured(Lag({}, (TargetLag("lake", Offsets({"cdc.a:0": 3}), Offsets({"cdc.a:0": 5})),)))
    assert told(server, "/readyz")[1]["consumer_lag"] == [
        {"sink_id": "lake", "topic": "cdc.a", "partition": 0, "lag": 2, "offset": 3}
    ]


def test_the_registry_is_told_of_and_fails_nothing_while_it_is_away(server: Server, health: Health) -> None:
    assert "schema_registry" not in told(server, "/readyz")[1]
    health.registered(Registered((Version("t-value", 1, 7),)))
    gone = SchemaChange("t-value", 1, 2, 8, 'column "size" is gone')
    health.registered(Registered((Version("t-value", 2, 8),), (gone,)))
    health.registered(Registered(error=Retryable("registry-unreachable", "it is away")))
    status, answer = told(server, "/readyz")
    registry = answer["schema_registry"]
    assert (status, registry["status"], registry["error"]["code"]) == (200, "unreachable", "registry-unreachable")
    subject = {"subject": "t-value", "version": 2, "schema_id": 8, "compatible_changes": 0, "incompatible_changes": 1}
    assert registry["subjects"] == [{**subject, "why": 'column "size" is gone'}]
    assert sample(server, "schema_changes_total", subject="t-value", compatible="false") == 1
    health.registered(Registered((Version("t-value", 3, 7),), (SchemaChange("t-value", 1, 3, 7),)))
    registry = told(server, "/readyz")[1]["schema_registry"]
    assert (registry["status"], registry["subjects"][0]["why"]) == ("watched", None)
    assert sample(server, "schema_changes_total", subject="t-value", compatible="true") == 1


def test_a_halted_target_is_named_with_code_and_hint(server: Server, health: Health) -> None:
    health.failed("lake", Halt("type-changed", "a type changed", "Mend it."))
    status, body = told(server, "/readyz")
    assert (status, body["status"]) == (503, "not ready")
    assert body["failing"] == [
        {"part": "target lake", "code": "type-changed", "message": "a type changed", "hint": "Mend it."}
    ]
    assert body["sinks"][0]["status"] == "failed"
    assert body["sinks"][0]["error"]["code"] == "type-changed"


@pytest.mark.parametrize(
    ("source", "part"),
    [({"slot_retained_bytes": 101}, "slot"), ({"connector": {"state": "FAILED"}}, "connector")],
)
def test_what_is_wrong_at_the_source_is_named(
    server: Server, health: Health, source: dict[str, object], part: str
) -> None:
    health.measured(Lag(source))
    status, body = told(server, "/readyz")
    assert (status, [wrong["part"] for wrong in body["failing"]]) == (503, [part])


def test_a_failed_pump_is_named(server: Server, health: Health) -> None:
    health.halted("log", Halt("disk-full", "a disk is full", "Free some space."))
    status, body = told(server, "/readyz")
    assert (status, body["failing"][0]["part"], body["source"]["status"]) == (503, "source", "failed")


def test_a_run_that_is_still_starting_is_not_ready() -> None:
    with Server(Health("shop", "r1", "kafka", {}), Bounds(), "1", "127.0.0.1", 0) as server:
        status, body = told(server, "/readyz")
    assert (status, body["failing"][0]["code"]) == (503, "starting")


# -- metrics


def test_metrics_have_the_names_of_the_interface(server: Server, health: Health) -> None:
    fill(health)
    health.evolved("lake", "public.a", ["added x"])
    lake = {"target": "lake"}
    table = {**lake, "table": "public.a"}
    assert sample(server, "build_info", version="1.2.3") == 1
    assert sample(server, "ready") == 0
    assert sample(server, "events_read_total", **table) == 10
    assert sample(server, "events_applied_total", **table) == 8
    assert sample(server, "events_superseded_total", **table) == 1
    assert sample(server, "events_filtered_total", **table) == 0
    assert sample(server, "events_rejected_total", **table) == 1
    assert sample(server, "schema_changes_total", **table) == 1
    assert sample(server, "lag_events", **lake) == 6
    assert sample(server, "lag_events", target="db") == 0
    assert sample(server, "dlq_events", **lake) == 2
    assert sample(server, "slot_retained_bytes") == 7
    assert sample(server, "lag_seconds", target="db") == 0
    assert sample(server, "checkpoint_age_seconds") is not None


def test_a_histogram_counts_every_slice_once(server: Server, health: Health) -> None:
    for seconds in (0.1, 0.7, 0.7, 9999):
        health.slice("lake", 1, [], seconds)
    labels = {"target": "lake", "stage": "slice"}
    counts = [sample(server, "slice_seconds_bucket", le=f"{bound:g}", **labels) for bound in SLICE_SECONDS]
    assert counts == [1, 1, 1, *[3] * 7]
    assert sample(server, "slice_seconds_bucket", le="+Inf", **labels) == 4
    assert sample(server, "slice_seconds_count", **labels) == 4
    assert sample(server, "slice_seconds_sum", **labels) == pytest.approx(10000.5)


def test_stages_of_a_slice_are_histograms_of_their_own(server: Server, health: Health) -> None:
    health.stage("lake", "read", 0.2)
    health.stage("lake", "read", 3)
    health.stage("lake", "apply", 1)
    assert sample(server, "slice_seconds_sum", target="lake", stage="read") == pytest.approx(3.2)
    assert sample(server, "slice_seconds_bucket", target="lake", stage="read", le="0.25") == 1
    assert sample(server, "slice_seconds_count", target="lake", stage="apply") == 1


def test_partitions_and_subjects_have_gauges_of_their_own(server: Server, health: Health) -> None:
    health.measured(Lag({}, (TargetLag("lake", Offsets({"t:0": 3}), Offsets({"t:0": 5, "t:1": 0})),)))
    health.registered(Registered((Version("t-value", 4, 9),)))
    lake = {"target": "lake", "topic": "t"}
    assert sample(server, "partition_lag_events", **lake, partition="0") == 2
    assert sample(server, "partition_lag_events", **lake, partition="1") == 1
    assert sample(server, "schema_subject_version", subject="t-value") == 4


def test_what_is_not_known_has_no_sample(server: Server) -> None:
    _, _, body = asked(server, "/metrics")
    names = {name for name, _ in parsed(body.decode())}
    assert not names & {"tailrace_lag_events", "tailrace_slot_retained_bytes", "tailrace_checkpoint_age_seconds"}


def test_a_name_from_a_database_cannot_break_the_format(server: Server, health: Health) -> None:
    health.slice("lake", 1, [Counts('a"b\\c\nd', 1, applied=1)], 0.1)
    assert sample(server, "events_read_total", target="lake", table='a\\"b\\\\c\\nd') == 1


# -- what the page reads


def test_the_status_has_everything_that_the_page_shows(server: Server, health: Health) -> None:
    fill(health)
    status, body = told(server, "/api/status")
    assert status == 200
    assert (body["pipeline_id"], body["version"], body["ready"], body["log"]) == ("shop", "1.2.3", False, {"head": 20})
    assert (body["source"]["position"], body["source"]["rows"], body["source"]["lag_bytes"]) == ("0/2", 13, 5)
    lake, db = body["targets"]
    assert (lake["target"], lake["type"], lake["status"], lake["upto"]) == ("lake", "delta", "running", 14)
    assert (lake["lag_events"], lake["dead_letters"], lake["slices"]) == (6, 2, 1)
    assert lake["tables"] == [
        {
            "table": "public.a",
            "read": 10,
            "applied": 8,
            "superseded": 1,
            "filtered": 0,
            "rejected": 1,
            "schema_changes": 0,
            "mark": 14,
        }
    ]
    assert db["error"]["code"] == body["last_error"]["code"] == "internal"


def test_the_page_is_one_file_that_loads_nothing(server: Server) -> None:
    status, headers, body = asked(server, "/")
    page = body.decode()
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert not re.search(r"https?:|//[a-z]|@import|url\(|\bsrc=", page)
    assert re.findall(r'href="([^"]*)"', page) == ["data:,"]
    assert re.findall(r'fetch\("([^"]*)"', page) == ["/api/status"]
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page
    assert "innerHTML" not in page


# -- what it must never say, and never take


@pytest.mark.parametrize("path", PATHS)
def test_no_setting_no_cursor_and_no_value_of_a_row_is_answered(server: Server, health: Health, path: str) -> None:
    fill(health)
    _, headers, body = asked(server, path)
    assert b"canary" not in body
    assert "Python" not in headers["Server"]


@pytest.mark.parametrize("path", [*PATHS, "/nothing"])
def test_head_has_the_headers_of_get_and_no_body(server: Server, path: str) -> None:
    status, headers, _ = asked(server, path)
    head_status, head_headers, head_body = asked(server, path, "HEAD")
    assert (head_status, head_body) == (status, b"")
    assert head_headers["Content-Type"] == headers["Content-Type"]
    assert int(head_headers["Content-Length"]) > 0


@pytest.mark.parametrize("path", ["/nothing", "/readyz/", "/api", "/../page.html", "/server.py", "/%2e%2e"])
def test_an_unknown_path_is_not_found(server: Server, path: str) -> None:
    assert told(server, path) == (404, {"error": "not found"})


def test_a_query_is_ignored(server: Server) -> None:
    assert told(server, "/healthz?verbose=1")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "NONSENSE"])
def test_other_methods_are_refused(server: Server, method: str) -> None:
    status, headers, body = asked(server, "/readyz", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert json.loads(body) == {"error": "method not allowed"}


def test_a_body_and_a_long_path_are_refused(server: Server) -> None:
    assert asked(server, "/healthz", body=b"x" * 10)[0] == 413
    assert asked(server, "/" + "x" * 2000)[0] == 414
    assert asked(server, "/" + "x" * 70_000)[0] == 414


@pytest.mark.parametrize("line", [b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\xff\xfe\x00\r\n\r\n"])
def test_nonsense_does_not_stop_the_server(server: Server, line: bytes) -> None:
    with socket.create_connection(server.address, timeout=30) as connection:
        connection.sendall(line)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
    assert told(server, "/healthz")[0] == 200


def test_connections_that_say_nothing_take_no_more_than_their_share(server: Server) -> None:
    silent = [socket.create_connection(server.address, timeout=30) for _ in range(32)]
    try:
        with socket.create_connection(server.address, timeout=30) as beyond:
            assert beyond.recv(1) == b""
    finally:
        for connection in silent:
            connection.close()


# -- where it listens


def test_a_port_in_use_is_a_clear_error(server: Server, health: Health) -> None:
    host, port = server.address
    with pytest.raises(NotReady) as caught:
        Server(health, Bounds(), "1", host, port)
    assert (caught.value.code, caught.value.exit_code) == ("port-in-use", 3)
    assert str(port) in str(caught.value)
    assert "health_port" in caught.value.hint


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_an_address_of_no_use_is_a_clear_error(health: Health, host: str) -> None:
    with pytest.raises(NotReady) as caught:
        Server(health, Bounds(), "1", host, 0)
    assert caught.value.code == "port-taken"
    assert "health_host" in caught.value.hint


def test_the_port_is_free_again_afterwards(health: Health) -> None:
    with Server(health, Bounds(), "1", "127.0.0.1", 0) as first:
        address = first.address
        assert told(first, "/healthz")[0] == 200
    with Server(health, Bounds(), "1", *address) as second:
        assert told(second, "/healthz")[0] == 200
