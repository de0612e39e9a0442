"""Convex's documents as columns: encoded JSON, typed by the kinds of the table's fields.

`open_rows` gives the same columns as `envelopes.debezium.open_rows`. A document is whole and says the type of each
of its values itself, so rows that were written when less was known of a table open with what is known now:
`together` makes one shape of all schemas. A field that a document does not have is NULL. Numbers inside arrays and
objects are written as Java writes them, which is another text than `core.convex` gives, and the same number.

The position of a change is its timestamp. It is total per document: Convex gives each transaction a timestamp of
its own, and a transaction leaves one revision of a document.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.core import convex
from tailrace.core.change import Op
from tailrace.core.convex import Kind
from tailrace.core.position import Phase
from tailrace.core.table import Column, Evolution, Table
from tailrace.envelopes._values import quoted

ABSENT = "absent"
"""The encoding of a column that the target has and no document of the slice."""

ONLY, TEXT_OF = "only:", "text-of:"
"""Begin the encodings of two columns that share a field: one has the values of its kind only, one has all as text."""

FITS = "fits:"
"""Begins the encoding of a column whose field may hold more than it can: a document that does cannot be applied."""


def twin(column: str) -> str:
    """Return the name of the second of the two: that of no field, for those of a document do not begin so."""
    return f"_text_{column}"


_RAW = {
    Kind.BOOLEAN: "boolean",
    Kind.INT64: "struct<`$integer`: string>",
    Kind.FLOAT64: "string",
    Kind.STRING: "string",
    Kind.BYTES: "struct<`$bytes`: string>",
    Kind.TEXT: "string",
    "time": "double",
}

_TAG = r'\{"\$(?:integer|float|bytes)":"[^"]*"\}'
"""A value that JSON has no form for. In a string its quotes would be escaped, so nothing else looks like it."""


def together(schemas: Sequence[Table], have: Table | None) -> Table:
    """Return the one shape that documents of all `schemas` open with, for a target that has `have`.

    A column of the target that no schema has is carried, as NULL: no document has that field any more. A column that
    is text in the target stays text, whatever is seen of it now.
    """
    fields = convex.all_fields(convex.fields_in(schema) for schema in schemas)
    stored = {column.name: column for column in have.columns} if have else {}
    named = convex.column_names(fields, stored)
    for field, kind in fields.items():
        column = stored.get(named[field])
        if column and column.type == "string" and kind is not Kind.NULL and field != convex.ID:
            fields[field] = Kind.TEXT
    shape = convex.table(schemas[-1].name if schemas else have.name if have else "", fields, stored)
    absent = tuple(Column(c.name, c.type, encoding=ABSENT) for c in stored.values() if c.name not in shape.names())
    return Table(shape.name, (*shape.columns, *absent), shape.keys)


def fitting(schemas: Sequence[Table], have: Table | None, policy: Evolution) -> Table:
    """Return the one shape of all `schemas` for a target that has `have`, as far as `policy` lets it follow."""
    if policy is Evolution.FAIL:
        return together(schemas, have)
    shape = side_by_side(schemas, have)
    stored = have.names() if have else ()
    refused = {c.encoding.removeprefix(TEXT_OF) for c in shape.columns if _is_twin(c) and c.name not in stored}
    if policy is Evolution.ALTER or not refused:
        return shape
    columns = (c for c in shape.columns if not _is_twin(c) or c.name in stored)
    kept = (replace(c, encoding=FITS + c.encoding.removeprefix(ONLY)) if _field(c) in refused else c for c in columns)
    return Table(shape.name, tuple(kept), shape.keys)


def _is_twin(column: Column) -> bool:
    return column.encoding.startswith(TEXT_OF)


def side_by_side(schemas: Sequence[Table], have: Table | None) -> Table:
    """Return the one shape of all `schemas` for a target whose columns keep their types for good.

    A field that turns out to hold more than its column can gets a second one, `_text_<field>`. From then on that one
    has every value as text, and the first one those of its own kind. A column that was not made for values of Convex is
    left to the target.
    """
    fields = convex.all_fields(convex.fields_in(schema) for schema in schemas)
    stored = {column.name: column.type for column in have.columns} if have else {}
    shape = convex.table(schemas[-1].name if schemas else have.name if have else "", fields, stored)
    columns: list[Column] = []
    for column in shape.columns:
        name, old = column.name, stored.get(column.name, column.type)
        if old == "string" != column.type:
            columns.append(_read_as(column, Kind.TEXT, old))
        elif (old == column.type and twin(name) not in stored) or not convex.is_stored(old):
            columns.append(column)
        else:
            columns.append(_read_as(column, f"{ONLY}{convex.kind_stored(old)}", old))
            columns.append(Column(twin(name), "string", encoding=f"{TEXT_OF}{_field(column)}"))
    known = {column.name for column in columns}
    absent = (Column(name, kind, encoding=ABSENT) for name, kind in stored.items() if name not in known)
    return Table(shape.name, (*columns, *absent), shape.keys)


def _read_as(column: Column, word: str, type_: str) -> Column:
    _, kind = convex.made_of(column)
    return Column(column.name, type_, encoding=word + column.encoding.removeprefix(kind))


def open_rows(rows: DataFrame, table: Table, epoch: int, max_bytes: int, also: Sequence[str] = ()) -> DataFrame:
    """Open the documents of one table; see `envelopes.debezium` for the columns that come out, and those of `also`."""
    given = [column for column in table.columns if column.encoding != ABSENT]
    mixed = list(dict.fromkeys(_field(column) for column in given if _kind(column) == Kind.TEXT))
    kinds = {_field(column): _RAW[_kind(column)] for column in given}
    text = F.when(F.octet_length("value") <= max_bytes, F.col("value").cast("string"))
    layers = _layers(kinds)
    parsed = rows.select(
        "topic",
        "partition",
        "offset",
        "op",
        "timestamp",
        *also,
        F.octet_length("value").alias("_bytes"),
        *(_document(text, kinds, layer).alias(f"d{n}") for n, layer in enumerate(layers)),
        # Only this tells a string that looks like a value of another kind from such a value.
        *(_variants(text, layer, mixed).alias(f"v{n}") for n, layer in enumerate(layers)),
    )
    # A step of their own: as parts of what follows they would be planned, and worked out, once for each mention.
    made = {column.name: f"_value{n}" for n, column in enumerate(table.columns)}
    opened = parsed.select("*", *(_value(column, layers).alias(made[column.name]) for column in table.columns))
    values = {name: F.col(alias) for name, alias in made.items()}
    key = ", ".join(f"{quoted(name)}: {table.column(name).type}" for name in table.keys)
    return opened.select(
        F.col("op").alias("_cdc_op"),
        _position(epoch).alias("_cdc_position"),
        F.timestamp_micros(F.expr("`timestamp` div 1000")).alias("_cdc_changed_at"),
        F.col("topic").alias("_cdc_topic"),
        F.col("partition").alias("_cdc_partition"),
        F.col("offset").alias("_cdc_offset"),
        F.array().cast("array<string>").alias("_cdc_unchanged"),
        _problem(given, values, layers, max_bytes).alias("_cdc_problem"),
        F.lit(None).cast(f"struct<{key}>").alias("_cdc_old_key"),
        *(values[name].alias(name) for name in values),
        *also,
    )


def _kind(column: Column) -> str:
    """Return as what the field of a column is read."""
    if column.encoding.startswith((ONLY, FITS, TEXT_OF)):
        return Kind.TEXT
    _, word = convex.made_of(column)
    return word if word == "time" else Kind(word)


def _field(column: Column) -> str:
    """Return the field that a column is read from."""
    return column.encoding.removeprefix(TEXT_OF) if _is_twin(column) else convex.made_of(column)[0]


def _layers(fields: Iterable[str]) -> list[list[str]]:
    """Return `fields` so that none of a list differs from another of it only in case: a struct cannot hold both.

    What a document has under a name is found by exactly that name, so each list can be read by itself.
    """
    layers: list[dict[str, str]] = [{}]
    for field in fields:
        free = next((layer for layer in layers if field.lower() not in layer), None)
        if free is None:
            layers.append(free := {})
        free[field.lower()] = field
    return [list(layer.values()) for layer in layers]


def _document(text: Expression, kinds: Mapping[str, str], layer: Sequence[str]) -> Expression:
    fields = "".join(f"{quoted(field)}: {kinds[field]}, " for field in layer)
    return F.from_json(text, f"struct<{fields}_corrupt: string>", {"columnNameOfCorruptRecord": "_corrupt"})


def _variants(text: Expression, layer: Sequence[str], mixed: Collection[str]) -> Expression:
    fields = ", ".join(f"{quoted(field)}: variant" for field in layer if field in mixed)
    return F.from_json(text, f"struct<{fields}>") if fields else F.lit(None)


def _within(kind: str, column: Column, layers: Sequence[Sequence[str]]) -> Expression:
    """Return the field of `column` in what was read of a document, `d` by kind or `v` as it is."""
    field = _field(column)
    (place,) = (n for n, layer in enumerate(layers) if field in layer)
    return F.col(f"{kind}{place}.{quoted(field)}")


def _position(epoch: int) -> Expression:
    phase = (
        # A table starts anew with a life, at 0, or when it was read anew in the middle of one.
        F.when((F.col("op") == Op.TRUNCATE.value) & (F.col("timestamp") == 0), Phase.RESET.value)
        .when(F.col("op") == Op.READ.value, Phase.SNAPSHOT.value)
        .otherwise(Phase.CHANGE.value)
    )
    place = F.lpad(F.lower(F.hex(F.col("timestamp"))), 16, "0")
    return F.concat(F.lit(f"{epoch:04x}."), phase.cast("string"), F.lit("."), place)


def _problem(
    given: Sequence[Column], values: dict[str, Expression], layers: Sequence[Sequence[str]], max_bytes: int
) -> Expression:
    """Why this document cannot be read: the first reason found, or NULL."""
    truncate = F.col("op") == Op.TRUNCATE.value
    problem = (
        F.when(F.col("_bytes") > max_bytes, F.concat(F.lit("too-large: "), F.col("_bytes"), F.lit(" bytes")))
        .when(~F.col("op").isin([op.value for op in Op]) | F.col("op").isNull(), "unknown-op: not one of ours")
        .when(F.col("timestamp").isNull(), "missing-position: the document has no timestamp")
        .when(~truncate & F.col("_bytes").isNull(), "no-value: the message is empty")
    )
    for n in range(len(layers)):
        corrupt = ~truncate & F.col(f"d{n}._corrupt").isNotNull()
        problem = problem.when(corrupt, "malformed: not a document of this table")
    for column in given:
        if _kind(column) not in (Kind.BOOLEAN, Kind.STRING) and not column.encoding.startswith(ONLY):
            failed = _within("d", column, layers).isNotNull() & values[column.name].isNull()
            problem = problem.when(failed, f'bad-value: column "{column.name}" is not a {column.type}')
    return problem


def _value(column: Column, layers: Sequence[Sequence[str]]) -> Expression:
    if column.encoding == ABSENT:
        return F.lit(None).cast(column.type)
    raw = _within("d", column, layers)
    is_string = F.schema_of_variant(_within("v", column, layers)) == "STRING"
    if column.encoding.startswith((ONLY, FITS)):
        _, word = convex.made_of(column)
        return F.when(~is_string, _narrowed(raw, Kind(word.partition(":")[2])))
    match _kind(column):
        case Kind.INT64:
            return _digits(raw["$integer"]).cast("bigint")
        case Kind.FLOAT64:
            special = _special(F.regexp_extract(raw, ':"([^"]*)"', 1)).cast("double")
            return F.when(raw.startswith("{"), special).otherwise(raw.try_cast("double"))
        case Kind.BYTES:
            return F.try_to_binary(raw["$bytes"], F.lit("base64"))
        case Kind.TEXT:
            return F.when(is_string, raw).when(raw.rlike(f"^{_TAG}$"), _plain(raw)).otherwise(_clean(raw))
        case "time":
            seconds = F.floor(raw / 1000)
            micros = F.floor((raw - seconds * 1000) * 1000)
            return F.timestamp_micros(seconds * 1_000_000 + micros)
        case _:
            return raw


def _narrowed(raw: Expression, kind: Kind) -> Expression:
    """Return the value of a field that was read as text, and is no string, if it is of `kind`; else NULL."""
    payload = F.regexp_extract(raw, ':"([^"]*)"', 1)
    match kind:
        case Kind.BOOLEAN:
            return F.when(raw.isin("true", "false"), raw.try_cast("boolean"))
        case Kind.INT64:
            return F.when(raw.startswith('{"$integer":'), _digits(payload).try_cast("bigint"))
        case Kind.BYTES:
            return F.when(raw.startswith('{"$bytes":'), F.try_to_binary(payload, F.lit("base64")))
        case _:
            special = F.when(raw.startswith('{"$float":'), _special(payload).cast("double"))
            return F.when(raw.rlike("^-?[0-9]"), raw.try_cast("double")).otherwise(special)


def _clean(text: Expression) -> Expression:
    """Write the tagged values inside some JSON as people and SQL read them."""
    between = F.split(text, _TAG, -1)
    tags = F.transform(F.regexp_extract_all(text, F.lit(_TAG), F.lit(0)), _in_json)
    joined = F.array_join(F.zip_with(between, tags, lambda a, b: F.concat(a, F.coalesce(b, F.lit("")))), "")
    return F.when(text.contains('{"$'), joined).otherwise(text)


def _in_json(tag: Expression) -> Expression:
    def written(plain: Expression) -> Expression:
        bare = tag.startswith('{"$float"') & plain.endswith("0.0")
        return F.when(bare, plain).otherwise(F.concat(F.lit('"'), plain, F.lit('"')))

    return _once(_plain(tag), written)


def _plain(tag: Expression) -> Expression:
    payload = F.regexp_extract(tag, ':"([^"]*)"', 1)
    return (
        F.when(tag.startswith('{"$integer"'), _digits(payload))
        .when(tag.startswith('{"$float"'), _special(payload))
        .otherwise(payload)
    )


def _digits(payload: Expression) -> Expression:
    return F.conv(_bits(payload), 16, -10)


def _special(payload: Expression) -> Expression:
    return _once(
        _bits(payload),
        lambda bits: (
            F.when(bits == "7FF0000000000000", "Infinity")
            .when(bits == "FFF0000000000000", "-Infinity")
            .when(bits == "8000000000000000", "-0.0")
            .when(bits == "0000000000000000", "0.0")
            .when(bits.isNotNull(), "NaN")
        ),
    )


def _bits(payload: Expression) -> Expression:
    """Return eight bytes, least first, as sixteen hexadecimal digits, greatest first; NULL if there are not eight."""

    def turned(digits: Expression) -> Expression:
        return F.when(F.length(digits) == 16, F.concat(*(F.substring(digits, at, 2) for at in range(15, 0, -2))))

    return _once(F.hex(F.try_to_binary(payload, F.lit("base64"))), turned)


def _once(value: Expression, use: Callable[[Expression], Expression]) -> Expression:
    """Return what `use` makes of `value`, which is worked out once: written out, it would be for each mention."""
    return F.transform(F.array(value), use)[0]
