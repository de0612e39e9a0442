"""Calls to Convex: what comes back, what each refusal means, and that the key is told to nobody."""

from __future__ import annotations

import email.utils
import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta

import pytest

from tailrace.core.errors import Halt, Misconfigured, NotReady, ResyncRequired, Retryable, TailraceError
from tailrace.sources._convex_client import Bounds, Client, deployment_of, parsed
from tailrace.testing.convex import Deployment, Emulator, Fault


@pytest.fixture
def server() -> Iterator[Emulator]:
    with Emulator(Deployment(seed=1)) as emulator:
        emulator.behaviour.key = "prod:emulated|canary-77"
        yield emulator


def client(server: Emulator, key: str = "", **bounds: float) -> Client:
    return Client(server.url, key or server.behaviour.key, "tailrace-0.1.0", Bounds(**bounds) if bounds else None)  # type: ignore[arg-type]


def refused(server: Emulator, fault: Fault) -> TailraceError:
    server.faults.add(fault)
    with pytest.raises(TailraceError) as found:
        client(server).post("list_snapshot", {})
    assert "canary-77" not in found.value.render()
    return found.value


class _Quiet(http.server.BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def served(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_values_come_in_the_encoding_that_loses_nothing(server: Emulator) -> None:
    server.deployment.insert("t", {"n": 1})
    page = client(server).post("list_snapshot", {"snapshot": None})
    assert isinstance(page, dict)
    assert page["values"][0]["n"] == {"$integer": "AQAAAAAAAAA="}
    assert isinstance(page["values"][0]["_ts"], int)


def test_what_was_asked_ahead_is_answered_once_and_only_to_its_own_question(server: Emulator) -> None:
    first = server.deployment.head
    server.deployment.insert("t", {"n": 1})
    ours = client(server)
    ours.get("test_streaming_export_connection")
    for cursor in (first, server.deployment.head):
        ours.ask("document_deltas", {"cursor": first})
        found = ours.post("document_deltas", {"cursor": cursor})
        assert found == client(server).post("document_deltas", {"cursor": cursor})
    ours.ask("document_deltas", {"cursor": first})
    ours.close()
    found = ours.post("document_deltas", {"cursor": first})
    assert found == client(server).post("document_deltas", {"cursor": first})
    before = server.calls["document_deltas"]
    server.faults.add(Fault(503, "document_deltas"))
    ours.ask("document_deltas", {"cursor": first})
    with pytest.raises(Retryable, match="503"):
        ours.post("document_deltas", {"cursor": first})
    assert server.calls["document_deltas"] == before + 1


def test_a_get_sends_its_query(server: Emulator) -> None:
    server.deployment.insert("t", {}, "inner")
    assert list(client(server).get("json_schemas", byComponent="true")) == ["", "inner"]  # type: ignore[call-overload]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 520, 521, 522, 523, 524])
def test_what_may_pass_is_tried_again(server: Emulator, status: int) -> None:
    error = refused(server, Fault(status))
    assert isinstance(error, Retryable)
    assert error.code == "convex-busy"


@pytest.mark.parametrize("kind", ["reset", "truncated"])
def test_a_lost_connection_is_tried_again(server: Emulator, kind: str) -> None:
    error = refused(server, Fault(kind))
    assert isinstance(error, Retryable)
    assert error.code == "connection-lost"


def test_an_answer_that_is_no_json_is_tried_again(server: Emulator) -> None:
    assert isinstance(refused(server, Fault("invalid")), Retryable)


@pytest.mark.parametrize(
    "text",
    [
        b"-0", b"-0.0", b"1e400", b"1e-400", b"9223372036854775808", b"1" * 400, b"0.1" + b"0" * 400, b"9007199254740993.0",
        b"5e-324", b"2.2250738585072011e-308", b"1.7976931348623159e308", b"NaN", b"-Infinity", b'"\\ud800"', b'"\\ud83d\\ude00"',
        b'{"b":1,"a":0,"b":2.5}', b"\xef\xbb\xbf[null, true]", b"[" * 300 + b"]" * 300, b' {"a" : [ ] } ', '"na\u00efve \u2603"'.encode(),
    ],
)  # fmt: skip
def test_an_answer_is_read_as_the_standard_library_reads_it(text: bytes) -> None:
    assert repr(parsed(text)) == repr(json.loads(text))


@pytest.mark.parametrize("text", [b"", b"[1,]", b"01", b"{}x", b'"\xff"', b'"\t"', b"1" * 5000, b"[" * 100_000])
def test_what_the_standard_library_does_not_read_is_no_answer(text: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        parsed(text)


def test_a_late_answer_is_tried_again(server: Emulator) -> None:
    server.faults.add(Fault("slow"))
    with pytest.raises(Retryable) as found:
        client(server, answer_seconds=0.05).post("list_snapshot", {})
    assert found.value.code == "connection-lost"


def test_an_answer_without_end_halts(server: Emulator) -> None:
    server.faults.add(Fault("large"))
    with pytest.raises(Halt) as found:
        client(server, answer_bytes=100_000).post("list_snapshot", {})
    assert found.value.code == "convex-too-large"


def test_the_server_says_how_long_to_wait(server: Emulator) -> None:
    error = refused(server, Fault(429, retry_after=7))
    assert isinstance(error, Retryable)
    assert error.after == 7


@pytest.mark.parametrize(
    ("said", "waits"),
    [("Wed, 21 Oct 2015 07:28:00 GMT", 0), ("99999999999", 3600), ("soon", None), ("", None)],
    ids=["in the past", "never", "a word", "nothing"],
)
def test_the_time_to_wait_may_be_a_number_or_a_date(said: str, waits: float | None) -> None:
    assert asked_to_wait(said) == waits


def test_a_date_is_waited_for() -> None:
    waits = asked_to_wait(email.utils.format_datetime(datetime.now(UTC) + timedelta(minutes=50), usegmt=True))
    assert waits is not None
    assert 2400 < waits <= 3000


def asked_to_wait(said: str) -> float | None:
    """Return how long an answer with this `Retry-After` has the client wait."""

    class Busy(_Quiet):
        def do_GET(self) -> None:
            self.send_response(429)
            self.send_header("Retry-After", said)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with served(Busy) as url, pytest.raises(Retryable) as found:
        Client(url, "k", "tailrace-1").get("json_schemas")
    return found.value.after


@pytest.mark.parametrize("kind", [503, "reset", "truncated", "invalid"])
def test_a_call_is_made_again_as_often_as_its_bounds_say(server: Emulator, kind: int | str) -> None:
    server.faults.add(*(Fault(kind) for _ in range(3)))
    assert client(server, attempts=4).get("test_streaming_export_connection") is None
    server.faults.add(*(Fault(503) for _ in range(3)))
    with pytest.raises(Retryable):
        client(server, attempts=3).get("test_streaming_export_connection")


def test_a_call_is_not_made_again_where_it_makes_no_difference(server: Emulator) -> None:
    for fault in (Fault(401), Fault("SnapshotTooOld"), Fault(429, retry_after=3600)):
        before = server.calls["list_snapshot"]
        server.faults.add(fault)
        with pytest.raises(TailraceError):
            client(server, attempts=10).post("list_snapshot", {})
        assert server.calls["list_snapshot"] == before + 1


def test_the_server_is_asked_again_only_after_it_allows_it(server: Emulator) -> None:
    for patience in (0.5, 60.0):
        server.faults.clear()
        server.faults.add(Fault(429, retry_after=1))
        before = server.calls["list_snapshot"]
        with pytest.raises(Retryable) if patience < 1 else nullcontext():
            client(server, attempts=2, patience_seconds=patience).post("list_snapshot", {})
        assert server.calls["list_snapshot"] == before + (1 if patience < 1 else 2)


def test_a_client_that_is_closed_tries_nothing_again(server: Emulator) -> None:
    server.faults.add(Fault(503))
    ours = client(server, attempts=10)
    ours.close()
    with pytest.raises(Retryable):
        ours.get("test_streaming_export_connection")


@pytest.mark.parametrize("code", ["SnapshotTooOld", "InvalidWindowToReadDocuments"])
def test_two_codes_mean_a_resync(server: Emulator, code: str) -> None:
    error = refused(server, Fault(code))
    assert isinstance(error, ResyncRequired)
    assert code in str(error)


@pytest.mark.parametrize("code", ["SnapshotTooNew", "InvalidListSnapshotCursor", "BadFormat", "snapshottooold", "X"])
def test_no_other_refusal_means_a_resync(server: Emulator, code: str) -> None:
    error = refused(server, Fault(code))
    assert not isinstance(error, ResyncRequired | Retryable)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_for_a_person(server: Emulator, status: int) -> None:
    error = refused(server, Fault(status))
    assert isinstance(error, NotReady)
    assert error.hint


def test_each_refusal_of_the_server_says_what_to_do(server: Emulator) -> None:
    for key, word in (("wrong", "BadAdminKey"), (server.behaviour.weak_key, "deployment:data:view")):
        with pytest.raises(NotReady) as found:
            client(server, key).get("test_streaming_export_connection")
        assert word in found.value.render()
    server.behaviour.enabled = False
    with pytest.raises(NotReady) as found:
        client(server).get("test_streaming_export_connection")
    assert "Pro plan" in found.value.hint


def test_a_server_that_repeats_the_key_does_not_make_us_tell_it(server: Emulator) -> None:
    for text in (server.behaviour.key, "canary-77"):
        said = client(server)._said(f"the key {text}\n is wrong")
        assert "canary" not in said
        assert "\n" not in said


def test_a_connection_is_kept_and_made_again_when_it_was_lost(server: Emulator) -> None:
    calls = client(server)
    calls.get("test_streaming_export_connection")
    first = calls._connection
    calls.get("test_streaming_export_connection")
    assert calls._connection is first
    server.faults.add(Fault("reset"))
    calls.get("test_streaming_export_connection")
    assert calls._connection is not first


def test_nobody_there_is_tried_again() -> None:
    with Emulator() as server:
        gone = server.url
    with pytest.raises(Retryable) as found:
        Client(gone, "k", "tailrace-1").get("test_streaming_export_connection")
    assert found.value.code == "connection-lost"


class _EndsConnections(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        time.sleep(0.3)
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"null")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def test_a_server_that_ends_each_connection_may_take_its_time_for_every_answer() -> None:
    with served(_EndsConnections) as url:
        calls = Client(url, "k", "tailrace-1", Bounds(connect_seconds=0.1, answer_seconds=5))
        for _ in range(3):
            assert calls.get("test_streaming_export_connection") is None


class _Elsewhere(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(302)
        self.send_header("Location", "http://169.254.169.254/latest")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def test_a_redirect_is_not_followed() -> None:
    with served(_Elsewhere) as url:
        with pytest.raises(NotReady) as found:
            Client(url, "k|secret", "t-1").get("json_schemas")
        assert "Redirects" in found.value.hint


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://happy-otter-1.convex.cloud", "https://happy-otter-1.convex.cloud"),
        ("https://happy-otter-1.convex.cloud/", "https://happy-otter-1.convex.cloud"),
        ("https://Happy-Otter-1.convex.cloud:443", "https://happy-otter-1.convex.cloud"),
        ("http://127.0.0.1:3210/", "http://127.0.0.1:3210"),
        ("http://[::1]:3210", "http://[::1]:3210"),
        ("https://convex.example.com", "https://convex.example.com"),
    ],
)
def test_a_deployment_has_one_spelling(url: str, expected: str) -> None:
    assert deployment_of(url) == expected


@pytest.mark.parametrize(
    "url",
    ["", "otter.convex.cloud", "ftp://a.b", "https://", "https://a.b/api", "https://a.b?x=1", "https://a.b#x", "https://a.b/#",
     "https://me@a.b", "https://me:secret@a.b", "https://a.b:port", "https://a.b/?", "file:///etc/passwd"],
)  # fmt: skip
def test_anything_but_the_root_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(Misconfigured) as found:
        deployment_of(url)
    assert "secret" not in found.value.render()
