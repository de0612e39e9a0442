"""`cdc health`: it asks the servers of running pipelines, believes only them, and exits by what they say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tailrace.cli.main import main
from tailrace.config.load import load_pipeline, load_platform
from tailrace.control import state
from tailrace.control.lag import Lag, TargetLag
from tailrace.control.lock import only_one
from tailrace.core.errors import Halt, NotReady
from tailrace.core.subjects import Registered
from tailrace.runtime.build import Pipeline, open_pipeline
from tailrace.runtime.report import Silent
from tailrace.testing.convex import Deployment, Emulator
from tailrace.web import ask
from tailrace.web.serve import Served

COMMAND = [sys.executable, "-c", "from tailrace.cli.main import main; main()"]
SOURCE = str(Path(ask.__file__).parents[2])

PIPELINE = """
pipeline_id: NAME
source: {source_type: kafka, topics: [cdc.public.a]}
sinks: [{sink_id: lake, sink_type: delta, delta: {path: lake}}]
"""


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def served(folder: Path, name: str = "shop", platform: str = "health_port: 0") -> Served:
    pipeline, settings = folder / f"{name}.yaml", folder / "platform.yaml"
    pipeline.write_text(PIPELINE.replace("NAME", name))
    settings.write_text(platform)
    return Served(load_pipeline(pipeline).config, load_platform(settings).config, f"run-{name}")


def health(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["health", *arguments])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def answers(capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, Any]]]:
    code, out, _ = health(capsys, "--json")
    return code, json.loads(out)


def test_no_pipeline_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = health(capsys)
    assert (code, out) == (3, "no pipeline runs\n")
    assert "error[not-running]: " in err
    assert answers(capsys) == (3, [])


def test_every_pipeline_that_runs_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = served(tmp_path, "one"), served(tmp_path, "two")
    with one.serving(), two.serving():
        one.health.begun(["lake"])
        two.health.begun(["lake"])
        two.health.measured(Lag({}, (TargetLag("lake", 1, 5),)))
        two.health.registered(Registered())
        code, out, err = health(capsys)
        assert (code, err) == (0, "")
        assert [line.split() for line in out.splitlines()][1:] == [
            ["one", "pipeline", "ready", "-"],
            ["one", "source", "running", "-"],
            ["one", "target", "lake", "running", "-"],
            ["two", "pipeline", "ready", "-"],
            ["two", "source", "running", "-"],
            ["two", "schema", "registry", "watched", "-"],
            ["two", "target", "lake", "running", "4"],
        ]
        assert [found["pipeline_id"] for found in answers(capsys)[1]] == ["one", "two"]
    assert answers(capsys) == (3, [])


def test_a_part_that_fails_is_named_and_decides_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = served(tmp_path)
    with shop.serving():
        shop.health.begun(["lake"])
        shop.health.failed("lake", Halt("type-changed", "a type changed", "Mend it."))
        code, out, err = health(capsys)
        assert code == 1
        assert "type-changed: a type changed" in out
        assert 'error[not-ready]: target lake of pipeline "shop": type-changed: a type changed' in err
        assert "hint: Mend it." in err
        code, found = answers(capsys)
        assert (code, found[0]["failing"][0]["part"]) == (1, "target lake")


class _Lists(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"[]" if self.path in ("/connectors", "/subjects") else b"nothing"
        self.send_response(200 if body == b"[]" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_the_servers_of_the_platform_are_asked_though_no_pipeline_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Lists)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    platform = tmp_path / "platform.yaml"
    platform.write_text(
        "transport_mode: kafka\nkafka: {bootstrap_servers: '127.0.0.1:1', schema_registry_url: 'http://127.0.0.1:1'}\n"
        f"connector: {{connect_url: 'http://127.0.0.1:{server.server_address[1]}'}}"
    )
    try:
        code, out, err = health(capsys, "--platform-config", str(platform), "--json")
        found = {part["component"]: (part["status"], part.get("error", {}).get("code")) for part in json.loads(out)}
        assert found == {
            "kafka": ("unhealthy", "kafka-unreachable"),
            "schema registry": ("unhealthy", "registry-unreachable"),
            "connect": ("healthy", None),
        }
        assert (code, "error[not-ready]: kafka: kafka-unreachable: " in err) == (1, True)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_note_left_by_a_killed_process_is_not_believed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop = served(tmp_path)
    with shop.serving():
        shop.health.begun(["lake"])
        note = tmp_path / ".tailrace/shop/server.json"
        where = state.load(note)
        assert where is not None
        state.save(tmp_path / ".tailrace/other/server.json", where)
        state.save(note, {**where, "run_id": "another"})
        assert answers(capsys) == (3, [])
    assert note.exists()
    assert answers(capsys) == (3, [])


@pytest.mark.parametrize("text", ["", "{}", "nonsense"])
def test_a_broken_note_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    note = tmp_path / ".tailrace/shop/server.json"
    note.parent.mkdir(parents=True)
    note.write_text(text)
    assert answers(capsys) == (3, [])


# -- a run and its server

DOWN = """
pipeline_id: shop
source: {source_type: postgres, host: 127.0.0.1, port: 1, database: d, username: u, password: p, tables: [public.a]}
sinks: [{sink_id: lake, sink_type: delta, delta: {path: lake}}]
"""


def pipeline(folder: Path) -> Pipeline:
    (folder / "down.yaml").write_text(DOWN)
    return open_pipeline(load_pipeline(folder / "down.yaml").config, load_platform(None).config)


@contextmanager
def entered(seen: list[str]) -> Iterator[None]:
    seen.append("in")
    yield
    seen.append("out")


def test_a_run_serves_before_it_asks_its_source(tmp_path: Path) -> None:
    with served(tmp_path, platform="health_port: 0").serving():
        where = state.load(tmp_path / ".tailrace/shop/server.json") or {}
        taken = served(tmp_path, platform=f"health_port: {where['port']}")
        with pytest.raises(NotReady) as caught:
            pipeline(tmp_path).run(once=True, report=Silent(), serving=taken.serving)
    assert caught.value.code == "port-in-use"


def test_a_run_that_is_refused_by_its_source_stops_serving(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop = served(tmp_path)
    with pytest.raises(NotReady) as caught:
        pipeline(tmp_path).run(once=True, report=shop.health, serving=shop.serving)
    assert caught.value.code == "postgres-unreachable"
    assert not (tmp_path / ".tailrace/shop/server.json").exists()


def test_a_second_process_does_not_serve_what_another_runs(tmp_path: Path) -> None:
    seen: list[str] = []
    with only_one(tmp_path / ".tailrace/shop"), pytest.raises(NotReady) as caught:
        pipeline(tmp_path).run(once=True, report=Silent(), serving=lambda: entered(seen))
    assert (caught.value.code, seen) == ("already-running", [])


def test_a_platform_that_wants_no_server_has_none(tmp_path: Path) -> None:
    with served(tmp_path, platform="health_enabled: false\nhealth_port: 0").serving():
        assert not (tmp_path / ".tailrace").exists()


def test_a_port_in_use_keeps_the_run_from_starting(tmp_path: Path) -> None:
    with served(tmp_path).serving():
        where = state.load(tmp_path / ".tailrace/shop/server.json") or {}
        second = served(tmp_path, "two", f"health_port: {where['port']}")
        with pytest.raises(NotReady) as caught, second.serving():
            pass
    assert caught.value.code == "port-in-use"
    assert not (tmp_path / ".tailrace/two").exists()


def test_a_port_that_nobody_asked_for_does_not_keep_a_second_run_from_starting(tmp_path: Path) -> None:
    with served(tmp_path, "one", "retry: {}").serving(), served(tmp_path, "two", "retry: {}").serving():
        ports = {(state.load(tmp_path / f".tailrace/{name}/server.json") or {})["port"] for name in ("one", "two")}
    assert len(ports) == 2


# -- the command, of a pipeline that has nothing to apply, so that no Spark starts


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`cdc run` on a deployment with an empty table, once its lag is measured and its first page is in the log."""
    with Emulator(Deployment(seed=3)) as source:
        source.behaviour.key = "prod:emulated|canary-8"
        source.deployment.delete("users", source.deployment.insert("users", {"name": "canary-row"}))
        (folder / "platform.yaml").write_text("health_port: 0")
        (folder / "pipeline.yaml").write_text(
            f"pipeline_id: shop\nsource: {{source_type: convex, deployment_url: '{source.url}', deploy_key: '${{KEY}}'}}\n"
            "sinks: [{sink_id: db, sink_type: sqlite, sqlite: {path: t.db}}]\n"
        )
        environment = {**os.environ, "KEY": source.behaviour.key, "PYTHONPATH": SOURCE}
        command = [*COMMAND, "run", "pipeline.yaml", "--platform-config", "platform.yaml", "--json"]
        with (
            (folder / "log").open("wb") as log,
            subprocess.Popen(command, cwd=folder, env=environment, stderr=log, stdout=log) as process,
        ):
            try:
                given_up = time.monotonic() + 120
                while (
                    not (found := ask.running(folder / ".tailrace"))
                    or not found[0]["consumer_lag"]
                    or "page appended" not in (folder / "log").read_text()
                ):
                    assert process.poll() is None, (folder / "log").read_text()
                    assert time.monotonic() < given_up, (folder / "log").read_text()
                    time.sleep(0.05)
                yield process
            finally:
                process.kill()


def test_the_command_serves_while_it_runs_and_no_longer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(tmp_path) as process:
        code, found = answers(capsys)
        assert (code, found[0]["status"], found[0]["sinks"]) == (0, "ready", [{"sink_id": "db", "status": "running"}])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert answers(capsys) == (3, [])
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if line.startswith("{")]
    logged = [line for line in lines if "event" in line]
    assert {line["run_id"] for line in logged} == {found[0]["run_id"]}
    assert {"run begun", "consumer.lag", "page appended"} <= {line["event"] for line in logged}
    assert "canary" not in (tmp_path / "log").read_text()


def test_a_process_that_was_killed_is_not_said_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(tmp_path) as process:
        process.kill()
        process.wait(60)
        assert (tmp_path / ".tailrace/shop/server.json").exists()
        assert answers(capsys) == (3, [])
