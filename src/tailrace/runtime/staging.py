"""The middle of a drain into staging: new documents and the table as it is in, the table as it becomes out.

A table that has new changes is written whole; one that has none is not touched, and old changes are never read again.
So the cost follows the new changes and the size of their tables, however long the history is. The document that a row
was made of stands in the row: when a field turns out to hold more than was known, all rows are opened anew from it.

Deleting a file has it made again from the change log, with the same rows.
"""

from __future__ import annotations

from typing import cast

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from tailrace.apply.engine import OFFSET, OP, POSITION, PROBLEM, column
from tailrace.apply.target import Mark, Replacing
from tailrace.core import convex, offsets
from tailrace.core.change import Op
from tailrace.core.errors import Misconfigured
from tailrace.core.failpoint import failpoint
from tailrace.core.table import Evolution, Table, fit
from tailrace.envelopes import convex as envelope
from tailrace.envelopes import rows as landed_rows
from tailrace.log.slice import Slice
from tailrace.runtime.fold import Again, Counts, Fold, included, mark_upto
from tailrace.runtime.rules import Choice
from tailrace.spark.effort import suit

COMPONENT, TABLE, ID = "_component_path", "_table_name", "_document_id"
TIMESTAMP, FINGERPRINT, DOCUMENT = "_timestamp", "_schema_fingerprint", "_document_json"
_CARRIED = (ID, TIMESTAMP, FINGERPRINT, DOCUMENT)


class StagingFold(Fold):
    """Folds slices of a Convex log into files that are replaced whole."""

    def table(self, piece: Slice, topic: str, choice: Choice, again: Again | None = None) -> Counts:
        """Write the table of `topic` with what `piece` has of it; doing it again changes nothing."""
        _refuse_settings(choice, self._rules.soft)
        if again is not None:
            raise Misconfigured(
                "not-available",
                f'dead letters of target "{self.target.name}" cannot be replayed: staging writes its tables whole',
                "Mend the document in Convex; its next change replaces it.",
            )
        read = piece.rows_of(topic)
        mark = self._mark(choice.table, partitioned=False)
        if offsets.covers(mark.offset, piece.upto):
            return Counts(choice.table, read, superseded=read)
        target, spark = cast(Replacing, self.target), self._session(topic)
        stored = target.stored(spark, choice.table) if mark.offset >= 0 else None
        suit(spark, max(read, stored[2] if stored else 0))
        spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        written = [self._log.schema(name) for name in piece.fingerprints(topic) if name]
        shape = envelope.together([*([stored[1]] if stored else []), *written], None)
        shape = fit(None, Table(choice.table, shape.columns, (convex.ID,)), Evolution.ALTER).table
        seen, taken, changed = Observation(), Observation(), Observation()
        events = self._events(spark, piece, topic, shape, mark, seen)
        floor = _floor(events) if piece.has(topic, landed_rows.TRUNCATE) else 0
        failpoint("C18")
        alive = F.count_if(column(OP) != Op.DELETE.value).alias("alive")
        newest = _newest(events, floor).observe(taken, alive).localCheckpoint()
        if rejected := seen.get["rejected"]:
            self._reject(spark, piece, events.where(column(PROBLEM).isNotNull()))
        rows = _current(newest, choice.table, shape)
        if stored:
            kept = _kept(stored[0], newest, floor, changed)
            same = stored[1] == shape
            rows = (kept.select(*map(column, rows.columns)) if same else _opened_anew(kept, choice.table, shape)).union(
                rows
            )
        new = mark_upto(mark, piece.upto, max(mark.high, seen.get["high"] or ""), mark.floor)
        prepared = target.prepare(choice.table, rows.coalesce(1).sortWithinPartitions(ID), shape, new)
        prepared.commit()
        self._marks[choice.table] = new
        figures = changed.get if stored else {"updated": 0, "deleted": 0}
        return Counts(
            choice.table,
            read,
            applied=read - seen.get["stale"] - rejected,
            superseded=seen.get["stale"],
            rejected=rejected,
            inserted=taken.get["alive"] - figures["updated"],
            updated=figures["updated"],
            deleted=figures["deleted"],
        )

    def _events(
        self, spark: SparkSession, piece: Slice, topic: str, shape: Table, mark: Mark, seen: Observation
    ) -> DataFrame:
        raw = piece.rows(spark, topic).select(
            "*",
            F.col("document_id").alias(ID),
            F.col("timestamp").alias(TIMESTAMP),
            F.col("headers")[0]["value"].cast("string").alias(FINGERPRINT),
            F.col("value").cast("string").alias(DOCUMENT),
        )
        events = envelope.open_rows(raw, shape, self._log.epoch, self._rules.max_event_bytes, _CARRIED)
        stale = included(piece, mark)
        good = column(PROBLEM).isNull()
        return events.observe(
            seen,
            F.count_if(stale).alias("stale"),
            F.count_if(~good & ~stale).alias("rejected"),
            F.max(F.when(good, column(POSITION))).alias("high"),
        ).where(~stale)


def _floor(events: DataFrame) -> int:
    """Return the timestamp at and below which no row of the table is left."""
    row = events.where(column(OP) == Op.TRUNCATE.value).agg(F.max(TIMESTAMP)).first()
    return int(row[0]) if row and row[0] is not None else 0


def _newest(events: DataFrame, floor: int) -> DataFrame:
    rows = events.where(column(PROBLEM).isNull() & (column(OP) != Op.TRUNCATE.value) & (F.col(TIMESTAMP) > floor))
    every = F.struct(*(column(name) for name in rows.columns))
    return rows.groupBy(ID).agg(F.max_by(every, F.struct(POSITION, OFFSET)).alias("row")).select("row.*")


def _kept(stored: DataFrame, newest: DataFrame, floor: int, changed: Observation) -> DataFrame:
    """Return the rows of the table that nothing new is known of, and count the others."""
    news = F.broadcast(newest.select(ID, column(OP).alias("_news")))
    # What is not said of a row has a value all the same: NULL would be neither kept nor gone.
    said = F.coalesce(F.col("_news"), F.when(F.col(TIMESTAMP) <= floor, Op.DELETE.value).otherwise(""))
    return (
        stored.join(news, ID, "left")
        .observe(
            changed,
            F.count_if(~said.isin("", Op.DELETE.value)).alias("updated"),
            F.count_if(said == Op.DELETE.value).alias("deleted"),
        )
        .where(said == "")
    )


def _current(newest: DataFrame, table: str, shape: Table) -> DataFrame:
    """Return opened documents as rows of the file."""
    component, _, name = table.rpartition(".")
    return newest.where(column(OP) != Op.DELETE.value).select(
        F.lit(component).alias(COMPONENT),
        F.lit(name).alias(TABLE),
        *(F.col(name) for name in (ID, TIMESTAMP, FINGERPRINT)),
        *(column(c.name) for c in shape.columns if c.name != convex.ID),
        F.col(DOCUMENT),
    )


def _opened_anew(kept: DataFrame, table: str, shape: Table) -> DataFrame:
    raw = kept.select(
        F.lit("").alias("topic"),
        F.lit(0).alias("partition"),
        F.lit(0).cast("bigint").alias("offset"),
        F.lit(Op.UPDATE.value).alias("op"),
        F.col(TIMESTAMP).alias("timestamp"),
        F.col(DOCUMENT).cast("binary").alias("value"),
        *_CARRIED,
    )
    return _current(envelope.open_rows(raw, shape, 0, 1 << 30, _CARRIED), table, shape)


def _refuse_settings(choice: Choice, soft: str) -> None:
    if soft or choice.primary_key or choice.columns or choice.track_history:
        raise Misconfigured(
            "wrong-value",
            f'staging takes the documents of table "{choice.table}" as they are',
            "Remove delete_mode and the settings of the table from this sink; leave fields out with selection.",
        )
