"""Debezium's JSON in Kafka, with the Connect schema block or without it.

With the block, types come from it; its text, up to the payload, identifies the schema. Without it, types
are inferred and remembered (`log.kafka`).

Positions: a Postgres change has its LSN, behind that of a later commit that came before it, as in
`envelopes.debezium`, and snapshot rows lie below every change of their epoch. An incremental snapshot runs
beside the changes: its rows lie just below the end of the last commit before them, so above every change that
they show and below those of a transaction that was open then, wherever it wrote. A change of MySQL or MariaDB
has binlog file and place in it: the binlog is written in the order of commits, and a snapshot row has the place
at which the snapshot was taken, so both kinds have one order. Changes of one transaction share file and place
there, so the offset in the topic follows. A message sent again has the position it had, but for that offset.
"""

from __future__ import annotations

import json

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.core.change import Op
from tailrace.core.position import Phase
from tailrace.core.table import Table
from tailrace.envelopes import connect, message
from tailrace.envelopes._values import instant
from tailrace.envelopes.message import PLACEHOLDER, Sample, at, fixed, keys_in

_SOURCE = (
    "struct<connector: string, snapshot: string, ts_ms: bigint, db: string, schema: string, table: string, "
    "lsn: bigint, sequence: string, file: string, pos: bigint, row: bigint>"
)
_MESSAGE = f"op string, before string, after string, source {_SOURCE}"
OLD_KEY = "__debezium.oldkey"
"""The header in which a create names the key that its row had before."""
_BLOCK, _PAYLOAD = '{"schema":', ',"payload":'


class DebeziumJson:
    """See the module."""

    by_offset = False

    def __init__(self, placeholder: str = PLACEHOLDER) -> None:
        self._placeholder = placeholder

    def peek(self, rows: DataFrame, epoch: int, max_bytes: int) -> DataFrame:
        """Look into the messages; the payload is parsed once, the schema block is not."""
        text = message.text_within(max_bytes)
        # A block that is null says nothing: the message is one without a block.
        block_there = text.startswith(_BLOCK) & ~text.startswith(_BLOCK + "null")
        cut = F.when(block_there, F.instr(text, _PAYLOAD)).otherwise(0)
        block = F.when(cut > 0, F.hex(F.xxhash64(F.substring(text, 1, cut))))
        payload = F.when(cut > 0, F.substring(text, cut + len(_PAYLOAD), F.length(text))).otherwise(text)
        rows = rows.select(
            "topic", "partition", "offset", "key", message.unfit(max_bytes).alias("unfit"), payload.alias("payload"),
            block.alias("block"), message.key_text(message.header(OLD_KEY)).alias("old_key"),
        )  # fmt: skip
        whole = f"{_MESSAGE}, payload struct<{_struct(_MESSAGE)}>, schema string, _corrupt string"
        parsed = F.from_json("payload", whole, {"columnNameOfCorruptRecord": "_corrupt"})
        # Spark copies the columns of this step, so it has none that no later one needs.
        rows = rows.select("topic", "partition", "offset", "key", "unfit", "block", "old_key", parsed.alias("m"))
        # A message whose block is not where Connect writes it is read as a whole.
        inner = F.coalesce(F.col("m.payload.op"), F.col("m.op")).isNotNull()
        m = F.when(F.col("m.payload.op").isNotNull(), F.col("m.payload")).otherwise(
            F.struct("m.op", "m.before", "m.after", "m.source")
        )
        apart = F.when(F.col("m.payload.op").isNotNull() & F.col("m.schema").isNotNull(), F.hex(F.xxhash64("m.schema")))
        rows = rows.select(
            "topic", "partition", "offset", "key", "unfit", "old_key", m.alias("m"),
            F.col("m._corrupt").alias("corrupt"), inner.alias("inner"),
            F.coalesce("block", apart, F.lit("")).alias("schema"),
        )  # fmt: skip
        op, source = F.col("m.op"), F.col("m.source")
        row = F.when(op == Op.DELETE.value, F.coalesce(F.col("m.before"), message.key_text(F.col("key")))).when(
            op != Op.TRUNCATE.value, F.col("m.after")
        )
        rows = rows.select(
            "topic", "partition", "offset", "unfit", "old_key", "corrupt", "inner",
            F.concat_ws(".", F.coalesce(source["schema"], source["db"]), source["table"]).alias("table"),
            "schema", op.alias("op"), position(epoch).alias("position"),
            instant(source["ts_ms"]).alias("changed_at"), row.alias("row"),
            F.when(op == Op.UPDATE.value, F.col("m.before")).alias("before"),
            message.keyless(F.col("key")).alias("keyless"),
        )  # fmt: skip
        table = F.when(F.col("table").contains("."), F.col("table"))
        rows = rows.withColumn("table", table)
        known = F.col("op").isin([op.value for op in Op])
        fate = message.fate(F.col("corrupt").isNotNull() | ~F.col("inner"), F.lit(None), known)
        partial = message.may_be_partial(F.col("row"), self._placeholder)
        rows = rows.select("*", partial.alias("partial"), fate.alias("fate"))
        return rows.select(*message.COLUMNS)

    def learn(self, peeked: DataFrame) -> bool:
        """Return that there is nothing to learn: each message brings along what it needs."""
        return False

    def remember(self, table: Table, schema: str) -> None:
        """Take note of nothing."""

    def schema(self, table: str, sample: Sample) -> Table | None:
        """Return what the schema block says; `None` if it describes no row."""
        try:
            block = json.loads(sample.value or b"{}")["schema"]
            return connect.table_of(table, connect.image_of(block), self.keys(sample))
        except (ValueError, LookupError, TypeError, AttributeError):
            # It is somebody else's text, and anything may be wrong with it.
            return None

    def keys(self, sample: Sample) -> tuple[str, ...]:
        """Return the fields of the message's key."""
        return keys_in(sample.key)

    def open_rows(self, rows: DataFrame, table: Table, epoch: int, max_bytes: int) -> DataFrame:
        """Give the images their types."""
        return message.open_json(rows, table, self._placeholder)


def position(epoch: int) -> Expression:
    """Return the position of a change from `m.source`; NULL if it has none that is known here.

    Such a message is a dead letter: in the order of arrival, a partition that is added would lose changes.
    """
    source = F.col("m.source")
    live = F.coalesce(source["snapshot"], F.lit("false")).isin("false", "incremental")
    phase = F.when(live, str(Phase.CHANGE.value)).otherwise(str(Phase.SNAPSHOT.value))
    number = F.substring_index(source["file"], ".", -1).try_cast("bigint")
    in_file = F.concat(fixed(_natural(number), 8), fixed(_natural(source["pos"])), fixed(F.col("offset")))
    postgres = (source["connector"] == "postgresql") | source["lsn"].isNotNull()
    mysql = source["connector"].isin("mysql", "mariadb") | source["file"].isNotNull()
    return (
        F.when(postgres, at(epoch, phase, _in_log(source)))
        .when(mysql, at(epoch, Phase.CHANGE, in_file))
        .otherwise(F.lit(None))
    )


def _in_log(source: Expression) -> Expression:
    """Return a place in the log of Postgres; `sequence` has that of the last commit and its own."""
    lsn = _natural(source["lsn"])
    last = F.substring_index(F.substring_index(source["sequence"], '"', 2), '"', -1).try_cast("bigint")
    change = F.concat_ws(".", fixed(F.when(last > lsn, last - 1)), fixed(lsn))
    shown = fixed(F.greatest(F.coalesce(last, lsn) - 1, F.lit(0)))
    return F.when(lsn.isNotNull(), F.when(source["snapshot"] == "incremental", shown).otherwise(change))


def _natural(number: Expression) -> Expression:
    """Return a number that is a place; a negative one would sort above all others."""
    return F.when(number >= 0, number)


def _struct(fields: str) -> str:
    """Return fields as they stand in a table, as they stand in a struct."""
    return ", ".join(f"{name}: {kind}" for name, kind in (part.split(" ", 1) for part in fields.split(", ", 3)))
