"""Pipelines declared in Python: what is accepted, what is refused, and how the command finds them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tailrace.api import CDC, Connection, KafkaConnection, PostgresConnection, Target, streaming_pipeline
from tailrace.api.find import find_pipeline, is_reference
from tailrace.config.load import Loaded
from tailrace.config.pipeline import PipelineConfig
from tailrace.core.errors import Misconfigured

GOOD = """
import tailrace
from typing import Annotated, Any
from tailrace import CDC, Connection, KafkaConnection, Target, pk, register_connection, streaming_pipeline, table, types

@tailrace.connection
class brokers:
    kind = "kafka"
    bootstrap_servers = "broker:9092"

@tailrace.connection
class reports:
    kind = "sqlite"
    path = "./reports.db"

@table
class HTTPLogLine:
    id: Annotated[Any, pk()]
    said: Any

@streaming_pipeline(
    source="brokers", source_query="cdc.public.lines", target=HTTPLogLine, target_connection="reports", cdc=CDC()
)
def lines():
    raise AssertionError("the body of a pipeline is not run")
"""
NUMBERS = count(1)

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that writes a module under a new name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text: str, *, name: str = "") -> str:
        name = name or f"declared_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        return name

    return write


def load(name: str) -> Loaded[PipelineConfig]:
    return find_pipeline(f"{name}:lines").load({})


def refused(name: str, pipeline: str = "lines") -> str:
    with pytest.raises(Misconfigured) as caught:
        find_pipeline(f"{name}:{pipeline}").load({})
    return caught.value.render()


def test_a_class_is_a_table_called_in_lower_case_with_its_columns_and_key(write: Write) -> None:
    loaded = load(write(GOOD))
    [sink] = loaded.config.sinks
    table = sink.tables["public.lines"]
    assert (table.name, table.columns, table.primary_key) == ("http_log_line", ("id", "said"), ("id",))
    assert (loaded.config.pipeline_id, loaded.warnings) == ("lines", ())


def test_everything_can_be_given_in_place_of_its_name(write: Write) -> None:
    text = GOOD.replace('source="brokers"', "source=brokers").replace(
        'target=HTTPLogLine, target_connection="reports"', 'target=Target(reports, HTTPLogLine, primary_key=["said"])'
    )
    config = load(write(text)).config
    assert config.sinks[0].tables["public.lines"].primary_key == ("said",)
    named = GOOD.replace("target=HTTPLogLine, ", 'target_table="t", target_primary_key=["id"], ')
    assert load(write(named)).config.sinks[0].tables["public.lines"].name == "t"
    direct = GOOD.replace(
        'target=HTTPLogLine, target_connection="reports"',
        'target=reports, target_table="http_log_line", target_primary_key=["id"]',
    )
    assert load(write(direct)).config.sinks[0].tables["public.lines"].name == "http_log_line"


def test_settings_become_what_a_file_says() -> None:
    @streaming_pipeline(
        name="typed",
        source=PostgresConnection("shop", host="db", port=5433, database="shop", password={"file": os.devnull}),
        source_query="public.orders",
        targets=[
            Target(
                Connection("lake", "delta", path=Path("lake")), retry={"jitter": False, "multiplier": 1.5}, mode=None
            ),
            Target(Connection("copy", "sqlite", path="copy.db"), enabled=False),
        ],
        cdc=CDC(schema_evolution="alter"),
    )
    def pipeline() -> None: ...

    config = pipeline.load({}).config
    assert (config.source.options.model_dump()["port"], config.tables) == (5433, ("public.orders",))
    [lake, copy] = config.sinks
    assert (lake.retry.jitter, lake.retry.multiplier, lake.schema_evolution) == (False, 1.5, "alter")
    assert (copy.sink_id, copy.enabled) == ("sqlite", False)


def test_a_password_is_neither_shown_nor_taken_in_silence() -> None:
    warehouse = PostgresConnection("warehouse", url="postgres://me:canary-9@db/dw")

    @streaming_pipeline(source=KafkaConnection("k"), source_query="a.b.c", target=warehouse, cdc=CDC())
    def pipeline() -> None: ...

    loaded = pipeline.load({})
    assert [caution.code for caution in loaded.warnings] == ["literal-secret"]
    assert 'pipeline, connection "warehouse": the secret "password"' in loaded.warnings[0].message
    assert "canary-9" not in repr((warehouse, pipeline, loaded))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "bootstrap_servers",
            "bootstrap_server",
            ', connection "brokers": unknown key "bootstrap_server"\n  hint: Did',
        ),
        ('path = "./reports.db"', "pass", ', connection "reports": key "path" is missing'),
        ('kind = "sqlite"', 'kind = "sqlit"', ', connection "reports": sink_type "sqlit" is unknown'),
        ('kind = "sqlite"', 'kind = "mongo"', ', connection "reports": sink_type "mongo" is unknown'),
        ('kind = "sqlite"', "pass", ':reports: connection has no "kind"'),
        ("./reports.db", "${NOWHERE}", ', connection "reports": environment variable "NOWHERE" is not set'),
        ('path = "./reports.db"', "path = object()", ', connection "reports": "path" is of type object'),
        (
            'source="brokers"',
            'source="broker"',
            ':lines: there is no connection "broker"\n  hint: Did you mean "brokers"',
        ),
        ('source="brokers"', "source=7", ':lines: "7" is not a connection'),
        (
            'target_connection="reports"',
            'target_connection="zzz"',
            ':lines: there is no connection "zzz"\n  hint: Known are',
        ),
        (', target_connection="reports"', "", ':lines: "target_connection" is missing'),
        ("target=HTTPLogLine,", "target=int,", ":lines: target \"<class 'int'>\" is not a table"),
        ('target=HTTPLogLine, target_connection="reports", ', "", ': key "target" is missing'),
        ("cdc=CDC()", "cdc=CDC(op_feild='x')", ', CDC: unknown key "op_feild"\n  hint: Did you mean "op_field"?'),
        ("cdc=CDC()", "cdc=CDC('debezum')", ', CDC: "envelope" should be'),
        ("cdc=CDC()", "cdc=CDC(on_conflict='fail')", ", CDC: transform.cdc.on_conflict is not in this release"),
        (", cdc=CDC()", "", ": a pipeline without transform.cdc"),
        ("cdc=CDC()", "cdc=CDC(), windw=1", ':lines: unknown key "windw"'),
        ("cdc=CDC()", "cdc=CDC(), state_store='x'", ":lines: state_store is not in this release"),
        ("cdc=CDC()", "cdc=CDC(), targets=[Target(reports)]", ":lines: target and targets say the same"),
        ("cdc=CDC()", "cdc={}", ':lines: "cdc" has a dict where a CDC should be'),
        ("cdc=CDC()", "cdc=CDC(), transform={}", ':lines: "transform" is a key of files\n  hint: Write cdc.'),
        ("cdc=CDC()", 'cdc=CDC(), target_table="t"', ':lines: "target_table" has no meaning beside this target'),
        ("target=HTTPLogLine", "target=reports", ':lines: "target_connection" has no meaning beside this target'),
        ("target=HTTPLogLine", "target=Target(reports)", ':lines: "target_connection" has no meaning beside'),
        ('target=HTTPLogLine, target_connection="reports"', "targets=[reports]", '"targets" has a Connection where a'),
        ("def lines", "def LINES", "is not there"),
        ("said: Any", "said: int", ':HTTPLogLine: type of column "said" is "int", which is not one of tailrace.types'),
        ("said: Any", "said: types.Text | types.Date", 'column "said" is "Text | Date"'),
        ("said: Any", 'said: "Missing"', ":HTTPLogLine: a column's type cannot be read: name 'Missing' is not defined"),
        ("    id: Annotated[Any, pk()]\n    said: Any", "    pass", ":HTTPLogLine: table has no columns"),
    ],
)
def test_what_is_wrong_is_told_with_module_and_object(write: Write, old: str, new: str, said: str) -> None:
    name = write(GOOD.replace(old, new, 1))
    shown = refused(name)
    assert said in shown
    assert name in shown


def test_two_targets_of_one_kind_need_names(write: Write) -> None:
    text = GOOD.replace('target=HTTPLogLine, target_connection="reports"', "targets=[Target(reports), Target(reports)]")
    assert refused(write(text)).startswith("error[duplicate-sink]")


def test_a_connection_is_declared_once_in_a_module(write: Write) -> None:
    again = '\n@tailrace.connection\nclass reports:\n    kind = "sqlite"\n    path = "{}"\n'
    assert load(write(GOOD + again.format("./reports.db")))
    name = write(GOOD + again.format("./other.db"))
    assert refused(name) == (
        f'error[duplicate-connection]: {name}: connection "reports" is declared twice\n  hint: Give each a name of its own.'
    )


def test_a_name_means_the_connection_of_the_own_module_or_the_only_one(write: Write) -> None:
    one = write('from tailrace import *\nregister_connection(KafkaConnection("shared_a", bootstrap_servers="one:1"))\n')
    text = f"import {one}\n" + GOOD.replace('source="brokers"', 'source="shared_a"')
    assert load(write(text)).config.source.options.model_dump()["bootstrap_servers"] == "one:1"
    two = write('from tailrace import *\nregister_connection(KafkaConnection("shared_a", bootstrap_servers="two:2"))\n')
    assert f'"shared_a" is another one in each of {one}, {two}' in refused(write(f"import {two}\n{text}"))
    own = 'register_connection(KafkaConnection("shared_a", bootstrap_servers="own:3"))\n'
    assert load(write(text + own)).config.source.options.model_dump()["bootstrap_servers"] == "own:3"


def test_two_pipelines_of_a_module_have_two_names(write: Write) -> None:
    second = (
        GOOD[GOOD.index("@streaming_pipeline") :].replace("def lines", "def more").replace("cdc=", 'name="lines", cdc=')
    )
    name = write(GOOD + second)
    assert f'error[duplicate-pipeline]: {name}:lines: "more" is a pipeline called "lines" too' in refused(name)


def test_a_module_that_cannot_be_imported_is_named_with_the_reason(write: Write) -> None:
    assert refused("no_such_package.module").startswith('error[no-module]: there is no module "no_such_package"')
    assert (
        refused(write("import a_package_that_nobody_has"))
        .splitlines()[0]
        .endswith("cannot be imported: ModuleNotFoundError: \"No module named 'a_package_that_nobody_has'\"")
    )
    assert 'cannot be imported: ZeroDivisionError: "division by zero"' in refused(write("1 / 0"))
    assert refused(write("1 +")).startswith("error[module-failed]")


def test_an_object_that_is_no_pipeline_is_told_with_those_there_are(write: Write) -> None:
    name = write(GOOD)
    shown = refused(name, "reports")
    assert f'{name}:reports: there is no pipeline "reports" in module "{name}": it is a Connection' in shown
    assert "Its pipelines are: lines." in shown


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("shop:orders", True),
        ("shop.pipelines:orders", True),
        ("shop.yaml", False),
        ("./shop:orders", False),
        ("shop:orders.yaml", False),
        ("shop.:orders", False),
        (":orders", False),
    ],
)
def test_a_reference_is_a_module_and_a_name(text: str, is_one: bool) -> None:
    assert is_reference(text) is is_one


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from tailrace.cli.main import main; main()", *arguments]
    paths = [path for path in sys.path if path and Path(path) != folder]
    environ = {"PYTHONPATH": ":".join(paths), "PATH": os.environ["PATH"]}
    return subprocess.run(program, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def test_the_command_takes_a_declared_pipeline_where_it_takes_a_file(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/pipelines.py").write_text(GOOD)
    done = command(tmp_path, "validate", "shop.pipelines:lines", "--strict", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["targets"][0]["type"] == "sqlite"
    wrong = command(tmp_path, "status", "shop.pipelines:nothing")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("error[no-pipeline]: shop.pipelines:nothing: ")


def test_a_file_that_is_called_like_a_reference_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "shop:lines").write_text("pipeline_id: ]")
    assert command(tmp_path, "validate", "shop:lines").stderr.startswith("error[not-yaml]: shop:lines:1:")


@pytest.mark.parametrize("mode", ["append", "scd1", "scd2"])
def test_every_mode_has_a_promise(tmp_path: Path, mode: str) -> None:
    (tmp_path / "f.toml").write_text(
        f'pipeline_name = "p"\nsource = {{kind = "postgres", url = "postgres://u@h/d"}}\nsource_query = "a.b"\n'
        f'target = {{kind = "sqlite", path = "f.db", mode = "{mode}"}}\n'
    )
    done = command(tmp_path, "validate", "f.toml", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert "mark" in json.loads(done.stdout)["targets"][0]["promise"]
