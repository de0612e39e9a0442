"""The parts of reading topics that need neither Spark nor a server: shares, types, keys, settings."""

from __future__ import annotations

import json
import random
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError

from tailrace.config.load import load_pipeline
from tailrace.config.model import Secret
from tailrace.config.platform import KafkaConfig, PlatformConfig
from tailrace.control import state
from tailrace.control.checkpoints import Life
from tailrace.core.errors import Halt, Misconfigured, NotReady, ResyncRequired, Retryable, TailraceError, Unreachable
from tailrace.core.offsets import Offsets
from tailrace.core.table import Column, Evolution, Table
from tailrace.envelopes import connect
from tailrace.envelopes.custom import Custom
from tailrace.envelopes.debezium_avro import DebeziumAvro
from tailrace.envelopes.debezium_either import DebeziumEither
from tailrace.envelopes.debezium_json import DebeziumJson
from tailrace.envelopes.maxwell import Maxwell
from tailrace.envelopes.message import Sample, keys_in
from tailrace.log._broker import Broker
from tailrace.log._inferred import nothing_new, widened
from tailrace.log._memory_cluster import MemoryCluster
from tailrace.log._reading import reading
from tailrace.log._settings import for_librdkafka, for_spark
from tailrace.log.kafka import KafkaLog, cut
from tailrace.runtime.build import open_pipeline
from tailrace.runtime.connected import _Undo
from tailrace.runtime.rules import Choice, Rules
from tailrace.runtime.topics import Topics
from tailrace.sources.kafka import Options, Route, refuse_twins, tables_of
from tests.topics_in_memory import Kept


@pytest.mark.parametrize("seed", range(100))
def test_a_cut_takes_a_beginning_of_each_partition_and_goes_on(seed: int) -> None:
    dice = random.Random(seed)
    available = {("t", n): (start := dice.randrange(50), start + dice.randrange(1, 40)) for n in range(5)}
    max_rows = dice.randrange(1, 60)
    chosen = cut(available, max_rows)
    sizes = [end - start for start, end in chosen.values()]
    assert sum(sizes) == min(max_rows, sum(end - start for start, end in available.values()))
    assert all(size > 0 for size in sizes)
    for place, (start, end) in chosen.items():
        assert start == available[place][0]
        assert end <= available[place][1]


def test_a_cut_of_everything_is_everything() -> None:
    available = {("t", 0): (3, 9), ("t", 1): (0, 4)}
    assert cut(available, 10) == available


def field(kind: str, **more: Any) -> dict[str, Any]:
    return {"field": "c", "type": kind, "optional": True, **more}


@pytest.mark.parametrize(
    ("described", "kind", "encoding"),
    [
        (field("int16"), "smallint", ""),
        (field("float"), "float", ""),
        (field("bytes"), "binary", "base64"),
        (field("int32", name="io.debezium.time.Date"), "date", "date-days"),
        (field("int64", name="io.debezium.time.Timestamp"), "timestamp_ntz", "timestamp-millis"),
        (field("int64", name="io.debezium.time.NanoTimestamp"), "timestamp_ntz", "timestamp-nanos"),
        (field("int32", name="io.debezium.time.Year"), "int", ""),
        (field("string", name="io.debezium.data.Json"), "string", ""),
        (field("string", name="io.debezium.data.Enum", parameters={"allowed": "a"}), "string", ""),
        (field("array", items={"type": "int64", "optional": True}), "array<bigint>", ""),
        (
            field("array", items={"type": "int32", "name": "io.debezium.time.Date"}),
            "array<date>",
            "array:date-days",
        ),
        (field("map", keys={"type": "string"}, values={"type": "int32"}), "map<string,int>", ""),
        (field("struct", name="io.debezium.data.VariableScaleDecimal", fields=[]), "string", "decimal-variable"),
        (
            field(
                "bytes",
                name="org.apache.kafka.connect.data.Decimal",
                parameters={"scale": "2", "connect.decimal.precision": "9"},
            ),
            "decimal(9,2)",
            "decimal-bytes:2",
        ),
        (
            field("bytes", name="org.apache.kafka.connect.data.Decimal", parameters={"scale": "2"}),
            "string",
            "decimal-bytes:2",
        ),
        (
            field(
                "string",
                parameters={
                    "__debezium.source.column.type": "NUMERIC",
                    "__debezium.source.column.length": "9",
                    "__debezium.source.column.scale": "2",
                },
            ),
            "decimal(9,2)",
            "decimal-text",
        ),
    ],
)
def test_a_type_of_connect_is_one_of_ours(described: dict[str, Any], kind: str, encoding: str) -> None:
    (column,) = connect.table_of("t", [described], ()).columns
    assert (column.type, column.encoding, column.nullable) == (kind, encoding, True)


def test_a_type_that_no_table_holds_halts_with_its_column() -> None:
    with pytest.raises(Halt, match=r'column "c" of table "t" is a io\.debezium\.data\.geometry\.Point') as halt:
        connect.table_of("t", [field("struct", name="io.debezium.data.geometry.Point", fields=[])], ())
    assert halt.value.code == "unsupported-type"


@pytest.mark.parametrize(
    ("key", "names"),
    [
        (b'{"b":1,"a":2}', ("b", "a")),
        (b'{"schema":{"fields":[]},"payload":{"id":1}}', ("id",)),
        (b'{"schema":null,"payload":{"id":1}}', ("id",)),
        (b'{"schema":1}', ("schema",)),
        (b"7", ()),
        (b"text", ()),
        (b"", ()),
        (None, ()),
    ],
)
def test_a_key_in_json_names_its_columns(key: bytes | None, names: tuple[str, ...]) -> None:
    assert keys_in(key) == names


def test_other_formats_know_their_keys_too() -> None:
    assert Maxwell().keys(Sample("t", b'{"database":"d","table":"t","pk.a":1,"pk.b":2}', None)) == ("a", "b")
    assert Custom("op", "new", "new.state.id").keys(Sample("t", None, None)) == ("id",)
    avro = DebeziumAvro(lambda number: {"fields": [{"name": f"k{number}"}]})
    assert avro.keys(Sample("t", b"\0\0\0\1\2\6", None)) == ("k258",)
    assert avro.keys(Sample("t", b'{"id":1}', None)) == ("id",)


def test_a_table_is_what_its_topic_ends_in() -> None:
    assert tables_of(["cdc.public.orders", "a.b.public.items"]) == ("public.items", "public.orders")


HAVE = Table(
    "t", (Column("a", "bigint"), Column("b", "double"), Column("c", "string"), Column("d", "array<double>")), ("a",)
)


def test_inferred_types_only_widen() -> None:
    now = widened(HAVE, {"b": "bigint", "c": "boolean", "d": "array<bigint>", "e": "boolean"}, "t", ())
    assert [(column.name, column.type) for column in now.columns] == [
        ("a", "bigint"),
        ("b", "double"),
        ("c", "string"),
        ("d", "array<double>"),
        ("e", "boolean"),
    ]
    assert now.keys == ("a",)


@pytest.mark.parametrize("found", [{"a": "double"}, {"a": "string"}, {"b": "boolean"}, {"d": "string"}])
def test_an_inferred_type_never_flips(found: dict[str, str]) -> None:
    assert widened(HAVE, found, "t", ()) == HAVE


KNOWN = {
    "id": "bigint",
    "price": "double",
    "note": "string",
    "on": "boolean",
    "tags": "array<string>",
    "x.y|(": "bigint",
}
KNOWN_ROWS = [
    "{}",
    '{"id":1}',
    '{"note":"a","id":-7}',
    '{"id":null,"price":1.5,"note":null,"on":true,"tags":["a",null],"x.y|(":3}',
    '{"price":2}',
    '{"price":-1.5e-7}',
    '{"note":"a \\" b \\\\","tags":[]}',
    '{"note":"{\\"new\\":1}"}',
    '{"big":null}',
]
NEW_ROWS = [
    '{"id":1,"new":null}',
    '{"new":1}',
    '{"id":1.5}',
    '{"id":"1"}',
    '{"id":9223372036854775808}',
    '{"id":true}',
    '{"on":1}',
    '{"note":5}',
    '{"note":{"a":1}}',
    '{"note":["a"]}',
    '{"tags":[1]}',
    '{"tags":"a"}',
    '{"tags":[["a"]]}',
    '{"xzy|(":3}',
    '{"big":1}',
    '{"ID":1}',
    '{"id":1}{"new":1}',
    "[]",
]


@pytest.mark.parametrize("row", [*KNOWN_ROWS, *NEW_ROWS])
def test_only_a_row_that_tells_nothing_new_is_not_inferred_from(row: str) -> None:
    kinds = {**KNOWN, "big": "decimal(20,0)"}
    known = Table("t", tuple(Column(name, kind) for name, kind in kinds.items()), ("id",))
    assert bool(re.search(nothing_new(known), row)) == (row in KNOWN_ROWS)


def test_a_row_that_was_made_to_be_slow_is_as_quick_as_others() -> None:
    known = Table("t", (Column("a", "string"), Column("b", "array<double>")), ("a",))
    pattern, begun = nothing_new(known), time.monotonic()
    for row in ('{"a":"' + '\\"' * 200_000 + '"', '{"b":[' + "1," * 200_000 + "x]}", '{"a":"",' * 200_000):
        assert not re.search(pattern, row)
    assert time.monotonic() - begun < 5


def test_a_column_that_is_named_may_come_later_where_columns_are_learned() -> None:
    learned = Table("t", (Column("id", "bigint"),), ("id",))
    rules = Rules("scd2", Evolution.SKIP, 1)
    choice = Choice("t", columns=("id", "late"), track_history=("late",))
    with pytest.raises(Halt, match='has no column "late"'):
        choice.of(learned, rules)
    assert choice.of(learned, rules, whole=False) == learned
    with pytest.raises(Halt, match='has no column "key"'):
        Choice("t", ("key",)).of(learned, rules, whole=False)


def test_settings_in_the_words_of_both_clients(tmp_path: Path) -> None:
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).write_text(f"-- {name} --")
    config = KafkaConfig.model_validate(
        {
            "bootstrap_servers": "b:1",
            "security_protocol": "SASL_SSL",
            "auth_mechanism": "sasl_scram_512",
            "sasl_username": 'a"b',
            "sasl_password": Secret("c\\d"),
            "ssl_ca_location": tmp_path / "ca",
            "ssl_certificate_location": tmp_path / "certificate",
            "ssl_key_location": tmp_path / "key",
        }
    )
    native, java = for_librdkafka(config), for_spark(config)
    assert (native["sasl.mechanism"], native["sasl.username"], native["sasl.password"]) == (
        "SCRAM-SHA-512",
        'a"b',
        "c\\d",
    )
    assert java["kafka.sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="a\\"b" password="c\\\\d";'
    )
    assert java["kafka.ssl.truststore.certificates"] == "-- ca --"
    assert java["kafka.ssl.keystore.key"] == "-- key --"
    plain = KafkaConfig()
    assert for_librdkafka(plain) == {"bootstrap.servers": "localhost:9092", "security.protocol": "PLAINTEXT"}


def test_a_token_is_asked_for_in_the_words_of_both_clients() -> None:
    config = KafkaConfig.model_validate(
        {
            "security_protocol": "SASL_SSL",
            "auth_mechanism": "sasl_oauthbearer",
            "sasl_username": "me",
            "sasl_password": 'a"b',
            "sasl_oauth_token_endpoint_url": "https://login.example.com/token",
            "sasl_oauth_scope": "read",
        }
    )
    ours, java = for_librdkafka(config), for_spark(config)
    assert ours["sasl.oauthbearer.method"] == "oidc"
    assert (ours["sasl.oauthbearer.client.id"], ours["sasl.oauthbearer.client.secret"]) == ("me", 'a"b')
    assert ours["sasl.oauthbearer.scope"] == "read"
    assert java["kafka.sasl.jaas.config"].endswith(
        'OAuthBearerLoginModule required clientId="me" clientSecret="a\\"b" scope="read";'
    )
    endpoints = ours["sasl.oauthbearer.token.endpoint.url"], java["kafka.sasl.oauthbearer.token.endpoint.url"]
    assert endpoints == ("https://login.example.com/token",) * 2


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (None, "needs an address to ask for tokens"),
        ("http://login.example.com/token", "no address of HTTPS"),
        ("login.example.com", "no address of HTTPS"),
        ("https://me:secret@login.example.com/token", "names a user"),
    ],
)
def test_a_secret_goes_nowhere_in_clear(address: str | None, said: str) -> None:
    login = {"auth_mechanism": "sasl_oauthbearer", "sasl_username": "me", "sasl_password": "canary"}
    for settings in (for_librdkafka, for_spark):
        with pytest.raises(Misconfigured, match=said) as refused:
            settings(KafkaConfig.model_validate({**login, "sasl_oauth_token_endpoint_url": address}))
        assert "canary" not in refused.value.render()


def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="needs a user and a password"):
        for_spark(KafkaConfig.model_validate({"auth_mechanism": "sasl_plain"}))
    with pytest.raises(NotReady, match="cannot be read"):
        for_spark(KafkaConfig.model_validate({"ssl_ca_location": tmp_path / "nowhere"}))


def test_two_databases_do_not_share_a_table() -> None:
    refuse_twins(["shop.public.orders", "shop.public.parts", "everything", "all"], {})
    with pytest.raises(Misconfigured) as refused:
        refuse_twins(["one.public.orders", "two.public.orders"], {})
    assert refused.value.code == "name-collision"


def test_a_partition_that_is_added_halts_where_only_offsets_order_changes() -> None:
    def log(ts_field: str) -> KafkaLog:
        cluster = MemoryCluster()
        cluster.create("items", 1)
        cluster.put("items", 0, b"1", b"{}")
        made = KafkaLog(
            "log", 1, cluster, ["items"], ["items"], Custom("op", "row", "row.id", "", ts_field), Kept(), None
        )
        made.require(Offsets({"items:0": 0}))
        cluster.grow("items", 2)
        return made

    log("at").require(Offsets({"items:0": 0}))
    with pytest.raises(ResyncRequired, match="ordered by offset alone"):
        log("").require(Offsets({"items:0": 0}))


def test_topics_are_routed_to_tables_by_what_their_names_capture() -> None:
    rules = (Route(topic=r"(\w+)\.shop\.(?P<table>\w+)", table=r"\1.\g<table>"), Route(topic="all.*", table="x.y"))
    options = Options(topic_pattern=".*", routes=rules)
    topics = ["eu.shop.orders", "us.shop.orders", "all.of.it", "other"]
    routed = options.routed(topics)
    assert routed == {"eu.shop.orders": "eu.orders", "us.shop.orders": "us.orders", "all.of.it": "x.y"}
    refuse_twins(topics, routed)
    with pytest.raises(Misconfigured, match="both of table"):
        refuse_twins([*topics, "all.the.rest"], options.routed([*topics, "all.the.rest"]))


@pytest.mark.parametrize(("topic", "table"), [("(", "a.b"), ("a(b)", r"\2"), ("a", r"\g<name>")])
def test_a_route_with_groups_that_are_not_there_is_refused(topic: str, table: str) -> None:
    with pytest.raises(ValueError, match="groups that its table names"):
        Route(topic=topic, table=table)


def _written(**types: str) -> Sample:
    """Return a message with a schema block of these fields, all of them of one row."""
    fields = [{"field": name, "type": kind, "optional": True} for name, kind in types.items()]
    row = {"type": "struct", "fields": fields, "optional": True}
    schema = {"type": "struct", "fields": [{**row, "field": "before"}, {**row, "field": "after"}]}
    key = {"schema": {"type": "struct", "fields": [{"field": "id", "type": "int32"}]}, "payload": {"id": 1}}
    value = {"schema": schema, "payload": {"before": None, "after": dict.fromkeys(types), "op": "c"}}
    return Sample("cdc.public.orders", json.dumps(key).encode(), json.dumps(value).encode())


@pytest.mark.parametrize(
    ("types", "why"),
    [
        ({"id": "int32", "size": "int64", "new": "string"}, None),
        ({"id": "int32"}, 'column "size" is gone'),
        ({"id": "int32", "size": "string"}, 'column "size" was int and is string'),
        ({"id": "int32", "size": "int16"}, 'column "size" was int and is smallint'),
    ],
)
def test_a_schema_that_readers_cannot_follow_halts_again_after_a_restart(
    types: dict[str, str], why: str | None
) -> None:
    memory = Kept()

    def learn(schema: str, sample: Sample) -> None:
        log = KafkaLog("log", 1, MemoryCluster(), [], [], DebeziumJson(), memory, _no_spark, strict=True)
        log._remember()
        log._learn(_NO_ROWS, "public.orders", schema, lambda: sample)

    learn("z", _written(id="int32", size="int32"))
    for _ in range(2):
        if why is None:
            learn("a", _written(**types))
        else:
            with pytest.raises(Halt, match=re.escape(why)) as found:
                learn("a", _written(**types))
            assert found.value.code == "schema-incompatible"
    with pytest.raises(Halt, match="bring no schema"):
        learn("", _written(id="int32"))


def test_a_connector_is_for_databases_only(tmp_path: Path) -> None:
    source = "{source_type: convex, deployment_url: 'http://127.0.0.1:9', deploy_key: '${K}'}"
    sink = "{sink_id: lake, sink_type: delta, delta: {path: ./lake}}"
    (tmp_path / "pipeline.yaml").write_text(f"pipeline_id: p\nsource: {source}\nsinks: [{sink}]\n")
    platform = PlatformConfig.model_validate({"transport_mode": "kafka", "control": {"root": tmp_path / "state"}})
    with pytest.raises(Misconfigured, match='does not capture source_type "convex"') as refused:
        open_pipeline(load_pipeline(tmp_path / "pipeline.yaml", {"K": "key"}).config, platform)
    assert refused.value.code == "not-available"


@pytest.mark.parametrize(("kafka", "group"), [({}, "cdc-platform-p"), ({"group_id": "mine"}, "mine")])
def test_a_group_that_is_named_has_that_very_name(kafka: dict[str, str], group: str, tmp_path: Path) -> None:
    source = "{source_type: kafka, topics: [a.b.c], bootstrap_servers: '127.0.0.1:1'}"
    sink = "{sink_id: lake, sink_type: delta, delta: {path: ./lake}}"
    (tmp_path / "pipeline.yaml").write_text(f"pipeline_id: p\nsource: {source}\nsinks: [{sink}]\n")
    platform = PlatformConfig.model_validate({"kafka": kafka})
    topics = Topics(load_pipeline(tmp_path / "pipeline.yaml").config, platform, tmp_path, _no_spark)
    assert topics.group == group


@pytest.mark.parametrize(
    ("learned", "registry", "written"),
    [({}, "", None), ({"a.b.c x": "{}"}, "", "json"), ({"a.b.c x": "{}"}, "http://127.0.0.1:9", "avro")],
)
def test_the_next_message_of_a_log_that_was_read_before_does_not_decide_how_it_is_written(
    learned: dict[str, str], registry: str, written: str | None, tmp_path: Path
) -> None:
    own = f", schema_registry_url: '{registry}'" if registry else ""
    source = f"{{source_type: kafka, topics: [a.b.c], bootstrap_servers: '127.0.0.1:1'{own}}}"
    sink = "{sink_id: lake, sink_type: delta, delta: {path: ./lake}}"
    (tmp_path / "pipeline.yaml").write_text(f"pipeline_id: p\nsource: {source}\nsinks: [{sink}]\n")
    config = load_pipeline(tmp_path / "pipeline.yaml").config
    (tmp_path / "topics").mkdir()
    state.save(tmp_path / "topics" / "log.json", {"cluster": "c", "topics": {"a.b.c": "id"}, "schemas": learned})
    topics = Topics(config, PlatformConfig(), tmp_path, _no_spark)
    # Which topics there are would be asked of a broker.
    topics.__dict__["names"] = ("a.b.c",)
    envelope = topics.log(Life(1, "log")).envelope
    assert isinstance(envelope, DebeziumEither)
    assert envelope.written == written


def test_a_group_is_shown_for_topics_of_the_log_only() -> None:
    cluster = MemoryCluster()
    log = KafkaLog("log", 1, cluster, ["a"], [], DebeziumJson(), Kept(), _no_spark)
    log.commit("mine", Offsets({"a:0": 4, "b:0": 7}))
    assert cluster.committed == {"mine": {("a", 0): 5}}


def test_a_broker_that_does_not_answer_holds_a_drain_for_seconds_only() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        broker = Broker({"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"}, {})
        asked = time.monotonic()
        with pytest.raises(Unreachable, match='group "mine"'):
            broker.commit("mine", {("a", 0): 5})
    assert time.monotonic() - asked < 20


def test_a_log_that_was_told_of_a_schema_gives_no_more_slices() -> None:
    log = KafkaLog("log", 1, MemoryCluster(), [], [], DebeziumJson(), Kept(), _no_spark, strict=True)
    assert log.slice(-1, 10) is None
    log.refuse('subject "t-value", version 2,', 'column "size" is gone')
    for _ in range(2):
        with pytest.raises(Halt, match=r'subject "t-value", version 2, changed .* column "size" is gone') as found:
            log.slice(-1, 10)
        assert found.value.code == "schema-incompatible"


def _no_spark() -> Any:
    raise AssertionError("no Spark is needed")


_NO_ROWS: Any = None


@pytest.mark.parametrize("after", ["string", ["null", "string"], {"type": "map", "values": "string"}])
def test_an_avro_schema_that_describes_no_row_is_none(after: object) -> None:
    fields = [{"name": "after", "type": after}, {"name": "op", "type": "string"}]
    writer = {"type": "record", "name": "Envelope", "fields": fields}
    sample = Sample("t", None, b"\x00\x00\x00\x00\x07rest")
    assert DebeziumAvro(lambda _: writer).schema("public.t", sample) is None


class Undoing:
    """Steps of a deployment, some of which cannot be taken back."""

    def __init__(self, *stuck: str) -> None:
        self.done: list[str] = []
        self._stuck = stuck

    def __call__(self, name: str) -> Callable[[], None]:
        def step() -> None:
            self.done.append(name)
            if name in self._stuck:
                raise NotReady("connect-unreachable", "away")

        return step


@pytest.mark.parametrize(
    ("stuck", "done"),
    [
        ((), ["connector", "topics", "note"]),
        (("connector",), ["connector", "topics"]),
        (("topics",), ["connector", "topics"]),
    ],
)
def test_the_note_of_a_deployment_goes_last_and_only_if_everything_else_went(
    stuck: tuple[str, ...], done: list[str]
) -> None:
    steps = Undoing(*stuck)
    undo = _Undo()
    undo.at_last(steps("note"))
    undo.by(steps("topics"))
    undo.by(steps("connector"))
    with pytest.raises(Halt, match="it failed"), undo:
        raise Halt("x", "it failed")
    assert steps.done == done


def test_a_deployment_that_went_well_takes_nothing_back() -> None:
    steps = Undoing()
    with _Undo() as undo:
        undo.at_last(steps("note"))
        undo.by(steps("topics"))
    assert steps.done == []


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("org.apache.kafka.common.errors.TimeoutException: Timeout of 60000ms expired", Unreachable),
        ("OffsetOutOfRange", ResyncRequired),
        ("Cannot grow BufferHolder\n at org.apache.spark.sql.kafka010.KafkaSourceRDD.compute", Retryable),
        ("org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized", Retryable),
    ],
)
def test_only_brokers_that_are_away_are_waited_for_without_end(said: str, kind: type[TailraceError]) -> None:
    with pytest.raises(TailraceError) as found, reading():
        raise Py4JError(said)
    assert type(found.value) is kind
