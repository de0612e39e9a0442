"""From configuration to objects: the one place that knows every part.

    PipelineConfig, PlatformConfig ──▶ source, log, targets, drains ──▶ Pipeline

Opening a pipeline is cheap: Spark and the capture engine start when something needs them.
"""

from __future__ import annotations

import functools
import importlib
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Protocol, Self, cast, runtime_checkable

from pyspark.sql import SparkSession

from tailrace.apply.target import Forgetting, Sending, Target
from tailrace.config.pipeline import Mode, PipelineConfig, SinkConfig
from tailrace.config.platform import PlatformConfig
from tailrace.control.checkpoints import Checkpoints, Life
from tailrace.control.deliveries import Deliveries
from tailrace.control.lag import Lag, TargetLag
from tailrace.control.lock import only_one
from tailrace.control.progress import Progress
from tailrace.control.rejects import Aside, Letter, Rejects
from tailrace.core import checkpoint as checkpoints
from tailrace.core import offsets
from tailrace.core.checkpoint import Checkpoint
from tailrace.core.errors import Halt, Misconfigured, NotReady, TailraceError
from tailrace.core.failpoint import failpoint
from tailrace.core.table import target_names
from tailrace.log import shape as shapes
from tailrace.log.landed import LandedLog
from tailrace.runtime.drain import Drain, Pace
from tailrace.runtime.fold import Choice, Fold, Rules
from tailrace.runtime.monitor import monitored
from tailrace.runtime.pump import Source
from tailrace.runtime.report import Reporter
from tailrace.runtime.retry import attempt
from tailrace.runtime.run import Job, RunReport, run

if TYPE_CHECKING:
    from tailrace.log.files import FileLog
    from tailrace.log.kafka import KafkaLog
    from tailrace.runtime.feed import FileFeed
    from tailrace.runtime.topics import Topics


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
        """Let these tables start anew with the next snapshot too, even if they are gone."""
        ...


@dataclass(frozen=True, slots=True)
class PlanLine:
    """One thing that a run would create or change."""

    target: str
    table: str
    action: str


class Pipeline:
    """An open pipeline: what every command works on."""

    def __init__(self, pipeline: PipelineConfig, platform: PlatformConfig) -> None:
        self._config = pipeline
        self._platform = platform
        self._folder = platform.control_root(pipeline.pipeline_id)
        self._checkpoints = Checkpoints(self._folder)
        self._progress = Progress(self._folder / "progress")
        self._topics = self._open_topics()
        self._rejects: Aside = (
            self._topics.dead_letters()
            if self._topics
            else Rejects(self._folder / "rejects", enabled=platform.dlq.enabled, limit=platform.limits.max_rejects)
        )
        self._stop = threading.Event()
        self._source: Database | None = None
        self._extending = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- what commands ask for

    def check(self) -> None:
        """Halt with what would keep a run from starting: rights, settings, keys."""
        if self._topics:
            self._topics.tables()
            return
        source = self._open_source(epoch=1)
        source.check()
        self._refuse_keyless(source.tables())

    def plan(self) -> list[PlanLine]:
        """Return what a run would create or change; touch nothing."""
        lines: list[PlanLine] = []
        if self._topics:
            tables: dict[str, tuple[str, ...]] = dict.fromkeys(self._topics.tables(), ())
        else:
            source = self._open_source(epoch=1)
            source.check()
            tables = source.tables()
            self._refuse_keyless(tables)
            lines = [PlanLine("source", "", action) for action in source.plan()]
        for sink in self._config.enabled_sinks:
            target = self._open_target(sink, tuple(tables))
            for table in tables:
                action = "create" if target.have(table) is None else "keep current"
                lines.append(PlanLine(sink.sink_id, table, "send" if isinstance(target, Sending) else action))
        return lines

    def run(
        self,
        *,
        once: bool,
        targets: Sequence[str] | None = None,
        max_slices: int | None = None,
        report: Reporter,
        serving: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> RunReport:
        """Run until the head that the source has now (`once`), or until `stop`.

        `serving` is entered before anything is asked of the outside, by the one process that runs the pipeline.
        """
        sinks = self._chosen(targets)
        with only_one(self._folder), serving():
            if self._topics:
                return self._run_topics(self._topics, sinks, report, once=once, max_slices=max_slices)
            source = self._open_source(epoch=1)
            attempt(source.check, self._platform.retry, self._stop, report)
            keys = attempt(source.tables, self._platform.retry, self._stop, report)
            self._refuse_keyless(keys)
            growing = isinstance(source, Growing)
            life = self._extend(tuple(keys), sinks) if growing else self._begin(tuple(sorted(keys)))
            self._source = self._open_source(epoch=life.epoch)
            if isinstance(self._source, Growing):
                self._source.know(life.tables)
            log = self._open_log(life)
            drains = [
                (self._drain(sink, life, log, report, growing=growing), sink.retry.over(self._platform.retry))
                for sink in sinks
            ]
            job = Job(
                self._config.pipeline_id,
                self._source,
                log,
                log.head,
                self._checkpoints,
                drains,
                self._platform.retry,
                report,
                self._spark,
            )
            result = self._run_job(job, once=once, max_slices=max_slices)
            if result.first_error() is None and any(target.slices for target in result.targets):
                self._clean_up(log, [work.fold.target for work, _ in drains])
            return result

    def _run_topics(
        self,
        topics: Topics | FileFeed,
        sinks: Sequence[SinkConfig],
        report: Reporter,
        *,
        once: bool,
        max_slices: int | None,
    ) -> RunReport:
        life = self._extend(topics.tables(), self._config.enabled_sinks)
        log = topics.log(life)

        def passed(target: str) -> None:
            reached = {s.sink_id: self._progress.load(s.sink_id, log.name) for s in self._config.enabled_sinks}
            try:
                topics.passed(life, target, reached)
            except TailraceError as error:
                report.warning(f"{error.code}: {error}")

        drains = []
        for sink in sinks:
            mine = topics.log(life, sink.sink_id, report.warning)
            work = self._drain(sink, life, mine, report, functools.partial(passed, sink.sink_id), growing=True)
            topics.begin(life, work.fold.target, work.at())
            drains.append((work, sink.retry.over(self._platform.retry)))
        job = Job(
            self._config.pipeline_id,
            None,
            None,
            log.head,
            self._checkpoints,
            drains,
            self._platform.retry,
            report,
            self._spark,
        )
        result = self._run_job(job, once=once, max_slices=max_slices)
        if result.first_error() is None and any(target.slices for target in result.targets):
            self._forget([work.fold.target for work, _ in drains])
        return result

    def _run_job(self, job: Job, *, once: bool, max_slices: int | None) -> RunReport:
        job.report.begun([work.target for work, _ in job.drains])
        measure = functools.partial(self.measure, job.head)
        with monitored(measure, self._platform.lag_monitor_interval_seconds, job.report):
            return run(job, self._stop, once=once, max_slices=max_slices)

    def stop(self) -> None:
        """Finish or abandon the slice in hand, and end `run`; safe in a signal handler."""
        self._stop.set()
        if self._source is not None:
            self._source.close()

    def status(self) -> dict[str, object]:
        """Return the checkpoint, the log and every target's progress, from what is stored."""
        life, checkpoint = self._checkpoints.life(), self._checkpoints.load()
        head = self._head(life)
        return {
            "pipeline_id": self._config.pipeline_id,
            "epoch": life.epoch if life else 0,
            "checkpoint": None if checkpoint is None else checkpoints.to_json(checkpoint),
            "log": {"name": life.log if life else None, "head": offsets.to_json(head)},
            "targets": [
                {
                    "target": sink.sink_id,
                    "upto": offsets.to_json(self._progress.load(sink.sink_id, life.log)) if life else -1,
                    "rejected": self._rejects.count(sink.sink_id),
                    "marks": self._progress.marks(sink.sink_id, life.log) if life else {},
                }
                for sink in self._config.enabled_sinks
            ],
        }

    def dead_letters(self, targets: Sequence[str] | None = None) -> Iterator[Letter]:
        """Yield the events that were put aside, of `targets` or of all; each has an `id`."""
        for sink in self._chosen(targets):
            for letter in self._rejects.letters(sink.sink_id):
                parts = (letter.get(f"dlq.source_{part}") for part in ("topic", "partition", "offset"))
                yield {"id": "/".join(map(str, (sink.sink_id, *parts))), **letter}

    def consume(self, limit: int) -> Iterator[dict[str, object]]:
        """Yield the first `limit` messages of the topics as the engine sees them; touch no target."""
        if self._topics is None:
            raise Misconfigured(
                "not-available",
                f'cdc consume does not read source_type "{self._config.source.source_type}" in this release',
                "It reads topics: source_type kafka.",
            )
        life = self._checkpoints.life() or Life(1, "none")
        yield from self._topics.consume(life, limit)

    def lag(self) -> list[dict[str, object]]:
        """Return how far the log is behind the source, and each target behind the log."""
        measured = self.measure()
        if self._topics:
            return [row for found in measured.targets for row in self._topics.lag(found)]
        rows: list[dict[str, object]] = [{"part": "source", **measured.source}]
        for found in measured.targets:
            events = found.head - found.upto
            rows.append({"part": found.target, "lag_events": events, "upto": found.upto, "head": found.head})
        return rows

    def files_status(self, *, every: bool) -> dict[str, object]:
        """Return what became of the files of the feed."""
        return self._file_feed().status(self._checkpoints.life(), every=every)

    def files_requeue(self, what: str | None, *, failed: bool, dry_run: bool) -> list[dict[str, object]]:
        """Have files of the feed read again by the next slices."""
        return self._file_feed().requeue(self._checkpoints.life(), what, failed=failed, dry_run=dry_run)

    def files_lineage(self, what: str) -> list[dict[str, object]]:
        """Return what a file of the feed did to each target."""
        feed, life = self._file_feed(), self._checkpoints.life()
        targets = [self._open_target(sink, life.tables) for sink in self._config.enabled_sinks] if life else []
        return feed.lineage(life, what, targets)

    def _file_feed(self) -> FileFeed:
        from tailrace.runtime.feed import FileFeed

        if not isinstance(self._topics, FileFeed):
            raise Misconfigured(
                "wrong-source", "the source of this pipeline is not files", "Give a file with source_type: files."
            )
        return self._topics

    def measure(self, head: Callable[[], int] | None = None) -> Lag:
        """Ask the source and the log how far they are, and look up how far each target is.

        During a run, `head` is that of its own log: a second one could overwrite what the first remembers.
        """
        life = self._checkpoints.life()
        end = head() if head else self._head(life)
        return Lag(
            {} if self._topics else self._open_source(epoch=1).lag(self._checkpoints.load()),
            tuple(self._target_lag(sink.sink_id, life, end) for sink in self._config.enabled_sinks),
            self._checkpoints.age(),
        )

    def _target_lag(self, target: str, life: Life | None, head: int) -> TargetLag:
        upto = self._progress.load(target, life.log) if life else -1
        marks = self._progress.marks(target, life.log) if life else {}
        seen = {table: mark.get("offset") for table, mark in marks.items() if isinstance(mark, dict)}
        return TargetLag(target, upto, head, self._rejects.count(target), seen)

    def undeploy(self) -> list[str]:
        """Remove what runs created in the source, and forget the position; targets keep their rows."""
        with only_one(self._folder):
            removed = [] if self._topics else self._open_source(epoch=1).undeploy()
            life = self._checkpoints.life()
            self._checkpoints.end()
            if life is not None:
                shutil.rmtree(self._platform.log_root(self._config.pipeline_id) / life.log, ignore_errors=True)
                removed.append(f"change log {life.log}")
            return removed

    # -- parts

    def _head(self, life: Life | None) -> int:
        if self._topics:
            return self._topics.head(life)
        return self._open_log(life).head() if life else -1

    def _begin(self, tables: tuple[str, ...]) -> Life:
        life = self._checkpoints.begin(tables)
        if life.tables != tables:
            new, gone = sorted(set(tables) - set(life.tables)), sorted(set(life.tables) - set(tables))
            raise Halt(
                "tables-changed",
                f"the tables of this pipeline changed since its snapshot: added {new}, removed {gone}",
                "Rows of an added table from before now would be missing. Run cdc undeploy and then cdc run, "
                "which takes a new snapshot of all tables.",
            )
        return life

    def _open_topics(self) -> Topics | FileFeed | None:
        if self._config.source.source_type == "files":
            from tailrace.runtime.feed import FileFeed

            return FileFeed(self._config, self._platform, self._folder, self._spark)
        if self._config.source.source_type != "kafka":
            return None
        try:
            from tailrace.runtime.topics import Topics
        except ModuleNotFoundError as error:
            raise NotReady(
                "missing-extra",
                f'source_type "kafka" needs the Python package "{error.name}", which is not installed',
                "Run: pip install 'tailrace[kafka]'",
            ) from error
        return Topics(self._config, self._platform, self._folder, self._spark)

    def _extend(self, tables: tuple[str, ...], sinks: Sequence[SinkConfig]) -> Life:
        """Return the life with `tables` added; halt if a table would get another name in a target by that."""
        before = self._checkpoints.known()
        every = tuple(sorted({*before, *tables}))
        for sink in sinks:
            old, new = _names(sink, before), _names(sink, every)
            moved = [table for table in before if new[table] != old[table]]
            if moved:
                raise Misconfigured(
                    "name-collision",
                    f'a new table has the name "{old[moved[0]]}" too, which table "{moved[0]}" has in target '
                    f'"{sink.sink_id}"',
                    "Give one of them a name of its own under tables.",
                )
        return self._checkpoints.extend(every)

    def _open_source(self, epoch: int) -> Database:
        return cast(
            Database,
            self._source_module().open_source(
                self._config.source.options,
                pipeline_id=self._config.pipeline_id,
                topic_prefix=self._config.topic_prefix,
                epoch=epoch,
            ),
        )

    def _open_target(self, sink: SinkConfig, tables: tuple[str, ...]) -> Target:
        module = importlib.import_module(f"tailrace.targets.{sink.sink_type}")
        kept: dict[str, object] = {}
        if getattr(module, "KEEPS_NOTES", False):
            kept = {"notes": Deliveries(self._folder / "deliveries", sink.sink_id), "stop": self._stop}
        return cast(
            Target,
            module.open_target(
                sink.sink_id,
                sink.options,
                spark=self._spark,
                pipeline_id=self._config.pipeline_id,
                tables=_names(sink, tables),
                mode=sink.mode.value,
                **kept,
            ),
        )

    def _open_log(self, life: Life) -> LandedLog:
        envelope = getattr(self._source_module(), "ENVELOPE", "debezium")
        shape = shapes.of(envelope, self._config.topic_prefix)
        return LandedLog(self._platform.log_root(self._config.pipeline_id), life.log, life.epoch, shape)

    def _source_module(self) -> ModuleType:
        return importlib.import_module(f"tailrace.sources.{self._config.source.source_type}")

    def _drain(
        self,
        sink: SinkConfig,
        life: Life,
        log: LandedLog | KafkaLog | FileLog,
        report: Reporter,
        passed: Callable[[], None] = lambda: None,
        *,
        growing: bool = False,
    ) -> Drain:
        target = self._open_target(sink, life.tables)
        rules = Rules(sink.mode.value, sink.schema_evolution, self._platform.limits.max_event_bytes, sink.flag)
        prefix = "" if self._topics else f"{self._config.topic_prefix}."
        choices = {f"{prefix}{table}": _choice(sink, table) for table in life.tables}
        fold = Fold(self._spark, log, target, rules, self._rejects, report)

        def grow(topic: str) -> None:
            table = topic.removeprefix(prefix)
            with self._extending:
                every = self._extend((table,), [sink]).tables
            fold.target = self._open_target(sink, every)
            choices[topic] = _choice(sink, table)

        return Drain(
            sink.sink_id,
            log,
            fold,
            choices,
            self._progress,
            Pace(self._platform.slice.max_rows, self._platform.slice.interval_seconds),
            report,
            passed,
            grow if growing else None,
        )

    @functools.cached_property
    def _session(self) -> SparkSession:
        from tailrace.spark import session

        spark = self._platform.spark
        return session(jars=spark.jars, **{"spark.master": spark.master, **spark.conf})

    def _spark(self) -> SparkSession:
        with _starting:
            return self._session

    def _chosen(self, targets: Sequence[str] | None) -> list[SinkConfig]:
        sinks = {sink.sink_id: sink for sink in self._config.enabled_sinks}
        for name in targets or ():
            if name not in sinks:
                raise Misconfigured(
                    "unknown-target", f'there is no target "{name}"', f"Enabled targets are: {', '.join(sinks)}."
                )
        return [sink for name, sink in sinks.items() if not targets or name in targets]

    def _refuse_keyless(self, keys: dict[str, tuple[str, ...]]) -> None:
        for sink in self._config.enabled_sinks:
            for table, key in keys.items():
                settings = sink.tables.get(table)
                if sink.mode is not Mode.APPEND and not key and not (settings and settings.primary_key):
                    raise Misconfigured(
                        "no-key",
                        f'table "{table}" has no primary key, so target "{sink.sink_id}" cannot tell its rows apart',
                        "Give it a primary key, name one with primary_key under tables, or use mode: append.",
                    )

    def _forget(self, targets: Sequence[Target]) -> None:
        for target in targets:
            if isinstance(target, Forgetting):
                target.collect_tombstones()

    def _clean_up(self, log: LandedLog, targets: Sequence[Target]) -> None:
        self._forget(targets)
        failpoint("C28")
        days = self._platform.log.retention_days
        if days is not None:
            slowest = min(self._progress.load(sink.sink_id, log.name) for sink in self._config.enabled_sinks)
            log.expire(slowest, timedelta(days=days))


_starting = threading.Lock()


def _names(sink: SinkConfig, tables: tuple[str, ...]) -> dict[str, str]:
    chosen = {table: settings.name for table, settings in sink.tables.items() if settings.name}
    return target_names(tables, chosen)


def _choice(sink: SinkConfig, table: str) -> Choice:
    settings = sink.tables.get(table)
    if settings is None:
        return Choice(table)
    return Choice(
        table, tuple(settings.primary_key or ()), tuple(settings.columns or ()), tuple(settings.track_history or ())
    )


def open_pipeline(pipeline: PipelineConfig, platform: PlatformConfig) -> Pipeline:
    """Return the pipeline, ready to be asked; nothing is started or created yet."""
    return Pipeline(pipeline, platform)
