"""Schemas by id: asked for once, kept on disk, and never a reason to drop a message. Subjects: watched, and judged."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tailrace.core.errors import Misconfigured, NotReady, Retryable
from tailrace.core.subjects import Registered, SchemaChange, Version
from tailrace.log._registry import Registry
from tailrace.log._subjects import Subjects

SCHEMA = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}


class Server:
    """A registry that knows schema 1 and what it is told, and writes down what it was asked."""

    def __init__(self) -> None:
        self.schemas: dict[int, object] = {1: SCHEMA}
        self.subjects: dict[str, tuple[int, int]] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.status = 200
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.asked.append((self.path, self.headers.get("Authorization")))
                said = owner.answer(self.path)
                status = 404 if said is None else owner.status
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(said).encode() if status == 200 else b"{}")

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def answer(self, path: str) -> object:
        parts = path.rstrip("/").split("/")
        if parts[-2] == "ids":
            schema = self.schemas.get(int(parts[-1]))
            return None if schema is None else {"schema": json.dumps(schema)}
        found = self.subjects.get(parts[-3])
        return None if found is None else {"subject": parts[-3], "version": found[0], "id": found[1]}

    def register(self, subject: str, schema: object) -> None:
        """Make `schema` the latest version of `subject`."""
        number = max(self.schemas) + 1
        self.schemas[number] = schema
        self.subjects[subject] = (self.subjects.get(subject, (0, 0))[0] + 1, number)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.close()


def test_a_schema_is_asked_for_once_and_outlives_the_registry(server: Server, tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{server.port}/apis/ccompat/v7/"
    registry = Registry(address, tmp_path)
    assert registry.schema(1) == registry.schema(1) == SCHEMA
    assert server.asked == [("/apis/ccompat/v7/schemas/ids/1", None)]
    server.status = 503
    assert Registry(address, tmp_path).schema(1) == SCHEMA


def test_the_ids_of_another_registry_are_other_schemas(server: Server, tmp_path: Path) -> None:
    Registry(f"http://127.0.0.1:{server.port}/one", tmp_path).schema(1)
    server.schemas[1] = {"type": "string"}
    assert Registry(f"http://127.0.0.1:{server.port}/two", tmp_path).schema(1) == {"type": "string"}
    assert Registry(f"http://127.0.0.1:{server.port}/one", tmp_path).schema(1) == SCHEMA


def test_user_and_password_are_sent_and_not_shown(server: Server, tmp_path: Path) -> None:
    registry = Registry(f"http://me:canary%40@127.0.0.1:{server.port}", tmp_path)
    registry.schema(1)
    assert server.asked[0][1] == "Basic bWU6Y2FuYXJ5QA=="
    with pytest.raises(Retryable) as silent:
        registry.schema(2)
    assert "canary" not in silent.value.render()


@pytest.mark.parametrize("status", [500, 503, 404])
def test_a_registry_that_does_not_help_is_asked_again(status: int, server: Server, tmp_path: Path) -> None:
    server.status = status
    registry = Registry(f"http://127.0.0.1:{server.port}", tmp_path)
    with pytest.raises(Retryable):
        registry.schema(1)
    server.status = 200
    assert registry.schema(1) == SCHEMA


def test_a_registry_that_is_down_is_waited_for(tmp_path: Path) -> None:
    with pytest.raises(Retryable):
        Registry("http://127.0.0.1:9", tmp_path).schema(1)


def test_a_registry_that_refuses_halts(server: Server, tmp_path: Path) -> None:
    server.status = 401
    with pytest.raises(NotReady):
        Registry(f"http://127.0.0.1:{server.port}", tmp_path).schema(1)


@pytest.mark.parametrize("address", ["", "localhost:8081", "file:///etc/passwd", "ftp://x"])
def test_anything_but_http_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured):
        Registry(address, tmp_path)


def envelope(table: str = "orders", **types: object) -> dict[str, object]:
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    row = {"type": "record", "name": "Value", "fields": fields}
    parts = [{"name": "before", "type": ["null", row]}, {"name": "after", "type": ["null", "Value"]}]
    return {"type": "record", "name": "Envelope", "namespace": f"shop.public.{table}", "fields": parts}


@dataclass
class Noted:
    content: dict[str, Any] | None = None

    def load(self) -> dict[str, Any] | None:
        return self.content

    def save(self, content: dict[str, Any]) -> None:
        self.content = json.loads(json.dumps(content))


@dataclass
class Watch:
    """A registry with a subject for the values of topic "t", and someone who watches it."""

    server: Server
    folder: Path
    noted: Noted = field(default_factory=Noted)

    def subjects(self, *, strict: bool = False) -> Subjects:
        address = f"http://127.0.0.1:{self.server.port}"
        return Subjects(Registry(address, self.folder), ["t"], self.noted, strict=strict)


@pytest.fixture
def watch(server: Server, tmp_path: Path) -> Watch:
    server.register("t-value", envelope(id="int", size="int"))
    return Watch(server, tmp_path)


def test_what_is_there_at_first_is_no_change_and_a_later_version_is_told_once(watch: Watch) -> None:
    subjects = watch.subjects()
    assert subjects.look() == Registered((Version("t-value", 1, 2),))
    watch.server.register("t-key", SCHEMA)
    watch.server.register("t-value", envelope(id="int", size="long", new="string"))
    assert subjects.look().changes == (SchemaChange("t-value", 1, 2, 4),)
    assert subjects.look().changes == ()
    assert watch.subjects().look().changes == ()


def test_a_version_between_two_runs_is_seen_by_the_second(watch: Watch) -> None:
    watch.subjects().look()
    watch.server.register("t-value", envelope(id="int"))
    (change,) = watch.subjects().look().changes
    assert change.why == 'column "size" is gone'
    assert watch.subjects().look().changes == ()


@pytest.mark.parametrize(
    ("subject", "schema", "why"),
    [
        ("t-value", envelope(id="int"), 'column "size" is gone'),
        ("t-value", envelope(id="int", size="string"), 'column "size" was int and is string'),
        ("t-value", {**envelope(), "fields": []}, "it describes no row"),
        ("t-value", envelope(id="int", size={"type": "record", "name": "P", "fields": []}), "it describes no row"),
        ("t-key", {**SCHEMA, "fields": [{"name": "no", "type": "int"}]}, "its key was ['id'] and is ['no']"),
        ("t-key", {**SCHEMA, "fields": [{"name": "id", "type": "string"}]}, 'column "id" was int and is string'),
    ],
)
def test_what_readers_cannot_follow_is_not_accepted_until_it_is_put_back(
    subject: str, schema: object, why: str, watch: Watch
) -> None:
    watch.server.register("t-key", SCHEMA)
    strict = watch.subjects(strict=True)
    assert strict.look().changes == ()
    before = watch.server.schemas[watch.server.subjects[subject][1]]
    watch.server.register(subject, schema)
    assert [change.why for change in strict.look().changes] == [why]
    assert strict.look().changes == ()
    assert [change.why for change in watch.subjects(strict=True).look().changes] == [why]
    watch.server.register(subject, before)
    assert [(c.previous_version, c.new_version, c.why) for c in strict.look().changes] == [(1, 3, None)]


def test_a_version_that_was_accepted_is_accepted_again_when_newer_ones_are_deleted(watch: Watch) -> None:
    strict = watch.subjects(strict=True)
    strict.look()
    first = watch.server.subjects["t-value"]
    watch.server.register("t-value", envelope(id="int", size="int", new="int"))
    assert [change.why for change in strict.look().changes] == [None]
    watch.server.subjects["t-value"] = first
    assert [(c.previous_version, c.new_version, c.why) for c in strict.look().changes] == [(2, 1, None)]
    assert watch.subjects(strict=True).look().changes == ()


def test_tables_that_share_a_topic_are_held_against_themselves(watch: Watch) -> None:
    subjects = watch.subjects(strict=True)
    subjects.look()
    for schema in (
        envelope("parts", no="string"),
        envelope(id="int", size="int", new="int"),
        envelope("parts", no="string"),
    ):
        watch.server.register("t-value", schema)
        assert [change.why for change in subjects.look().changes] == [None]


def test_a_registry_that_is_down_is_told_and_changes_nothing(watch: Watch) -> None:
    subjects = watch.subjects(strict=True)
    subjects.look()
    watch.server.register("t-value", envelope(id="int"))
    for status in (503, 401):
        watch.server.status = status
        found = subjects.look()
        assert (found.versions, found.changes, found.error is not None) == ((), (), True)
    watch.server.status = 200
    assert [change.compatible for change in subjects.look().changes] == [False]
