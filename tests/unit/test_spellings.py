"""The same pipeline in YAML, in TOML in either layout, and in Python: one and the same configuration."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tailrace
from tailrace.api.find import find_pipeline
from tailrace.config.load import Loaded, load_pipeline
from tailrace.config.pipeline import PipelineConfig

GUIDE = Path(__file__).parents[2] / "docs/guides/spellings.md"
SPELLED = Path(__file__).parents[1] / "vectors/spellings"
ENVIRONMENT = {
    "KAFKA_BOOTSTRAP": "broker:9092",
    "SR_URL": "http://registry:8081",
    "WAREHOUSE_DSN": "postgresql://loader:p%40ss%2Fw@warehouse.example:6432/dw",
    "WAREHOUSE_PASSWORD": "p@ss/w",
    "SHOP_PASSWORD": "secret",
}


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SPELLED))


def spelled(file: Path, environment: dict[str, str]) -> Loaded[PipelineConfig]:
    if file.suffix == ".py":
        return find_pipeline(f"{file.stem}:{file.stem}").load(environment)
    return load_pipeline(file, environment)


def secrets(config: PipelineConfig) -> list[str]:
    options = [config.source.options, *(sink.options for sink in config.sinks)]
    return [option.password.get_secret_value() for option in options if hasattr(option, "password")]


@pytest.mark.parametrize(
    "file", sorted(SPELLED.glob("*.toml")) + sorted(SPELLED.glob("*.py")), ids=lambda file: file.name
)
def test_a_pipeline_is_the_same_however_it_is_spelled(file: Path) -> None:
    name = file.name.partition(".")[0]
    expected = load_pipeline(SPELLED / f"{name}.yaml", ENVIRONMENT).config
    found = spelled(file, ENVIRONMENT)
    assert found.config == expected
    assert secrets(found.config) == secrets(expected)
    assert {caution.code for caution in found.warnings} <= {"no-effect"}


def test_there_is_a_module_and_a_toml_file_for_each_pipeline() -> None:
    for file in SPELLED.glob("*.yaml"):
        assert file.with_suffix(".py").exists()
        assert file.with_suffix(".target.toml").exists()


def test_the_three_pipelines_of_the_guide_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = dict(re.findall(r"```(yaml|toml|python)\n(.*?)```", GUIDE.read_text(), re.DOTALL))
    for kind, name in (("yaml", "guide.yaml"), ("toml", "guide.toml"), ("python", "guide.py")):
        (tmp_path / name).write_text(blocks[kind])
    monkeypatch.syspath_prepend(str(tmp_path))
    expected = load_pipeline(tmp_path / "guide.yaml", ENVIRONMENT)
    assert expected.warnings == ()
    assert load_pipeline(tmp_path / "guide.toml", ENVIRONMENT) == expected
    assert find_pipeline("guide:mirror_customers").load(ENVIRONMENT) == expected


def test_types_of_a_declared_table_are_told_to_have_no_effect() -> None:
    [caution] = find_pipeline("mirror_customers:mirror_customers").load(ENVIRONMENT).warnings
    assert caution.code == "no-effect"
    assert caution.message.startswith('mirror_customers:mirror_customers, table "CustomerMirror": types have no effect')
    assert find_pipeline("soft_orders:soft_orders").load(ENVIRONMENT).warnings == ()


def test_everything_public_is_there_and_importing_it_does_not_load_spark() -> None:
    for name in tailrace.__all__:
        assert getattr(tailrace, name) is not None
    program = (
        "import sys, tailrace; from tailrace import CDC, Target, connection, pk, streaming_pipeline, table, types; "
        "import mirror_customers; print(sorted(m for m in ('pyspark', 'pyarrow', 'psycopg') if m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        cwd=SPELLED,
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
