"""What the rows of a landed log look like on disk, and how a reader sees them.

A reader always gets `topic`, `partition`, `offset`, `key`, `value` and `headers`, as from Kafka, whatever the files
hold; `envelope` is the module that opens the values. What is special about a shape stands here, so that the log
itself knows only files, offsets and checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.core.convex import table_name
from tailrace.core.table import Table
from tailrace.envelopes import binlog, convex_rows, debezium
from tailrace.envelopes import convex as convex_envelope
from tailrace.envelopes import rows as landed_rows


class Envelope(Protocol):
    """The message format of a log, as columns."""

    def open_rows(self, rows: DataFrame, table: Table, epoch: int, max_bytes: int) -> DataFrame:
        """Open the messages of one table, written with one schema, into its columns and ours."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one table in a page, and what they hold."""

    topic: str
    rows: pa.Table
    fingerprints: dict[str, int]
    """How many rows were written with each schema; those without one under the empty text."""
    features: frozenset[str]


@dataclass(frozen=True)
class Shape:
    """One kind of rows."""

    envelope: Envelope
    folder: str
    """Where in the folder of a log its pages are."""
    one_schema_file: bool
    """All schemas are in one file among the pages, instead of in files of their own beside them."""
    arrow: pa.Schema
    spark: str
    dictionary: tuple[str, ...]
    """Columns with few different values."""
    statistics: tuple[str, ...]
    """Columns by which a reader skips row groups."""
    numbered: Callable[[pa.Table, int], pa.Table]
    """Gives the rows of a page the columns of a file; the first row has the given offset."""
    parts: Callable[[pa.Table], list[Part]]
    """Takes a page apart by table."""
    view: Callable[[DataFrame], DataFrame]
    """Shows rows of files as a reader wants them."""


# -- rows like Kafka's


def _with_offsets(rows: pa.Table, first: int) -> pa.Table:
    count = rows.num_rows
    columns = {
        "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": pa.array(range(first, first + count), pa.int64()),
    }
    return pa.Table.from_arrays(
        [columns[name] if name in columns else rows[name] for name in landed_rows.COLUMNS],
        schema=landed_rows.ARROW,
    )


def _by_topic(rows: pa.Table) -> list[Part]:
    topics = pc.unique(rows["topic"]).to_pylist()
    parts = []
    for topic in sorted(topics):
        part = rows if len(topics) == 1 else rows.filter(pc.equal(rows["topic"], topic))
        named = pc.struct_field(pc.list_flatten(part["headers"]), "value")
        unnamed = part.num_rows - len(named)
        prints = {"": unnamed} if unnamed else {}
        prints |= {entry["values"].decode(): entry["counts"] for entry in pc.value_counts(named).to_pylist()}
        parts.append(Part(topic, part, prints, landed_rows.features(part["value"])))
    return parts


LIKE_KAFKA = Shape(
    envelope=debezium,
    folder="pages",
    one_schema_file=False,
    arrow=landed_rows.ARROW,
    spark=landed_rows.SPARK,
    dictionary=("topic", "headers.list.element.key", "headers.list.element.value"),
    statistics=("topic", "offset"),
    numbered=_with_offsets,
    parts=_by_topic,
    view=lambda rows: rows,
)


# -- rows of Convex


def convex(topic_prefix: str) -> Shape:
    """Return the shape of Convex's documents; `topic_prefix` begins the topics that readers see.

    The files have no offsets: a row's offset is that of its file's first row, which the name says, and its
    number in the file.
    """

    def parts(rows: pa.Table) -> list[Part]:
        found = []
        for entry in rows.group_by(["component_path", "table_name"]).aggregate([]).to_pylist():
            component, table = entry["component_path"], entry["table_name"]
            here = pc.and_(pc.equal(rows["component_path"], component), pc.equal(rows["table_name"], table))
            part = rows.filter(here)
            prints = {e["values"]: e["counts"] for e in pc.value_counts(part["schema_fingerprint"]).to_pylist()}
            truncates = pc.any(pc.equal(part["op"], "t")).as_py()
            features = frozenset({landed_rows.TRUNCATE}) if truncates else frozenset[str]()
            found.append(Part(f"{topic_prefix}.{table_name(component, table)}", part, prints, features))
        return sorted(found, key=lambda part: part.topic)

    def view(rows: DataFrame) -> DataFrame:
        table = F.when(F.col("component_path") == "", F.col("table_name")).otherwise(
            F.concat_ws(".", "component_path", "table_name")
        )
        header = F.struct(
            F.lit(landed_rows.SCHEMA_HEADER).alias("key"), F.col("schema_fingerprint").cast("binary").alias("value")
        )
        first = F.substring("_metadata.file_name", 1, 16).cast("bigint")
        return rows.select(
            F.concat(F.lit(f"{topic_prefix}."), table).alias("topic"),
            F.lit(0).alias("partition"),
            (first + F.col("_metadata.row_index")).alias("offset"),
            F.col("document_id").cast("binary").alias("key"),
            F.col("document").cast("binary").alias("value"),
            F.array(header).alias("headers"),
            "op",
            "timestamp",
            "document_id",
        )

    return Shape(
        envelope=convex_envelope,
        folder="raw_change_log",
        one_schema_file=True,
        arrow=convex_rows.ARROW,
        spark=convex_rows.SPARK,
        dictionary=("component_path", "table_name", "op", "schema_fingerprint"),
        statistics=("component_path", "table_name", "timestamp"),
        numbered=lambda rows, _: rows,
        parts=parts,
        view=view,
    )


def of(envelope: str, topic_prefix: str) -> Shape:
    """Return the shape of the rows that a source hands over, by the name of their envelope."""
    if envelope == "convex":
        return convex(topic_prefix)
    return replace(LIKE_KAFKA, envelope=binlog) if envelope == "binlog" else LIKE_KAFKA
