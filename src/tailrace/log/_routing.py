"""Which table a message belongs to, beyond what it says itself, and whether it is wanted at all."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import chain

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.core.change import Op
from tailrace.envelopes.message import FILTERED, quotable

EVERY = frozenset(op.value for op in Op)


@dataclass(frozen=True, slots=True)
class Routing:
    """What is done with peeked messages before they are counted by table."""

    routes: Mapping[str, str] = field(default_factory=dict)
    """By topic, the table that all its messages belong to, whatever they say."""
    operations: Collection[str] = EVERY
    """Changes of other operations are left out, and counted as filtered."""
    leave_others: bool = False
    """Messages of tables that are not named are left out, instead of being rejected."""

    def apply(self, peeked: DataFrame, tables: Collection[str], open_topics: Collection[str]) -> DataFrame:
        """Give each message its table and its fate; a topic of `open_topics` may have any table."""
        if self.routes:
            tables_by_topic = F.create_map(*(F.lit(text) for text in chain(*sorted(self.routes.items()))))
            routed = F.coalesce(tables_by_topic[F.col("topic")], F.col("table"))
            peeked = peeked.withColumn("table", routed)
        fate = F.col("fate")
        if tables:
            known = F.col("table").isin(sorted(tables)) | F.col("topic").isin(sorted(open_topics))
            stranger = (
                F.lit(FILTERED) if self.leave_others else F.concat(F.lit("unknown-table: "), quotable(F.col("table")))
            )
            fate = F.coalesce(fate, F.when(~known, stranger))
        if set(self.operations) != EVERY:
            fate = F.coalesce(fate, F.when(~F.col("op").isin(sorted(self.operations)), FILTERED))
        return peeked.withColumn("fate", fate)
