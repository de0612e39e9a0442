"""What a run tells while it goes: to nobody, to a person at a terminal, or to a machine as JSON lines.

Everything told here goes to standard error, from any thread; standard output is for data. A reporter
never raises: a closed terminal is no reason to stop a pipeline. Values of rows are never told.
"""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Protocol, TextIO

from rich.console import Console as Terminal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tailrace.control.health import TableCounts
from tailrace.control.lag import Lag, place_of
from tailrace.core.checkpoint import Checkpoint, Snapshotting, to_json
from tailrace.core.errors import TailraceError
from tailrace.core.offsets import by_partition
from tailrace.core.offsets import to_json as to_shown
from tailrace.core.subjects import Registered


class PageReporter(Protocol):
    """Who listens to a pump."""

    def page(self, rows: int, checkpoint: Checkpoint, total: int | None = None) -> None:
        """A page of `rows` is in the log; `total` is the snapshot's size where the source can estimate it."""
        ...


class Reporter(PageReporter, Protocol):
    """Who listens to a run."""

    def begun(self, targets: Sequence[str]) -> None:
        """Everything is checked and open, and the run of `targets` begins."""
        ...

    def behind(self, target: str, after: int, head: int) -> None:
        """The target stands at log offset `after` and has the events up to `head` to apply."""
        ...

    def slice(self, target: str, upto: int, tables: Sequence[TableCounts], seconds: float) -> None:
        """The target has applied the log up to offset `upto`."""
        ...

    def stage(self, target: str, name: str, seconds: float) -> None:
        """A part of the work on a slice is done, and took so long: `read`, `apply` or `save`."""
        ...

    def evolved(self, target: str, table: str, changes: Sequence[str]) -> None:
        """The target's table was changed as the source's was."""
        ...

    def measured(self, lag: Lag) -> None:
        """Everything is so far behind; told every now and then."""
        ...

    def registered(self, found: Registered) -> None:
        """The schema registry has these versions; told every now and then."""
        ...

    def warning(self, text: str) -> None:
        """Someone should look at this some time."""
        ...

    def retrying(self, target: str | None, error: TailraceError | None) -> None:
        """The target, or with `None` the pump, will try again after `error`; or it has, and goes on. Was told of."""
        ...

    def failed(self, target: str, error: TailraceError) -> None:
        """The target has halted; the others go on."""
        ...

    def halted(self, part: str, error: TailraceError) -> None:
        """The pump has halted, at the source or at the log; the run ends."""
        ...

    def event(self, name: str, **fields: object) -> None:
        """Something else happened that is worth a line in a log."""
        ...


class Silent:
    """Tells nobody."""

    def begun(self, targets: Sequence[str]) -> None:
        """Say nothing."""

    def page(self, rows: int, checkpoint: Checkpoint, total: int | None = None) -> None:
        """Say nothing."""

    def behind(self, target: str, after: int, head: int) -> None:
        """Say nothing."""

    def slice(self, target: str, upto: int, tables: Sequence[TableCounts], seconds: float) -> None:
        """Say nothing."""

    def stage(self, target: str, name: str, seconds: float) -> None:
        """Say nothing."""

    def evolved(self, target: str, table: str, changes: Sequence[str]) -> None:
        """Say nothing."""

    def measured(self, lag: Lag) -> None:
        """Say nothing."""

    def registered(self, found: Registered) -> None:
        """Say nothing."""

    def warning(self, text: str) -> None:
        """Say nothing."""

    def retrying(self, target: str | None, error: TailraceError | None) -> None:
        """Say nothing."""

    def failed(self, target: str, error: TailraceError) -> None:
        """Say nothing."""

    def halted(self, part: str, error: TailraceError) -> None:
        """Say nothing."""

    def event(self, name: str, **fields: object) -> None:
        """Say nothing."""


class JsonLines(Silent):
    """One JSON object per line, each with the time, the level, the run and the event's name."""

    def __init__(self, stream: TextIO, pipeline_id: str, run_id: str | None = None) -> None:
        self._stream = stream
        self._always = {"run_id": run_id or new_run_id(), "pipeline_id": pipeline_id}
        self._lock = threading.Lock()
        self._partitions: set[str] = set()

    def begun(self, targets: Sequence[str]) -> None:
        """Write `run begun`."""
        self._write("info", "run begun", {"targets": list(targets)})

    def page(self, rows: int, checkpoint: Checkpoint, total: int | None = None) -> None:
        """Write `page appended`."""
        fields: dict[str, object] = {"rows": rows, "checkpoint": to_json(checkpoint)}
        self._write("info", "page appended", fields if total is None else {**fields, "total": total})

    def behind(self, target: str, after: int, head: int) -> None:
        """Write `target behind`, and before it which partitions are new."""
        self._assigned(head)
        self._write("info", "target behind", {"target": target, "after": after, "head": head})

    def slice(self, target: str, upto: int, tables: Sequence[TableCounts], seconds: float) -> None:
        """Write `slice applied` with the sums over its tables, then what of it was put aside."""
        counts = {
            name: sum(getattr(table, name) for table in tables)
            for name in ("read", "applied", "superseded", "filtered", "rejected")
        }
        fields = {
            "target": target,
            "upto": to_shown(upto),
            "tables": len(tables),
            "seconds": round(seconds, 3),
            **counts,
        }
        self._write("info", "slice applied", fields)
        for table in tables:
            if table.rejected:
                aside = {"target": target, "table": table.table, "dead_letters": table.rejected}
                self._write("error", "pipeline.sink_write_error", aside)

    def evolved(self, target: str, table: str, changes: Sequence[str]) -> None:
        """Write `schema.version_changed`."""
        self._write("info", "schema.version_changed", {"target": target, "table": table, "changes": list(changes)})

    def measured(self, lag: Lag) -> None:
        """Write `consumer.lag`, and before it which partitions are new."""
        for found in lag.targets:
            self._assigned(found.head)
        if lag.error is not None:
            self._write("warning", "consumer.lag", {**_fields(lag.error), "source": dict(lag.source)})
            return
        total = sum(target.events for target in lag.targets)
        fields = {"total_lag": total, "partitions": lag.to_json(), "source": dict(lag.source)}
        self._write("info", "consumer.lag", fields)

    def registered(self, found: Registered) -> None:
        """Write `schema.version_changed`, what readers cannot follow, and that the registry did not answer."""
        for change in found.changes:
            fields: dict[str, object] = {
                "subject": change.subject,
                "previous_version": change.previous_version,
                "new_version": change.new_version,
                "schema_id": change.schema_id,
                "compatible": change.compatible,
            }
            self._write("info" if change.compatible else "warning", "schema.version_changed", fields)
            if not change.compatible:
                self._write("error", "schema.incompatible_change_detected", {**fields, "message": change.why})
        if found.error is not None:
            self._write("warning", "schema.registry_unreachable", _fields(found.error))

    def warning(self, text: str) -> None:
        """Write `warning`."""
        self._write("warning", "warning", {"message": text})

    def failed(self, target: str, error: TailraceError) -> None:
        """Write `pipeline.sink_write_error`, and before it what the schema has to do with it."""
        if error.code in _INCOMPATIBLE:
            self._write("error", "schema.incompatible_change_detected", {"target": target, **_fields(error)})
        self._write("error", "pipeline.sink_write_error", {"target": target, **_fields(error)})

    def halted(self, part: str, error: TailraceError) -> None:
        """Write `pump halted`."""
        self._write("error", "pump halted", {"part": part, **_fields(error)})

    def event(self, name: str, **fields: object) -> None:
        """Write `name`."""
        self._write("info", name, fields)

    def _assigned(self, head: int) -> None:
        """Write `pipeline.partitions_assigned` for partitions that this run has not met before."""
        with self._lock:
            new = sorted(set(by_partition(head)) - self._partitions)
            self._partitions.update(new)
        if new:
            self._write("info", "pipeline.partitions_assigned", {"partitions": [place_of(name) for name in new]})

    def _write(self, level: str, event: str, fields: dict[str, object]) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"at": at, "level": level, "event": event, **self._always, **fields}, default=str)
        # A reader of the log that went away must not stop the run.
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()


class Console(Silent):
    """Progress bars: the snapshot's rows, and for each target how far it has caught up."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._bars: dict[str, TaskID] = {}
        self._starts: dict[str, int] = {}

    def page(self, rows: int, checkpoint: Checkpoint, total: int | None = None) -> None:
        """Move the source's bar, and give the targets more to do."""
        name = "snapshot" if isinstance(checkpoint, Snapshotting) else "captured"
        with self._lock:
            self._progress.update(self._bar(name), advance=rows, total=total)
            for target in self._starts:
                bar = self._progress.tasks[self._progress.task_ids.index(self._bars[target])]
                self._progress.update(bar.id, total=(bar.total or 0) + rows)

    def behind(self, target: str, after: int, head: int) -> None:
        """Begin the target's bar."""
        with self._lock:
            self._starts[target] = after
            self._progress.update(self._bar(target), total=max(head - after, 0), completed=0)

    def slice(self, target: str, upto: int, tables: Sequence[TableCounts], seconds: float) -> None:
        """Move the target's bar."""
        read = sum(table.read for table in tables)
        with self._lock:
            bar = self._bar(target)
            self._progress.update(bar, rate=f"{read / seconds:,.0f}/s" if seconds else "")
            if target in self._starts:
                self._progress.update(bar, completed=upto - self._starts[target])
            else:
                self._progress.update(bar, advance=read)

    def warning(self, text: str) -> None:
        """Print it above the bars."""
        self._progress.console.print(f"warning: {text}", markup=False, highlight=False)

    def registered(self, found: Registered) -> None:
        """Print what readers cannot follow above the bars."""
        for change in found.changes:
            if not change.compatible:
                self.warning(f'subject "{change.subject}" has version {change.new_version}: {change.why}')

    def failed(self, target: str, error: TailraceError) -> None:
        """Print it above the bars."""
        self._progress.console.print(f"target {target}: {error.render()}", markup=False, highlight=False)

    def halted(self, part: str, error: TailraceError) -> None:
        """Print it above the bars."""
        self._progress.console.print(f"target {part}: {error.render()}", markup=False, highlight=False)

    def event(self, name: str, **fields: object) -> None:
        """Print it above the bars."""
        text = " ".join([name, *(f"{key}={value}" for key, value in fields.items())])
        self._progress.console.print(text, markup=False, highlight=False, style="dim")

    def _bar(self, name: str) -> TaskID:
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=None, rate="")
        return self._bars[name]


class Several:
    """Tells each of several reporters."""

    def __init__(self, *reporters: Reporter) -> None:
        self._reporters = reporters

    def begun(self, targets: Sequence[str]) -> None:
        """Tell each."""
        for reporter in self._reporters:
            reporter.begun(targets)

    def page(self, rows: int, checkpoint: Checkpoint, total: int | None = None) -> None:
        """Tell each."""
        for reporter in self._reporters:
            reporter.page(rows, checkpoint, total)

    def behind(self, target: str, after: int, head: int) -> None:
        """Tell each."""
        for reporter in self._reporters:
            reporter.behind(target, after, head)

    def slice(self, target: str, upto: int, tables: Sequence[TableCounts], seconds: float) -> None:
        """Tell each."""
        for reporter in self._reporters:
            reporter.slice(target, upto, tables, seconds)

    def stage(self, target: str, name: str, seconds: float) -> None:
        """Tell each."""
        for reporter in self._reporters:
            reporter.stage(target, name, seconds)

    def evolved(self, target: str, table: str, changes: Sequence[str]) -> None:
        """Tell each."""
        for reporter in self._reporters:
            reporter.evolved(target, table, changes)

    def measured(self, lag: Lag) -> None:
        """Tell each."""
        for reporter in self._reporters:
            reporter.measured(lag)

    def registered(self, found: Registered) -> None:
        """Tell each."""
        for reporter in self._reporters:
            reporter.registered(found)

    def warning(self, text: str) -> None:
        """Tell each."""
        for reporter in self._reporters:
            reporter.warning(text)

    def retrying(self, target: str | None, error: TailraceError | None) -> None:
        """Tell each."""
        for reporter in self._reporters:
            reporter.retrying(target, error)

    def failed(self, target: str, error: TailraceError) -> None:
        """Tell each."""
        for reporter in self._reporters:
            reporter.failed(target, error)

    def halted(self, part: str, error: TailraceError) -> None:
        """Tell each."""
        for reporter in self._reporters:
            reporter.halted(part, error)

    def event(self, name: str, **fields: object) -> None:
        """Tell each."""
        for reporter in self._reporters:
            reporter.event(name, **fields)


def new_run_id() -> str:
    """Return a name for a run that no other has."""
    return uuid.uuid4().hex[:12]


_INCOMPATIBLE = ("key-changed", "schema-incompatible", "schema-refused", "type-changed")
"""Halts because of what became of a table in the source."""


def _fields(error: TailraceError) -> dict[str, object]:
    return {"code": error.code, "message": str(error), "hint": error.hint}


@contextlib.contextmanager
def reporting(stream: TextIO, pipeline_id: str, run_id: str | None = None) -> Iterator[Reporter]:
    """Give the reporter that suits `stream`: bars on a terminal, JSON lines elsewhere."""
    if not stream.isatty():
        yield JsonLines(stream, pipeline_id, run_id)
        return
    words = TextColumn("{task.description} {task.fields[rate]}")
    columns = (words, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Terminal(file=stream), transient=True) as progress:
        yield Console(progress)
