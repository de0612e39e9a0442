"""From configuration to objects: the one place that knows every part.

    PipelineConfig, PlatformConfig ──▶ source, log, targets, drains ──▶ Pipeline

Opening a pipeline is cheap: Spark and the capture engine start when something needs them.
"""

from __future__ import annotations

import functools
import importlib
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Protocol, Self, cast

from pyspark.sql import SparkSession

from tailrace.apply.target import Forgetting, Target
from tailrace.config.pipeline import Mode, PipelineConfig, SinkConfig
from tailrace.config.platform import PlatformConfig
from tailrace.control.checkpoints import Checkpoints, Life
from tailrace.control.lock import only_one
from tailrace.control.progress import Progress
from tailrace.control.rejects import Rejects
from tailrace.core import checkpoint as checkpoints
from tailrace.core.checkpoint import Checkpoint
from tailrace.core.errors import Halt, Misconfigured
from tailrace.core.failpoint import failpoint
from tailrace.core.table import target_names
from tailrace.log.landed import LandedLog
from tailrace.runtime.drain import Drain, Pace
from tailrace.runtime.fold import Choice, Fold, Rules
from tailrace.runtime.pump import Source
from tailrace.runtime.report import Reporter
from tailrace.runtime.run import Job, RunReport, run


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
        self._rejects = Rejects(
            self._folder / "rejects", enabled=platform.dlq.enabled, limit=platform.limits.max_rejects
        )
        self._stop = threading.Event()
        self._source: Database | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- what commands ask for

    def check(self) -> None:
        """Halt with what would keep a run from starting: rights, settings, keys."""
        source = self._open_source(epoch=1)
        source.check()
        self._refuse_keyless(source.tables())

    def plan(self) -> list[PlanLine]:
        """Return what a run would create or change; touch nothing."""
        source = self._open_source(epoch=1)
        source.check()
        tables = source.tables()
        self._refuse_keyless(tables)
        lines = [PlanLine("source", "", action) for action in source.plan()]
        for sink in self._config.enabled_sinks:
            target = self._open_target(sink, tuple(tables))
            for table in tables:
                action = "create" if target.have(table) is None else "keep current"
                lines.append(PlanLine(sink.sink_id, table, action))
        return lines

    def run(
        self, *, once: bool, targets: Sequence[str] | None = None, max_slices: int | None = None, report: Reporter
    ) -> RunReport:
        """Run until the head that the source has now (`once`), or until `stop`."""
        sinks = self._chosen(targets)
        with only_one(self._folder):
            source = self._open_source(epoch=1)
            source.check()
            keys = source.tables()
            self._refuse_keyless(keys)
            life = self._begin(tuple(sorted(keys)))
            self._source = self._open_source(epoch=life.epoch)
            log = self._open_log(life)
            drains = [(self._drain(sink, life, log, report), sink.retry.over(self._platform.retry)) for sink in sinks]
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
            result = run(job, self._stop, once=once, max_slices=max_slices)
            if result.first_error() is None and any(target.slices for target in result.targets):
                self._clean_up(log, [work.fold.target for work, _ in drains])
            return result

    def stop(self) -> None:
        """Finish or abandon the slice in hand, and end `run`; safe in a signal handler."""
        self._stop.set()
        if self._source is not None:
            self._source.close()

    def status(self) -> dict[str, object]:
        """Return the checkpoint, the log and every target's progress, from what is stored."""
        life, checkpoint = self._checkpoints.life(), self._checkpoints.load()
        head = self._open_log(life).head() if life else -1
        return {
            "pipeline_id": self._config.pipeline_id,
            "epoch": life.epoch if life else 0,
            "checkpoint": None if checkpoint is None else checkpoints.to_json(checkpoint),
            "log": {"name": life.log if life else None, "head": head},
            "targets": [
                {
                    "target": sink.sink_id,
                    "upto": self._progress.load(sink.sink_id, life.log) if life else -1,
                    "rejected": self._rejects.count(sink.sink_id),
                    "marks": self._progress.marks(sink.sink_id, life.log) if life else {},
                }
                for sink in self._config.enabled_sinks
            ],
        }

    def lag(self) -> list[dict[str, object]]:
        """Return how far the log is behind the source, and each target behind the log."""
        life = self._checkpoints.life()
        head = self._open_log(life).head() if life else -1
        source = self._open_source(epoch=1).lag(self._checkpoints.load())
        rows: list[dict[str, object]] = [{"part": "source", **source}]
        for sink in self._config.enabled_sinks:
            upto = self._progress.load(sink.sink_id, life.log) if life else -1
            rows.append({"part": sink.sink_id, "lag_events": head - upto, "upto": upto, "head": head})
        return rows

    def undeploy(self) -> list[str]:
        """Remove what runs created in the source, and forget the position; targets keep their rows."""
        with only_one(self._folder):
            removed = self._open_source(epoch=1).undeploy()
            life = self._checkpoints.life()
            self._checkpoints.end()
            if life is not None:
                shutil.rmtree(self._platform.log_root(self._config.pipeline_id) / life.log, ignore_errors=True)
                removed.append(f"change log {life.log}")
            return removed

    # -- parts

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

    def _open_source(self, epoch: int) -> Database:
        module = importlib.import_module(f"tailrace.sources.{self._config.source.source_type}")
        return cast(
            Database,
            module.open_source(
                self._config.source.options,
                pipeline_id=self._config.pipeline_id,
                topic_prefix=self._config.topic_prefix,
                epoch=epoch,
            ),
        )

    def _open_target(self, sink: SinkConfig, tables: tuple[str, ...]) -> Target:
        module = importlib.import_module(f"tailrace.targets.{sink.sink_type}")
        chosen = {table: settings.name for table, settings in sink.tables.items() if settings.name}
        return cast(
            Target,
            module.open_target(
                sink.sink_id,
                sink.options,
                spark=self._spark,
                pipeline_id=self._config.pipeline_id,
                tables=target_names(tables, chosen),
                mode=sink.mode.value,
            ),
        )

    def _open_log(self, life: Life) -> LandedLog:
        return LandedLog(self._platform.log_root(self._config.pipeline_id), life.log, life.epoch)

    def _drain(self, sink: SinkConfig, life: Life, log: LandedLog, report: Reporter) -> Drain:
        target = self._open_target(sink, life.tables)
        rules = Rules(sink.mode.value, sink.schema_evolution, self._platform.limits.max_event_bytes)
        choices = {}
        for table in life.tables:
            settings = sink.tables.get(table)
            key = tuple(settings.primary_key or ()) if settings else ()
            columns = tuple(settings.columns or ()) if settings else ()
            choices[f"{self._config.topic_prefix}.{table}"] = Choice(table, key, columns)
        return Drain(
            sink.sink_id,
            log,
            Fold(self._spark, log, target, rules, self._rejects, report),
            choices,
            self._progress,
            Pace(self._platform.slice.max_rows, self._platform.slice.interval_seconds),
            report,
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

    def _clean_up(self, log: LandedLog, targets: Sequence[Target]) -> None:
        for target in targets:
            if isinstance(target, Forgetting):
                target.collect_tombstones()
        failpoint("C28")
        days = self._platform.log.retention_days
        if days is not None:
            slowest = min(self._progress.load(sink.sink_id, log.name) for sink in self._config.enabled_sinks)
            log.expire(slowest, timedelta(days=days))


_starting = threading.Lock()


def open_pipeline(pipeline: PipelineConfig, platform: PlatformConfig) -> Pipeline:
    """Return the pipeline, ready to be asked; nothing is started or created yet."""
    return Pipeline(pipeline, platform)
