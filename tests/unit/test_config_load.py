"""From the text of a file to a configuration: what is accepted, what is refused, and where it is said to be."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.config.load import Loaded, load_pipeline, load_platform
from tailrace.config.pipeline import Mode, PipelineConfig, RetryConfig
from tailrace.config.platform import PlatformConfig
from tailrace.config.problem import Problems
from tailrace.core.errors import Misconfigured, NotReady
from tailrace.core.table import Evolution

SHELF = """
from typing import Annotated
from pydantic import Field, SecretStr
from tailrace.config.model import Model, NotYet

class Options(Model):
    database: str
    port: int = 5432
    password: SecretStr | None = None
    tables: tuple[str, ...] = ()
    keys: dict[str, SecretStr] = Field(default_factory=dict)
    shelves: Annotated[str, NotYet("is not in this release", "Use one.", values=("two",))] = "one"
"""

BOX = """
from tailrace.config.model import Model

class Options(Model):
    path: str
"""

GOOD = """\
pipeline_id: shop
source:
  source_type: shelf
  database: shop
  tables: [public.customers, public.orders]
sinks:
  - sink_id: lake
    sink_type: box
    box: {path: ./lake}
"""


@pytest.fixture(autouse=True)
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A source `shelf` and a target `box`: a plugin is a file on the package's path, and nothing else."""
    for package, name, text in (("sources", "shelf", SHELF), ("targets", "box", BOX)):
        folder = tmp_path / package
        folder.mkdir()
        (folder / f"{name}.py").write_text(text)
        module = importlib.import_module(f"tailrace.{package}")
        monkeypatch.setattr(module, "__path__", [*module.__path__, str(folder)])
    (tmp_path / "targets" / "needy.py").write_text("import a_package_that_nobody_has\n")
    (tmp_path / "targets" / "hollow.py").write_text("")
    importlib.invalidate_caches()
    yield
    for name in ("sources.shelf", "targets.box", "targets.hollow"):
        importlib.sys.modules.pop(f"tailrace.{name}", None)  # type: ignore[attr-defined]


def pipeline(tmp_path: Path, text: str, **environ: str) -> Loaded[PipelineConfig]:
    file = tmp_path / "pipeline.yaml"
    file.write_text(text)
    return load_pipeline(file, environ)


def platform(tmp_path: Path, text: str, **environ: str) -> Loaded[PlatformConfig]:
    file = tmp_path / "platform.yaml"
    file.write_text(text)
    return load_platform(file, environ)


def rendered(tmp_path: Path, text: str, **environ: str) -> str:
    with pytest.raises(Misconfigured) as caught:
        pipeline(tmp_path, text, **environ)
    return caught.value.render().replace(f"{tmp_path}/", "")


def test_a_short_file_is_enough(tmp_path: Path) -> None:
    config = pipeline(tmp_path, GOOD).config
    assert config.tables == ("public.customers", "public.orders")
    assert config.topic_prefix == "cdc"
    [sink] = config.enabled_sinks
    assert (sink.mode, sink.schema_evolution, sink.enabled) == (Mode.SCD1, Evolution.SKIP, True)
    assert config.names(sink) == {"public.customers": "customers", "public.orders": "orders"}


def test_every_key_of_a_sink_arrives(tmp_path: Path) -> None:
    text = GOOD + (
        "    mode: append\n    delete_mode: hard\n    schema_evolution: alter\n"
        "    tables:\n      public.orders: {name: sales, primary_key: [id], columns: [id, total]}\n"
        "    retry: {max_attempts: 9}\n"
    )
    config = pipeline(tmp_path, text).config
    [sink] = config.sinks
    assert sink.mode is Mode.APPEND
    assert sink.tables["public.orders"].columns == ("id", "total")
    assert config.names(sink)["public.orders"] == "sales"
    assert sink.retry.over(RetryConfig(jitter=False)) == RetryConfig(max_attempts=9, jitter=False)


def test_a_configuration_cannot_be_changed(tmp_path: Path) -> None:
    config = pipeline(tmp_path, GOOD).config
    with pytest.raises(ValueError, match="frozen"):
        config.pipeline_id = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "sink_type: box",
            "sink_typ: box",
            'error[unknown-key]: pipeline.yaml:8:5: unknown key "sink_typ"\n  hint: Did you mean "sink_type"?',
        ),
        (
            "database: shop",
            "databse: shop",
            'error[unknown-key]: pipeline.yaml:4:3: unknown key "databse"\n  hint: Did you mean "database"?',
        ),
        (
            "{path: ./lake}",
            "{pth: ./lake}",
            'error[unknown-key]: pipeline.yaml:9:11: unknown key "pth"\n  hint: Did you mean "path"?',
        ),
        ("{path: ./lake}", "{}", 'error[missing-setting]: pipeline.yaml:9:5: key "path" is missing'),
        (
            "    box: {path: ./lake}",
            "    options: {path: ./lake}",
            'error[unknown-key]: pipeline.yaml:9:5: unknown key "options"',
        ),
        ("{path: ./lake}", "lake", "error[wrong-value]: pipeline.yaml:9:10:"),
        ("pipeline_id: shop", "pipeline_id: ../shop", "error[wrong-value]: pipeline.yaml:1:14:"),
        (
            "pipeline_id: shop",
            "pipelineid: shop",
            'error[missing-setting]: pipeline.yaml: key "pipeline_id" is missing',
        ),
        (
            "database: shop",
            "database: shop\n  port: many",
            'error[wrong-value]: pipeline.yaml:5:9: "port" should be a valid integer',
        ),
        ("sink_type: box", "sink_type: box\n    mode: scd3", "error[wrong-value]: pipeline.yaml:9:11:"),
        ("sink_type: box", "sink_type: bux", 'error[unknown-type]: pipeline.yaml:8:16: sink_type "bux" is unknown'),
        ("sink_type: box", "sink_type: hollow", "error[unknown-type]: pipeline.yaml:8:16:"),
        (
            "source_type: shelf",
            "source_type: ../x",
            'error[unknown-type]: pipeline.yaml:3:16: source_type "../x" is unknown',
        ),
        ("source_type: shelf", "source_type: _debezium", "error[unknown-type]: pipeline.yaml:3:16:"),
        ("public.orders]", "orders]", 'error[table-name]: pipeline.yaml:5:30: table "orders" is not schema-qualified'),
        ("public.orders]", "public.customers]", "error[duplicate-table]: pipeline.yaml:5:30:"),
        ("sink_type: box", "sink_type: box\n    enabled: false", "error[no-target]: pipeline.yaml:7:3:"),
        ("sinks:", "kafka: {}\nsinks:", 'error[platform-key]: pipeline.yaml:6:1: key "kafka" is the platform\'s'),
        (
            "sink_type: box",
            "sink_type: box\n    tables: {public.order: {}}",
            'error[unknown-table]: pipeline.yaml:9:14: table "public.order"',
        ),
        (
            "sink_type: box",
            "sink_type: box\n    tables: {public.orders: {name: Customers}}",
            "error[name-collision]: pipeline.yaml:9:13:",
        ),
        (
            "sink_type: box",
            "sink_type: box\n    tables: {public.orders: {primary_key: []}}",
            "error[wrong-value]: pipeline.yaml:9:43:",
        ),
        (
            "sink_type: box",
            "sink_type: box\n    tables: {public.orders: {primary_key: [id], columns: [b]}}",
            "error[key-left-out]: pipeline.yaml:9:58:",
        ),
        (
            "sinks:\n  - sink_id: lake\n    sink_type: box\n    box: {path: ./lake}\n",
            "sinks: []\n",
            "error[no-target]: pipeline.yaml:6:8:",
        ),
        (
            "sink_type: box",
            "sink_type: box\n    tables: {public.orders: {nme: x}}",
            'error[unknown-key]: pipeline.yaml:9:30: unknown key "nme"\n  hint: Did you mean "name"?',
        ),
        ("source:\n", "sauce:\n", 'error[missing-setting]: pipeline.yaml: key "source" is missing'),
        ("sinks:\n", "sinks: lake\nother:\n", "error[wrong-value]: pipeline.yaml:6:8:"),
        ("  source_type: shelf", "  - shelf", "error[not-yaml]: pipeline.yaml:4:3:"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    assert said in rendered(tmp_path, GOOD.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("database: shop", "database: shop\n  shelves: two", 'source.shelves "two" is not in this release'),
    ],
)
def test_what_this_release_cannot_do_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = rendered(tmp_path, GOOD.replace(old, new))
    assert text.startswith("error[not-available]: pipeline.yaml:")
    assert said in text


def test_a_key_that_has_no_effect_here_gets_a_warning(tmp_path: Path) -> None:
    text = GOOD.replace("sinks:", "cdc: {out_of_order_tolerance_ms: 5000}\nsinks:")
    assert [caution.code for caution in pipeline(tmp_path, text).warnings] == ["no-effect"]


def test_what_is_there_may_be_written_out(tmp_path: Path) -> None:
    text = GOOD.replace("sinks:", "cdc: {envelope: debezium}\nsinks:") + "    mode: scd1\n    delete_mode: hard\n"
    assert pipeline(tmp_path, text).warnings == ()


def test_all_problems_of_a_file_are_told_at_once_in_its_order(tmp_path: Path) -> None:
    text = (
        GOOD.replace("database: shop", "databse: shop").replace("sink_id: lake", "sink_id: La ke") + "    nothing: 1\n"
    )
    with pytest.raises(Problems) as caught:
        pipeline(tmp_path, text)
    assert [error.code for error in caught.value.found] == [
        "missing-setting",
        "unknown-key",
        "wrong-value",
        "unknown-key",
    ]
    assert len(caught.value.render().split("error[")) == 5
    assert caught.value.exit_code == 2


def test_two_sinks_need_two_names(tmp_path: Path) -> None:
    text = GOOD + "  - {sink_id: lake, sink_type: box, box: {path: ./b}}\n"
    assert "error[duplicate-sink]: pipeline.yaml:10:15:" in rendered(tmp_path, text)


def test_a_missing_package_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match="a_package_that_nobody_has") as caught:
        pipeline(tmp_path, GOOD.replace("sink_type: box", "sink_type: needy"))
    assert caught.value.code == "missing-extra"
    assert "pip install 'tailrace[needy]'" in caught.value.hint


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="no such file") as caught:
        load_pipeline(tmp_path / "none.yaml")
    assert caught.value.code == "no-file"


def test_control_characters_of_a_file_are_not_printed(tmp_path: Path) -> None:
    text = rendered(tmp_path, GOOD.replace("sinks:", '"a\\e[31m\\nb": 1\nsinks:'))
    assert '"a\\x1b[31m\\nb"' in text


# -- variables


def test_variables_are_replaced_once_and_in_values_only(tmp_path: Path) -> None:
    text = GOOD.replace("database: shop", "database: ${DB}\n  port: ${PORT:-6543}")
    options = pipeline(tmp_path, text, DB="a${DB}: [b]").config.source.options
    assert (options.database, options.port) == ("a${DB}: [b]", 6543)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("x${A}y${B:-b}", "x1yb"),
        ("${A:-other}", "1"),
        ("${EMPTY:-other}", ""),
        ("$${A}", "${A}"),
        ("$A", "$A"),
        ("'${A}'", "1"),
    ],
)
def test_variable_forms(tmp_path: Path, written: str, value: str) -> None:
    options = pipeline(
        tmp_path, GOOD.replace("database: shop", f"database: {written}"), A="1", EMPTY=""
    ).config.source.options
    assert options.database == value  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ("database: ${DB}", 'error[unset-variable]: pipeline.yaml:4:13: environment variable "DB" is not set'),
        ("database: ${DB", "error[bad-variable]: pipeline.yaml:4:13:"),
        ("database: ${1}", "error[bad-variable]: pipeline.yaml:4:13:"),
        ("${DB}: shop", 'error[unknown-key]: pipeline.yaml:4:3: unknown key "${DB}"'),
    ],
)
def test_a_variable_that_is_not_set_is_an_error(tmp_path: Path, new: str, said: str) -> None:
    assert said in rendered(tmp_path, GOOD.replace("database: shop", new))


def test_an_unset_variable_is_the_only_thing_told_of_its_value(tmp_path: Path) -> None:
    text = rendered(tmp_path, GOOD.replace("database: shop", "database: shop\n  port: ${PORT}"))
    assert text.count("error[") == 1


@pytest.mark.parametrize("written", ["${PORT}", "x${PORT}"])
def test_a_value_from_the_environment_is_never_shown(tmp_path: Path, written: str) -> None:
    text = rendered(tmp_path, GOOD.replace("database: shop", f"database: shop\n  port: {written}"), PORT="canary-7")
    assert "canary-7" not in text


# -- secrets


def test_a_literal_secret_gets_a_warning_and_is_not_shown(tmp_path: Path) -> None:
    loaded = pipeline(tmp_path, GOOD.replace("database: shop", "database: shop\n  password: canary-1"))
    [caution] = loaded.warnings
    assert caution.render().startswith("warning[literal-secret]: ")
    assert "pipeline.yaml:5:13" in caution.message
    assert "canary-1" not in repr(loaded) + str(loaded.config) + caution.render() + loaded.config.model_dump_json()
    with pytest.raises(Misconfigured, match="stands in the file"):
        loaded.refuse_warnings()


@pytest.mark.parametrize(("key", "good"), [("[_id]", True), ("[email]", False), ("[_id, email]", False)])
def test_documents_of_convex_have_no_other_key_than_their_id(tmp_path: Path, key: str, good: bool) -> None:
    source = "{source_type: convex, deployment_url: 'https://host', deploy_key: '${K}'}"
    sink = f"{{sink_id: a, sink_type: sqlite, sqlite: {{path: x}}, tables: {{users: {{primary_key: {key}}}}}}}"
    text = f"pipeline_id: p\nsource: {source}\nsinks:\n  - {sink}\n"
    if good:
        assert pipeline(tmp_path, text, K="k").config.sinks
    else:
        assert "error[wrong-value]: pipeline.yaml:4:" in rendered(tmp_path, text, K="k")


def test_the_login_in_an_address_is_not_shown(tmp_path: Path) -> None:
    text = "pipeline_id: p\nsource: {source_type: convex, deployment_url: 'https://me:canary@host/x', deploy_key: '${K}'}\n"
    assert "https://***@host/x" in (told := rendered(tmp_path, text + "sinks: []\n", K="k"))
    assert "canary" not in told


@pytest.mark.parametrize(
    ("written", "cautions"), [("${PW}", 0), ("${PW:-x}", 0), ("${NO:-x}", 1), ("a${PW}", 1), ("${NO:-}", 0)]
)
def test_a_secret_is_literal_if_any_of_it_stands_in_the_file(tmp_path: Path, written: str, cautions: int) -> None:
    text = GOOD.replace("database: shop", f"database: shop\n  password: {written}")
    assert len(pipeline(tmp_path, text, PW="canary").warnings) == cautions


def test_a_secret_can_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("canary-2\n")
    text = GOOD.replace(
        "database: shop", f"database: shop\n  password: {{file: {tmp_path}/pw}}\n  keys: {{a: {{file: {tmp_path}/pw}}}}"
    )
    loaded = pipeline(tmp_path, text)
    options = loaded.config.source.options
    assert options.password.get_secret_value() == options.keys["a"].get_secret_value() == "canary-2"  # type: ignore[attr-defined]
    assert loaded.warnings == ()


def test_a_secret_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    text = rendered(tmp_path, GOOD.replace("database: shop", "database: shop\n  password: {file: /no/where}"))
    assert text.startswith("error[secret-file]: pipeline.yaml:5:13:")


def test_a_secret_of_the_wrong_kind_is_not_shown(tmp_path: Path) -> None:
    text = rendered(tmp_path, GOOD.replace("database: shop", "database: shop\n  password: [canary-3]"))
    assert "error[wrong-value]: pipeline.yaml:5:13:" in text
    assert "canary-3" not in text


# -- the platform


def test_no_platform_file_means_the_defaults() -> None:
    config = load_platform(None).config
    assert config.log_root("shop") == Path(".tailrace/shop/log")
    assert (config.slice.max_rows, config.slice.interval_seconds) == (500_000, 1.0)
    assert (config.spark.master, config.spark.jars, config.dlq.enabled) == ("local[*]", "auto", True)
    assert (config.health_enabled, config.health_host, config.health_port) == (True, "127.0.0.1", 8080)


def test_every_platform_key_with_an_effect_arrives(tmp_path: Path) -> None:
    text = (
        "control: {root: /c}\nlog: {root: /l, retention_days: 3}\n"
        "spark: {master: 'local[2]', jars: provided, conf: {a.b: 2}}\n"
        "slice: {max_rows: 7, interval_seconds: 0.5}\nlimits: {max_event_bytes: 2048, max_rejects: 0}\n"
        "retry: {max_attempts: 2}\ndlq: {enabled: false}\nhealth_enabled: false\nhealth_host: 0.0.0.0\n"
        "health_port: 0\nhealth_max_lag_seconds: 60\nhealth_max_slot_bytes: null\nlag_monitor_interval_seconds: 5\n"
    )
    loaded = platform(tmp_path, text)
    config = loaded.config
    assert loaded.warnings == ()
    assert (config.log_root("shop"), config.control_root("shop")) == (Path("/l/shop"), Path("/c/shop"))
    assert config.spark.conf == {"a.b": "2"}
    assert (config.slice.max_rows, config.limits.max_rejects, config.dlq.enabled) == (7, 0, False)
    assert (config.health_enabled, config.health_host, config.health_port) == (False, "0.0.0.0", 0)
    assert (config.health_max_lag_seconds, config.health_max_slot_bytes) == (60, None)
    assert config.lag_monitor_interval_seconds == 5


def test_platform_keys_without_an_effect_get_a_warning(tmp_path: Path) -> None:
    text = "max_buffered_messages: 5\ndlq: {max_retries: 1}\n"
    loaded = platform(tmp_path, text)
    assert [caution.code for caution in loaded.warnings] == ["no-effect"] * 2
    assert "platform.yaml:1:24: max_buffered_messages has no effect" in str([w.message for w in loaded.warnings])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("transport_mode: pubsub", '"transport_mode" should be'),
        ("slice: {max_row: 1}", 'unknown key "max_row"'),
        ("pipeline_id: shop", 'unknown key "pipeline_id"'),
        ("slice: {max_rows: 0}", '"max_rows" should be greater than or equal to 1, not "0"'),
        ("limits: {max_rejects: .inf}", '"max_rejects" should be a valid integer'),
        ("kafka: {sasl_password: [canary-4]}", '"sasl_password" should be a valid string'),
    ],
)
def test_a_wrong_platform_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        platform(tmp_path, text)
    assert said in str(caught.value)
    assert "canary-4" not in caught.value.render()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kafka: {acks: '1'}", 'kafka.acks "1" is not in this release'),
        ("kafka: {auto_offset_reset: latest}", 'kafka.auto_offset_reset "latest" is not in this release'),
    ],
)
def test_what_kafka_cannot_do_yet_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        platform(tmp_path, text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("cdc", "said"),
    [
        ("{envelope: maxwell}", 'envelope "maxwell" has no meaning here'),
        ("{op_map: {I: c}}", "op_map has no meaning here"),
        ("{op_map: {I: x}}", "should be 'c', 'u', 'd', 'r' or 't'"),
        ("{op_field: \"a['b']\"}", '"op_field" should match'),
    ],
)
def test_a_source_that_knows_its_messages_takes_no_envelope(tmp_path: Path, cdc: str, said: str) -> None:
    assert said in rendered(tmp_path, GOOD.replace("sinks:", f"cdc: {cdc}\nsinks:"))


KAFKA = """\
pipeline_id: shop
source: {source_type: kafka, topics: [cdc.public.orders]}
cdc: {envelope: custom, op_field: action, after_field: new, key_field: new.id, op_map: {INSERT: c}}
sinks: [{sink_id: lake, sink_type: delta, delta: {path: lake}}]
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("envelope: custom, ", "", "op_field belongs to envelope custom"),
        ("op_field: action, ", "", 'key "op_field" is missing'),
        ("topics: [cdc.public.orders]", "topic_pattern: '('", "is not a regular expression"),
        ("topics: [cdc.public.orders]", "tables: [a.b]", "needs either topics or topic_pattern"),
        ("topics: [cdc.public.orders]", "topics: [a], topic_pattern: a", "needs either topics or topic_pattern"),
        ("cdc.public.orders", "'a b'", "should match"),
    ],
)
def test_a_wrong_pipeline_of_topics_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(KAFKA.replace(old, new))
    with pytest.raises(Misconfigured) as caught:
        load_pipeline(path)
    assert said in caught.value.render()


def test_a_pipeline_of_topics_loads(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(KAFKA)
    loaded = load_pipeline(path)
    assert (loaded.config.cdc.envelope, loaded.config.cdc.op_map) == ("custom", {"INSERT": "c"})
    assert not loaded.warnings
