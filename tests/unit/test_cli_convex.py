"""`cdc convex`: what a person and a machine read, and that the emulator ends when it is told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.cli.main import main
from tailrace.core.errors import ResyncRequired, Retryable, TailraceError
from tailrace.sources._convex_client import Client
from tailrace.testing.convex import Deployment, Emulator

COMMAND = [sys.executable, "-c", "from tailrace.cli.main import main; main()"]


@pytest.fixture
def server() -> Iterator[Emulator]:
    with Emulator(Deployment(seed=2)) as emulator:
        emulator.behaviour.key = "prod:emulated|canary-8"
        emulator.deployment.insert("users", {"name": "ann", "n": 2**60, "ssn": "1"})
        emulator.deployment.insert("notes", {"text": "x"}, "inner")
        yield emulator


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def pipeline(folder: Path, server: Emulator, monkeypatch: pytest.MonkeyPatch, source: str = "") -> Path:
    monkeypatch.setenv("KEY", server.behaviour.key)
    path = folder / "pipeline.yaml"
    path.write_text(
        f"pipeline_id: shop\nsource:\n  source_type: convex\n  deployment_url: {server.url}\n  deploy_key: ${{KEY}}\n"
        f"{source}sinks:\n  - sink_id: lake\n    sink_type: delta\n    delta: {{path: ./lake}}\n"
    )
    return path


def cdc(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    code = ended.value.code
    return code if isinstance(code, int) else 0


def inspected(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert cdc("convex", "inspect", *arguments, "--json") == 0
    printed = capsys.readouterr().out
    assert "canary" not in printed
    return dict(json.loads(printed))


def test_inspect_shows_schemas_documents_and_changes(
    server: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = inspected(capsys, pipeline(tmp_path, server, monkeypatch))
    assert found["deployment"] == server.url
    columns = {(schema["component"], schema["table"]): schema["columns"] for schema in found["schemas"]}
    assert columns["", "users"]["n"] == "bigint"
    assert columns["inner", "notes"]["_creationTime"] == "timestamp"
    assert found["snapshot"]["snapshot"] == str(server.deployment.head)
    assert found["snapshot"]["rows"] == 1
    changes = {change["table"]: change for change in found["deltas"]["documents"]}
    assert set(changes) == {"users", "inner.notes"}
    assert changes["users"]["document"]["n"] == {"$integer": "AAAAAAAAABA="}


def test_inspect_shows_a_person_the_numbers_that_there_are(
    server: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.deployment.insert("figures", {"small": 2.5e-7, "large": 1e300, "plain": 0.12345, "zero": -0.0})
    assert cdc("convex", "inspect", pipeline(tmp_path, server, monkeypatch), "--deltas") == 0
    printed = capsys.readouterr().out.split()
    for name, text in (("small:", "2.5e-07"), ("large:", "1e+300"), ("plain:", "0.12345")):
        assert printed[printed.index(name) + 1] == text


def test_inspect_shows_what_was_chosen_and_goes_on(
    server: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = pipeline(tmp_path, server, monkeypatch)
    first = inspected(capsys, file, "--snapshot")
    assert set(first) == {"deployment", "snapshot"}
    at, cursor = first["snapshot"]["snapshot"], first["snapshot"]["cursor"]
    second = inspected(capsys, file, "--snapshot", "--at", at, "--cursor", cursor)
    tables = {page["snapshot"]["documents"][0]["table"] for page in (first, second)}
    assert tables == {"users", "inner.notes"}
    deltas = inspected(capsys, file, "--deltas", "--cursor", at)
    assert deltas["deltas"]["documents"] == []
    assert inspected(capsys, file, "--deltas", "--limit", 0)["deltas"]["rows"] == 2
    assert cdc("convex", "inspect", file, "--deltas", "--cursor", "x") == 2


def test_inspect_keeps_to_the_selection(
    server: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = '  selection: {_other: excl, "": {_other: incl, users: {_other: incl, ssn: excl}}}\n'
    found = inspected(capsys, pipeline(tmp_path, server, monkeypatch, chosen))
    assert [schema["table"] for schema in found["schemas"]] == ["users"]
    assert "ssn" not in json.dumps(found)


def test_inspect_for_a_person(
    server: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cdc("convex", "inspect", pipeline(tmp_path, server, monkeypatch)) == 0
    assert "name: string" in capsys.readouterr().out


def test_a_wrong_key_and_a_wrong_source_have_their_exit_codes(
    server: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = pipeline(tmp_path, server, monkeypatch)
    monkeypatch.setenv("KEY", "prod:emulated|canary-9")
    assert cdc("convex", "inspect", file) == 3
    printed = capsys.readouterr()
    assert "error[convex-refused]" in printed.err
    assert "canary" not in printed.err
    file.write_text(file.read_text().replace("convex\n", "memory\n").replace(f"  deployment_url: {server.url}\n", ""))
    file.write_text(file.read_text().replace("  deploy_key: ${KEY}\n", ""))
    assert cdc("convex", "inspect", file) == 2


def test_a_convex_pipeline_validates(
    server: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = pipeline(tmp_path, server, monkeypatch)
    assert cdc("validate", file, "--json") == 0
    assert json.loads(capsys.readouterr().out)["source"]["type"] == "convex"
    file.write_text(file.read_text().replace("sinks:", "  selection: {_other: include}\nsinks:"))
    assert cdc("validate", file) == 2
    assert 'neither "incl" nor "excl"' in capsys.readouterr().err


@pytest.mark.parametrize("command", ["inspect", "emulate"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cdc("convex", command, "--help") == 0
    assert f"Usage: cdc convex {command}" in capsys.readouterr().out


def emulating(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    return subprocess.Popen([*COMMAND, *arguments], stdout=pipe, stderr=pipe, text=True, env=environment)


def test_the_emulator_serves_the_same_for_the_same_seed_and_ends_when_told() -> None:
    found = []
    for _ in range(2):
        with emulating("convex", "emulate", "--port", "0", "--seed", "5", "--documents", "40", "--json") as process:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            client = Client(told["deployment_url"], told["deploy_key"], "tests-1.0")
            found.append(client.post("list_snapshot", {"snapshot": None}))
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
    assert found[0] == found[1]


def test_the_emulator_keeps_writing_and_fails_as_told() -> None:
    arguments = ["convex", "emulate", "--port", "0", "--documents", "0", "--rate", "200", "--failing", "0.5", "--json"]
    with emulating(*arguments) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        client = Client(told["deployment_url"], told["deploy_key"], "tests-1.0")
        seen, failed = set(), 0
        while len(seen) < 3 or not failed:
            try:
                page = client.post("list_snapshot", {"snapshot": None})
                seen.add(page["snapshot"])  # type: ignore[index]
            except TailraceError:
                failed += 1
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_the_emulator_has_pages_and_faults_as_told(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["convex", "emulate", "--port", "0", "--documents", "40", "--json", "--page-rows", "3"]
    arguments += ["--fault", "503@list_snapshot:2", "--fault", "InvalidWindowToReadDocuments@document_deltas"]
    with emulating(*arguments) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        client = Client(told["deployment_url"], told["deploy_key"], "tests-1.0")
        page = client.post("list_snapshot", {"snapshot": None})
        assert len(page["values"]) == 3  # type: ignore[index, call-overload]
        with pytest.raises(Retryable, match="503"):
            client.post("list_snapshot", {"snapshot": None})
        with pytest.raises(ResyncRequired):
            client.post("document_deltas", {"cursor": 0})
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert cdc("convex", "emulate", "--fault", "200") == 2
    assert "error[wrong-value]" in capsys.readouterr().err


def test_a_port_that_is_taken_is_told(server: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    assert cdc("convex", "emulate", "--port", server.url.rpartition(":")[2]) == 3
    assert "error[port-taken]" in capsys.readouterr().err
