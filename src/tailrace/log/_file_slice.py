"""A slice of a feed: some whole files, whose rows were opened and are kept under a name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from tailrace.core.feed import ORDERS, Entry, Fate, Outcome
from tailrace.log.slice import Slice


@dataclass(frozen=True)
class FileSlice(Slice):
    """A slice whose rows were opened and are kept under a name."""

    drop: Callable[[], None] = lambda: None
    files: tuple[tuple[Entry, Outcome], ...] = ()
    """The files whose rows it has."""
    order: str = "name"
    note: Callable[[list[Fate]], None] = lambda _: None

    def rows(self, spark: SparkSession, topic: str, fingerprint: str | None = None) -> DataFrame:
        """Return the kept rows; there is one table."""
        return self.read(spark)

    def messages(self, spark: SparkSession, places: Collection[tuple[str, int, int]]) -> Iterator[Row]:
        """Yield the rows at `places` as the files have them: a line of JSON, or the values of a row as JSON."""
        wanted = F.col("offset").isin(sorted({offset for _, _, offset in places}))
        topic = next(iter(places))[0] if places else ""
        text = F.coalesce("text", F.to_json("row"))
        return (
            self.read(spark)
            .where(wanted)
            .select(
                F.lit(topic).alias("topic"),
                F.lit(0).alias("partition"),
                "offset",
                F.lit(None).cast("binary").alias("key"),
                text.cast("binary").alias("value"),
                F.lit(None).cast("timestamp").alias("timestamp"),
                F.lit(None).cast("array<struct<key:string,value:binary>>").alias("headers"),
            )
            .toLocalIterator()
        )

    def expect(self, included: int, counts: tuple[int, int], rejected: DataFrame, taken: DataFrame) -> None:
        """Note it by file; a job is run for it only if counting by file takes one."""
        new = [(entry, outcome) for entry, outcome in self.files if entry.last > included]
        refused, superseded = counts
        if len(self.files) == 1:
            fates = [Fate(e.number, o.rows - refused - superseded, refused) for e, o in new]
        elif not superseded and refused == sum(outcome.rejected for _, outcome in self.files):
            fates = [Fate(e.number, o.rows - o.rejected, o.rejected) for e, o in new]
        else:
            place = F.regexp_extract("_cdc_position", rf"\.{ORDERS[self.order]}\.[0-9a-f]{{16}}$", 1)
            good = _sums(taken.groupBy(place).agg(F.sum("_cdc_events")))
            bad = _sums(rejected.groupBy(place).count()) if refused else {}
            fates = [Fate(e.number, good.get(e.order, 0), bad.get(e.order, 0)) for e, _ in new]
        self.note(fates)

    def release(self) -> None:
        """Forget the kept rows."""
        self.drop()


def _sums(found: DataFrame) -> dict[str, int]:
    return {row[0]: int(row[1]) for row in found.collect()}
