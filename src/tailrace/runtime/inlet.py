"""What stands before the drains: where their change log comes from, and what can be asked of it.

    source + landed log (`pumped`)  |  topics of Kafka (`topics`)  |  a directory of files (`feed`)

A pipeline has one inlet and never asks which kind it is: what one of them has nothing to say to, it answers
with nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from pyspark.sql import SparkSession

from tailrace.apply.target import Target
from tailrace.config.pipeline import PipelineConfig
from tailrace.config.platform import PlatformConfig
from tailrace.control.checkpoints import Life
from tailrace.control.lag import TargetLag
from tailrace.control.rejects import Aside, Kept
from tailrace.core.checkpoint import Checkpoint
from tailrace.core.errors import Misconfigured, NotReady
from tailrace.core.subjects import Registered
from tailrace.log.slice import Slice
from tailrace.runtime.drain import ChangeLog
from tailrace.runtime.fold import Schemas
from tailrace.runtime.pump import Log, Source
from tailrace.sources._connect import Connector

Tables = Mapping[str, tuple[str, ...] | None]
"""Tables, each with its primary key, which is empty if it has none; `None` where only its messages will tell."""


class ReadLog(ChangeLog, Schemas, Protocol):
    """A change log as drains read it."""

    def head(self) -> int:
        """Return the last offset that there is."""
        ...

    def require_rest(self, place: int) -> None:
        """Halt if anything behind `place` is gone, so that a table that has no more could not be made current."""
        ...


@runtime_checkable
class Reading(Protocol):
    """A log that is read in a session of Spark of its own."""

    def let_go(self) -> None:
        """Read in another session from now on: the one that there was went away."""
        ...


@dataclass(frozen=True, slots=True)
class Opened:
    """An inlet, opened for one life."""

    log: ReadLog
    pumped: tuple[Source, Log] | None = None
    """What is read, and the log that it is written to; nothing, where somebody else fills the log."""
    each: Callable[[str, Callable[[str], None]], ReadLog] | None = None
    watch: Callable[[], Registered | None] | None = None
    """Looks whether a schema registry has new versions; nothing, where there is no registry, or none is needed."""

    def read_by(self, target: str, warn: Callable[[str], None]) -> ReadLog:
        """Return the log as `target` reads it."""
        return self.each(target, warn) if self.each else self.log


@runtime_checkable
class Capturing(Protocol):
    """An inlet with a connector of its own."""

    def connector(self) -> Connector:
        """Return the connector."""
        ...


@runtime_checkable
class Audited(Protocol):
    """An inlet that notes which run did what."""

    run_id: str


@runtime_checkable
class Renewing(Protocol):
    """A source that can read some of its tables anew while the others go on."""

    def renew(self, tables: Sequence[str]) -> None:
        """Read these tables anew before going on, also if they are gone."""
        ...


class Inlet(Protocol):
    """Where changes come from; nothing is connected before something is asked."""

    prefix: str
    """What the log puts before the name of a table to make a topic of it."""

    @property
    def anew(self) -> bool:
        """Say whether a run can end the life of the log, and fill the next one from a new snapshot."""
        ...

    @property
    def growing(self) -> bool:
        """Say whether tables come as they please: a new one needs no new snapshot."""
        ...

    def check(self) -> Tables:
        """Return the tables; halt with what would keep a run from starting. Leaves nothing behind."""
        ...

    def plan(self) -> list[str]:
        """Return what a run would create there."""
        ...

    def open(self, life: Life) -> Opened:
        """Return the log of `life`, and what fills it."""
        ...

    def begin(self, life: Life, target: Target, at: Callable[[], int]) -> None:
        """Hold what `target` has against the log, before it is drained from `at` on."""
        ...

    def passed(self, life: Life, target: str, reached: Mapping[str, int]) -> None:
        """Take note that `target` has passed another slice; `reached` says where every target is."""
        ...

    def head(self, life: Life | None) -> int:
        """Return the last offset of the log, as an onlooker sees it."""
        ...

    def lag(self, checkpoint: Checkpoint | None) -> Mapping[str, object]:
        """Return how far `checkpoint` is behind the source; nothing, if there is none to ask."""
        ...

    def behind(self, found: TargetLag) -> list[dict[str, object]]:
        """Return how far a target is behind the log, in rows to show."""
        ...

    def consume(self, life: Life | None, limit: int) -> Iterator[dict[str, object]]:
        """Yield the first messages of the log, looked into; what is no change says why."""
        ...

    def dead_letters(self) -> Aside:
        """Return where events go that can never be applied."""
        ...

    def again(self, life: Life, letters: Sequence[Kept], spark: SparkSession) -> Slice:
        """Return a slice of events that were put aside in this life; what is gone for good is not in it."""
        ...

    def expire(self, opened: Opened, upto: int) -> None:
        """Remove of the open log what every target has up to `upto`, as far as it is ours and old enough."""
        ...

    def deploy(self) -> list[str]:
        """Create what must be there before a run, or bring it up to date; return what was created or changed."""
        ...

    def undeploy(self) -> list[str]:
        """Remove what runs and deployments created there; return what was removed."""
        ...


def open_inlet(
    pipeline: PipelineConfig, platform: PlatformConfig, folder: Path, spark: Callable[[], SparkSession]
) -> Inlet:
    """Return the inlet of a pipeline."""
    of_topics = pipeline.source.source_type == "kafka" or platform.transport_mode == "kafka"
    if platform.stop_on_incompatible_schema and (not of_topics or pipeline.source.source_type == "files"):
        raise Misconfigured(
            "not-available",
            "stop_on_incompatible_schema is for topics in this release",
            "A change that a target cannot take exactly always halts; see schema_evolution. Remove the key.",
        )
    if pipeline.source.source_type == "files":
        from tailrace.runtime.feed import FileFeed

        return FileFeed(pipeline, platform, folder, spark)
    if not of_topics:
        from tailrace.runtime.pumped import Pumped

        return Pumped(pipeline, platform, folder, spark)
    try:
        from tailrace.runtime.connected import Connected
        from tailrace.runtime.topics import Topics
    except ModuleNotFoundError as error:
        raise missing_extra(error) from error
    kind = Topics if pipeline.source.source_type == "kafka" else Connected
    return kind(pipeline, platform, folder, spark)


def missing_extra(error: ModuleNotFoundError) -> NotReady:
    """Return what to tell a user who has not installed the client of Kafka."""
    return NotReady(
        "missing-extra",
        f'Kafka needs the Python package "{error.name}", which is not installed',
        "Run: pip install 'tailrace[kafka]'",
    )
