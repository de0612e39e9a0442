"""A message format that the pipeline file describes: where a JSON message has what.

A path names fields from the outside in: `payload.new_state`. The position is the value of `ts_field`, a time
or any number that grows, with the offset after it, since two changes may share a time; without `ts_field` it
is the offset. Numbers are ordered as they are, whatever their unit, and a time in text is its milliseconds:
a guess at the unit of each value would put a number that grows past a bound below what it was before. A
message that is sent again counts as newer than what it repeats: the row that it leaves is the same once all
of it was sent again. Each topic holds one table, called like the topic.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.core.change import Op
from tailrace.core.position import Phase
from tailrace.core.table import Table
from tailrace.envelopes import message
from tailrace.envelopes._values import instant
from tailrace.envelopes.message import PLACEHOLDER, Sample, at, fixed

_SECONDS_BELOW = 100_000_000_000
"""A time below this is shown as one in seconds: in milliseconds it would lie before 1974."""


_WHOLE_NUMBER = "^(0|-?[1-9][0-9]*)$"
_NUMBER = "decimal(28,9)"
"""As many digits before the point as 64 bits may hold, and nanoseconds after it."""


@dataclass(frozen=True)
class Custom:
    """Paths into a message, and its words for what happened."""

    op_field: str
    after_field: str
    key_field: str
    before_field: str = ""
    ts_field: str = ""
    op_map: Mapping[str, str] = field(default_factory=dict)

    @property
    def by_offset(self) -> bool:
        """Say whether there is no field that orders changes."""
        return not self.ts_field

    def peek(self, rows: DataFrame, epoch: int, max_bytes: int) -> DataFrame:
        """Look into the messages."""
        text = message.text_within(max_bytes)
        unfit = message.unfit(max_bytes).alias("unfit")
        rows = rows.select("topic", "partition", "offset", "key", unfit, text.alias("text"))
        word = _at("text", self.op_field)
        op = word
        for theirs, ours in self.op_map.items():
            op = F.when(word == theirs, ours).otherwise(op)
        nothing = F.lit(None).cast("string")
        after = self._with_key(_at("text", self.after_field))
        before = self._with_key(_at("text", self.before_field)) if self.before_field else nothing
        row = F.when(op == Op.DELETE.value, F.coalesce(before, after, self._key_row())).when(
            op != Op.TRUNCATE.value, after
        )
        millis, position = self._position(epoch)
        rows = rows.select(
            "topic", "partition", "offset", "unfit", "text", F.col("topic").alias("table"), F.lit("").alias("schema"),
            op.alias("op"), position.alias("position"), instant(millis).alias("changed_at"),
            row.alias("row"), nothing.alias("old_key"), F.when(op == Op.UPDATE.value, before).alias("before"),
            F.lit(False).alias("partial"), F.col("key").isNull().alias("keyless"),
        )  # fmt: skip
        corrupt = F.get_json_object("text", "$").isNull() | F.col("op").isNull()
        known = F.col("op").isin([op.value for op in Op])
        return rows.withColumn("fate", message.fate(corrupt, F.lit(None), known)).select(*message.COLUMNS)

    def learn(self, peeked: DataFrame) -> bool:
        """Return that there is nothing to learn: messages carry no schemas."""
        return False

    def remember(self, table: Table, schema: str) -> None:
        """Take note of nothing."""

    def schema(self, table: str, sample: Sample) -> Table | None:
        """Return nothing: messages carry no types."""
        return None

    def keys(self, sample: Sample) -> tuple[str, ...]:
        """Return the last name of `key_field`, which a row has too or is given."""
        return (self.key_field.rpartition(".")[2],)

    def open_rows(self, rows: DataFrame, table: Table, epoch: int, max_bytes: int) -> DataFrame:
        """Give the images their types."""
        return message.open_json(rows, table, PLACEHOLDER)

    def _with_key(self, row: Expression) -> Expression:
        """Return a row with its key in it, also where that stands beside the row only, or deeper inside of it."""
        name, inside = self.key_field.rpartition(".")[2], self.key_field.removeprefix(f"{self.after_field}.")
        if inside == name != self.key_field:
            return row
        alone = self._alone(_at("text", self.key_field) if inside == self.key_field else _at(row, inside))
        lacks = F.get_json_object(row, f"$['{name}']").isNull() & row.startswith("{") & alone.isNotNull()
        # Of a name that stands twice in JSON, the last one counts.
        joined = F.concat(row.substr(F.lit(1), F.length(row) - 1), F.lit(","), alone.substr(F.lit(2), F.length(alone)))
        return F.when(lacks, F.when(F.size(F.json_object_keys(row)) > 0, joined).otherwise(alone)).otherwise(row)

    def _key_row(self) -> Expression:
        """Return a row of which only the key is known: from its own path, else from the message's key."""
        name = self.key_field.rpartition(".")[2]
        whole, alone = message.key_text(F.col("key")), self._alone(_at("text", self.key_field))
        return F.coalesce(alone, F.when(F.get_json_object(whole, f"$['{name}']").isNotNull(), whole))

    def _alone(self, key: Expression) -> Expression:
        """Return a row that holds the key and nothing else; NULL if there is none."""
        # Whether it was a number or its digits in quotes is not seen here, and both are read alike.
        value = F.when(key.rlike(_WHOLE_NUMBER) & key.try_cast("bigint").isNotNull(), key).otherwise(_quoted(key))
        name = json.dumps(self.key_field.rpartition(".")[2], ensure_ascii=False)
        return F.when(key.isNotNull(), F.concat(F.lit(f"{{{name}:"), value, F.lit("}")))

    def _position(self, epoch: int) -> tuple[Expression, Expression]:
        offset = fixed(F.col("offset"))
        if not self.ts_field:
            return F.lit(None).cast("bigint"), at(epoch, Phase.CHANGE, F.concat(F.lit("0" * 24), offset))
        said = _at("text", self.ts_field)
        micros = F.unix_micros(said.try_cast("timestamp")).cast("decimal(20,0)")
        number = F.coalesce(said.try_cast(_NUMBER), (micros / 1000).cast(_NUMBER))
        whole = F.floor(number)
        rest = (number - whole).cast("decimal(10,9)") * F.lit(1_000_000_000).cast("decimal(10,0)")
        # The sign bit is flipped, so that text sorts like the number.
        place = F.concat(fixed(whole.try_cast("bigint").bitwiseXOR(F.lit(-(1 << 63)))), fixed(rest, 8), offset)
        scaled = F.when(number.between(-_SECONDS_BELOW, _SECONDS_BELOW), number * 1000).otherwise(number)
        return F.floor(scaled).try_cast("bigint"), at(epoch, Phase.CHANGE, place)


def _quoted(text: Expression) -> Expression:
    """Return `text` as JSON writes it."""
    wrapped = F.to_json(F.struct(text.alias("k")))
    return wrapped.substr(F.lit(len('{"k":') + 1), F.length(wrapped) - len('{"k":}'))


def _at(column: str | Expression, path: str) -> Expression:
    steps = "".join(f"['{step}']" for step in path.split("."))
    return F.get_json_object(column, f"${steps}")
