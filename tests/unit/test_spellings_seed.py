"""The examples and options that the layout with `target` was described with, as they were written there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.config.load import Loaded, load_pipeline
from tailrace.config.pipeline import PipelineConfig
from tailrace.config.platform import KafkaConfig
from tailrace.core.errors import Misconfigured
from tailrace.sources.kafka import Options

EXAMPLE = """\
pipeline_name = "mirror_customers"
source_query = "dbserver1.public.customers"

[source]
kind = "kafka"
bootstrap_servers = "${KAFKA_BOOTSTRAP}"
schema_registry_url = "${SR_URL}"

[target]
kind = "postgres"
url = "${WAREHOUSE_DSN}"

[target.table]
schema = "mirror"
name = "customer_mirror"

[transform.cdc]
envelope = "debezium"
"""
CUSTOM = """\
envelope = "custom"
op_field = "action"
before_field = "old_state"
after_field = "new_state"
key_field = "new_state.id"
ts_field = "changed_at_ms"
op_map = { INSERT = "c", UPDATE = "u", DELETE = "d" }
delete_mode = "soft"
soft_delete_column = "deleted_at"
"""
ENVIRONMENT = {
    "KAFKA_BOOTSTRAP": "broker:9092",
    "SR_URL": "http://registry:8081",
    "WAREHOUSE_DSN": "postgres://me:canary-7@db.example/dw",
}


def load(tmp_path: Path, text: str, **environ: str) -> Loaded[PipelineConfig]:
    file = tmp_path / "pipeline.toml"
    file.write_text(text)
    return load_pipeline(file, {**ENVIRONMENT, **environ})


def refused(tmp_path: Path, text: str, **environ: str) -> str:
    with pytest.raises(Misconfigured) as caught:
        load(tmp_path, text, **environ)
    return caught.value.render().replace(f"{tmp_path}/", "")


def test_the_toml_example_is_a_mirror_of_one_table(tmp_path: Path) -> None:
    loaded = load(tmp_path, EXAMPLE)
    [sink] = loaded.config.sinks
    assert loaded.warnings == ()
    assert (loaded.config.pipeline_id, sink.sink_id, sink.sink_type) == ("mirror_customers", "postgres", "postgres")
    assert {table: settings.name for table, settings in sink.tables.items()} == {"public.customers": "customer_mirror"}
    assert sink.options.model_dump(by_alias=True, include={"host", "database", "username", "within"}) == {
        "host": "db.example",
        "database": "dw",
        "username": "me",
        "schema": "mirror",
    }
    assert loaded.config.source.options.model_dump(exclude_unset=True) == {
        "topics": ("dbserver1.public.customers",),
        "bootstrap_servers": "broker:9092",
        "schema_registry_url": "http://registry:8081",
    }


def test_the_overrides_of_the_toml_example_describe_a_custom_message(tmp_path: Path) -> None:
    config = load(tmp_path, EXAMPLE.replace('envelope = "debezium"\n', CUSTOM)).config
    assert config.cdc.op_map == {"INSERT": "c", "UPDATE": "u", "DELETE": "d"}
    assert (config.cdc.key_field, config.cdc.ts_field) == ("new_state.id", "changed_at_ms")
    assert config.sinks[0].flag == "deleted_at"
    assert list(config.sinks[0].tables) == ["dbserver1.public.customers"]


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ('schema_evolution = "skip"', "skip"),
        ('schema_evolution = "warn"', "skip"),
        ('schema_evolution = "fail"', "fail"),
        ('schema_evolution = "alter_table"', "alter"),
    ],
)
def test_a_policy_for_new_columns_has_a_word_of_ours(tmp_path: Path, written: str, kept: str) -> None:
    assert load(tmp_path, f"{EXAMPLE}{written}\n").config.sinks[0].schema_evolution == kept


def test_a_tolerance_for_late_events_is_told_to_have_no_effect(tmp_path: Path) -> None:
    [caution] = load(tmp_path, f"{EXAMPLE}out_of_order_tolerance_ms = 5000\n").warnings
    assert caution.message.endswith("pipeline.toml:19:29: cdc.out_of_order_tolerance_ms has no effect")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('on_conflict = "fail"', "pipeline.toml:19:1: transform.cdc.on_conflict is not in this release"),
        ('[transform.window]\nkind = "session"', "pipeline.toml:19:12: transform.window is not in this release"),
        ('[transform.join]\nkind = "inner"', "pipeline.toml:19:12: transform.join is not in this release"),
        ('[state_store]\nkind = "postgres"', "pipeline.toml:19:2: state_store is not in this release"),
    ],
)
def test_what_is_named_there_and_is_not_here_yet_is_refused(tmp_path: Path, more: str, said: str) -> None:
    shown = refused(tmp_path, f"{EXAMPLE}{more}\n")
    assert shown.startswith(f"error[not-available]: {said}\n  hint: ")
    assert shown.count("error[") == 1


def test_messages_that_are_not_opened_are_refused(tmp_path: Path) -> None:
    shown = refused(tmp_path, EXAMPLE.split("[transform.cdc]", maxsplit=1)[0])
    assert shown.startswith("error[not-available]: pipeline.toml: a pipeline without transform.cdc")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("pipeline_name", "pipelin_name", '1:1: unknown key "pipelin_name"\n  hint: Did you mean "pipeline_name"?'),
        ('pipeline_name = "mirror_customers"\n', "", 'pipeline.toml: key "pipeline_name" is missing'),
        ("bootstrap_servers", "bootstrap_server", '6:1: unknown key "bootstrap_server"\n  hint: Did you mean "bootst'),
        ('name = "cust', 'nam = "cust', '15:1: unknown key "nam"\n  hint: Did you mean "name"?'),
        ("envelope", "envelop", '18:1: unknown key "envelop"\n  hint: Did you mean "envelope"?'),
        ('"debezium"', '"debezum"', "18:12: \"envelope\" should be 'debezium', 'maxwell' or 'custom', not \"debezum\""),
        ("[transform.cdc]", "[transform.cd]", '17:12: unknown key "cd"\n  hint: Did you mean "cdc"?'),
        ('\nurl = "$', '\nur = "$', '11:1: unknown key "ur"\n  hint: Did you mean "url"?'),
        ("[target.table]", "[target.tabel]", '13:9: unknown key "tabel"\n  hint: Did you mean "table"?'),
        ('kind = "postgres"\n', "", 'pipeline.toml:9:2: key "kind" is missing'),
        ('"kafka"', '"kafak"', '5:8: source_type "kafak" is unknown'),
        ("[target]\n", "[target]\nport = 1\n", "10:8: url and port say the same"),
        ("[source]\n", '[source]\ntopics = ["a"]\n', "2:16: source_query and topics of the source say the same"),
        ("dbserver1.public.customers", "maxwell", '2:16: topic "maxwell" does not say which table it holds'),
        ("source_query =", 'source_table = "a.b"\nsource_query =', ""),
        ("[target]", "[[target]]", '"target" should be a section'),
        ("[target.table]", "[[target.table]]", '"table" should be a section'),
        ("[transform.cdc]", "[[transform.cdc]]", '"cdc" should be a section'),
        ('source_query = "dbserver1', 'sinks = []\nsource_query = "dbserver1', 'unknown key "target"'),
        ('source_query = "dbserver1', 'kafka = {}\nsource_query = "dbserver1', '2:1: key "kafka" is the platform\'s'),
        ("[target]\n", "[[targets]]\nkind='sqlite'\npath='f'\n[target]\n", "9:3: target and targets say the same"),
        (
            '"${WAREHOUSE_DSN}"',
            '"postgres://db/dw?sslmode=require"',
            "settings after the question mark of a url are not in",
        ),
        ('"${WAREHOUSE_DSN}"', '"host=db dbname=dw"', '11:7: "url" is not the address of a database'),
        ('"${WAREHOUSE_DSN}"', '"postgres://me@db:99999/dw"', '11:7: "port" should be less than or equal to 65535'),
        ('"${WAREHOUSE_DSN}"', '"postgres://db/dw"', 'key "username" is missing'),
    ],
)
def test_what_is_wrong_is_told_where_it_was_written(tmp_path: Path, old: str, new: str, said: str) -> None:
    if not said:
        assert load(tmp_path, EXAMPLE.replace(old, new)).config.sinks[0].tables.keys() == {"a.b"}
    else:
        assert said in refused(tmp_path, EXAMPLE.replace(old, new, 1))


def test_an_address_that_is_not_set_is_the_only_thing_told(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(EXAMPLE)
    with pytest.raises(Misconfigured) as caught:
        load_pipeline(file, {"KAFKA_BOOTSTRAP": "b", "SR_URL": "r"})
    assert caught.value.code == "unset-variable"
    assert caught.value.render().count("error[") == 1


def test_a_password_in_an_address_is_a_secret_that_is_never_shown(tmp_path: Path) -> None:
    literal = EXAMPLE.replace("${WAREHOUSE_DSN}", "postgres://me:canary-7@db.example:x${PORT:-0}/dw")
    assert "canary-7" not in refused(tmp_path, EXAMPLE, WAREHOUSE_DSN="postgres://me:canary-7@db:99999/dw")
    assert "canary-7" not in refused(tmp_path, literal)
    plain = EXAMPLE.replace("${WAREHOUSE_DSN}", "postgres://me:canary-7@db.example/dw")
    [caution] = load(tmp_path, plain).warnings
    assert caution.code == "literal-secret"
    assert "pipeline.toml:11:7" in caution.message
    assert "canary-7" not in repr(load(tmp_path, plain))


def test_a_variable_in_an_address_needs_no_escaping_and_is_not_taken_for_a_literal(tmp_path: Path) -> None:
    parts = EXAMPLE.replace("${WAREHOUSE_DSN}", "postgres://${WHO:-me}:${PASS}@${HOST}:${PORT:-6432}/dw")
    loaded = load(tmp_path, parts, PASS="a@b/c:d?e#f%41", HOST="db")
    options = loaded.config.sinks[0].options.model_dump()
    assert options["password"].get_secret_value() == "a@b/c:d?e#f%41"
    assert (options["username"], options["host"], options["port"]) == ("me", "db", 6432)
    assert loaded.warnings == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [('envelope = "debezium"\n', CUSTOM), ('"kafka"\nbootstrap_servers', '"postgres"\ndatabase')],
    ids=["custom messages", "a database"],
)
def test_a_source_that_knows_its_table_is_not_told_it(tmp_path: Path, old: str, new: str) -> None:
    text = EXAMPLE.replace(old, new).replace("source_query", 'source_table = "public.orders"\nsource_query')
    assert "pipeline.toml:2:1: source_table has no meaning here" in refused(tmp_path, text)


def test_the_brokers_of_a_source_go_before_those_of_the_platform(tmp_path: Path) -> None:
    platform = KafkaConfig(bootstrap_servers="platform:9092", schema_registry_url="http://platform", sasl_username="me")
    options = load(tmp_path, EXAMPLE).config.source.options
    assert isinstance(options, Options)
    own = options.over(platform)
    assert (own.bootstrap_servers, own.schema_registry_url) == ("broker:9092", "http://registry:8081")
    assert (own.sasl_username, Options(topics=("t",)).over(platform)) == ("me", platform)


def test_the_layout_is_not_bound_to_a_format(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "pipeline_name: mirror_customers\nsource_query: dbserver1.public.customers\n"
        "source: {kind: kafka, bootstrap_servers: '${KAFKA_BOOTSTRAP}', schema_registry_url: '${SR_URL}'}\n"
        "target: {kind: postgres, url: '${WAREHOUSE_DSN}', table: {schema: mirror, name: customer_mirror}}\n"
        "transform: {cdc: {envelope: debezium}}\n"
    )
    assert load_pipeline(file, ENVIRONMENT).config == load(tmp_path, EXAMPLE).config


@pytest.mark.parametrize("written", ["avro", "json"])
def test_a_format_that_is_written_down_is_the_same_in_every_layout(tmp_path: Path, written: str) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        f"pipeline_id: p\nsource: {{source_type: kafka, topics: [a.b.c], value_format: {written}}}\n"
        "sinks: [{sink_id: s, sink_type: sqlite, sqlite: {path: x.db}}]\n"
    )
    toml = EXAMPLE.replace('kind = "kafka"', f'kind = "kafka"\nvalue_format = "{written}"')
    for config in (load_pipeline(file, {}).config, load(tmp_path, toml).config):
        assert config.source.options.model_dump()["value_format"] == written


def test_a_registry_does_not_say_how_messages_are_written(tmp_path: Path) -> None:
    assert load(tmp_path, EXAMPLE).config.source.options.model_dump()["value_format"] is None
