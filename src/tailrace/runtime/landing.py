"""The middle of a drain into bronze tables: documents in, events out, one row each, for others to fold.

A reader knows no truncate: it goes by key, sequence and delete. So where a table starts anew, every document that the
events before have left alive is deleted, by a row of its own at the sequence of the truncate, or right after its own
last event if that has the same one. See ADR 22.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, cast, runtime_checkable

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F

from tailrace.apply.engine import OP, POSITION, PROBLEM, column
from tailrace.apply.target import Batch, Landing
from tailrace.core import convex, offsets
from tailrace.core.change import Op
from tailrace.core.checkpoint import Checkpoint
from tailrace.core.errors import Misconfigured
from tailrace.core.failpoint import failpoint
from tailrace.core.table import Evolution, Fit, Table, fit
from tailrace.envelopes import convex as envelope
from tailrace.envelopes import rows as landed_rows
from tailrace.log.slice import Slice
from tailrace.runtime.fold import Again, Counts, Fold, included, next_mark
from tailrace.runtime.rules import Choice
from tailrace.spark.effort import suit
from tailrace.targets.bronze.columns import LIFE, NOTES, SEQUENCE_TYPE

ID, SEQUENCE, DELETED = "_cdc_document_id", "_cdc_sequence_num", "_cdc_is_deleted"
FINGERPRINT, DOCUMENT, CREATED = "_cdc_schema_fingerprint", "_cdc_raw_document_json", "_cdc_creation_time"
_CARRIED = (ID, SEQUENCE, FINGERPRINT, DOCUMENT)
_OWN = (convex.ID, convex.CREATED)
"""Fields that stand among our columns."""


@runtime_checkable
class Landed(Protocol):
    """A change log that knows where its source stood."""

    def reached(self, offset: int) -> Checkpoint | None:
        """Return where the source stood when the log ended with the page of `offset`; `None` if that is not known."""
        ...


class LandingFold(Fold):
    """Lands slices of a Convex log as events."""

    def table(self, piece: Slice, topic: str, choice: Choice, again: Again | None = None) -> Counts:
        """Append what `piece` has of `topic`; doing it again changes nothing."""
        _refuse_settings(choice)
        read = piece.rows_of(topic)
        mark = self._mark(choice.table, partitioned=False)
        if again is None and offsets.covers(mark.offset, piece.upto):
            return Counts(choice.table, read, superseded=read)
        spark = self._session(topic)
        suit(spark, read)
        have = self.target.have(choice.table)
        written = [self._log.schema(name) for name in piece.fingerprints(topic) if name]
        shape = envelope.side_by_side(written, have)
        fitted = self._fitted(choice, shape, have)
        seen = Observation()
        # An event that was put aside and is older than a truncate would bring its document back.
        stale = column(POSITION) <= mark.floor if again else included(piece, mark)
        events = self._events(spark, piece, topic, shape).observe(seen, *_figures(stale)).where(~stale)
        failpoint("C18")
        events = events.localCheckpoint()
        if rejected := seen.get["rejected"]:
            self._reject(spark, piece, events.where(column(PROBLEM).isNotNull()))
        rows = self._rows(events, choice, fitted.table)
        if piece.has(topic, landed_rows.TRUNCATE):
            stored = self.target.current(choice.table) if have else None
            # A table that was read anew at the timestamp of its last change brings that change once more.
            rows = rows if stored is None else rows.join(stored, [ID, SEQUENCE], "left_anti")
            rows = rows.unionByName(self._ended(events, stored, choice), allowMissingColumns=True).localCheckpoint()
        self.target.evolve(choice.table, fitted)
        if have is not None and fitted.add:
            self._report.evolved(self.target.name, choice.table, [f"added {c.name}" for c in fitted.add])
        high, floor = (max(old, seen.get[name] or "") for old, name in ((mark.high, "high"), (mark.floor, "floor")))
        new = next_mark(mark, piece, again, high, floor)
        table = Table(choice.table, fitted.table.columns, ())
        done = self.target.apply(Batch(table, rows, new, replay=again is not None))
        self._marks[choice.table] = new
        taken = read - seen.get["stale"] - rejected
        return Counts(choice.table, read, taken, seen.get["stale"], rejected=rejected, inserted=done.inserted)

    def settle(self, upto: int) -> None:
        """Say in the control table how far the source had been read."""
        checkpoint = self._log.reached(upto) if isinstance(self._log, Landed) else None
        if checkpoint is not None:
            failpoint("C71")
            self._landing.note(checkpoint)
            failpoint("C72")

    @property
    def _landing(self) -> Landing:
        return cast(Landing, self.target)

    def _fitted(self, choice: Choice, shape: Table, have: Table | None) -> Fit:
        """Return how the fields go into the table: new ones are added, and no type ever changes."""
        if have is not None:
            self._refuse_drift(choice.table, NOTES)
        chosen = {*choice.columns, *map(envelope.twin, choice.columns)}
        kept = (c for c in shape.columns if c.name not in _OWN and (not chosen or c.name in chosen))
        strict = Evolution.FAIL if self._rules.evolution is Evolution.FAIL else Evolution.ALTER
        fitted = fit(have, Table(choice.table, tuple(kept), ()), strict)
        return replace(fitted, notes=tuple(NOTES.items()) if have is None else ())

    def _events(self, spark: SparkSession, piece: Slice, topic: str, shape: Table) -> DataFrame:
        life = F.lit(str((self._log.epoch - 1) * LIFE)).cast(SEQUENCE_TYPE)
        fingerprint = F.col("headers")[0]["value"].cast("string")
        raw = piece.rows(spark, topic).select(
            "*",
            F.col("document_id").alias(ID),
            (life + F.col("timestamp")).cast(SEQUENCE_TYPE).alias(SEQUENCE),
            F.nullif(fingerprint, F.lit("")).alias(FINGERPRINT),
            F.col("value").cast("string").alias(DOCUMENT),
        )
        return envelope.open_rows(raw, shape, self._log.epoch, self._rules.max_event_bytes, _CARRIED)

    def _rows(self, events: DataFrame, choice: Choice, table: Table) -> DataFrame:
        good = events.where(column(PROBLEM).isNull() & (column(OP) != Op.TRUNCATE.value))
        created = column(convex.CREATED) if convex.CREATED in events.columns else F.lit(None)
        known = set(events.columns)
        fields = (column(c.name) for c in table.columns if c.name in known)
        return good.select(
            *self._origin(choice),
            *(F.col(name) for name in (ID, SEQUENCE)),
            (column(OP) == Op.DELETE.value).alias(DELETED),
            F.col(FINGERPRINT),
            F.col(DOCUMENT),
            *self._arrival(),
            created.cast("timestamp").alias(CREATED),
            *fields,
        )

    def _ended(self, events: DataFrame, stored: DataFrame | None, choice: Choice) -> DataFrame:
        """Return the delete of each document that was there when the table started anew, once a document."""
        truncate = column(OP) == Op.TRUNCATE.value
        said = F.col(ID), F.col(SEQUENCE), (column(OP) == Op.DELETE.value).alias(DELETED)
        every = events.where(~truncate & column(PROBLEM).isNull()).select(*said)
        if stored is not None:
            every = every.unionByName(stored.select(ID, SEQUENCE, DELETED))
        cuts = F.broadcast(events.where(truncate).select(F.col(SEQUENCE).alias("cut")))
        then = F.lead(SEQUENCE).over(Window.partitionBy(ID).orderBy(SEQUENCE, DELETED))
        alive = every.withColumn("then", then).where(~F.col(DELETED))
        # A document lives until its next event, or until the first truncate that is not before this one. At one
        # sequence an upsert could win over a delete, so the delete of an event of the truncate's own comes right after.
        end = F.greatest("cut", (F.col(SEQUENCE) + 1).cast(SEQUENCE_TYPE))
        ended = (
            alive.join(cuts, F.col(SEQUENCE) <= F.col("cut"))
            .groupBy(ID, SEQUENCE)
            .agg(
                F.min(end).alias("cut"),
                F.max(F.coalesce("then", F.lit(str(10**27)).cast(SEQUENCE_TYPE))).alias("then"),
            )
            .where("then > cut")
        )
        return ended.select(
            *self._origin(choice),
            F.col(ID),
            F.col("cut").alias(SEQUENCE),
            F.lit(True).alias(DELETED),
            F.to_json(F.struct(F.col(ID).alias(convex.ID))).alias(DOCUMENT),
            *self._arrival(),
        )

    def _origin(self, choice: Choice) -> list[Expression]:
        component, _, name = choice.table.rpartition(".")
        return [
            F.lit(self._landing.source_id).alias("_cdc_source_id"),
            F.lit(component).alias("_cdc_source_component"),
            F.lit(name).alias("_cdc_source_table"),
        ]

    def _arrival(self) -> list[Expression]:
        return [
            F.current_timestamp().alias("_cdc_ingested_at"),
            F.lit(self._landing.run_id).alias("_cdc_run_id"),
        ]


def _figures(stale: Expression) -> list[Expression]:
    good = column(PROBLEM).isNull()
    return [
        F.count_if(stale).alias("stale"),
        F.count_if(~good & ~stale).alias("rejected"),
        F.max(F.when(good, column(POSITION))).alias("high"),
        F.max(F.when(good & (column(OP) == Op.TRUNCATE.value), column(POSITION))).alias("floor"),
    ]


def _refuse_settings(choice: Choice) -> None:
    if choice.primary_key or choice.track_history:
        raise Misconfigured(
            "wrong-value",
            f'events of table "{choice.table}" are told apart by their document and its sequence',
            "Remove primary_key and track_history from this sink.",
        )
