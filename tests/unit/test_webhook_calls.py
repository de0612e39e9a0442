"""A request goes to the receiver that was named and to no other, signed, and its answer is bounded."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import ipaddress
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tailrace.apply.target import Mark
from tailrace.config.load import load_pipeline
from tailrace.control.deliveries import Deliveries
from tailrace.core.errors import Misconfigured, NotReady, Retryable, TailraceError
from tailrace.targets.webhook import Options, open_target
from tailrace.targets.webhook import target as webhook
from tailrace.targets.webhook.address import is_public, resolve
from tailrace.targets.webhook.call import Answer, Connection
from tailrace.targets.webhook.call import Receiver as Where
from tailrace.targets.webhook.message import Message, signature, signing_key
from tailrace.targets.webhook.target import meaning
from tests.receiver import Receiver, Reply, receiving

ONE, TWO = ("whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
MESSAGE = Message(("1", "t", 0, 7, 1), 0, False, '{"key":{"id":"ä"}}'.encode())


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as up:
        yield up


def connection(address: str, **settings: Any) -> Connection:
    return Connection(Where(f"{address}/in?token=1", **{"allow_private": True, "timeout_seconds": 20.0, **settings}))


def deliver(folder: Path, **settings: Any) -> None:
    options = Options(**{"allow_http": True, "allow_private": True, **settings})
    target = open_target(
        "hook", options, pipeline_id="shop", mode="append", notes=Deliveries(folder, "hook"), stop=threading.Event()
    )
    target.deliver("public.items", Mark("log", 7), [MESSAGE], [].extend)


def verified(headers: dict[str, str], body: bytes, secret: str, now: float) -> bool:
    """Judge a message as the text of Standard Webhooks tells a receiver to."""
    if abs(int(headers["webhook-timestamp"]) - now) > 5 * 60:
        return False
    content = b".".join([headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body])
    mac = hmac.new(base64.b64decode(secret.split("_", 1)[1]), content, hashlib.sha256).digest()
    for versioned in headers["webhook-signature"].split(" "):
        version, _, text = versioned.partition(",")
        if version == "v1" and hmac.compare_digest(base64.b64decode(text), mac):
            return True
    return False


# -- signatures


def test_a_signature_is_the_one_that_the_standard_shows() -> None:
    key = signing_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    made = signature([key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_while_secrets_are_exchanged_either_verifies_a_message(receiver: Receiver, tmp_path: Path) -> None:
    deliver(tmp_path / "two", url=receiver.address, signing_secrets=(TWO, ONE))
    deliver(tmp_path / "one", url=receiver.address, signing_secrets=(TWO,))
    deliver(tmp_path / "none", url=receiver.address)
    both, one, none = receiver.got
    assert verified(both.headers, both.body, ONE, time.time())
    assert verified(both.headers, both.body, TWO, time.time())
    assert verified(one.headers, one.body, TWO, time.time())
    assert not verified(one.headers, one.body, ONE, time.time())
    assert not verified(both.headers, both.body + b" ", ONE, time.time())
    assert not verified({**both.headers, "webhook-id": "msg_x"}, both.body, ONE, time.time())
    assert "webhook-signature" not in none.headers
    assert both.body == MESSAGE.body


# -- addresses


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.1", "2130706433", "0177.0.0.1", "017700000001", "0x7f.0.0.1", "0x7f000001", "localhost",
        "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "100.100.100.200", "169.254.169.254",
        "2852039166", "168.63.129.16", "192.0.0.192", "198.18.0.1", "203.0.113.5", "224.0.0.1", "255.255.255.255",
        "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:a9fe:a9fe]", "[::127.0.0.1]", "[fe80::1]", "[fd00:ec2::254]",
        "[fec0::1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]", "[2001:0:7f00:1::]", "[2001:db8::1]",
        "[ff02::1]",
    ],
)  # fmt: skip
def test_an_address_that_is_not_public_is_refused_however_it_is_written(host: str) -> None:
    named = Where(f"http://{host}:9/in").host
    with pytest.raises(Misconfigured) as refused:
        resolve(named, 9, allow_private=False)
    assert refused.value.code == "webhook-address"
    assert resolve(named, 9, allow_private=True)


def test_nothing_is_sent_to_an_address_that_is_refused(receiver: Receiver, tmp_path: Path) -> None:
    for host in ("127.0.0.1", "localhost", "0x7f.1"):
        with pytest.raises(Misconfigured):
            deliver(tmp_path, url=receiver.address.replace("127.0.0.1", host), allow_private=False)
    assert receiver.got == []


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "1.1.1.1", "192.0.1.1", "2606:4700::1111", "2001:4860::8888", "::ffff:8.8.8.8", "64:ff9b::808:808"],
)
def test_a_public_address_is_not_refused(address: str) -> None:
    assert is_public(address)


def test_a_name_is_asked_for_once_and_the_answer_that_was_looked_at_is_used(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, asked = int(receiver.address.rsplit(":", 1)[1]), list[str]()

    def once(host: str, *_: object, **__: object) -> list[tuple[Any, ...]]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1" if len(asked) == 1 else "127.9.9.9", port))]

    monkeypatch.setattr(socket, "getaddrinfo", once)
    with pytest.raises(Misconfigured):
        connection(f"http://rebound.example:{port}", allow_private=False).call({}, b"")
    asked.clear()
    assert connection(f"http://rebound.example:{port}").call({}, b"").status == 200
    assert asked == ["rebound.example"]
    assert receiver.got[0].headers["host"] == f"rebound.example:{port}"


def test_an_address_where_nobody_answers_leaves_time_for_the_next_one(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:
        # Who has nobody to let him in is not answered at all, like one behind a wall that drops what comes.
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(silent.getsockname())
        places = [silent.getsockname(), ("127.0.0.1", int(receiver.address.rsplit(":", 1)[1]))]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        assert connection("http://two.example", timeout_seconds=10.0).call({}, b"").status == 200
        for one in waiting:
            one.close()


def test_a_name_that_cannot_be_resolved_is_tried_again() -> None:
    with pytest.raises(Retryable):
        connection(f"http://{'a' * 70}.example").call({}, b"")


# -- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a certificate for localhost that signs itself; the file has its key too."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


def test_a_certificate_must_be_trusted_and_of_the_name(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with receiving(tls) as receiver:
        port = receiver.address.rsplit(":", 1)[1]
        with pytest.raises(NotReady) as unknown:
            connection(f"https://localhost:{port}").call({}, b"")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with pytest.raises(NotReady) as other:
            connection(f"https://127.0.0.1:{port}").call({}, b"")
        assert unknown.value.code == other.value.code == "webhook-tls"
        assert receiver.got == []
        trusted = connection(f"https://localhost:{port}")
        assert [trusted.call({}, b"x" * 100_000).status for _ in range(3)] == [200] * 3
        assert len(receiver.got) == 3
        trusted.close()


# -- answers


def test_an_answer_without_end_is_not_read(receiver: Receiver) -> None:
    receiver.answer = lambda _: Reply(raw=b"HTTP/1.1 200 OK\r\n\r\n" + bytes(50 << 20))
    assert connection(receiver.address).call({}, b"") == Answer(200)
    receiver.answer = lambda _: Reply(200, body=bytes(1 << 20))
    large = connection(receiver.address)
    assert [large.call({}, b"").status, large.call({}, b"").status] == [200, 200]
    assert receiver.written == []


def test_an_answer_that_drips_has_no_more_time_than_any_other() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = threading.Event()

        def drip() -> None:
            client, _ = server.accept()
            with client:
                try:
                    while not ended.wait(0.02):
                        client.sendall(b"H")
                except OSError:
                    pass

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(Retryable, match="did not answer in time"):
            connection(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_seconds=0.3).call({}, b"")
        ended.set()
        thread.join()


@pytest.mark.parametrize("raw", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000])
def test_what_is_no_answer_is_tried_again(receiver: Receiver, raw: bytes) -> None:
    receiver.answer = lambda _: Reply(raw=raw)
    with pytest.raises(Retryable) as failed:
        connection(receiver.address).call({}, b"")
    assert failed.value.code == "webhook-unavailable"


def test_a_status_counts_even_if_the_rest_is_cut_off(receiver: Receiver) -> None:
    receiver.answer = lambda _: Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
    cut = connection(receiver.address)
    assert [cut.call({}, b"").status for _ in range(2)] == [200, 200]


def test_what_comes_before_the_answer_is_not_taken_for_it(receiver: Receiver) -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n" * 2
    receiver.answer = lambda _: Reply(raw=hints + b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n", stay=True)
    used = connection(receiver.address)
    assert [used.call({}, b"").status for _ in range(2)] == [202, 202]


def test_an_answer_that_comes_twice_is_not_taken_for_the_next_one(receiver: Receiver) -> None:
    twice = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" * 2
    receiver.answer = lambda got: Reply(raw=twice, stay=True) if got.body == b"first" else Reply(404)
    used = connection(receiver.address)
    assert [used.call({}, b"first").status, used.call({}, b"second").status] == [200, 404]


def test_a_connection_that_was_closed_while_idle_is_made_anew(receiver: Receiver) -> None:
    receiver.answer = lambda _: Reply(raw=b"HTTP/1.1 204 No Content\r\n\r\n")
    idle = connection(receiver.address)
    assert [idle.call({}, b"").status for _ in range(5)] == [204] * 5
    assert [got.path for got in receiver.got] == ["/in?token=1"] * 5


def test_each_status_has_one_meaning() -> None:
    found: dict[str, list[int]] = {}
    for status in range(100, 600):
        error = meaning(Answer(status), "host")
        found.setdefault(error.code if error else "", []).append(status)
    assert found == {
        "": list(range(200, 300)),
        "webhook-redirect": list(range(300, 400)),
        "webhook-denied": [401, 403, 407],
        "webhook-gone": [410],
        "webhook-unavailable": [*range(100, 200), 408, 425, 429, *range(500, 600)],
        "webhook-refused": [status for status in range(400, 500) if status not in (401, 403, 407, 408, 410, 425, 429)],
    }


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3", 3.0),
        ("86399", 86399.0),
        ("99999", 86400.0),
        ("9" * 5000, 86400.0),
        ("-1", None),
        ("soon", None),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str, seconds: float | None) -> None:
    error = meaning(Answer(429, text), "host")
    assert isinstance(error, Retryable)
    assert error.after == seconds


# -- secrets


def test_no_secret_is_in_an_error_or_in_what_is_kept(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "_FIRST_WAIT", 0.001)
    canaries = ["canary-path", "canary-query", "canary-header", ONE, ONE.removeprefix("whsec_")]
    told = []
    for status in (200, 302, 400, 410, 503, 0):
        receiver.answer = lambda got, s=status: (
            Reply(s, {"Location": got.path}, got.body + b"canary-header") if s else Reply(raw=b"canary-header")
        )
        settings = {
            "url": f"{receiver.address}/canary-path?k=canary-query",
            "headers": {"Authorization": "canary-header"},
            "signing_secrets": (ONE,),
        }
        told.append(repr(Options(**settings, allow_http=True)))
        for private in (True, False):
            try:
                deliver(tmp_path / str(status), **settings, allow_private=private)
            except TailraceError as error:
                told += [error.render(), *traceback.format_exception(error)]
    assert receiver.got[0].headers["authorization"] == "canary-header"
    told += [path.read_text() for path in tmp_path.rglob("*.json")]
    assert [(canary, text) for canary in canaries for text in told if canary in text] == []


# -- settings


PIPELINE = """\
pipeline_id: shop
source: {{database: shop, tables: [public.orders]}}
sinks:
  - sink_id: hook
    sink_type: webhook
    {more}
    webhook: {{{keys}}}
"""


def loaded(folder: Path, keys: str, more: str = "enabled: true") -> Any:
    path = folder / "pipeline.yaml"
    path.write_text(PIPELINE.format(keys=keys, more=more))
    return load_pipeline(path, {"HOOK": "https://example.com/in", "SECRET": ONE})


def test_a_webhook_appends_unless_told_otherwise_and_headers_may_stand_in_the_file(tmp_path: Path) -> None:
    found = loaded(tmp_path, 'url: "${HOOK}", headers: {X-Source: cdc}, signing_secrets: ["${SECRET}"], method: PUT')
    (sink,) = found.config.sinks
    assert sink.mode == "append"
    assert found.warnings == ()
    assert sink.options.headers["X-Source"].get_secret_value() == "cdc"


def test_a_secret_that_stands_in_the_file_is_told(tmp_path: Path) -> None:
    found = loaded(tmp_path, f'url: "https://example.com", signing_secrets: ["{ONE}"]')
    assert [warning.code for warning in found.warnings] == ["literal-secret"]


@pytest.mark.parametrize("mode", ["scd1", "scd2"])
def test_another_mode_is_refused_and_the_target_named(tmp_path: Path, mode: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        loaded(tmp_path, 'url: "https://example.com"', f"mode: {mode}")
    assert f'target "hook" of sink_type "webhook" has no mode "{mode}"' in str(refused.value)
    with pytest.raises(Misconfigured):
        open_target(
            "hook",
            Options(url="https://example.com"),
            pipeline_id="p",
            mode=mode,
            notes=Deliveries(tmp_path, "h"),
            stop=threading.Event(),
        )


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ('url: "http://example.com"', "has an http url"),
        ('url: "http://127.0.0.1.example.com"', "has an http url"),
        ('url: "ftp://example.com"', "is not an address"),
        ('url: "https://"', "is not an address"),
        ('url: "https://a b.com"', "is not an address"),
        ('url: "https://example.com:99999"', "is not an address"),
        ('url: "https://user:pass@example.com"', "names a user"),
        ('url: "https://example.com", method: GET', "should be"),
        ('url: "https://example.com", timeout_seconds: 0', "should be greater than 0"),
        ('url: "https://example.com", concurrency: 0', "should be greater than or equal to 1"),
        ('url: "https://example.com", headers: {Webhook-Id: x}', "which is ours"),
        ('url: "https://example.com", headers: {Host: x}', "which is ours"),
        ('url: "https://example.com", headers: {"a b": x}', "no header can have"),
        ('url: "https://example.com", headers: {a: "x\\r\\nb: y"}', "no header can have"),
        ('url: "https://example.com", headers: {a: x, A: y}', "one name twice"),
        ('url: "https://example.com", signing_secrets: ["c2hvcnQ="]', "24 to 64 bytes"),
        ('url: "https://example.com", signing_secrets: ["whsec_%%"]', "whsec_ and base64"),
        (f'url: "https://example.com", signing_secrets: ["{ONE}", "{TWO}", "{ONE}"]', "at most 2"),
    ],
)
def test_wrong_settings_are_told(tmp_path: Path, keys: str, said: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        loaded(tmp_path, keys)
    assert said in refused.value.render()
    assert ONE not in refused.value.render()


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:8000"])
def test_http_to_this_machine_needs_no_leave_but_that_of_the_address(tmp_path: Path, host: str) -> None:
    options = loaded(tmp_path, f'url: "http://{host}/cdc-events"').config.sinks[0].options
    assert isinstance(options, Options)
    with pytest.raises(Misconfigured) as refused:
        Connection(Where(options.url.get_secret_value())).call({}, b"")
    assert refused.value.code == "webhook-address"


def test_addresses_of_the_test_are_what_they_are_meant_to_be() -> None:
    assert ipaddress.ip_address(2852039166) == ipaddress.ip_address("169.254.169.254")
