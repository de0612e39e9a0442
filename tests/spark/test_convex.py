"""Convex to Delta: documents open into exact columns, and a target follows a deployment wherever it goes."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession

from tailrace.config.load import load_pipeline, load_platform
from tailrace.core import convex
from tailrace.core.change import Op
from tailrace.core.checkpoint import Tailing
from tailrace.core.convex import Kind
from tailrace.core.page import Page
from tailrace.core.table import Column, Table
from tailrace.envelopes import convex as envelope
from tailrace.log import shape
from tailrace.log.landed import LandedLog
from tailrace.runtime import build
from tailrace.runtime.build import Pipeline, open_pipeline
from tailrace.runtime.pumped import Pumped
from tailrace.runtime.report import Silent
from tailrace.runtime.run import RunReport
from tailrace.sources._convex_rows import Shapes, landed, rows_of
from tailrace.sources._convex_selection import Selection
from tailrace.testing.convex import Deployment, Emulator, Workload
from tailrace.testing.convex.values import encode
from tests.unit.test_convex_values import some_value

TEN_MIB = 10 << 20


# -- the envelope


def logged(folder: Path, documents: list[dict[str, Any]]) -> tuple[LandedLog, Table]:
    """Land `documents` of one table, as the source would."""
    values: list[object] = []
    for n, document in enumerate(documents):
        wire = json.loads(json.dumps(encode({**document, "_id": f"id{n:04d}"}, "encoded")))
        values.append({**wire, "_component": "in/ner", "_table": "t", "_ts": n + 1, "_deleted": False})
    shapes = Shapes()
    arrow, schemas = landed(rows_of(values, Selection(), shapes, delta=True), shapes, snapshot=False)
    log = LandedLog(folder, "log", 1, shape.convex("cdc"))
    log.recover(None)
    log.append(Page(arrow, None, Tailing("o", "1"), schemas))
    return log, next(iter(schemas.values()))


def opened(spark: SparkSession, log: LandedLog, table: Table, max_bytes: int = TEN_MIB) -> list[Row]:
    cut = log.slice(-1, 1 << 30)
    assert cut is not None
    return envelope.open_rows(cut.read(spark), table, 1, max_bytes).orderBy("_cdc_offset").collect()


def expected(column: Column, document: dict[str, Any]) -> object:
    field, kind = convex.made_of(column)
    value = document.get(field)
    return convex.shown(value) if kind == Kind.TEXT else value


def same(one: object, other: object, kind: str = "") -> bool:
    """Say whether two values are the same; in text, JSON may write one number in two ways."""
    if kind == Kind.TEXT and isinstance(one, str) and isinstance(other, str) and one != other:
        try:
            return repr(json.loads(one)) == repr(json.loads(other))
        except ValueError:
            return False
    if isinstance(one, float) and isinstance(other, float):
        nan = math.isnan(one) and math.isnan(other)
        return nan or (one == other and math.copysign(1, one) == math.copysign(1, other))
    if isinstance(one, bytearray):
        one = bytes(one)
    return type(one) is type(other) and one == other


def test_every_value_opens_exactly(spark: SparkSession, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    exact = {
        "n": lambda: chance.choice([0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63), chance.randrange(-(2**63), 2**63)]),
        "f": lambda: chance.choice([0.0, -0.0, 1e22, 1e-7, 5e-324, math.nan, math.inf, -math.inf, chance.random()]),
        "s": lambda: chance.choice(["", "x", '{"$integer":"AQAAAAAAAAA="}', '"\\☃', "null"]),
        "b": lambda: chance.randbytes(chance.randrange(9)),
        "t": lambda: chance.random() < 0.5,
        "a.b c": lambda: [some_value(chance)],
        "back`tick": lambda: {"k": some_value(chance)},
        "mixed": lambda: some_value(chance),
        "N": chance.random,
        "Mixed": lambda: some_value(chance),
        "MIXED": lambda: chance.random() < 0.5,
    }
    documents = []
    for _ in range(600):
        document = {name: make() for name, make in exact.items() if chance.random() < 0.8}
        documents.append({name: None if chance.random() < 0.05 else value for name, value in document.items()})
    log, table = logged(tmp_path, documents)
    table = envelope.together([table], None)
    assert convex.fields_in(table) == {
        "_id": "string", "n": "int64", "f": "float64", "s": "string", "b": "bytes", "t": "boolean",
        "a.b c": "text", "back`tick": "text", "mixed": "text", "N": "float64", "Mixed": "text", "MIXED": "boolean",
    }  # fmt: skip
    rows = opened(spark, log, table)
    assert len(rows) == 600
    for row, document in zip(rows, documents, strict=True):
        assert row["_cdc_problem"] is None, f"seed {seed}"
        for column in table.columns:
            if column.name != "_id":
                want = expected(column, document)
                assert same(row[column.name], want, convex.made_of(column)[1]), (
                    f"seed {seed} {column.name}: {row[column.name]!r} {want!r}"
                )


def test_our_columns(spark: SparkSession, tmp_path: Path) -> None:
    log, table = logged(tmp_path, [{"_creationTime": 1686799242010.5}, {"_creationTime": 0.0}])
    first, second = opened(spark, log, table)
    assert (first["_cdc_op"], first["_cdc_position"]) == ("u", "0001.2.0000000000000001")
    assert (first["_cdc_topic"], first["_cdc_partition"], second["_cdc_offset"]) == ("cdc.in/ner.t", 0, 1)
    assert first["_creationTime"].timestamp() == convex.created_at(1686799242010.5).timestamp()
    assert first["_cdc_old_key"] is None


def test_offsets_are_those_of_the_log_over_several_files(spark: SparkSession, tmp_path: Path) -> None:
    log, table = logged(tmp_path, [{"n": n} for n in range(5)])
    page = log.slice(-1, 99)
    assert page is not None
    more = page.read(spark).select("document_id").count()
    assert more == 5
    rows = [{"component_path": "", "table_name": name, "document_id": f"x{n}", "timestamp": 100 + n, "op": "u",
             "schema_fingerprint": table.fingerprint(), "document": "{}"} for n, name in enumerate("zazaz")]  # fmt: skip
    arrow = pa.Table.from_pylist(rows, schema=shape.convex("cdc").arrow)
    log.append(Page(arrow, Tailing("o", "1"), Tailing("o", "2"), {}))
    cut = log.slice(-1, 99)
    assert cut is not None
    found = {row["document_id"]: row["offset"] for row in cut.read(spark).select("document_id", "offset").collect()}
    assert sorted(found.values()) == list(range(10))
    assert [found[f"x{n}"] for n in (1, 3, 0, 2, 4)] == [5, 6, 7, 8, 9]


def test_what_cannot_be_read_has_a_reason(spark: SparkSession, tmp_path: Path) -> None:
    log, table = logged(tmp_path, [{"n": 1}])
    bad = [
        "{",
        None,
        '{"_id":"a","n":{"$integer":"AQ=="}}',
        '{"_id":"a","n":"text"}',
        '{"_id":"a"}',
        '{"_id":"a","n":null}',
    ]
    ops = ["u"] * 4 + ["x", "u"]
    rows = [{"component_path": "in/ner", "table_name": "t", "document_id": "a", "timestamp": 9, "op": op,
             "schema_fingerprint": table.fingerprint(), "document": text} for op, text in zip(ops, bad, strict=True)]  # fmt: skip
    arrow = pa.Table.from_pylist(rows, schema=shape.convex("cdc").arrow)
    log.append(Page(arrow, Tailing("o", "1"), Tailing("o", "2"), {}))
    reasons = [(row["_cdc_problem"] or "").partition(":")[0] for row in opened(spark, log, table)][1:]
    assert reasons[0] == "malformed"
    assert reasons[1] == "no-value"
    assert reasons[2] in ("bad-value", "malformed")
    assert reasons[3] == "malformed"
    assert reasons[4:] == ["unknown-op", ""]
    assert opened(spark, log, table, max_bytes=3)[0]["_cdc_problem"].startswith("too-large")


def test_one_shape_of_all_schemas_and_of_what_the_target_has() -> None:
    old = convex.table("t", {"a": Kind.INT64, "b": Kind.STRING})
    new = convex.table("t", {"a": Kind.STRING, "c": Kind.BYTES})
    have = Table("t", (Column("_id", "string"), Column("gone", "bigint"), Column("c", "string")), ("_id",))
    found = envelope.together([old, new], have)
    assert {column.name: (column.type, column.encoding) for column in found.columns} == {
        "_id": ("string", "string"),
        "a": ("string", "text"),
        "b": ("string", "string"),
        "c": ("string", "text"),
        "gone": ("bigint", "absent"),
    }
    assert envelope.together([], have).names() == ("_id", "gone", "c")


def test_columns_that_keep_their_types_stand_side_by_side() -> None:
    old = convex.table("t", {"a": Kind.INT64, "b": Kind.STRING, "c": Kind.INT64})
    assert envelope.side_by_side([old], None) == old
    have = Table("t", tuple(Column(n, t) for n, t in (("a", "bigint"), ("b", "string"), ("gone", "double"))), ())
    new = convex.table("t", {"a": Kind.FLOAT64, "b": Kind.BYTES})
    found = envelope.side_by_side([old, new], have)
    assert {column.name: (column.type, column.encoding) for column in found.columns} == {
        "_id": ("string", "string"),
        "a": ("bigint", "only:int64"),
        "_text_a": ("string", "text-of:a"),
        "b": ("string", "text"),
        "c": ("bigint", "int64"),
        "gone": ("double", "absent"),
    }
    # Once there are two columns, there are two, also for documents that the first would do for.
    later = Table("t", (*have.columns, Column("_text_a", "string")), ())
    assert {"a", "_text_a"} <= set(envelope.side_by_side([old], later).names())


def test_fields_that_differ_in_case_have_columns_of_their_own_also_beside_those_that_are_there() -> None:
    small, large = convex.table("t", {"name": Kind.INT64}), convex.table("t", {"Name": Kind.INT64})
    (other,) = (column.name for column in envelope.together([small, large], None).columns[1:] if column.name != "name")
    have = Table("t", (Column("_id", "string"), Column("Name", "bigint")), ("_id",))
    found = envelope.side_by_side([small, large, convex.table("t", {"name": Kind.BYTES, "Name": Kind.BYTES})], have)
    encodings = {column.name: column.encoding for column in found.columns}
    (beside,) = (name for name in encodings if name.startswith("_name_"))
    assert other.startswith("_Name_")
    assert encodings == {
        "_id": "string",
        "Name": "only:int64",
        "_text_Name": "text-of:Name",
        beside: "text of name",
    }
    later = Table("t", (*have.columns, Column(beside, "bigint")), ("_id",))
    encodings = {
        c.name: c.encoding for c in envelope.side_by_side([convex.table("t", {"name": Kind.BYTES})], later).columns
    }
    assert (encodings[beside], encodings[f"_text_{beside}"]) == ("only:int64 of name", "text-of:name")


# -- a pipeline


@pytest.fixture
def server() -> Iterator[Emulator]:
    with Emulator(Deployment(seed=random.randrange(1 << 16))) as emulator:
        yield emulator


class Kept:
    """A pipeline from an emulator to Delta, in a folder."""

    def __init__(
        self,
        spark: SparkSession,
        server: Emulator,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        sink: str = "",
        source: str = "",
    ) -> None:
        self._spark = spark
        self._server = server
        self._folder = folder
        monkeypatch.setenv("CONVEX_KEY", server.behaviour.key)
        (folder / "pipeline.yaml").write_text(
            f"pipeline_id: shop\nsource: {{source_type: convex, deployment_url: '{server.url}', deploy_key: '${{CONVEX_KEY}}'{source}}}\n"
            f"sinks:\n  - sink_id: lake\n    sink_type: delta\n    schema_evolution: alter\n    delta: {{path: '{folder}/lake'}}\n{sink}"
        )
        (folder / "platform.yaml").write_text(f"control: {{root: '{folder}/control'}}\nlog: {{root: '{folder}/log'}}\n")

    def open(self) -> Pipeline:
        pipeline = open_pipeline(
            load_pipeline(self._folder / "pipeline.yaml").config, load_platform(self._folder / "platform.yaml").config
        )
        pipeline.__dict__["_session"] = self._spark
        return pipeline

    def run(self) -> RunReport:
        with self.open() as pipeline:
            report = pipeline.run(once=True, report=Silent())
        if error := report.first_error():
            raise error
        for target in report.targets:
            for counts in target.tables.values():
                assert counts.read == counts.applied + counts.superseded + counts.filtered + counts.rejected
                assert counts.rejected == 0
        return report

    def rows(self, name: str) -> dict[str, dict[str, Any]]:
        frame = self._spark.read.format("delta").load(f"{self._folder}/lake/{name}")
        return {
            row["_id"]: {k: v for k, v in row.asDict().items() if v is not None and k[0] != "_"}
            for row in frame.collect()
        }


@pytest.fixture
def kept(spark: SparkSession, server: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    return Kept(spark, server, tmp_path, monkeypatch)


def there(server: Emulator, table: str, component: str = "") -> dict[str, dict[str, Any]]:
    return {
        key: {name: value for name, value in document.items() if value is not None and name[0] != "_"}
        for key, document in server.deployment.documents(table, component).items()
    }


def test_a_target_follows_inserts_updates_deletes_new_fields_and_new_tables(server: Emulator, kept: Kept) -> None:
    keys = [server.deployment.insert("users", {"name": f"u{n}", "age": n, "old": True}) for n in range(4)]
    server.deployment.insert("users", {"name": "inner"}, "billing")
    assert kept.run().rows == 5
    assert kept.rows("users") == there(server, "users")
    server.deployment.replace("users", keys[0], {"name": "new", "age": 2**60, "extra": b"\x01"})
    server.deployment.delete("users", keys[1])
    server.deployment.insert("orders", {"total": 1.5})
    kept.run()
    assert {
        k: {n: bytes(v) if isinstance(v, bytearray) else v for n, v in r.items()} for k, r in kept.rows("users").items()
    } == there(server, "users")
    assert kept.rows("orders") == there(server, "orders")
    assert kept.rows("billing_users") == there(server, "users", "billing")
    assert "old" not in kept.rows("users")[keys[0]]
    before = server.deployment.head
    assert kept.run().rows == 0
    assert server.deployment.head == before
    with kept.open() as pipeline:
        seen = list(pipeline.consume(6))
    assert [(row["offset"], row["op"], row["status"]) for row in seen[:5]] == [(n, "r", "change") for n in range(5)]
    assert {json.loads(str(row["row"]))["name"] for row in seen[:5]} == {"u0", "u1", "u2", "u3", "inner"}
    assert (seen[5]["op"], seen[5]["status"]) == ("u", "change")


def test_a_field_that_no_document_has_any_more_is_cleared(server: Emulator, kept: Kept) -> None:
    key = server.deployment.insert("users", {"name": "ann", "phone": "1"})
    server.deployment.insert("users", {"name": "bo"})
    kept.run()
    server.deployment.replace("users", key, {"name": "ann"})
    kept.run()
    assert kept.rows("users") == there(server, "users")


def test_a_table_that_appears_after_the_run_began_is_taken_in(server: Emulator, kept: Kept) -> None:
    server.deployment.insert("users", {"name": "ann"})
    kept.run()
    with kept.open() as pipeline:
        inlet = pipeline._inlet
        assert isinstance(inlet, Pumped)
        open_source, before = inlet.open_source, inlet.open_source(epoch=1).tables()
        server.deployment.insert("late", {"n": 1})
        inlet.open_source = lambda epoch: _Before(open_source(epoch), before)  # type: ignore[method-assign]
        report = pipeline.run(once=True, report=Silent())
    assert report.first_error() is None
    assert kept.rows("late") == there(server, "late")


def test_a_run_that_goes_on_removes_pages_that_every_target_has(
    server: Emulator, kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "TIDY_SECONDS", 0.0)
    for n in range(2):
        server.deployment.insert("users", {"n": n})
        kept.run()
    platform = tmp_path / "platform.yaml"
    platform.write_text(platform.read_text().replace("log: {", "log: {retention_days: 0.0000001, "))
    server.deployment.insert("users", {"n": 2})

    class Looking(Silent):
        def slice(self, *told: object) -> None:
            left.append(len(list((tmp_path / "log").rglob("*.parquet"))))

    left: list[int] = []
    with kept.open() as pipeline:
        assert pipeline.run(once=True, report=Looking()).first_error() is None
    assert left == [1]
    assert kept.rows("users") == there(server, "users")


class _Before:
    """A source that does not list yet what its pages already have."""

    def __init__(self, source: Any, tables: dict[str, tuple[str, ...]]) -> None:
        self._source = source
        self._tables = tables

    def tables(self) -> dict[str, tuple[str, ...]]:
        return self._tables

    def know(self, tables: Sequence[str]) -> None:
        self._source.know(tables)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


def test_a_random_history_in_runs_of_any_length(
    spark: SparkSession, server: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = "{_other: excl, '': {_other: excl, messages: {_other: incl}}, billing/ledger: {_other: incl}}"
    kept = Kept(spark, server, tmp_path, monkeypatch, source=f", selection: {chosen}")
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    workload = Workload(server.deployment, seed)
    workload.fill(80)
    for _ in range(3):
        kept.run()
        workload.write(chance.randrange(1, 40))
    kept.run()
    for component, table, name in (("", "messages", "messages"), ("billing/ledger", "lines", "lines")):
        frame = kept._spark.read.format("delta").load(f"{kept._folder}/lake/{name}")
        types = {field.name: field.dataType.simpleString() for field in frame.schema}
        rows = {row["_id"]: row for row in frame.collect()}
        documents = server.deployment.documents(table, component)
        assert rows.keys() == documents.keys(), f"seed {seed}"
        for key, document in documents.items():
            for field, kind in types.items():
                if field[0] != "_":
                    value = document.get(field)
                    want = convex.shown(value) if kind == "string" else value
                    assert same(rows[key][field], want, Kind.TEXT), f"seed {seed} {table} {field}"


@pytest.mark.parametrize("mode", ["append", "scd2"])
def test_other_modes_take_documents_too(
    spark: SparkSession, server: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    kept = Kept(spark, server, tmp_path, monkeypatch, f"    mode: {mode}\n")
    key = server.deployment.insert("users", {"name": "ann"})
    kept.run()
    server.deployment.patch("users", key, {"name": "anna"})
    server.deployment.delete("users", key)
    kept.run()
    frame = spark.read.format("delta").load(f"{tmp_path}/lake/users")
    if mode == "append":
        assert [row["_cdc_op"] for row in frame.orderBy("_cdc_position").collect()] == [Op.READ, Op.UPDATE, Op.DELETE]
    else:
        records = frame.where("_id IS NOT NULL").orderBy("__START_AT").collect()
        assert [record["name"] for record in records] == ["ann", "anna"]
        assert all(record["__END_AT"] is not None for record in records)
