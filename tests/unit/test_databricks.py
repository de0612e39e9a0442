"""`cdc databricks bundle`: a bundle that Databricks' own models and a parser of its SQL take, the same each time."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
import sqlglot
import yaml
from databricks.bundles.dashboards import Dashboard
from databricks.bundles.external_locations import ExternalLocation
from databricks.bundles.jobs import Job
from databricks.bundles.pipelines import Pipeline
from databricks.bundles.schemas import Schema
from databricks.bundles.secret_scopes import SecretScope
from databricks.bundles.volumes import Volume
from sqlglot import exp

from tailrace.cli.main import main
from tailrace.config.load import load_pipeline, load_platform
from tailrace.databricks.bundle import MANIFEST
from tailrace.testing.convex import Deployment, Emulator

MODELS: dict[str, Any] = {
    "dashboards": Dashboard,
    "external_locations": ExternalLocation,
    "jobs": Job,
    "pipelines": Pipeline,
    "schemas": Schema,
    "secret_scopes": SecretScope,
    "volumes": Volume,
}
KEY = "prod:emulated|canary-8"
PUBLISHED = "  - {sink_id: files, sink_type: staging, staging: {path: staging, publish_to: 's3://shelf/shop/'}}\n"


@pytest.fixture
def server() -> Iterator[Emulator]:
    with Emulator(Deployment(seed=3)) as emulator:
        emulator.behaviour.key = KEY
        emulator.deployment.insert("users", {"name": "ann", "n": 2**60, "it's `odd`, a.b": 1.5})
        emulator.deployment.insert("users", {"amount": True}, "billing")
        emulator.deployment.insert("lines", {"amount": b"1"}, "billing/ledger")
        yield emulator


class Bundles:
    """Writes bundles of one deployment."""

    def __init__(self, folder: Path, server: Emulator) -> None:
        self.folder = folder
        self._source = f"{{source_type: convex, deployment_url: '{server.url}', deploy_key: '{KEY}'}}"

    def write(self, out: str, options: str = "", sinks: str = "", catalog: str = "lake.raw") -> int:
        file = self.folder / "pipeline.yaml"
        sink = f"  - {{sink_id: landing, sink_type: bronze, bronze: {{catalog: {catalog}{options}}}}}\n"
        file.write_text(f"pipeline_id: my-shop\nsource: {self._source}\nsinks:\n{sink}{sinks}")
        platform = self.folder / "platform.yaml"
        platform.write_text(f"control: {{root: '{self.folder}/control'}}\n")
        with pytest.raises(SystemExit) as ended:
            main(
                ["databricks", "bundle", str(file), "--out", str(self.folder / out), "--platform-config", str(platform)]
            )
        return ended.value.code if isinstance(ended.value.code, int) else 0

    def files(self, out: str) -> dict[str, str]:
        found = sorted(path for path in (self.folder / out).rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder / out)): path.read_text() for path in found}


@pytest.fixture
def bundles(tmp_path: Path, server: Emulator) -> Bundles:
    return Bundles(tmp_path, server)


def resources(files: dict[str, str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, text in files.items():
        if path.startswith("resources/"):
            for kind, named in yaml.safe_load(text)["resources"].items():
                for name, resource in named.items():
                    yield kind, name, resource


def test_every_resource_is_one_of_databricks_own_models(bundles: Bundles) -> None:
    assert bundles.write("out", sinks=PUBLISHED) == 0
    files = bundles.files("out")
    kinds = set()
    for kind, _, resource in resources(files):
        assert MODELS[kind].from_dict(resource).as_dict().keys() >= resource.keys()
        kinds.add(kind)
    assert kinds == set(MODELS)
    root = yaml.safe_load(files["databricks.yml"])
    assert set(root["targets"]) == {"dev", "prod"}
    assert {target["mode"] for target in root["targets"].values()} == {"development", "production"}
    text = "".join(files.values())
    for name in {word.split("}")[0] for word in text.split("${var.")[1:]}:
        assert name in root["variables"]
    for kind, name in {tuple(word.split("}")[0].split(".")[:2]) for word in text.split("${resources.")[1:]}:
        assert (kind, name) in {(kind, name) for kind, name, _ in resources(files)}
    assert "canary" not in text
    assert "@@" not in text


def test_paths_of_resources_are_files_of_the_bundle(bundles: Bundles) -> None:
    assert bundles.write("out", sinks=PUBLISHED) == 0
    files = bundles.files("out")
    named = [
        word
        for path in files
        for word in files[path].split()
        if path.startswith("resources/") and word.startswith("../")
    ]
    assert len(named) == 6
    for path in named:
        assert any(file.startswith(path.removeprefix("../").removesuffix("**")) for file in files)


def test_its_sql_is_sql_of_databricks(bundles: Bundles) -> None:
    assert bundles.write("out", sinks=PUBLISHED) == 0
    files = bundles.files("out")
    queries = ["".join(each["queryLines"]) for each in json.loads(files["src/dashboard.lvdash.json"])["datasets"]]
    for text in [*(files[path] for path in files if path.startswith("src/ddl/")), *queries]:
        for statement in sqlglot.parse(text, dialect="databricks"):
            # What is put together there is looked at below.
            assert not isinstance(statement, exp.Command) or statement.sql() == "EXECUTE IMMEDIATE made", text
    (users,) = (
        s for s in sqlglot.parse(files["src/ddl/bronze.sql"], dialect="databricks") if s and "app__users" in s.sql()
    )
    columns = [column.name for column in users.find_all(exp.ColumnDef)]
    assert columns[3:5] == ["_cdc_document_id", "_cdc_sequence_num"]
    assert columns[11:] == ["it's `odd`, a.b", "n", "name"]


def test_views_read_where_the_variable_says(bundles: Bundles) -> None:
    assert bundles.write("out", sinks=PUBLISHED) == 0
    files = bundles.files("out")
    views = files["src/ddl/s3_views.sql"]
    assert "s3://" not in views
    made = [text.split(";")[0] for text in views.split("SET VARIABLE made = ")[1:]]
    assert views.count("EXECUTE IMMEDIATE made;") == len(made) > 1
    found = []
    for text in made:
        (run,) = duckdb.execute(f"SELECT {text.replace(':s3_root', '$root')}", {"root": "s3://else/where"}).fetchall()[
            0
        ]
        statement = sqlglot.parse_one(run, dialect="databricks")
        assert isinstance(statement, exp.Create)
        found += [each.this for each in statement.find_all(exp.Literal) if "staging" in each.this]
    assert "s3://else/where/staging/current/billing/ledger/lines.parquet" in found
    jobs = yaml.safe_load(files["resources/s3.yml"])["resources"]["jobs"]
    assert jobs["published_views"]["tasks"][0]["sql_task"]["parameters"]["s3_root"] == "${var.s3_root}"
    assert yaml.safe_load(files["databricks.yml"])["variables"]["s3_root"]["default"] == "s3://shelf/shop"


def test_widgets_show_what_the_queries_say(bundles: Bundles) -> None:
    assert bundles.write("out") == 0
    found = json.loads(bundles.files("out")["src/dashboard.lvdash.json"])
    columns = {
        each["name"]: sqlglot.parse_one("".join(each["queryLines"]), dialect="databricks").named_selects
        for each in found["datasets"]
    }
    for placed in found["pages"][0]["layout"]:
        for query in placed["widget"]["queries"]:
            fields = {field["name"] for field in query["query"]["fields"]}
            assert fields <= set(columns[query["query"]["datasetName"]])


def test_the_same_input_gives_the_same_bytes_and_what_is_gone_goes(bundles: Bundles) -> None:
    assert bundles.write("one") == 0
    assert bundles.write("two") == 0
    assert bundles.files("one") == bundles.files("two")
    silver = [path for path in bundles.files("one") if "silver/" in path]
    assert silver == ["src/silver/billing_users.sql", "src/silver/lines.sql", "src/silver/users.sql"]
    chosen = ", silver_include: [users, 'billing*'], silver_exclude: [billing.users], silver_names: {users: people}"
    assert bundles.write("one", chosen) == 0
    after = bundles.files("one")
    assert [path for path in after if "silver/" in path] == ["src/silver/lines.sql", "src/silver/people.sql"]
    assert "resources/s3.yml" not in after
    assert "CREATE STREAMING TABLE `people`" in after["src/silver/people.sql"]


def test_the_extractors_pipeline_loads_without_warnings(bundles: Bundles) -> None:
    assert bundles.write("out") == 0
    environment = {"CONVEX_DEPLOY_KEY": "x", "TAILRACE_BRONZE": "a.b", "TAILRACE_STATE": "/Volumes/a/b/c"}
    source = bundles.folder / "out" / "src"
    loaded = load_pipeline(source / "pipeline.yaml", environment)
    assert loaded.warnings == ()
    assert loaded.config.sinks[0].mode == "append"
    assert load_platform(source / "platform.yaml", environment).warnings == ()
    compile((source / "extract.py").read_text(), "extract.py", "exec")


def test_the_extractor_installs_all_that_we_need_and_no_second_spark(bundles: Bundles) -> None:
    assert bundles.write("out") == 0
    needed = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["dependencies"]
    installed = re.findall(r'"([a-z]+>=[0-9.]+)"', bundles.files("out")["src/install.sh"])
    assert installed == [name for name in needed if not name.startswith("pyspark")]


def test_names_that_mean_something_to_yaml_stay_names(bundles: Bundles) -> None:
    odd = PUBLISHED.replace("s3://shelf/shop/", "s3://shelf/a: b #c")
    assert bundles.write("out", sinks=odd, catalog="on.2024") == 0
    variables = yaml.safe_load(bundles.files("out")["databricks.yml"])["variables"]
    defaults = [variables[name]["default"] for name in ("catalog", "bronze_schema", "s3_root")]
    assert defaults == ["on", "2024", "s3://shelf/a: b #c"]


def test_what_cannot_be_written_is_refused(bundles: Bundles, capsys: pytest.CaptureFixture[str]) -> None:
    (bundles.folder / "full").mkdir()
    (bundles.folder / "full" / "notes.txt").write_text("mine")
    for out, options, code in (
        ("full", "", "foreign-folder"),
        ("out", ", silver_names: {nobody: x}", "unknown-table"),
        ("out", ", silver_names: {users: lines}", "name-collision"),
        ("out", ", path: x", "wrong-value"),
    ):
        assert bundles.write(out, options) == 2
        assert f"error[{code}]" in capsys.readouterr().err
    assert bundles.files("full") == {"notes.txt": "mine"}


@pytest.mark.parametrize("listed", ["../../victim", "/{folder}/victim", "src/../../../victim"])
def test_nothing_outside_of_the_bundle_is_removed(bundles: Bundles, listed: str) -> None:
    victim = bundles.folder / "victim"
    victim.write_text("mine")
    (bundles.folder / "deep").mkdir()
    assert bundles.write("deep/out") == 0
    manifest = bundles.folder / "deep" / "out" / MANIFEST
    path = listed.format(folder=bundles.folder)
    manifest.write_text(json.dumps({"files": [path, *json.loads(manifest.read_text())["files"]]}))
    assert bundles.write("deep/out") == 0
    assert victim.read_text() == "mine"
    assert path not in manifest.read_text()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": 1}', '{"files": [1]}'])
def test_a_list_of_files_that_is_none_is_refused_in_words(
    bundles: Bundles, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert bundles.write("out") == 0
    (bundles.folder / "out" / MANIFEST).write_text(text)
    assert bundles.write("out") == 2
    assert "error[foreign-folder]" in capsys.readouterr().err


def test_names_that_differ_in_case_stay_apart_in_a_catalog_that_does_not_tell_them(
    bundles: Bundles, server: Emulator
) -> None:
    server.deployment.insert("Users", {"name": "bo", "Name": 1})
    assert bundles.write("out", sinks=PUBLISHED) == 0
    files = bundles.files("out")
    silver = [path for path in files if path.startswith("src/silver/")]
    assert len({path.lower() for path in silver}) == len(silver) == 4
    for path in ("src/ddl/bronze.sql", "src/ddl/s3_views.sql"):
        found = re.findall(r"CREATE (?:TABLE IF NOT EXISTS|OR REPLACE VIEW) `([^`]*)`", files[path])
        assert len({name.lower() for name in found}) == len(found) == 4
    assert {"/_root/users.parquet", "/_root/Users.parquet"} <= set(
        re.findall(r"current(/_root/\w+.parquet)", files["src/ddl/s3_views.sql"])
    )
    for table in files["src/ddl/bronze.sql"].split("CREATE TABLE")[1:]:
        columns = [name.lower() for name in re.findall(r"\n  `([^`]*)` ", table)]
        assert len(set(columns)) == len(columns)
