"""A row of a file of changes: columns beside each other, one of which may say what happened.

The position is the configured sequence, then the place of the file in its feed, then the row's number in the file:

    0001.2.<sequence>.<order of the file>.<row>

So two rows never have the same one, a file that is read again has the positions that it had, and of two files that
say the same of a row the later one counts, whenever they come. Every part sorts as text, and none begins another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.core.change import Op
from tailrace.core.position import Phase
from tailrace.core.table import Column, Table
from tailrace.envelopes._exact import infinite, scale_of, typed
from tailrace.envelopes._values import quoted
from tailrace.envelopes.message import at, fixed, quotable

REPLACEMENT = "\ufffd"
"""What Java puts in the place of bytes that are no text."""
NO_SEQUENCE = "0"


@dataclass(frozen=True, slots=True)
class Given:
    """One column: where the files have it, and what the table makes of it."""

    name: str
    source: str
    type: str
    required: bool = False


@dataclass(frozen=True)
class Flat:
    """What a pipeline says of the rows of its files."""

    table: str
    keys: tuple[str, ...] = ()
    columns: tuple[Given, ...] = ()
    operation_column: str = ""
    sequence: tuple[str, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    """The letter of `core.change.Op` for each word of the operation column."""

    def given(self, table: Table) -> tuple[Given, ...]:
        """Return the columns of `table`, with where the files have them."""
        return self.columns or tuple(Given(c.name, c.name, c.type) for c in table.columns)

    def declared(self) -> Table | None:
        """Return the table, if the pipeline says what its columns are."""
        columns = tuple(Column(c.name, c.type) for c in self.columns)
        return Table(self.table, columns, self.keys) if columns else None

    def missing(self, names: Mapping[str, object] | list[str]) -> str:
        """Say which column is not among the `names` that a file has and must be; empty if none."""
        sources = {c.name: c.source for c in self.columns}
        needed = [c.source for c in self.columns if c.required]
        needed += [sources.get(name, name) for name in (*self.keys, *self.sequence)]
        needed += [self.operation_column] if self.operation_column else []
        absent = [name for name in needed if name not in names]
        return f'missing-column: the file has no column "{absent[0]}"' if absent else ""

    # -- rows as a file has them, `raw`, into what is kept

    def from_texts(self, raw: DataFrame, names: list[str], table: Table, *, damaged: bool) -> DataFrame:
        """Open rows of CSV: `raw` is a struct of text, `corrupt` says that a row has other columns than the header."""
        values, failed = {}, {}
        for column in self.given(table):
            if column.source in names:
                text = F.col("raw")[column.source]
                values[column.name] = typed(text, column.type)
                failed[column.name] = text.isNotNull() & values[column.name].isNull()
        whole = F.to_json("raw")
        first = F.when(F.col("corrupt").isNotNull(), "malformed: the row has other columns than the header")
        if damaged:
            first = first.when(whole.contains(REPLACEMENT), "malformed: some bytes of the row are no text")
        word = F.col("raw")[self.operation_column] if self.operation_column in names else F.lit(None).cast("string")
        return self._kept(raw, table, values, failed, first, word, F.coalesce(F.col("corrupt"), whole))

    def from_lines(self, lines: DataFrame, table: Table, *, damaged: bool) -> DataFrame:
        """Open rows of JSON: `value` is a line."""
        given = self.given(table)
        kinds = {c.source: _json_type(c.type) for c in given}
        if self.operation_column:
            kinds.setdefault(self.operation_column, "string")
        wanted = ", ".join(f"{quoted(name)}: {kind}" for name, kind in kinds.items())
        texts = ", ".join(f"{quoted(name)}: string" for name in kinds)
        rows = lines.withColumn(
            "typed",
            F.from_json(
                "value", f"struct<{wanted}, _cdc_corrupt: string>", {"columnNameOfCorruptRecord": "_cdc_corrupt"}
            ),
        ).withColumn("texts", F.from_json("value", f"struct<{texts}>"))
        numbers = {name: f"number_{n}" for n, (name, kind) in enumerate(kinds.items()) if kind == "variant"}
        # Columns of their own: what is asked of a number's text many times is written once.
        rows = rows.withColumns({as_: _number_text(F.col("typed")[name]) for name, as_ in numbers.items()})
        values, failed = {}, {}
        for column in given:
            text = F.col("texts")[column.source]
            said = F.col("typed")[column.source] if column.source not in numbers else F.col(numbers[column.source])
            values[column.name] = _json_value(said, text, column.type)
            failed[column.name] = text.isNotNull() & values[column.name].isNull()
        named = reduce(or_, failed.values(), F.lit(False))
        broken = ~F.ltrim("value").startswith("{") | (F.col("typed")["_cdc_corrupt"].isNotNull() & ~named)
        first = F.when(broken, "malformed: the line is not a JSON object")
        # A parser stops after the first object, and would pass over another one on the same line without a word.
        alone = F.json_array_length(F.concat(F.lit("["), "value", F.lit("]")))
        first = first.when(~alone.eqNullSafe(1), "malformed: the line has more than one JSON object")
        if damaged:
            first = first.when(F.col("value").contains(REPLACEMENT), "malformed: some bytes of the row are no text")
        word = F.col("texts")[self.operation_column] if self.operation_column else F.lit(None).cast("string")
        return self._kept(rows, table, values, failed, first, word, F.col("value"))

    def from_values(self, raw: DataFrame, kinds: Mapping[str, str], table: Table) -> DataFrame:
        """Open rows of Parquet: `raw` is a struct, whose types are `kinds`."""
        values, failed = {}, {}
        for column in self.given(table):
            kind = kinds.get(column.source)
            if kind is None:
                continue
            said = F.col("raw")[column.source]
            value = said if kind == column.type else said.try_cast(column.type)
            values[column.name] = value
            if kind != column.type:
                lost = value.isNull() if column.type == "string" else value.isNull() | (value.cast(kind) != said)
                failed[column.name] = said.isNotNull() & lost
        word = F.lit(None).cast("string")
        if self.operation_column in kinds:
            word = F.col("raw")[self.operation_column].cast("string")
        return self._kept(raw, table, values, failed, F.when(F.lit(False), ""), word, F.to_json("raw"))

    def _kept(
        self,
        rows: DataFrame,
        table: Table,
        values: Mapping[str, Expression],
        failed: Mapping[str, Expression],
        problem: Expression,
        word: Expression,
        text: Expression,
    ) -> DataFrame:
        """Return `file, block, id, op, sequence, problem, text` and the values as the struct `row`."""
        op = F.lit(Op.UPDATE.value)
        if self.operation_column:
            op = reduce(lambda found, w: F.when(word == w, self.words[w]).otherwise(found), self.words, F.lit(None))
            unknown = F.concat(
                F.lit("unknown-op: "), F.coalesce(quotable(word), F.lit("the row does not say what happened"))
            )
            problem = problem.when(op.isNull(), F.substring(unknown, 1, 100))
        for name, bad in failed.items():
            kind = table.column(name).type
            problem = problem.when(bad, f'bad-value: column "{name}" is not a {kind}')
        none = {c.name: F.lit(None).cast(c.type) for c in table.columns if c.name not in values}
        every = {**none, **values}
        for key in self.keys:
            problem = problem.when(every[key].isNull(), f'missing-key: key column "{key}" is null')
        for name in self.sequence:
            reason = f'missing-position: column "{name}" of sequence_by is null'
            problem = problem.when(every[name].isNull(), reason)
        for column in self.columns:
            if column.required:
                empty = every[column.name].isNull() & (op != Op.DELETE.value)
                problem = problem.when(empty, f'missing-value: column "{column.name}" is required and null')
        parts = [_sortable(every[name], table.column(name).type) for name in self.sequence]
        sequence = F.concat_ws(".", *parts) if parts else F.lit(NO_SEQUENCE)
        row = F.struct(*(every[c.name].alias(c.name) for c in table.columns))
        opened = rows.select(
            "file", "block", "id", op.alias("op"), sequence.alias("sequence"), problem.alias("problem"),
            text.alias("text"), row.alias("row"),
        )  # fmt: skip
        return opened.withColumn("text", F.when(F.col("problem").isNotNull(), F.col("text")))

    # -- what is kept, with where it lies, into what the engine wants

    def open_rows(self, rows: DataFrame, table: Table, epoch: int, max_bytes: int) -> DataFrame:
        """Give kept rows our columns; `offset`, `number`, and `order` and `name` of the file say where they lie."""
        position = at(epoch, Phase.CHANGE, F.concat_ws(".", "sequence", "order", fixed(F.col("number"))))
        fields = ", ".join(f"{quoted(c.name)}: {c.type}" for c in table.columns)
        where = F.concat(F.lit(" (file "), F.col("name"), F.lit(", row "), F.col("number") + 1, F.lit(")"))
        return rows.select(
            F.coalesce("op", F.lit(Op.UPDATE.value)).alias("_cdc_op"),
            position.alias("_cdc_position"),
            F.lit(None).cast("timestamp").alias("_cdc_changed_at"),
            F.lit(table.name).alias("_cdc_topic"),
            F.lit(0).alias("_cdc_partition"),
            F.col("offset").alias("_cdc_offset"),
            F.array().cast("array<string>").alias("_cdc_unchanged"),
            F.concat(F.col("problem"), where).alias("_cdc_problem"),
            F.lit(None).cast(f"struct<{fields}>").alias("_cdc_old_key"),
            *(F.col("row")[c.name].alias(c.name) for c in table.columns),
        )


_INTEGERS = ("tinyint", "smallint", "int", "bigint")


def _json_type(kind: str) -> str:
    """Return the type to read a value of JSON as, which is then made a `kind`."""
    if kind in _INTEGERS:
        # Read as what it is, a number that does not fit would become another one.
        return "bigint"
    if kind.startswith("decimal"):
        # As text, a number would pass through a float; as a decimal, it would be rounded.
        return "variant"
    if kind == "float":
        return "double"
    return "string" if kind in ("date", "timestamp", "timestamp_ntz", "binary") else kind


def _number_text(value: Expression) -> Expression:
    """Return what a variant says; NULL for a number that was made a float and has more digits than one.

    That happens to a number with an exponent, and to one of more digits than any decimal has.
    """
    lost = F.col("value").rlike(r"[0-9.]{39,}|([0-9]\.?){16,}[eE]") & (F.schema_of_variant(value) == "DOUBLE")
    return F.when(~lost, F.variant_get(value, "$", "string"))


def _json_value(said: Expression, text: Expression, kind: str) -> Expression:
    """Return as a `kind` what was read as `_json_type` says, variants as text; NULL if it is none."""
    if kind in ("float", "double"):
        # Of a number that does not fit, the text is a word in quotes; of the word itself it has none.
        beyond = ~infinite(said) | text.startswith('"')
        return F.when(~(infinite(said.cast(kind)) & beyond), said.cast(kind))
    return said if _json_type(kind) == kind else typed(said, kind)


def _sortable(value: Expression, kind: str) -> Expression:
    """Return a value as text that sorts like it; a date or time as a number, text by its bytes."""
    if kind in _INTEGERS:
        number = value
    elif kind == "date":
        number = F.unix_date(value)
    elif kind in ("timestamp", "timestamp_ntz"):
        number = F.unix_micros(value.cast("timestamp"))
    elif kind.startswith("decimal"):
        return _digits(value, scale_of(kind))
    else:
        return F.lower(F.hex(value))
    return fixed(number.cast("bigint").bitwiseXOR(F.lit(-(1 << 63))))


def _digits(value: Expression, scale: int) -> Expression:
    plain = F.lpad(F.replace(F.format_number(F.abs(value), scale), F.lit(","), F.lit("")), 50, "0")
    return F.when(value < 0, F.concat(F.lit("0"), F.translate(plain, "0123456789", "9876543210"))).otherwise(
        F.concat(F.lit("1"), plain)
    )
