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

from tailrace.core.checkpoint import Checkpoint, Snapshotting, to_json
from tailrace.core.errors import TailraceError


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


class PageReporter(Protocol):
    """Who listens to a pump."""

    def page(self, rows: int, checkpoint: Checkpoint, total: int | None = None) -> None:
        """A page of `rows` is in the log; `total` is the snapshot's size where the source can estimate it."""
        ...


class Reporter(PageReporter, Protocol):
    """Who listens to a run."""

    def behind(self, target: str, after: int, head: int) -> None:
        """The target stands at log offset `after` and has the events up to `head` to apply."""
        ...

    def slice(self, target: str, upto: int, tables: Sequence[TableCounts], seconds: float) -> None:
        """The target has applied the log up to offset `upto`."""
        ...

    def warning(self, text: str) -> None:
        """Someone should look at this some time."""
        ...

    def failed(self, target: str, error: TailraceError) -> None:
        """The target has halted; the others go on."""
        ...

    def event(self, name: str, **fields: object) -> None:
        """Something else happened that is worth a line in a log."""
        ...


class Silent:
    """Tells nobody."""

    def page(self, rows: int, checkpoint: Checkpoint, total: int | None = None) -> None:
        """Say nothing."""

    def behind(self, target: str, after: int, head: int) -> None:
        """Say nothing."""

    def slice(self, target: str, upto: int, tables: Sequence[TableCounts], seconds: float) -> None:
        """Say nothing."""

    def warning(self, text: str) -> None:
        """Say nothing."""

    def failed(self, target: str, error: TailraceError) -> None:
        """Say nothing."""

    def event(self, name: str, **fields: object) -> None:
        """Say nothing."""


class JsonLines:
    """One JSON object per line, each with the time, the level, the run and the event's name."""

    def __init__(self, stream: TextIO, pipeline_id: str) -> None:
        self._stream = stream
        self._always = {"run_id": uuid.uuid4().hex[:12], "pipeline_id": pipeline_id}
        self._lock = threading.Lock()

    def page(self, rows: int, checkpoint: Checkpoint, total: int | None = None) -> None:
        """Write `page appended`."""
        fields: dict[str, object] = {"rows": rows, "checkpoint": to_json(checkpoint)}
        self._write("info", "page appended", fields if total is None else {**fields, "total": total})

    def behind(self, target: str, after: int, head: int) -> None:
        """Write `target behind`."""
        self._write("info", "target behind", {"target": target, "after": after, "head": head})

    def slice(self, target: str, upto: int, tables: Sequence[TableCounts], seconds: float) -> None:
        """Write `slice applied` with the sums over its tables."""
        counts = {
            name: sum(getattr(table, name) for table in tables)
            for name in ("read", "applied", "superseded", "filtered", "rejected")
        }
        fields = {"target": target, "upto": upto, "tables": len(tables), "seconds": round(seconds, 3), **counts}
        self._write("info", "slice applied", fields)

    def warning(self, text: str) -> None:
        """Write `warning`."""
        self._write("warning", "warning", {"message": text})

    def failed(self, target: str, error: TailraceError) -> None:
        """Write `pipeline.sink_write_error`."""
        fields: dict[str, object] = {"target": target, "code": error.code, "message": str(error), "hint": error.hint}
        self._write("error", "pipeline.sink_write_error", fields)

    def event(self, name: str, **fields: object) -> None:
        """Write `name`."""
        self._write("info", name, fields)

    def _write(self, level: str, event: str, fields: dict[str, object]) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"at": at, "level": level, "event": event, **self._always, **fields}, default=str)
        # A reader of the log that went away must not stop the run.
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()


class Console:
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

    def failed(self, target: str, error: TailraceError) -> None:
        """Print it above the bars."""
        self._progress.console.print(f"target {target}: {error.render()}", markup=False, highlight=False)

    def event(self, name: str, **fields: object) -> None:
        """Print it above the bars."""
        text = " ".join([name, *(f"{key}={value}" for key, value in fields.items())])
        self._progress.console.print(text, markup=False, highlight=False, style="dim")

    def _bar(self, name: str) -> TaskID:
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=None, rate="")
        return self._bars[name]


@contextlib.contextmanager
def reporting(stream: TextIO, pipeline_id: str) -> Iterator[Reporter]:
    """Give the reporter that suits `stream`: bars on a terminal, JSON lines elsewhere."""
    if not stream.isatty():
        yield JsonLines(stream, pipeline_id)
        return
    words = TextColumn("{task.description} {task.fields[rate]}")
    columns = (words, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Terminal(file=stream), transient=True) as progress:
        yield Console(progress)
