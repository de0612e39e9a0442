"""An inlet that is pumped: a source, and the landed log that its pages are copied to."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast, runtime_checkable

from pyspark.sql import SparkSession

from tailrace.apply.target import Target
from tailrace.config.pipeline import PipelineConfig
from tailrace.config.platform import PlatformConfig
from tailrace.control.checkpoints import Checkpoints, Life
from tailrace.control.lag import TargetLag
from tailrace.control.rejects import Kept, Rejects
from tailrace.core.checkpoint import Checkpoint, Tailing
from tailrace.log import shape as shapes
from tailrace.log.landed import LandedLog
from tailrace.log.slice import Slice
from tailrace.runtime.inlet import Opened, Tables
from tailrace.runtime.look import changes
from tailrace.runtime.pump import Source


class Database(Source, Protocol):
    """A source that can also be asked about itself."""

    def check(self) -> None:
        """Halt with what is missing in the environment; leave nothing behind."""
        ...

    def tables(self) -> dict[str, tuple[str, ...]]:
        """Return the tables to capture, each with its primary key."""
        ...

    def lag(self, checkpoint: Checkpoint | None) -> dict[str, object]:
        """Return how far `checkpoint` is behind the source."""
        ...

    def plan(self) -> list[str]:
        """Return what a run would create in the source."""
        ...

    def undeploy(self) -> list[str]:
        """Remove what a run created in the source; return what was removed."""
        ...


@runtime_checkable
class Growing(Protocol):
    """A source whose tables come as they please; a new one needs no new snapshot."""

    def know(self, tables: Sequence[str]) -> None:
        """Let these tables, which were read before, start anew with the next snapshot too, even if they are gone."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """A source that keeps something of its own beside the checkpoint."""

    def remember_in(self, folder: Path) -> None:
        """Keep it in `folder`; called before anything is read."""
        ...


class Pumped:
    """A source and its landed log; see `runtime.inlet.Inlet` for what each method promises."""

    def __init__(
        self, pipeline: PipelineConfig, platform: PlatformConfig, folder: Path, spark: Callable[[], SparkSession]
    ) -> None:
        self._pipeline = pipeline
        self._platform = platform
        self._folder = folder
        self._spark = spark
        self.prefix = f"{pipeline.topic_prefix}."

    @property
    def anew(self) -> bool:
        return bool(getattr(self._pipeline.source.options, "snapshot_mode", "initial") == "initial")

    @property
    def growing(self) -> bool:
        return isinstance(self.open_source(epoch=1), Growing)

    def check(self) -> Tables:
        source = self.open_source(epoch=1)
        if isinstance(source, Growing):
            source.know(Checkpoints(self._folder).known())
        source.check()
        return source.tables()

    def plan(self) -> list[str]:
        return self.open_source(epoch=1).plan()

    def open(self, life: Life) -> Opened:
        source, log = self.open_source(epoch=life.epoch), self._log(life)
        if isinstance(source, Growing):
            source.know(life.tables)
        return Opened(log, (source, log))

    def begin(self, life: Life, target: Target, at: Callable[[], int]) -> None:
        """Do nothing: the log is ours, and has all that it ever had."""

    def passed(self, life: Life, target: str, reached: Mapping[str, int]) -> None:
        """Do nothing: who has passed what is in the progress."""

    def head(self, life: Life | None) -> int:
        return self._log(life).head() if life else -1

    def has_snapshot(self, life: Life, upto: int) -> bool:
        """Say whether what has the log up to `upto` has all of the snapshot that the life began with."""
        whole = self._log(life).whole_from()
        # A snapshot without rows leaves no page.
        return upto >= whole if whole is not None else isinstance(Checkpoints(self._folder).load(), Tailing)

    def lag(self, checkpoint: Checkpoint | None) -> Mapping[str, object]:
        return self.open_source(epoch=1).lag(checkpoint)

    def behind(self, found: TargetLag) -> list[dict[str, object]]:
        return [{"part": found.target, "lag_events": found.events, "upto": found.upto, "head": found.head}]

    def consume(self, life: Life | None, limit: int) -> Iterator[dict[str, object]]:
        """Yield the first changes that the log still has; none before a run has landed any."""
        if life is None:
            return
        log, most = self._log(life), self._platform.limits.max_event_bytes
        after = log.begins()
        while limit > 0 and after < log.head() and (piece := log.slice(after, limit)) is not None:
            yield from changes(piece, log, self._spark(), prefix=self.prefix, limit=limit, max_bytes=most)
            limit -= piece.upto - after
            after = piece.upto

    def dead_letters(self) -> Rejects:
        enabled, limit = self._platform.dlq.enabled, self._platform.limits.max_rejects
        return Rejects(self._folder / "rejects", enabled=enabled, limit=limit)

    def again(self, life: Life, letters: Sequence[Kept], spark: SparkSession) -> Slice:
        return self._log(life).again([letter.event.offset for letter in letters], spark)

    def expire(self, opened: Opened, upto: int) -> None:
        if (days := self._platform.log.retention_days) is not None and isinstance(opened.log, LandedLog):
            opened.log.expire(upto, timedelta(days=days))

    def deploy(self) -> list[str]:
        """Return nothing: a run creates what it needs."""
        return []

    def undeploy(self) -> list[str]:
        return self.open_source(epoch=1).undeploy()

    def open_source(self, epoch: int) -> Database:
        """Return the source, for a life of this `epoch`; nothing is connected yet."""
        source = self._module().open_source(
            self._pipeline.source.options,
            pipeline_id=self._pipeline.pipeline_id,
            topic_prefix=self._pipeline.topic_prefix,
            epoch=epoch,
        )
        if isinstance(source, Remembering):
            source.remember_in(self._folder)
        return cast(Database, source)

    def _log(self, life: Life) -> LandedLog:
        shape = shapes.of(getattr(self._module(), "ENVELOPE", "debezium"), self._pipeline.topic_prefix)
        return LandedLog(self._platform.log_root(self._pipeline.pipeline_id), life.log, life.epoch, shape)

    def _module(self) -> ModuleType:
        return importlib.import_module(f"tailrace.sources.{self._pipeline.source.source_type}")
