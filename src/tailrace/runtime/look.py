"""Changes of a slice as the engine sees them, for an operator to look at: opened and judged, and applied nowhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tailrace.apply import engine
from tailrace.apply.engine import OFFSET, OP, PARTITION, POSITION, PROBLEM, TOPIC, column
from tailrace.core.table import Column, Table
from tailrace.envelopes.message import FILTERED
from tailrace.log.slice import Slice
from tailrace.runtime.fold import Schemas
from tailrace.runtime.whole import Whole
from tailrace.targets._events import JSON


def changes(
    piece: Slice, log: Schemas, spark: SparkSession, *, prefix: str, limit: int, max_bytes: int
) -> Iterator[dict[str, object]]:
    """Yield the first `limit` changes of `piece`; one that can never be applied says why, and so does what is none."""
    opened = [rest] if (rest := _aside(piece, spark)) is not None else []
    for topic in piece.topics():
        table = topic.removeprefix(prefix)
        for fingerprint, schema in _schemas(piece, log, topic).items():
            rows = piece.rows(spark, topic, fingerprint)
            events = log.envelope.open_rows(rows, schema, log.epoch, max_bytes)
            opened.append(_shown(engine.judge(events, schema.keys), schema, table))
    if not opened:
        return
    together = reduce(DataFrame.unionByName, opened)
    for row in together.orderBy("topic", "partition", "offset").limit(limit).toLocalIterator():
        yield row.asDict()


def _aside(piece: Slice, spark: SparkSession) -> DataFrame | None:
    """Return the messages of a slice of topics that are of no table; nothing where there are none such."""
    if not piece.contents.aside:
        return None
    fate = F.when(F.col("fate") == FILTERED, "filtered").otherwise(F.col("fate"))
    columns = ("topic", "partition", "offset", "table", "op", "position", "changed_at")
    row = F.lit(None).cast("string").alias("row")
    return piece.read(spark).where("fate IS NOT NULL").select(*columns, row, fate.alias("status"))


def _schemas(piece: Slice, log: Schemas, topic: str) -> Mapping[str | None, Table]:
    """Return what to open the rows of `topic` with, by what they were written with; `None` stands for all of them."""
    found = {name: log.schema(name) for name in piece.fingerprints(topic) if name}
    if isinstance(log.envelope, Whole):
        return {None: log.envelope.together(list(found.values()), None)}
    bare = next(iter(found.values()), Table(topic, (Column("none", "string"),), ()))
    return {name: found.get(name, bare) for name in piece.fingerprints(topic)}


def _shown(events: DataFrame, schema: Table, table: str) -> DataFrame:
    row = F.to_json(F.struct(*(column(name).alias(name) for name in schema.names())), JSON)
    return events.select(
        column(TOPIC).alias("topic"),
        column(PARTITION).alias("partition"),
        column(OFFSET).alias("offset"),
        F.lit(table).alias("table"),
        column(OP).alias("op"),
        column(POSITION).alias("position"),
        column("_cdc_changed_at").alias("changed_at"),
        F.when(column(PROBLEM).isNull(), row).alias("row"),
        F.coalesce(column(PROBLEM), F.lit("change")).alias("status"),
    )
