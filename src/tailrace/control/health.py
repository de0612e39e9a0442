"""How a running pipeline is, gathered from what its run reports: the one state behind every answer of the server.

`Health` listens to a run like any other reporter and never asks a server itself, so that a probe costs
nothing and cannot hang. Nothing is kept here that must not be shown: no settings, no rows, no cursors.
"""

from __future__ import annotations

import copy
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from tailrace.control.lag import Lag
from tailrace.core import offsets
from tailrace.core.checkpoint import Checkpoint, Snapshotting
from tailrace.core.errors import TailraceError
from tailrace.core.subjects import Registered

SLICE_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The upper bounds of the histogram's buckets."""

_MOST_SAMPLES = 512
_MAINTENANCE = "maintenance."


class TableCounts(Protocol):
    """How the events of one table in one slice fared; `read` is the sum of the other four."""

    @property
    def table(self) -> str: ...
    @property
    def read(self) -> int: ...
    @property
    def applied(self) -> int: ...
    @property
    def superseded(self) -> int: ...
    @property
    def filtered(self) -> int: ...
    @property
    def rejected(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as it may be shown to anybody."""

    code: str
    message: str
    hint: str
    at: float

    @staticmethod
    def of(error: TailraceError, at: float) -> Problem:
        """Return `error` as a problem; what a library said of a defect may hold values of rows, and is left out."""
        defect = error.code == "internal"
        return Problem(error.code, "an unexpected error; the log has it" if defect else str(error), error.hint, at)


@dataclass(slots=True)
class TableState:
    """What this run did to one table of one target, and the offset that the table includes."""

    read: int = 0
    applied: int = 0
    superseded: int = 0
    filtered: int = 0
    rejected: int = 0
    schema_changes: int = 0
    mark: object = None


@dataclass(slots=True)
class Timing:
    """How long something took, each time."""

    count: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * len(SLICE_SECONDS))
    """How many took at most as long as each bound, and longer than the one before it."""

    def add(self, seconds: float) -> None:
        """Count one more."""
        self.count += 1
        self.seconds += seconds
        if (bucket := bisect_left(SLICE_SECONDS, seconds)) < len(SLICE_SECONDS):
            self.buckets[bucket] += 1


@dataclass(slots=True)
class TargetState:
    """One target: `status` is waiting, running, retrying or failed."""

    kind: str
    status: str = "waiting"
    upto: int | None = None
    lag_events: int | None = None
    lag_seconds: float | None = None
    dead_letters: int | None = None
    tables: dict[str, TableState] = field(default_factory=dict)
    timings: dict[str, Timing] = field(default_factory=lambda: {"slice": Timing()})
    """Of slices, by stage; `slice` is all of it."""
    error: Problem | None = None
    retrying_since: float | None = None
    maintenance: dict[str, int] = field(default_factory=dict)
    """How often what came of maintaining a table: compacted, snapshots_expired, failed."""

    @property
    def slices(self) -> int:
        """How many slices this run has applied."""
        return self.timings["slice"].count

    def table(self, name: str) -> TableState:
        """Return the state of the table called `name`."""
        return self.tables.setdefault(name, TableState())


@dataclass(slots=True)
class SubjectState:
    """One subject of the schema registry, and how often its version changed in this run."""

    version: int
    schema_id: int
    compatible_changes: int = 0
    incompatible_changes: int = 0
    why: str | None = None
    """What readers miss in the latest version that they cannot follow."""


@dataclass(slots=True)
class RegistryState:
    """The schema registry as it was last seen."""

    looked_at: float | None = None
    subjects: dict[str, SubjectState] = field(default_factory=dict)
    error: Problem | None = None


@dataclass(slots=True)
class View:
    """Everything that is known, at one moment."""

    pipeline_id: str
    run_id: str
    source_type: str
    started_at: float
    status: str = "starting"
    source_status: str = "waiting"
    source_error: Problem | None = None
    source_retrying_since: float | None = None
    phase: str | None = None
    position: str | None = None
    """Where the source stands, in its own notation."""
    pages: int = 0
    rows: int = 0
    source: dict[str, object] = field(default_factory=dict)
    checkpoint_at: float | None = None
    head: int | None = None
    targets: dict[str, TargetState] = field(default_factory=dict)
    lag: list[dict[str, object]] = field(default_factory=list)
    measured_at: float | None = None
    unmeasured: Problem | None = None
    registry: RegistryState | None = None
    """Nothing, where there is no registry."""
    last_error: Problem | None = None
    now: float = 0.0


class Health:
    """Hears what a run reports, from any thread; `view` is a copy that nobody changes."""

    def __init__(
        self,
        pipeline_id: str,
        run_id: str,
        source_type: str,
        targets: Mapping[str, str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._samples: list[tuple[float, int]] = []
        """When the log was first seen to end where."""
        known = {name: TargetState(kind) for name, kind in targets.items()}
        self._view = View(pipeline_id, run_id, source_type, clock(), targets=known)

    def view(self) -> View:
        """Return what is known now."""
        with self._lock:
            seen = copy.deepcopy(self._view)
            samples = list(self._samples)
        seen.now = self._clock()
        for target in seen.targets.values():
            target.lag_seconds = _waiting(samples, target.upto, seen.now)
        return seen

    # -- what the run reports

    def begun(self, targets: Sequence[str]) -> None:
        """Everything is checked and open; only `targets` take part."""
        with self._lock:
            self._view.status = self._view.source_status = "running"
            self._view.targets = {name: self._target(name) for name in targets}
            for target in self._view.targets.values():
                target.status = "running"

    def stopping(self) -> None:
        """The run was asked to end."""
        with self._lock:
            self._view.status = "stopping"

    def page(self, rows: int, checkpoint: Checkpoint, total: int | None = None) -> None:
        """Count it, and take its checkpoint for where the source stands."""
        with self._lock:
            self._view.pages += 1
            self._view.rows += rows
            self._view.phase = "snapshot" if isinstance(checkpoint, Snapshotting) else "tailing"
            self._view.position = checkpoint.snapshot if isinstance(checkpoint, Snapshotting) else checkpoint.at
            self._view.checkpoint_at = self._clock()
            self._recover_source()

    def behind(self, target: str, after: int, head: int) -> None:
        """Take where the target begins."""
        with self._lock:
            self._target(target).upto = after
            self._sample(head)

    def slice(self, target: str, upto: int, tables: Sequence[TableCounts], seconds: float) -> None:
        """Count it."""
        with self._lock:
            state = self._target(target)
            state.timings["slice"].add(seconds)
            read = 0
            for counts in tables:
                table = state.table(counts.table)
                for name in ("read", "applied", "superseded", "filtered", "rejected"):
                    setattr(table, name, getattr(table, name) + getattr(counts, name))
                table.mark = offsets.to_json(upto)
                read += counts.read
            if state.lag_events is not None:
                state.lag_events = max(state.lag_events - read, 0)
            state.upto = upto
            self._recover(state)

    def stage(self, target: str, name: str, seconds: float) -> None:
        """Count it."""
        with self._lock:
            self._target(target).timings.setdefault(name, Timing()).add(seconds)

    def evolved(self, target: str, table: str, changes: Sequence[str]) -> None:
        """Count the changes."""
        with self._lock:
            self._target(target).table(table).schema_changes += len(changes)

    def measured(self, lag: Lag) -> None:
        """Take the figures; what a measurement could not find stays as it was."""
        with self._lock:
            now = self._clock()
            if lag.source or lag.error is None:
                self._view.source = dict(lag.source)
            if lag.error is not None:
                self._view.unmeasured = Problem.of(lag.error, now)
                return
            self._view.unmeasured = None
            self._view.measured_at = now
            self._view.lag = lag.to_json()
            if lag.checkpoint_age is not None:
                self._view.checkpoint_at = now - lag.checkpoint_age
            for found in lag.targets:
                if (state := self._view.targets.get(found.target)) is None:
                    continue
                if state.upto is None or not offsets.covers(state.upto, found.upto):
                    state.upto = found.upto
                # A slice may have been told of after the measurement looked: what it said is newer.
                state.lag_events = replace(found, upto=state.upto).events
                state.dead_letters = found.dead_letters
                for name, mark in found.marks.items():
                    if state.table(name).mark is None:
                        state.table(name).mark = mark
                self._sample(found.head)

    def registered(self, found: Registered) -> None:
        """Take the versions, and count what changed."""
        with self._lock:
            now = self._clock()
            registry = self._view.registry = self._view.registry or RegistryState()
            registry.error = None if found.error is None else Problem.of(found.error, now)
            registry.looked_at = now if found.error is None else registry.looked_at
            for latest in found.versions:
                state = registry.subjects.setdefault(latest.subject, SubjectState(latest.number, latest.schema_id))
                if (state.version, state.schema_id) != (latest.number, latest.schema_id):
                    state.version, state.schema_id, state.why = latest.number, latest.schema_id, None
            for change in found.changes:
                state = registry.subjects[change.subject]
                state.why = change.why
                state.compatible_changes += change.compatible
                state.incompatible_changes += not change.compatible

    def retrying(self, target: str | None, error: TailraceError | None) -> None:
        """The target, or with `None` the pump, waits to try again; without an `error` it goes on."""
        with self._lock:
            problem = None if error is None else Problem.of(error, self._clock())
            self._view.last_error = problem or self._view.last_error
            now = self._clock()
            if target is None:
                self._view.source_error = problem
                self._view.source_status = "retrying" if problem else "running"
                self._view.source_retrying_since = (self._view.source_retrying_since or now) if problem else None
            else:
                state = self._target(target)
                state.status, state.error = "retrying" if problem else "running", problem
                state.retrying_since = (state.retrying_since or now) if problem else None

    def failed(self, target: str, error: TailraceError) -> None:
        """The target has halted."""
        with self._lock:
            problem = Problem.of(error, self._clock())
            state = self._target(target)
            state.status, state.error, self._view.last_error = "failed", problem, problem

    def halted(self, part: str, error: TailraceError) -> None:
        """The pump has halted."""
        with self._lock:
            problem = Problem.of(error, self._clock())
            self._view.source_status, self._view.source_error, self._view.last_error = "failed", problem, problem

    def warning(self, text: str) -> None:
        """Leave it to the log."""

    def event(self, name: str, **fields: object) -> None:
        """Count what maintenance did; leave the rest to the log."""
        if name.startswith(_MAINTENANCE) and isinstance(target := fields.get("target"), str):
            with self._lock:
                counts = self._target(target).maintenance
                counts[name.removeprefix(_MAINTENANCE)] = counts.get(name.removeprefix(_MAINTENANCE), 0) + 1

    # -- with the lock held

    def _target(self, name: str) -> TargetState:
        return self._view.targets.setdefault(name, TargetState("unknown"))

    def _recover(self, state: TargetState) -> None:
        if state.status != "failed":
            state.status, state.error, state.retrying_since = "running", None, None

    def _recover_source(self) -> None:
        if self._view.source_status != "failed":
            self._view.source_status, self._view.source_error = "running", None
            self._view.source_retrying_since = None

    def _sample(self, head: int) -> None:
        """Note when the log first ended at `head`; thinned out when there are many, the oldest stays."""
        self._view.head = head
        places = [target.upto for target in self._view.targets.values()]
        if all(place is not None for place in places):
            self._samples = [
                (at, end)
                for at, end in self._samples
                if not all(offsets.covers(place, end) for place in places if place is not None)
            ]
        if not self._samples or not offsets.covers(self._samples[-1][1], head):
            self._samples.append((self._clock(), head))
        if len(self._samples) > _MOST_SAMPLES:
            self._samples = self._samples[::2]


def _waiting(samples: Sequence[tuple[float, int]], upto: int | None, now: float) -> float | None:
    """Return for how long the log is known to have more than `upto`; `None` before anything is known."""
    if upto is None:
        return None
    return next((max(now - at, 0.0) for at, end in samples if not offsets.covers(upto, end)), 0.0)
