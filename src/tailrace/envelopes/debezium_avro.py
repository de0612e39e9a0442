"""Debezium's Avro in Kafka: a zero byte, four bytes of schema id, then the datum.

Each message is read with the schema it was written with, which a registry knows by its id. An id that is
not known yet has the fate `LEARN`; `learn` asks for it, and the slice is looked into again.

To look into a message it is decoded, and its images are kept as they come out of that, in columns of their
own for each id. Of ids beyond the latest few, only operation and source are decoded, and the row waits, as
bytes, for its table.

Positions are those of `envelopes.debezium_json`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from tailrace.core.change import Op
from tailrace.core.table import Column, Table
from tailrace.envelopes import connect, message
from tailrace.envelopes._values import can_fail, decode, instant, unreadable
from tailrace.envelopes.debezium_json import OLD_KEY, position
from tailrace.envelopes.message import PLACEHOLDER, Sample

LEARN = "unknown-schema: its id is not known yet"
FRAME = 5
"""How many bytes come before the datum."""
_MOST_DECODED = 16
"""How many schemas may have columns of their own in what is kept of a slice."""
_SOURCE = {
    "connector": "string",
    "snapshot": "string",
    "ts_ms": "bigint",
    "db": "string",
    "schema": "string",
    "table": "string",
    "lsn": "bigint",
    "sequence": "string",
    "file": "string",
    "pos": "bigint",
}

_Schema = Mapping[str, Any]
Writer = Callable[[int], _Schema]
"""Gives the schema with an id; raises what is retryable if the registry cannot be asked or does not know it."""


class DebeziumAvro:
    """See the module."""

    by_offset = False

    def __init__(self, writer: Writer, placeholder: str = PLACEHOLDER) -> None:
        self._writer = writer
        self._placeholder = placeholder.encode()
        self._known: dict[int, Mapping[str, Any]] = {}
        self._ids: dict[Table, list[int]] = {}
        self._whole: dict[int, bool] = {}

    def peek(self, rows: DataFrame, epoch: int, max_bytes: int) -> DataFrame:
        """Look into the messages whose schema is known."""
        size = F.octet_length("value")
        framed = F.coalesce((size > FRAME) & (F.substring("value", 1, 1) == F.lit(b"\0")), F.lit(False))
        number = F.when(framed, F.conv(F.hex(F.substring("value", 2, 4)), 16, 10).cast("bigint"))
        body = F.when(framed & (size <= max_bytes), F.expr(f"substring(value, {FRAME + 1})"))
        unfit = (
            F.when(size.isNull(), message.FILTERED)
            .when(size > max_bytes, F.concat(F.lit("too-large: "), size))
            .when(~framed, "malformed: not a message with the id of a schema")
        )
        rows = rows.select(
            "topic", "partition", "offset", unfit.alias("unfit"), number.alias("id"), body.alias("body"),
            message.header(OLD_KEY).cast("string").alias("old_key"), _keyless().alias("keyless"),
        )  # fmt: skip
        # One view of it: a slice is looked into while another one, in another thread, may ask for a schema.
        known = dict(self._known)
        readers = {number: found for number, schema in known.items() if (found := _reader(schema))}
        spark = rows.sparkSession
        whole = [n for n, (writer, _) in readers.items() if self._decodes(spark, n, writer)][-_MOST_DECODED:]
        writers = {
            n: (F.col("id") == n, writer, None if n in whole else reader) for n, (writer, reader) in readers.items()
        }
        rows = _decoded(rows, "body", writers)
        seen = (F.when(F.col("id") == n, _peeked(n, reader)) for n, (_, reader) in readers.items())
        rows = rows.select("*", F.coalesce(F.lit(None).cast(_PEEKED), *seen).alias("m"))
        source = F.col("m.source")
        rows = rows.select(
            "topic", "partition", "offset", "unfit", "id", "old_key", "keyless",
            F.concat_ws(".", F.coalesce(source["schema"], source["db"]), source["table"]).alias("table"),
            F.coalesce(F.col("id").cast("string"), F.lit("")).alias("schema"),
            F.col("m.op").alias("op"), position(epoch).alias("position"),
            instant(source["ts_ms"]).alias("changed_at"),
            F.when(~F.col("id").isin(*whole), F.col("body")).alias("row"),
            F.when((F.col("m.op") == Op.UPDATE.value) & _may_have_before(known), F.lit("")).alias("before"),
            self._may_be_partial().alias("partial"), *_images(whole, F.col("m.op")),
        )  # fmt: skip
        learned = F.col("id").isin(*known) if known else F.lit(False)
        fate = (
            F.when(F.col("unfit").isNotNull(), F.col("unfit"))
            .when(~learned, LEARN)
            .when(F.col("op").isNull(), "malformed: not a message of its schema")
            .when(
                ~F.col("op").isin([op.value for op in Op]),
                F.concat(F.lit("unknown-op: "), message.quotable(F.col("op"))),
            )
            .when(F.col("table") == "", "unknown-table: the message does not say which table it belongs to")
            .when(F.col("position").isNull(), "missing-position: the message has no place in its source's order")
        )
        return rows.withColumn("fate", fate).select(*message.COLUMNS, *_kept(whole))

    def learn(self, peeked: DataFrame) -> bool:
        """Ask for the ids that were met and are not known; say whether there were any."""
        new = peeked.where(F.col("fate") == LEARN).select("schema").distinct().collect()
        for row in new:
            self._known[int(row[0])] = self._writer(int(row[0]))
        return bool(new)

    def schema(self, table: str, sample: Sample) -> Table | None:
        """Return the table of the schema that a message names."""
        number = struct.unpack(">I", (sample.value or b"")[1:FRAME])[0]
        keys, described = self.keys(sample), self._schema(number)
        try:
            return self._table(table, number, described, keys)
        except (ValueError, LookupError, TypeError, AttributeError, StopIteration):
            # It is somebody else's schema, and anything may be wrong with it.
            return None

    def table_of(self, name: str, number: int, keys: Sequence[str]) -> Table:
        """Return the table of rows that were written with the schema `number`."""
        return self._table(name, number, self._schema(number), keys)

    def _table(self, name: str, number: int, schema: _Schema, keys: Sequence[str]) -> Table:
        table = row_table(name, schema, keys)
        self.remember(table, str(number))
        return table

    def remember(self, table: Table, schema: str) -> None:
        """Take note that rows of `table` are written with `schema`, learned in this process or before."""
        ids = self._ids.setdefault(table, [])
        if int(schema) not in ids:
            ids.append(int(schema))

    def keys(self, sample: Sample) -> tuple[str, ...]:
        """Return the fields of the key's own schema."""
        if not sample.key or len(sample.key) <= FRAME or sample.key[0]:
            return message.keys_in(sample.key)
        described = self._writer(struct.unpack(">I", sample.key[1:FRAME])[0])
        return tuple(field["name"] for field in described.get("fields", ())) if isinstance(described, Mapping) else ()

    def open_rows(self, rows: DataFrame, table: Table, epoch: int, max_bytes: int) -> DataFrame:
        """Decode the rows with the schemas they were written with."""
        ids = tuple(self._ids.get(table, ()))
        nothing = F.struct(F.lit(False).alias("there"), *_cells(message.no_row(table), table)[1:])
        undecoded = {
            n: (F.col("schema") == str(n), self._schema(n), None) for n in ids if _image_of(n) not in rows.columns
        }
        decoded = _kept(n for n in ids if n not in undecoded)
        rows = _decoded(rows, "row", undecoded).select(*message.COLUMNS, *decoded, *_images(undecoded, F.col("op")))

        def rebuilt(name: Callable[[int], str]) -> Expression:
            cells = (F.when(F.col("schema") == str(n), F.struct(*_cells(F.col(name(n)), table))) for n in ids)
            return F.coalesce(*cells) if ids else nothing

        parsed = rows.select(
            *(F.col(name) for name in message.COLUMNS if name != "row"),
            rebuilt(_image_of).alias("m"),
            rebuilt(_old_of).alias("old"),
        )
        raw = {column.name: F.col("m")[f"c{n}"] for n, column in enumerate(table.columns)}
        texts = {c.name: text for c in table.columns if (text := _text(raw[c.name], c)) is not None}
        values = {c.name: decode(c.encoding, c.type)(raw[c.name]) for c in table.columns} | texts
        unsent = {c.name: found for c in table.columns if (found := self._unsent(raw[c.name], c)) is not None}
        truncate = F.col("op") == Op.TRUNCATE.value
        problem = F.when(~truncate & ~F.col("m.there"), "missing-image: the message has no row")
        for column in table.columns:
            if can_fail(column.encoding) or column.name in texts:
                failed = unreadable(column, raw[column.name], values[column.name], table.keys, F.col("op"))
                problem = problem.when(failed, f'bad-value: column "{column.name}" is not a {column.type}')
        old = (decode(c.encoding, c.type)(F.col("old")[f"c{n}"]).alias(c.name) for n, c in enumerate(table.columns))
        before = F.when(F.col("old.there"), F.struct(*old))
        return message.opened(parsed, values, unsent, problem, F.coalesce(message.old_key(table), before))

    def _schema(self, number: int) -> Mapping[str, Any]:
        if number not in self._known:
            self._known[number] = self._writer(number)
        return self._known[number]

    def _decodes(self, spark: SparkSession, number: int, schema: _Schema) -> bool:
        """Say whether Spark has types for whole messages of `schema`; where it has none, only their table suffers."""
        if number not in self._whole:
            datum = from_avro(F.lit(None).cast("binary"), json.dumps(_plain(schema)))
            try:
                found = spark.range(0).select(datum["before"], datum["after"]).schema
            except PySparkException:
                self._whole[number] = False
            else:
                self._whole[number] = found[0].dataType == found[1].dataType
        return self._whole[number]

    def _may_be_partial(self) -> Expression:
        numbers = b"".join(_zigzag(byte) for byte in self._placeholder)
        forms = (self._placeholder, numbers, message.unsent_uuid(self._placeholder.decode()).encode())
        found = reduce(or_, (F.contains(F.col("body"), F.lit(form)) for form in forms))
        return F.coalesce(found, F.lit(False))

    def _unsent(self, raw: Expression, column: Column) -> Expression | None:
        word = self._placeholder.decode()
        numbers = F.array(*map(F.lit, self._placeholder))
        forms: dict[str, Expression] = {
            "string": raw.isin(word, message.unsent_hstore(word)),
            "binary": raw == F.lit(self._placeholder),
            "map<string,string>": F.map_keys(raw) == F.array(F.lit(word)),
            "array<string>": raw.isin(*(F.array(F.lit(text)) for text in (word, message.unsent_uuid(word)))),
            "array<binary>": raw == F.array(F.lit(self._placeholder)),
            "array<int>": raw == numbers.cast("array<int>"),
            "array<bigint>": raw == numbers.cast("array<bigint>"),
        }
        # Days are numbers here too.
        kind = "array<int>" if column.encoding == "array:date-days" else "" if column.encoding else column.type
        return F.coalesce(forms[kind], F.lit(False)) if kind in forms else None


def _keyless() -> Expression:
    """Say whether the message's key names no columns, neither by a schema nor as JSON."""
    framed = (F.octet_length("key") > FRAME) & (F.substring("key", 1, 1) == F.lit(b"\0"))
    return message.keyless(F.col("key")) & ~F.coalesce(framed, F.lit(False))


def row_table(name: str, schema: _Schema, keys: Sequence[str] = ()) -> Table:
    """Return the table whose rows messages of `schema` carry; an error of any kind if they carry none."""
    return _described(name, _image(schema)["fields"], keys)


def key_table(name: str, schema: _Schema) -> Table:
    """Return the table that has the fields of a message's key, and no others."""
    return _described(name, schema["fields"], [field["name"] for field in schema["fields"]])


def _described(name: str, fields: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> Table:
    described = connect.table_of(name, [_connect(field) for field in fields], keys)
    return Table(name, tuple(_in_avro(column) for column in described.columns), described.keys)


_PEEKED = f"struct<op: string, source: struct<{', '.join(f'{name}: {kind}' for name, kind in _SOURCE.items())}>>"


def _decoded(
    rows: DataFrame, body: str, writers: Mapping[int, tuple[Expression, _Schema, _Schema | None]]
) -> DataFrame:
    """Decode `body` with each writer's schema, where that is its own: once, in a column of its own.

    An expression that stands in several places would be decoded in each of them, and Spark would put it there: into
    every condition on what comes of it. What it must not repeat, such as a count of rows, stays where it is.
    """
    unrepeatable = F.monotonically_increasing_id() >= 0
    made = []
    for number, (mine, writer, reader) in writers.items():
        options = {"mode": "PERMISSIVE"} | ({"avroSchema": json.dumps(_plain(reader))} if reader else {})
        datum = from_avro(F.when(mine & unrepeatable, F.col(body)), json.dumps(_plain(writer)), options)
        made.append(datum.alias(f"datum_{number}"))
    return rows.select("*", *made)


def _datum(number: int) -> Expression:
    return F.col(f"datum_{number}")


def _images(numbers: Iterable[int], op: Expression) -> Iterator[Expression]:
    """Yield the row that each message tells, and as it was before an update, from what was decoded."""
    for n in numbers:
        yield F.when(op == Op.DELETE.value, _datum(n)["before"]).otherwise(_datum(n)["after"]).alias(_image_of(n))
        yield F.when(op == Op.UPDATE.value, _datum(n)["before"]).alias(_old_of(n))


def _kept(numbers: Iterable[int]) -> list[str]:
    return [name for number in numbers for name in (_image_of(number), _old_of(number))]


def _image_of(number: int) -> str:
    return f"image_{number}"


def _old_of(number: int) -> str:
    return f"old_{number}"


def _reader(schema: _Schema) -> tuple[_Schema, _Schema] | None:
    """Return the writer's schema, and one that reads operation and source and passes over the row."""
    fields = {field["name"]: field for field in schema.get("fields", ())} if isinstance(schema, Mapping) else {}
    source = fields["source"]["type"] if {"op", "source", "after"} <= set(fields) else None
    if not isinstance(source, Mapping) or "fields" not in source:
        return None
    wanted = [field for field in source["fields"] if field["name"] in _SOURCE]
    return schema, {**schema, "fields": [{**fields["source"], "type": {**source, "fields": wanted}}, fields["op"]]}


def _may_have_before(known: Mapping[int, _Schema]) -> Expression:
    """Say whether a message may hold the row as it was: a union that comes first begins with which part it is."""
    told = [number for number, schema in known.items() if _before_first(schema)]
    nothing = F.col("id").isin(*told) & (F.substring("body", 1, 1) == F.lit(b"\0")) if told else F.lit(False)
    return ~F.coalesce(nothing, F.lit(False))


def _before_first(schema: _Schema) -> bool:
    """Say whether messages of `schema` begin with the row as it was, or with that there is none."""
    first = next(iter(schema.get("fields", ())), None) if isinstance(schema, Mapping) else None
    kind = first["type"] if isinstance(first, Mapping) and first.get("name") == "before" else None
    return isinstance(kind, list) and kind[:1] == ["null"]


def _peeked(number: int, reader: _Schema) -> Expression:
    """Return operation and source of a message that was decoded with `reader`."""
    names = {field["name"] for field in reader["fields"][0]["type"]["fields"]}
    source = _datum(number)["source"]
    cells = (
        (source[name].cast(kind) if name in names else F.lit(None).cast(kind)).alias(name)
        for name, kind in _SOURCE.items()
    )
    return F.struct(_datum(number)["op"].alias("op"), F.struct(*cells).alias("source"))


def _text(raw: Expression, column: Column) -> Expression | None:
    """Return the text of a column of text, NULL if it is none: Avro says that it is UTF-8, and nobody looks."""
    if column.encoding or column.type not in ("string", "array<string>"):
        return None
    if column.type == "string":
        return F.try_validate_utf8(raw)
    # Parts of a letter, in two strings that follow each other, must not be taken for the letter.
    return F.when(F.is_valid_utf8(F.array_join(raw, ",")), raw)


def _cells(image: Expression, table: Table) -> list[Expression]:
    cells = [image[column.name].alias(f"c{n}") for n, column in enumerate(table.columns)]
    return [image.isNotNull().alias("there"), *cells]


def _image(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the record of a row: it is spelled out in `before`, and only named in `after`."""
    for field in schema["fields"]:
        if field["name"] in ("before", "after"):
            kind = field["type"]
            for part in kind if isinstance(kind, list) else [kind]:
                if isinstance(part, Mapping) and part.get("type") == "record":
                    return part
    raise KeyError("after")


def _connect(field: Mapping[str, Any]) -> dict[str, Any]:
    """Return a field of Avro as a field of a Connect schema block."""
    return {"field": field["name"], "default": field.get("default"), **_type(field["type"])}


def _type(kind: Any) -> dict[str, Any]:
    if isinstance(kind, list):
        inner = next(part for part in kind if part != "null")
        return {**_type(inner), "optional": "null" in kind}
    if isinstance(kind, str):
        return {"type": _PLAIN.get(kind, kind), "optional": False}
    made: dict[str, Any] = {
        "type": kind.get("connect.type") or _PLAIN.get(kind["type"], kind["type"]),
        "name": kind.get("connect.name"),
        "parameters": kind.get("connect.parameters", {}),
        "optional": False,
    }
    if kind["type"] == "array":
        made["items"] = _type(kind["items"])
    if kind["type"] == "map":
        made |= {"keys": {"type": "string"}, "values": _type(kind["values"])}
    return made


_PLAIN = {"int": "int32", "long": "int64", "enum": "string", "record": "struct"}


def _in_avro(column: Column) -> Column:
    """Return the column with the encoding it has in Avro, where bytes are bytes."""
    arrays = column.encoding.startswith("array:")
    kind = column.type.removeprefix("array<").removesuffix(">") if arrays else column.type
    encoding = _encoding(column.encoding.removeprefix("array:"), kind)
    whole = f"array:{encoding}" if arrays and encoding else encoding
    return replace(column, encoding=whole)


def _encoding(encoding: str, kind: str) -> str:
    if encoding == "base64" or (encoding.startswith("decimal-bytes:") and kind.startswith("decimal")):
        return ""
    return encoding.replace("decimal-bytes:", "decimal-binary:").replace("decimal-variable", "decimal-variable-binary")


def _plain(schema: Any) -> Any:
    """Take the logical types away, decimals that Spark holds apart, so that every value is what its encoding says."""
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {
        name: _plain(part) if name in ("type", "items", "values", "fields") else part for name, part in schema.items()
    }
    if made.get("logicalType") != "decimal" or not 0 < int(made.get("precision", 0)) <= connect.MOST_DIGITS:
        made.pop("logicalType", None)
    return made


def _zigzag(number: int) -> bytes:
    coded = number << 1
    return bytes([coded | 0x80, coded >> 7]) if coded > 0x7F else bytes([coded])
