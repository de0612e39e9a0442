"""The command: what it prints where, and how it exits."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from tailrace.cli import show
from tailrace.cli.failure import exit_code_of
from tailrace.cli.main import app, main
from tailrace.core.errors import Halt, Misconfigured, NotReady, ResyncRequired, Retryable

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMAND = [sys.executable, "-c", "from tailrace.cli.main import main; main()"]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("SHOP_PASSWORD", "canary-5")
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def cdc(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    code = ended.value.code
    return code if isinstance(code, int) else 0


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cdc("--help") == 0
    shown = capsys.readouterr().out
    for command in ("demo", "validate", "plan", "run", "status", "lag", "health", "undeploy"):
        assert f"  {command} " in shown
    assert "..." not in shown.split("Commands:")[1]


@pytest.mark.parametrize(
    "command", [command.callback.__name__ for command in app.registered_commands if command.callback]
)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cdc(command, "--help") == 0
    assert "Usage: cdc" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["run"], ["run", "f", "--max-slices", "0"], ["validate", "f", "--what"], ["dlq", "purge", "f"]],
)
def test_wrong_usage_exits_with_2_and_leaves_standard_output_empty(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cdc(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Error" in printed.err


def test_help_and_validate_start_without_spark() -> None:
    script = (
        "import sys; from tailrace.cli.main import app; import tailrace.config.load; sys.exit('pyspark' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_pipeline_that_is_captured_here_has_nothing_to_deploy_and_no_connector(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = EXAMPLES / "postgres-to-delta.yaml"
    assert cdc("deploy", file, "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert cdc("dlq", "purge", file, "--all", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert cdc("dlq", "replay", file, "box/t/0/1", "--json") == 2
    assert cdc("connector", "pause", file) == 2
    told = capsys.readouterr().err
    assert "unknown-letter" in told
    assert "wrong-source" in told


def test_validate_says_what_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cdc("validate", EXAMPLES / "postgres-to-delta.yaml", "--json") == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["transport"] == "embedded"
    assert found["source"] == {"type": "postgres", "tables": ["public.customers", "public.orders"]}
    assert [target["mode"] for target in found["targets"]] == ["scd1", "append"]
    assert found["targets"][0]["tables"]["public.orders"] == "sales"
    assert "once" in found["targets"][1]["promise"]
    assert printed.err == ""


def test_validate_reads_well_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert cdc("validate", EXAMPLES / "postgres-to-delta.yaml", "--platform-config", EXAMPLES / "platform.yaml") == 0
    shown = capsys.readouterr().out
    assert "- target: lake\n" in shown
    assert "      public.orders: sales\n" in shown


def test_numbers_are_shown_with_all_of_their_digits(capsys: pytest.CaptureFixture[str]) -> None:
    digits = "1234567890123456789012345678.0123456789"
    found = [{"id": 1, "amount": Decimal(digits), "inside": {"cents": [Decimal("-0.50"), None, True, "\u0131"]}}]
    show.rows(found, json_wanted=True, none="")
    line = capsys.readouterr().out
    assert json.loads(line, parse_float=Decimal) == found
    assert digits in line
    show.rows(found, json_wanted=False, none="")
    shown = capsys.readouterr().out
    assert digits in shown
    assert "[-0.50, null, true," in shown


def test_a_warning_is_told_and_strict_refuses_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text((EXAMPLES / "postgres-to-delta.yaml").read_text().replace("${SHOP_PASSWORD}", "canary-6"))
    assert cdc("validate", file) == 0
    relaxed = capsys.readouterr()
    assert cdc("validate", file, "--strict") == 2
    strict = capsys.readouterr()
    assert "warning[literal-secret]: " in relaxed.err
    assert "error[literal-secret]: " in strict.err
    assert strict.out == ""
    assert "canary" not in relaxed.out + relaxed.err + strict.err


def test_a_wrong_file_is_told_on_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text((EXAMPLES / "postgres-to-delta.yaml").read_text().replace("sink_type", "sink_typ", 1))
    assert cdc("run", file) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"error[unknown-key]: {file}:" in printed.err
    assert 'Did you mean "sink_type"?' in printed.err
    assert not (tmp_path / ".tailrace").exists()


def test_an_unknown_target_is_refused_before_anything_is_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cdc("run", EXAMPLES / "postgres-to-delta.yaml", "--target", "lakee") == 2
    assert "error[unknown-target]: " in capsys.readouterr().err
    assert not (tmp_path / ".tailrace").exists()


def test_the_status_of_a_pipeline_that_never_ran(capsys: pytest.CaptureFixture[str]) -> None:
    assert cdc("status", EXAMPLES / "postgres-to-delta.yaml", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["checkpoint"] is None
    assert [target["target"] for target in found["targets"]] == ["lake", "events"]


def test_a_database_that_is_down_does_not_hide_the_lag_of_the_targets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PORT", "1")
    assert cdc("lag", EXAMPLES / "postgres-to-delta.yaml", "--json") == 0
    source, *targets = json.loads(capsys.readouterr().out)
    assert source["error"].startswith("postgres-unreachable: ")
    assert [target["part"] for target in targets] == ["lake", "events"]


def test_a_database_that_is_down_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.environ["SHOP_PORT"] = "1"
    try:
        (tmp_path / "platform.yaml").write_text("health_port: 0")
        platform = ("--platform-config", tmp_path / "platform.yaml")
        code = cdc("run", EXAMPLES / "postgres-to-delta.yaml", "--once", "--json", *platform)
    finally:
        del os.environ["SHOP_PORT"]
    printed = capsys.readouterr()
    assert code == 3
    assert "error[postgres-unreachable]: " in printed.err
    assert "canary" not in printed.err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (Misconfigured("a-b", "it is wrong", "Mend it."), 2, "error[a-b]: it is wrong\n  hint: Mend it.\n"),
        (NotReady("a-b", "it is down"), 3, "error[a-b]: it is down\n"),
        (Halt("a-b", "it stops"), 1, "error[a-b]"),
        (Retryable("a-b", "it may pass"), 1, "error[a-b]"),
        (ResyncRequired("it is gone", "Begin again."), 1, "error[resync-required]"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "error[disk-full]"),
        (RuntimeError("java.io.IOException: No space left on device"), 1, "error[disk-full]"),
        (ValueError("two\nlines"), 1, "error[internal]: ValueError: two lines\n"),
    ],
)
def test_an_error_is_told_and_gets_its_exit_code(
    error: Exception, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(error, debug=False) == code
    assert capsys.readouterr().err.startswith(said)


def test_a_full_disk_is_seen_behind_another_error(capsys: pytest.CaptureFixture[str]) -> None:
    error = ValueError("could not write")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert exit_code_of(error, debug=False) == 1
    assert "error[disk-full]" in capsys.readouterr().err


def test_a_traceback_is_shown_on_request_only(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code_of(ValueError("x"), debug=False)
    assert "Traceback" not in capsys.readouterr().err
    exit_code_of(ValueError("x"), debug=True)
    assert "ValueError: x" in capsys.readouterr().err.split("error[")[0]


def test_a_closed_standard_output_is_no_noise() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*COMMAND, "validate", str(EXAMPLES / "postgres-to-delta.yaml")],
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    os.close(write)
    assert done.stderr == b""
