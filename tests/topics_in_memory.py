"""A pipeline of topics without a server: Kafka in memory, a target in memory, the real log, fold and drain between."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from tailrace.apply.target import Target
from tailrace.control.progress import Progress
from tailrace.control.rejects import Aside, Rejects
from tailrace.control.rejects import Kept as Letter
from tailrace.core.table import Evolution
from tailrace.envelopes import rows as landed_rows
from tailrace.envelopes.debezium_json import DebeziumJson
from tailrace.envelopes.message import Format
from tailrace.log._memory_cluster import MemoryCluster
from tailrace.log._routing import Routing
from tailrace.log.kafka import KafkaLog
from tailrace.log.slice import Slice
from tailrace.runtime.drain import Drain, Pace, drain
from tailrace.runtime.fold import Counts, Fold
from tailrace.runtime.replay import Replay, StillBad
from tailrace.runtime.report import Silent
from tailrace.runtime.rules import Choice, Rules
from tailrace.targets.memory import MemoryTarget, State

Result = TypeVar("Result")


@dataclass
class Kept:
    """A memory of a log that outlives the log."""

    content: dict[str, Any] | None = None

    def load(self) -> dict[str, Any] | None:
        return self.content

    def save(self, content: dict[str, Any]) -> None:
        self.content = content


@dataclass
class Pipeline:
    """What a process has; `again` is the next process."""

    spark: SparkSession
    folder: Path
    cluster: MemoryCluster
    topics: Sequence[str]
    tables: Sequence[str]
    envelope: Format = field(default_factory=DebeziumJson)
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    evolution: Evolution = Evolution.ALTER
    memory: Kept = field(default_factory=Kept)
    state: State = field(default_factory=State)
    routing: Routing | None = None
    mode: Literal["scd1", "scd2", "append"] = "scd1"
    limit: int = 1000
    life: tuple[str, int] = ("log", 1)
    """The name of the log, and its epoch."""
    soft: str = ""
    elsewhere: Target | None = None
    """Written to in place of the target in memory."""

    @property
    def log(self) -> KafkaLog:
        return KafkaLog(
            *self.life,
            self.cluster,
            self.topics,
            self.tables,
            self.envelope,
            self.memory,
            lambda: self.spark,
            100_000,
            routing=self.routing,
        )

    @property
    def target(self) -> MemoryTarget:
        return MemoryTarget("box", spark_session=self.spark, pipeline_id="p", state=self.state, mode=self.mode)

    @property
    def progress(self) -> Progress:
        return Progress(self.folder / "progress")

    @property
    def rejects(self) -> Rejects:
        return Rejects(self.folder / "rejects", enabled=True, limit=self.limit)

    def drain(self, max_rows: int = 100_000) -> list[Counts]:
        """Drain to the head; return the counts of every table of every slice."""
        return [count for counts in self.steps(max_rows) for count in counts]

    def steps(self, max_rows: int) -> Iterator[list[Counts]]:
        """Drain to the head, a slice at a time; yield the counts of every table."""
        log = self.log
        work = self._work(log, self.rejects, max_rows)

        def once(step: Callable[[], Result]) -> Result:
            return step()

        for _, counts in drain(work, threading.Event(), once, log.head()):
            yield counts

    def replay(self) -> list[Counts]:
        """Replay the dead letters; return the counts of every table."""
        log, bad = self.log, StillBad()

        def again(letters: Sequence[Letter]) -> Slice:
            events = [letter.event for letter in letters]
            rows = [
                {name: getattr(e, name) for name in ("topic", "partition", "offset", "key", "value")} for e in events
            ]
            return log.again(pa.Table.from_pylist(rows, schema=landed_rows.ARROW))

        work = self._work(log, bad, 100_000)
        return Replay(work, bad, self.rejects, self.folder / "replays", again, lambda: self.spark).run()

    def _work(self, log: KafkaLog, rejects: Aside, max_rows: int) -> Drain:
        rules = Rules(self.mode, self.evolution, 100_000, self.soft)
        fold = Fold(lambda: self.spark, log, self.elsewhere or self.target, rules, rejects, Silent())
        choices = {table: Choice(table, self.keys.get(table, ()), self.columns) for table in self.tables}
        return Drain("box", log, fold, choices, self.progress, Pace(max_rows, 0.0, 1), Silent())

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the target's rows of `table`, by key."""
        kept = self.target.have(table)
        if kept is None:
            return []
        return sorted(self.target.rows(table), key=lambda row: [str(row[key]) for key in kept.keys])


def total(counts: Sequence[Counts], name: str) -> int:
    """Return the sum of one figure over all tables and slices."""
    return sum(getattr(count, name) for count in counts)
