"""From configuration to objects: the one place that knows every part.

    PipelineConfig, PlatformConfig ──▶ inlet, targets, drains ──▶ Pipeline

Opening a pipeline is cheap: Spark and the capture engine start when something needs them.
"""

from __future__ import annotations

import functools
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from pyspark.sql import SparkSession

from tailrace.apply.target import Forgetting, Sending, Tidying
from tailrace.config.pipeline import Mode, PipelineConfig, RetryConfig, SinkConfig
from tailrace.config.platform import PlatformConfig
from tailrace.control.checkpoints import Checkpoints, Life
from tailrace.control.daily import Daily
from tailrace.control.lag import SERVER, Lag, TargetLag, asked
from tailrace.control.lock import only_one
from tailrace.control.progress import Progress
from tailrace.core import checkpoint as checkpoints
from tailrace.core import offsets
from tailrace.core.errors import Halt, Misconfigured, ResyncRequired, TailraceError
from tailrace.core.failpoint import failpoint
from tailrace.core.table import in_order
from tailrace.runtime.drain import Drain
from tailrace.runtime.drains import Drains
from tailrace.runtime.inlet import Audited, Capturing, Opened, Renewing, open_inlet
from tailrace.runtime.lakehouse import Lakehouse
from tailrace.runtime.letters import Letters
from tailrace.runtime.maintenance import NowAndThen
from tailrace.runtime.monitor import monitored, watched
from tailrace.runtime.pump import Source
from tailrace.runtime.pumped import Pumped
from tailrace.runtime.report import Reporter, new_run_id
from tailrace.runtime.retry import attempt
from tailrace.runtime.run import Job, RunReport, run

if TYPE_CHECKING:
    from tailrace.runtime.feed import FileFeed
    from tailrace.runtime.landed import LandedTables
    from tailrace.runtime.publish import Published

TIDY_SECONDS = 3600.0
"""How often a run forgets tombstones and pages of the log that are past their retention."""


@dataclass(frozen=True, slots=True)
class Resync:
    """What a run reads anew before it goes on: every table in a new life, or only some tables of this one."""

    every: bool = False
    tables: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.every or bool(self.tables)


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
        self._daily = Daily(self._folder / "tombstones-collected")
        self._inlet = open_inlet(pipeline, platform, self._folder, self._spark)
        self._rejects = self._inlet.dead_letters()
        self._stop = threading.Event()
        self._drains = Drains(
            pipeline, platform, self._checkpoints, self._progress, self._rejects, self._spark, self._stop
        )
        self._source: Source | None = None
        self._losses = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- what commands ask for

    def check(self) -> None:
        """Halt with what would keep a run from starting: rights, settings, keys."""
        self._drains.refuse_keyless(self._inlet.check())

    def plan(self) -> list[PlanLine]:
        """Return what a run would create or change; touch nothing."""
        tables = self._inlet.check()
        self._drains.refuse_keyless(tables)
        lines = [PlanLine("source", "", action) for action in self._inlet.plan()]
        for sink in self._config.enabled_sinks:
            target = self._drains.open_target(sink, in_order(self._checkpoints.known(), tables))
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
        resync: Resync = Resync(),  # noqa: B008
        serving: Callable[[], AbstractContextManager[object]] = nullcontext,
        run_id: str | None = None,
    ) -> RunReport:
        """Run until the head that the source has now (`once`), or until `stop`.

        What `resync` names is read anew, once the source was seen to answer; what it would replace stays until then.
        `serving` is entered before anything is asked of the outside, by the one process that runs the pipeline.
        """
        sinks = self._drains.chosen(targets)
        self._drains.run_id = run_id or new_run_id()
        if isinstance(self._inlet, Audited):
            self._inlet.run_id = self._drains.run_id
        with only_one(self._folder), serving():
            tables = attempt(self._inlet.check, self._platform.retry, self._stop, report)
            self._drains.refuse_keyless(tables)
            if resync:
                self._refuse_resync()
            if resync.every:
                self._end(report)
            life = self._drains.begin(in_order((), tables), growing=self._inlet.growing)
            opened = self._inlet.open(life)
            if resync.tables:
                self._renew(opened, resync.tables, life)
            drains = [self._drain(sink, life, opened, report) for sink in sinks]
            result = self._run_job(self._job(opened, drains, report), opened, once=once, max_slices=max_slices)
            if result.first_error() is None and any(target.slices for target in result.targets):
                _told(report, lambda: self._clean_up(opened, life, [work for work, _ in drains]))
            return result

    def _drain(self, sink: SinkConfig, life: Life, opened: Opened, report: Reporter) -> tuple[Drain, RetryConfig]:
        # A run may go on for months: what it no longer needs must not wait for its end.
        tidy = NowAndThen(TIDY_SECONDS, lambda: self._clean_up(opened, life, [work]))

        def passed() -> None:
            reached = {s.sink_id: self._progress.load(s.sink_id, life.log) for s in self._config.enabled_sinks}
            _told(report, lambda: self._inlet.passed(life, sink.sink_id, reached))
            _told(report, tidy)

        log = opened.read_by(sink.sink_id, report.warning)
        prefix, growing = self._inlet.prefix, self._inlet.growing
        work = self._drains.drain(sink, life, log, report, passed, prefix=prefix, growing=growing)

        def begin() -> None:
            self._inlet.begin(life, work.fold.target, work.at)

        try:
            # Before the head of the log is asked for: a catalogue of files that was lost would be made anew by that.
            begin()
        except TailraceError as error:
            # What is the matter with a target is for its own drain to meet, unless a lost catalogue would go unseen.
            progress = self._progress.load(sink.sink_id, life.log)
            lost = progress != -1 and offsets.lacks(self._inlet.head(life), progress)
            if isinstance(error, ResyncRequired) or lost:
                raise
            work = replace(work, begin=begin)
        return work, sink.retry.over(self._platform.retry)

    def _job(self, opened: Opened, drains: Sequence[tuple[Drain, RetryConfig]], report: Reporter) -> Job:
        from tailrace.spark import losses

        self._source, log = opened.pumped or (None, None)
        return Job(
            self._config.pipeline_id,
            self._source,
            log,
            opened.log.head,
            self._checkpoints,
            drains,
            self._platform.retry,
            report,
            self._spark,
            losses,
        )

    def _run_job(self, job: Job, opened: Opened, *, once: bool, max_slices: int | None) -> RunReport:
        job.report.begun([work.target for work, _ in job.drains])
        measure = functools.partial(self.measure, job.head)
        with (
            monitored(measure, self._platform.lag_monitor_interval_seconds, job.report),
            watched(opened.watch, self._platform.schema_monitor_interval_seconds, job.report),
        ):
            return run(job, self._stop, once=once, max_slices=max_slices)

    def _clean_up(self, opened: Opened, life: Life, drains: Sequence[Drain]) -> None:
        for work in drains:
            target = work.fold.target
            # A letter that is replayed may be older than a tombstone, and would bring its row back.
            if isinstance(target, Forgetting) and not self._rejects.count(work.target):
                self._daily.do(work.target, target.collect_tombstones)
            if isinstance(target, Tidying):
                target.remove_old()
        failpoint("C28")
        self._inlet.expire(
            opened, min(self._progress.load(sink.sink_id, life.log) for sink in self._config.enabled_sinks)
        )

    def stop(self) -> None:
        """Finish or abandon the slice in hand, and end `run`; safe in a signal handler."""
        self._stop.set()
        if self._source is not None:
            self._source.close()

    def status(self) -> dict[str, object]:
        """Return the checkpoint, the log and every target's progress, from what is stored."""
        life, checkpoint = self._checkpoints.life(), self._checkpoints.load()
        head = self._inlet.head(life)
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

    def letters(self) -> Letters:
        """Return the events that were put aside."""
        return Letters(self._drains, self._checkpoints, self._rejects, self._inlet, self._folder, self._spark)

    def lakehouse(self) -> Lakehouse:
        """Return the tables of the pipeline's lakehouse targets."""
        return Lakehouse(self._drains, self._checkpoints, self._progress, self._inlet, self._folder)

    def consume(self, limit: int) -> Iterator[dict[str, object]]:
        """Yield the first `limit` changes of the log as the engine sees them; touch no target."""
        yield from self._inlet.consume(self._checkpoints.life(), limit)

    def lag(self) -> list[dict[str, object]]:
        """Return how far the log is behind the source, and each target behind the log."""
        measured = self.measure()
        if measured.error is not None:
            raise measured.error
        source = dict(measured.source)
        if isinstance(away := source.pop(SERVER, None), Mapping):
            source["error"] = f"{away['code']}: {away['message']}"
        rows = [{"part": "source", **source}] if source else []
        return [*rows, *(row for found in measured.targets for row in self._inlet.behind(found))]

    def files_status(self, *, every: bool) -> dict[str, object]:
        """Return what became of the files of the feed."""
        return self._file_feed().status(self._checkpoints.life(), every=every)

    def files_requeue(self, what: str | None, *, failed: bool, dry_run: bool) -> list[dict[str, object]]:
        """Have files of the feed read again by the next slices."""
        return self._file_feed().requeue(self._checkpoints.life(), what, failed=failed, dry_run=dry_run)

    def files_lineage(self, what: str) -> list[dict[str, object]]:
        """Return what a file of the feed did to each target."""
        feed, life = self._file_feed(), self._checkpoints.life()
        targets = [self._drains.open_target(s, life.tables) for s in self._config.enabled_sinks] if life else []
        return feed.lineage(life, what, targets)

    def _file_feed(self) -> FileFeed:
        from tailrace.runtime.feed import FileFeed

        if not isinstance(self._inlet, FileFeed):
            raise Misconfigured(
                "wrong-source", "the source of this pipeline is not files", "Give a file with source_type: files."
            )
        return self._inlet

    def landing(self) -> LandedTables:
        """Return what the bronze sink lands: the tables that runs have made, or before that those of the source."""
        from tailrace.runtime.landed import landed_tables

        source = self._inlet.open_source(epoch=1) if isinstance(self._inlet, Pumped) else None
        return landed_tables(self._config, self._drains, self._checkpoints.known(), source)

    def publish(self, targets: Sequence[str] | None, report: Reporter) -> list[dict[str, object]]:
        """Publish the staged files of `targets`, or of every staging target; a run may go on meanwhile."""
        from tailrace.targets import staging

        sinks = [sink for sink in self._drains.chosen(targets) if isinstance(sink.options, staging.Options)]
        if not sinks:
            raise Misconfigured(
                "no-target", "no sink of this pipeline is staged files", "Add a sink with sink_type: staging."
            )
        return [{"target": sink.sink_id, **self._publish(sink, report).to_json()} for sink in sinks]

    def _publish(self, sink: SinkConfig, report: Reporter) -> Published:
        from tailrace.runtime.publish import Staged, publish
        from tailrace.targets import staging
        from tailrace.targets._objects import open_objects

        self._refuse_half_a_snapshot(sink)
        options = cast(staging.Options, sink.options)
        known = self._checkpoints.known()
        target = cast(staging.StagingTarget, self._drains.open_target(sink, known))
        objects = open_objects(options.publish_to, **options.store())
        keys = {table: target.key(table) for table in known}
        staged = [Staged(table, key, target.folder / key, target.mark_in) for table, key in keys.items()]
        with only_one(self._folder / "publish" / sink.sink_id):
            work = functools.partial(publish, self._config.pipeline_id, staged, objects, options.keep_versions)
            return attempt(work, self._platform.retry, self._stop, report)

    def _refuse_half_a_snapshot(self, sink: SinkConfig) -> None:
        """Halt if tables of the sink have a part of a snapshot's rows: that is no table that the source ever had."""
        life = self._checkpoints.life()
        if life is None or not isinstance(self._inlet, Pumped):
            return
        if not self._inlet.has_snapshot(life, self._progress.load(sink.sink_id, life.log)):
            raise Halt(
                "snapshot-unfinished",
                f'target "{sink.sink_id}" has not taken all of the snapshot that this life of the pipeline began with',
                "Nothing was published. Run cdc run <file> until the target has caught up, and publish then.",
            )

    def measure(self, head: Callable[[], int] | None = None) -> Lag:
        """Ask the source and the log how far they are, and look up how far each target is.

        During a run, `head` is that of its own log: a second one could overwrite what the first remembers. One of the
        two that does not answer does not keep the other from being told.
        """
        life, age = self._checkpoints.life(), self._checkpoints.age()
        source = asked(lambda: self._inlet.lag(self._checkpoints.load()))
        try:
            end = head() if head else self._inlet.head(life)
        except TailraceError as error:
            return Lag(source, checkpoint_age=age, error=error)
        targets = tuple(self._target_lag(sink.sink_id, life, end) for sink in self._config.enabled_sinks)
        return Lag(source, targets, age)

    def _target_lag(self, target: str, life: Life | None, head: int) -> TargetLag:
        upto = self._progress.load(target, life.log) if life else -1
        marks = self._progress.marks(target, life.log) if life else {}
        seen = {table: mark.get("offset") for table, mark in marks.items() if isinstance(mark, dict)}
        return TargetLag(target, upto, head, self._rejects.count(target), seen)

    def deploy(self) -> list[str]:
        """Create topics and the connector, or bring them up to date; return what was created or changed."""
        with only_one(self._folder):
            self._refuse_second_life()
            return self._inlet.deploy()

    def _refuse_second_life(self) -> None:
        """Halt if targets have rows of an earlier capture: nothing in the topics says that a table is empty by now."""
        before = self._checkpoints.known() if self._checkpoints.life() is None else ()
        for sink in self._config.enabled_sinks if before and self._platform.transport_mode == "kafka" else ():
            target = self._drains.open_target(sink, before)
            if kept := [table for table in before if target.mark(table) is not None]:
                raise Misconfigured(
                    "not-available",
                    f'target "{sink.sink_id}" has rows of table "{kept[0]}" from before cdc undeploy',
                    "No message says of a table that it is empty by now, so its rows would stay. Drop the target's "
                    "tables, or write to another place.",
                )

    def connector(self, action: str) -> dict[str, object]:
        """Pause, resume or restart the connector, or with `status` only look; return its state and its tasks'."""
        if not isinstance(self._inlet, Capturing):
            raise Misconfigured(
                "wrong-source",
                "this pipeline has no connector",
                "It has one with transport_mode: kafka in the platform file.",
            )
        connector = self._inlet.connector()
        if action != "status":
            connector.change(action)
        return {"connector_name": connector.name, **connector.status()}

    def undeploy(self) -> list[str]:
        """Remove what runs created in the source, and forget the position; targets keep their rows."""
        with only_one(self._folder):
            return self._end()

    def _end(self, report: Reporter | None = None) -> list[str]:
        """End the present life, so that the next one begins with a new snapshot; return what was removed.

        A kill in between leaves a life whose source is gone, which halts, or no life; ending it again is right in both.
        """
        removed = self._inlet.undeploy()
        life = self._checkpoints.life()
        if life is not None and report:
            self._warn_of_unread(life, report)
        self._checkpoints.end()
        if life is not None:
            shutil.rmtree(self._platform.log_root(self._config.pipeline_id) / life.log, ignore_errors=True)
            removed.append(f"change log {life.log}")
        return removed

    def _warn_of_unread(self, life: Life, report: Reporter) -> None:
        """Say which targets that keep more than current rows have not read the log that goes: they lose that."""
        head = self._inlet.head(life)
        for sink in self._config.enabled_sinks:
            unread = head - self._progress.load(sink.sink_id, life.log)
            if sink.mode is not Mode.SCD1 and unread > 0:
                report.warning(f'target "{sink.sink_id}" had not read {unread} events of the change log that was ended')

    def _refuse_resync(self) -> None:
        if not self._inlet.anew:
            raise Misconfigured(
                "not-available",
                f'a run takes no new snapshot of this source_type "{self._config.source.source_type}": somebody else '
                "fills its log, or its snapshot_mode asks for none",
                "Set snapshot_mode to initial; or, where somebody else fills the log, have it filled anew from its "
                "beginning, and run cdc undeploy <file>.",
            )

    def _renew(self, opened: Opened, tables: Sequence[str], life: Life) -> None:
        source: object = opened.pumped[0] if opened.pumped else None
        if not isinstance(source, Renewing):
            raise Misconfigured(
                "not-available",
                f'tables of source_type "{self._config.source.source_type}" cannot be read anew one by one',
                "Run cdc run <file> --resync, which takes a new snapshot of every table.",
            )
        for table in tables:
            if table not in life.tables:
                raise Misconfigured(
                    "unknown-table",
                    f'the pipeline never read a table "{table}"',
                    f"Tables are: {', '.join(life.tables)}.",
                )
        source.renew(tables)

    @functools.cached_property
    def _session(self) -> SparkSession:
        from tailrace.spark import session

        spark = self._platform.spark
        return session(jars=spark.jars, also=self._drains.jars(), **{"spark.master": spark.master, **spark.conf})

    def _spark(self) -> SparkSession:
        from tailrace.spark import losses

        with _starting:
            if (lost := losses()) != self._losses:
                # The session that we had went away with its JVM.
                self.__dict__.pop("_session", None)
                self._losses = lost
            return self._session


_starting = threading.Lock()


def open_pipeline(pipeline: PipelineConfig, platform: PlatformConfig) -> Pipeline:
    """Return the pipeline, ready to be asked; nothing is started or created yet."""
    return Pipeline(pipeline, platform)


def _told(report: Reporter, tidy: Callable[[], object]) -> None:
    """Do what may as well be done later: where it fails, that is told, and what was applied stays a success."""
    try:
        tidy()
    except TailraceError as error:
        report.warning(f"{error.code}: {error}")
