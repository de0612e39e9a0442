"""Maxwell's JSON: one flat message per changed row, without types.

The position of a change is its place in the binlog where Maxwell sends it (`output_binlog_position`), else
its transaction and its place in that (`output_xoffset`); the last row of a transaction says `commit` instead
of its place. Rows of one binlog event share a place, so the row's number in the transaction follows. Where
Maxwell sends no places in a transaction, or not even transactions, the place in the log follows the transaction
or the time: a row's changes share a partition, in their order. A row of a bootstrap has none of these: it lies
below every change, in the order of the log.

An update says in `old` what changed, so the row as it was is known: whether that had another key is for the
table to say, by the key that it goes by.
"""

from __future__ import annotations

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.core.change import Op
from tailrace.core.position import Phase
from tailrace.core.table import Table
from tailrace.envelopes import message
from tailrace.envelopes.message import FILTERED, PLACEHOLDER, Sample, at, fixed, keys_in

_MESSAGE = (
    "database string, table string, type string, ts bigint, xid bigint, xoffset bigint, commit boolean, "
    "position string, data string, old string, _corrupt string"
)
_OPS = {
    "insert": Op.CREATE,
    "update": Op.UPDATE,
    "delete": Op.DELETE,
    "bootstrap-insert": Op.READ,
}
_SILENT = (
    "bootstrap-start",
    "bootstrap-complete",
    *(f"{what}-{done}" for what in ("database", "table") for done in ("create", "alter", "drop")),
)
"""What is no row: the ends of a bootstrap, and statements (`output_ddl`), which rows show by themselves."""
_LAST = 0xFFFFFFFF
_LATEST = 253_402_300_799
"""The end of the year 9999, in seconds."""
_PK = "pk."


class Maxwell:
    """See the module."""

    by_offset = False

    def peek(self, rows: DataFrame, epoch: int, max_bytes: int) -> DataFrame:
        """Look into the messages."""
        parsed = F.from_json(message.text_within(max_bytes), _MESSAGE, {"columnNameOfCorruptRecord": "_corrupt"})
        unfit = message.unfit(max_bytes).alias("unfit")
        rows = rows.select("topic", "partition", "offset", "key", unfit, parsed.alias("m"))
        op = F.col("m.type")
        for word, known in _OPS.items():
            op = F.when(F.col("m.type") == word, known.value).otherwise(op)
        file, place = F.substring_index("m.position", ":", 1), F.substring_index("m.position", ":", -1)
        number = fixed(F.substring_index(file, ".", -1).try_cast("bigint"), 8)
        row = fixed(F.coalesce(F.col("m.xoffset"), F.when(F.col("m.commit"), F.lit(_LAST)), F.lit(0)), 8)
        in_file = F.concat(number, fixed(place.try_cast("bigint")), row)
        in_transaction = F.concat(F.lit("0" * 8), fixed(F.col("m.xid")), row)
        placed = F.col("m.xoffset").isNotNull() | F.coalesce(F.col("m.commit"), F.lit(False))
        in_log = F.concat(F.lit("0" * 8), fixed(F.coalesce("m.xid", "m.ts")), F.lit("0" * 8), fixed(F.col("offset")))
        # A place in the binlog that cannot be read is no reason to put the row below those whose place can.
        in_order = F.coalesce(in_file, F.when(placed, in_transaction), F.when(F.col("m.position").isNull(), in_log))
        position = F.when(
            op == Op.READ.value, at(epoch, Phase.SNAPSHOT, F.concat(F.lit("0" * 16), fixed(F.col("offset"))))
        ).otherwise(at(epoch, Phase.CHANGE, in_order))
        changed_at = F.when(F.col("m.ts").between(0, _LATEST), F.timestamp_seconds("m.ts"))
        table = F.when(
            F.col("m.database").isNotNull() & F.col("m.table").isNotNull(), F.concat_ws(".", "m.database", "m.table")
        )
        rows = rows.select(
            "topic", "partition", "offset", "unfit", "m", table.alias("table"), F.lit("").alias("schema"),
            op.alias("op"), position.alias("position"), changed_at.alias("changed_at"),
            F.col("m.data").alias("row"), F.lit(None).cast("string").alias("old_key"),
            F.when(op == Op.UPDATE.value, _old_row()).alias("before"), F.lit(False).alias("partial"),
            message.keyless(F.col("key")).alias("keyless"),
        )  # fmt: skip
        corrupt = F.col("m._corrupt").isNotNull() | F.col("m.type").isNull()
        silent = F.when(F.col("m.type").isin(*_SILENT), FILTERED)
        fate = message.fate(corrupt, silent, F.col("m.type").isin(*_OPS))
        return rows.withColumn("fate", fate).select(*message.COLUMNS)

    def learn(self, peeked: DataFrame) -> bool:
        """Return that there is nothing to learn: messages carry no schemas."""
        return False

    def remember(self, table: Table, schema: str) -> None:
        """Take note of nothing."""

    def schema(self, table: str, sample: Sample) -> Table | None:
        """Return nothing: messages carry no types."""
        return None

    def keys(self, sample: Sample) -> tuple[str, ...]:
        """Return the columns that the message's key names: `pk.id`."""
        return tuple(name.removeprefix(_PK) for name in keys_in(sample.key) if name.startswith(_PK))

    def open_rows(self, rows: DataFrame, table: Table, epoch: int, max_bytes: int) -> DataFrame:
        """Give the images their types."""
        return message.open_json(rows, table, PLACEHOLDER)


def _old_row() -> Expression:
    """Return the row as it was: of a name that stands twice in JSON, the last one counts."""
    data, old = F.col("m.data"), F.col("m.old")
    joined = F.concat(data.substr(F.lit(1), F.length(data) - 1), F.lit(","), old.substr(F.lit(2), F.length(old)))
    return F.when(old.startswith("{") & (old != "{}"), joined)
