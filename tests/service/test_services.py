"""The servers that tests and developers start: each speaks its own protocol, and nothing is left of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store

from dev.services import Group, StartFailed, http, on_demand, process, running
from dev.services.connect import Connect
from dev.services.kafka import Kafka, Secured
from dev.services.mariadb import MariaDb
from dev.services.registry import Registry
from dev.services.s3 import S3
from tests.service import topics


@pytest.fixture(scope="module")
def own() -> Iterator[Group]:
    """Servers that a test may stop."""
    with on_demand(secure=True) as group:
        yield group


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that PostgreSQL's own user may pass through; another run of pytest closes pytest's to everybody."""
    with tempfile.TemporaryDirectory(prefix="tailrace-services-") as folder:
        yield Path(folder)


@pytest.fixture
def own_kafka(own: Group) -> Kafka:
    own.start("kafka")
    return own.kafka


@pytest.fixture
def secured(own_kafka: Kafka) -> Secured:
    assert own_kafka.secured
    return own_kafka.secured


def test_a_topic_is_made_written_and_read(kafka: Kafka) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap}
    kafka.create_topic("greetings")
    topics.write(settings, "greetings", [(b"1", b"hello"), (b"1", None)])
    assert [(m.key(), m.value()) for m in topics.read(settings, "greetings", 2)] == [(b"1", b"hello"), (b"1", None)]


def test_connect_has_the_debezium_plugins(connect: Connect) -> None:
    assert connect.plugins() >= {
        "io.debezium.connector.postgresql.PostgresConnector",
        "io.debezium.connector.mariadb.MariaDbConnector",
        "io.debezium.connector.mysql.MySqlConnector",
    }


def test_the_registry_takes_and_returns_a_schema(registry: Registry) -> None:
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    taken = http.call("POST", f"{registry.url}/subjects/orders-value/versions", {"schema": json.dumps(schema)})
    returned = http.call("GET", f"{registry.url}/schemas/ids/{taken['id']}")
    assert json.loads(returned["schema"]) == schema


def test_a_registry_that_was_down_still_has_its_schemas(own: Group) -> None:
    own.start("registry")
    url = own.registry.url
    taken = http.call("POST", f"{url}/subjects/kept/versions", {"schema": '"string"'})
    own.registry.stop()
    with pytest.raises(OSError, match="refused"):
        http.call("GET", f"{url}/subjects")
    own.registry.start()
    assert http.call("GET", f"{url}/schemas/ids/{taken['id']}")["schema"] == '"string"'
    own.registry.stop()


def test_mariadb_answers_and_has_a_row_binlog(mariadb: MariaDb) -> None:
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@version, @@log_bin, @@binlog_format, @@binlog_row_image")
        version, log_bin, row, image = cursor.fetchone() or ()
    assert version.startswith("11.4.")
    assert (log_bin, row, image) == (1, "ROW", "FULL")


def test_a_second_conditional_put_is_refused(s3: S3) -> None:
    store = _bucket(s3, "conditional")
    obstore.put(store, "manifest", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "manifest", b"second", mode="create")
    assert bytes(obstore.get(store, "manifest").bytes()) == b"first"


def test_of_many_conditional_puts_at_once_one_wins(s3: S3) -> None:
    store = _bucket(s3, "race")

    def wins(number: int) -> bool:
        try:
            obstore.put(store, f"manifest-{number // 8}", b"x", mode="create")
        except AlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(wins, range(80))) == 10


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_broker_comes_back_at_its_address_with_its_data(own_kafka: Kafka, how: str) -> None:
    address, settings = own_kafka.bootstrap, {"bootstrap.servers": own_kafka.bootstrap, "acks": "all"}
    own_kafka.create_topic(how)
    topics.write(settings, how, [(b"1", b"before")])
    getattr(own_kafka, how)()
    assert own_kafka.group is None
    own_kafka.start()
    topics.write(settings, how, [(b"1", b"after")])
    assert own_kafka.bootstrap == address
    assert [m.value() for m in topics.read(settings, how, 2)] == [b"before", b"after"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_password_is_taken_over_tls(own_kafka: Kafka, secured: Secured, mechanism: str) -> None:
    settings = _sasl(secured, mechanism, secured.password)
    own_kafka.create_topic(mechanism)
    topics.write(settings, mechanism, [(None, b"secret")])
    assert topics.read(settings, mechanism, 1)[0].value() == b"secret"


def test_a_wrong_password_is_refused(own_kafka: Kafka, secured: Secured) -> None:
    own_kafka.create_topic("guarded")
    settings = {**_sasl(secured, "SCRAM-SHA-512", "wrong"), "message.timeout.ms": "3000"}
    with pytest.raises(AssertionError, match="were not sent"):
        topics.write(settings, "guarded", [(None, b"never")])


def test_a_client_certificate_is_taken_and_required(own_kafka: Kafka, secured: Secured) -> None:
    own_kafka.create_topic("certified")
    known = {
        "bootstrap.servers": secured.mutual, "security.protocol": "SSL", "ssl.ca.location": str(secured.files.ca),
        "ssl.certificate.location": str(secured.files.client_certificate),
        "ssl.key.location": str(secured.files.client_key),
    }  # fmt: skip
    topics.write(known, "certified", [(None, b"mine")])
    unknown = {name: value for name, value in known.items() if "certificate" not in name and "key" not in name}
    with pytest.raises(AssertionError, match="were not sent"):
        topics.write({**unknown, "message.timeout.ms": "3000"}, "certified", [(None, b"not mine")])


def test_a_server_that_does_not_start_says_why_and_takes_the_others_along(place: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", process.ports(place / "s3", 1)[0]))
        taken.listen()
        with (
            pytest.raises(StartFailed, match=r"(?s)\"s3\" ended while starting.*s3\.log.*in use"),
            running("postgres", "s3", folder=place),
        ):
            pass
    assert "[keeper] the server ended with status 0" in (place / "postgres" / "postgres.log").read_text()


def test_servers_end_when_the_process_that_started_them_is_killed(place: Path) -> None:
    script = (
        "import time\n"
        "from pathlib import Path\n"
        "from dev.services import running\n"
        f"with running('s3', 'postgres', folder=Path({str(place)!r})) as up:\n"
        "    print(up.s3.group, up.postgres.group, flush=True)\n"
        "    time.sleep(600)\n"
    )
    env = {**os.environ, **process.PYTHON_ENV}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=env) as holder:
        assert holder.stdout
        groups = [int(group) for group in holder.stdout.readline().split()]
        postmaster = int((place / "postgres" / "server" / "cluster" / "postmaster.pid").read_text().split()[0])
        holder.send_signal(signal.SIGKILL)
    assert len(groups) == 2
    assert all(_gone(group) for group in groups)
    assert _gone(postmaster)


def test_nothing_is_left_after_down(tmp_path: Path) -> None:
    state = ["--state", str(tmp_path)]
    _command("up", "postgres", "s3", "--detach", *state)
    held = json.loads((tmp_path / "state.json").read_text())
    groups = [held["holder"], *(entry["group"] for entry in held["services"].values())]
    shown = json.loads(_command("status", "--json", *state))
    assert [shown["postgres"]["up"], shown["s3"]["up"]] == [True, True]
    _command("down", "s3", *state)
    assert json.loads(_command("status", "--json", *state, expect=3))["s3"]["up"] is False
    _command("down", *state)
    assert all(_gone(group) for group in groups)
    _command("status", *state, expect=3)


def test_running_starts_what_is_asked_and_stops_it(tmp_path: Path) -> None:
    with running("s3", folder=tmp_path) as up:
        group = up.s3.group
        assert http.send("GET", up.s3.endpoint)
    assert group
    assert _gone(group)


def _bucket(s3: S3, name: str) -> S3Store:
    s3.create_bucket(name)
    return S3Store(
        name, endpoint=s3.endpoint, region=s3.region, access_key_id=s3.access_key, secret_access_key=s3.secret_key,
        client_options={"allow_http": True},
    )  # fmt: skip


def _sasl(secured: Secured, mechanism: str, password: str) -> dict[str, str]:
    return {
        "bootstrap.servers": secured.sasl, "security.protocol": "SASL_SSL", "sasl.mechanism": mechanism,
        "sasl.username": secured.username, "sasl.password": password, "ssl.ca.location": str(secured.files.ca),
    }  # fmt: skip


def _command(*arguments: str, expect: int = 0) -> str:
    done = subprocess.run(
        process.python("dev.services", *arguments), capture_output=True, text=True, check=False,
        env={**os.environ, **process.PYTHON_ENV},
    )  # fmt: skip
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout


def _gone(group: int) -> bool:
    """Wait until no process of the group, nor the process of that number, is there."""
    deadline = time.monotonic() + 45
    while time.monotonic() < deadline:
        if not Path(f"/proc/{group}").exists() and not _members(group):
            return True
        time.sleep(0.1)
    return False


def _members(group: int) -> list[str]:
    stats = [_stat(path) for path in Path("/proc").glob("[0-9]*/stat")]
    # After the name in brackets: state, parent, group. A zombie runs no more, whoever has yet to reap it.
    return [stat for stat in stats if stat and stat.split()[2] == str(group) and stat.split()[0] != "Z"]


def _stat(path: Path) -> str:
    try:
        return path.read_text().rpartition(") ")[2]
    except (FileNotFoundError, ProcessLookupError):
        return ""
