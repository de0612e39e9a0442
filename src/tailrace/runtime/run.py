"""Running a pipeline: the pump and the drains side by side, until the head or until stopped.

`once` pumps to the head seen at the start, then drains all of it, so that slices are few and large.
Otherwise the pump goes on beside the drains, and the run ends when it is stopped, when the pump halts, or
when no target is left. Each drain has a thread of its own: a target that halts or waits holds no other back.
Only `once` gives up on a server that is away; otherwise it is waited for without end.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

from py4j.protocol import Py4JError

from tailrace.config.pipeline import RetryConfig
from tailrace.control.checkpoints import Checkpoints
from tailrace.core import checkpoint as checkpoints
from tailrace.core.errors import Halt, Retryable, TailraceError, Unreachable
from tailrace.runtime.drain import Drain, Result, drain
from tailrace.runtime.fold import Counts, by_table
from tailrace.runtime.pump import Log, Source, pump
from tailrace.runtime.report import Reporter
from tailrace.runtime.retry import attempt
from tailrace.spark.causes import causes_of, no_room


@dataclass
class TargetReport:
    """What a run did to one target."""

    target: str
    status: str = "waiting"
    slices: int = 0
    upto: int = -1
    tables: dict[str, Counts] = field(default_factory=dict)
    error: TailraceError | None = None

    def add(self, counts: Sequence[Counts], upto: int) -> None:
        """Count one more slice."""
        self.slices += 1
        self.upto = upto
        self.tables = {found.table: found for found in by_table([*self.tables.values(), *counts])}

    def to_json(self) -> dict[str, object]:
        """Return the form that `cdc run --json` prints."""
        return {
            "target": self.target,
            "status": self.status,
            "slices": self.slices,
            "upto": str(self.upto),
            "tables": [asdict(self.tables[name]) for name in sorted(self.tables)],
            **_error_json(self.error),
        }


@dataclass
class RunReport:
    """What a run did; `to_json` is the object at the end of `cdc run --once --json`."""

    pipeline_id: str
    targets: list[TargetReport]
    status: str = "running"
    seconds: float = 0.0
    pages: int = 0
    rows: int = 0
    checkpoint: checkpoints.Checkpoint | None = None
    error: TailraceError | None = None

    def first_error(self) -> TailraceError | None:
        """Return the error that decides the exit code."""
        return next((e for e in (self.error, *(t.error for t in self.targets)) if e is not None), None)

    def to_json(self) -> dict[str, object]:
        """Return the form that `cdc run --json` prints."""
        checkpoint = None if self.checkpoint is None else checkpoints.to_json(self.checkpoint)
        return {
            "pipeline_id": self.pipeline_id,
            "status": self.status,
            "seconds": round(self.seconds, 3),
            "pump": {"pages": self.pages, "rows": self.rows, "checkpoint": checkpoint},
            "targets": [target.to_json() for target in self.targets],
            **_error_json(self.error),
        }


def _error_json(error: TailraceError | None) -> dict[str, object]:
    return {} if error is None else {"error": {"code": error.code, "message": str(error), "hint": error.hint}}


@dataclass(frozen=True)
class Job:
    """Everything a run needs, built before it starts."""

    pipeline_id: str
    source: Source | None
    """What is pumped into the log; nothing, where somebody else fills it."""
    log: Log | None
    head: Callable[[], int]
    checkpoints: Checkpoints
    drains: Sequence[tuple[Drain, RetryConfig]]
    retry: RetryConfig
    report: Reporter
    warm_up: Callable[[], object]
    """Starts what the drains need while the pump is still reading."""
    losses: Callable[[float], int] = lambda _: 0
    """Returns how often Spark went away so far, which may take so many seconds to show."""


def run(job: Job, stop: threading.Event, *, once: bool, max_slices: int | None = None) -> RunReport:
    """Run `job` to its end; errors are in the report, never raised, so that what was done is always told."""
    started = time.monotonic()
    result = RunReport(job.pipeline_id, [TargetReport(work.target) for work, _ in job.drains])
    (_run_once if once else _run_on)(job, stop, result, max_slices)
    result.status = "failed" if result.first_error() else "stopped" if stop.is_set() else "done"
    result.seconds = time.monotonic() - started
    result.checkpoint = job.checkpoints.load() if result.error is None else result.checkpoint
    return result


def reported(pipeline_id: str, work: Callable[[], RunReport]) -> RunReport:
    """Return the report of `work`, also when it is refused before it begins."""
    try:
        return work()
    except TailraceError as error:
        return RunReport(pipeline_id, [], status="failed", error=error)


def _run_once(job: Job, stop: threading.Event, result: RunReport, max_slices: int | None) -> None:
    warming = threading.Thread(target=_quietly, args=(job.warm_up,), name="warm-up", daemon=True)
    warming.start()
    _pump(job, stop, result, once=True)
    warming.join()
    if result.error is None and not stop.is_set() and (upto := _head(job, stop, result)) is not None:
        threads = _draining(job, result, functools.partial(_drain, job, stop=stop, upto=upto, max_slices=max_slices))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _head(job: Job, stop: threading.Event, result: RunReport) -> int | None:
    try:
        return attempt(job.head, job.retry, stop, job.report)
    except Exception as error:  # noqa: BLE001
        if not _abandoned(error, stop):
            result.error = _ours(error)
            job.report.halted("log", result.error)
        return None


def _run_on(job: Job, stop: threading.Event, result: RunReport, max_slices: int | None) -> None:
    def pump_until_stopped() -> None:
        _pump(job, stop, result, once=False)
        stop.set()

    def drain_until_stopped(work: Drain, retry: RetryConfig, target: TargetReport) -> None:
        _drain(job, work, retry, target, stop, None, max_slices)
        if all(other.status != "waiting" for other in result.targets):
            stop.set()

    threads = [threading.Thread(target=pump_until_stopped, name="pump")] if job.source else []
    threads += _draining(job, result, drain_until_stopped)
    for thread in threads:
        thread.start()
    while not stop.wait(0.2):
        pass
    if job.source:
        job.source.close()
    for thread in threads:
        thread.join()


def _draining(
    job: Job, result: RunReport, drain_one: Callable[[Drain, RetryConfig, TargetReport], None]
) -> list[threading.Thread]:
    return [
        threading.Thread(target=drain_one, args=(work, retry, target), name=f"drain {work.target}")
        for (work, retry), target in zip(job.drains, result.targets, strict=True)
    ]


def _pump(job: Job, stop: threading.Event, result: RunReport, *, once: bool) -> None:
    def appended(rows: int, checkpoint: checkpoints.Checkpoint) -> None:
        result.pages += 1
        result.rows += rows
        job.report.page(rows, checkpoint)

    if job.source is None or job.log is None:
        return
    try:
        until = attempt(job.source.head, job.retry, stop, job.report) if once else None
        work = functools.partial(pump, job.source, job.log, job.checkpoints, appended, until)
        attempt(work, job.retry, stop, job.report, lambda: result.pages, endless=not once)
    except Exception as error:  # noqa: BLE001
        if not _abandoned(error, stop):
            result.error = _ours(error)
            job.report.halted("source", result.error)


def _drain(
    job: Job,
    work: Drain,
    retry: RetryConfig,
    target: TargetReport,
    stop: threading.Event,
    upto: int | None,
    max_slices: int | None,
) -> None:
    left = most = retry.max_attempts
    while target.status == "waiting":
        lost, slices = job.losses(0), target.slices
        try:
            if left < most:
                work.renew()
            _drain_on(job, work, retry, target, stop, upto, max_slices)
            target.status = "stopped" if stop.is_set() else "done"
        except Exception as caught:  # noqa: BLE001
            error = caught
            if _went_away(job, lost, caught):
                repeated = left < most and target.slices == slices
                left = left - 1 if repeated else most - 1
                hint = "If that happens often, give it more memory: spark.driver.memory under spark.conf."
                error = Retryable("spark-lost", f'Spark went away from target "{work.target}"', hint)
                error.__cause__ = caught
                # The slice may have been more than it has memory for.
                work = replace(work, pace=work.pace.halved()) if repeated else work
                if left and not stop.is_set():
                    job.report.warning(f"{error.code}: {error}; another one is started, {left} attempts left")
                    continue
            if _abandoned(error, stop):
                target.status = "stopped"
            else:
                target.status, target.error = "failed", _ours(error)
                job.report.failed(work.target, target.error)


_CUT = (Py4JError, OSError, EOFError)
_DYING = 2.0
"""Seconds in which a JVM ends whose connections are cut, and what is raised where they are."""


class _SparkLost(Exception):
    """What was in hand went away with Spark."""


def _went_away(job: Job, before: int, error: Exception) -> bool:
    """Say whether Spark went away since it had `before`; where `error` is of a cut connection, after a moment."""
    met = error.__cause__ if isinstance(error, TailraceError) else error
    return job.losses(_DYING if isinstance(met, _CUT) else 0) != before


def _drain_on(
    job: Job,
    work: Drain,
    retry: RetryConfig,
    target: TargetReport,
    stop: threading.Event,
    upto: int | None,
    max_slices: int | None,
) -> None:
    """Drain from where the target is; raise once Spark has gone away, for nothing that it had is there any more."""
    lost = job.losses(0)

    def patiently(step: Callable[[], Result]) -> Result:
        def unless_lost() -> Result:
            try:
                return step()
            except Exception as error:
                if _went_away(job, lost, error):
                    raise _SparkLost from error
                if not isinstance(error, TailraceError) and no_room(causes_of(error)):
                    hint = "Nothing was committed. Free some space, also where Spark puts what it works on (TMPDIR)."
                    said = f'there was no space left while target "{work.target}" was kept current'
                    raise Unreachable("disk-full", said, hint) from error
                raise

        return attempt(unless_lost, retry, stop, job.report, target=work.target, endless=upto is None)

    patiently(work.begin)
    if upto is not None:
        # A run that finds nothing new still says what the target has.
        target.upto = patiently(work.at)
        job.report.behind(work.target, target.upto, upto)
    more = None if max_slices is None else max_slices - target.slices
    for piece, counts in drain(work, stop, patiently, upto, more):
        target.add(counts, piece.upto)


def _abandoned(error: Exception, stop: threading.Event) -> bool:
    """Say whether `error` only ended work that was to be tried again, had nobody asked to stop."""
    return stop.is_set() and isinstance(error, Retryable)


def _ours(error: Exception) -> TailraceError:
    """Return `error` as one of ours: a thread that died without a word would leave the run waiting for it."""
    if isinstance(error, TailraceError):
        return error
    text = " ".join(str(error).split())[:500]
    halt = Halt("internal", f"{type(error).__name__}: {text}", "This is a defect: please report it.")
    halt.__cause__ = error
    return halt


def _quietly(work: Callable[[], object]) -> None:
    """Do `work` ahead of its time; whoever needs it meets the same error again, and reports it."""
    with contextlib.suppress(Exception):
        work()
