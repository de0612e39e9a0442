"""What a person sees of the demo while it goes: a live table on a terminal, a line now and then elsewhere.

`Board` hears what the run reports and does the sums, from any thread; `showing` draws it. Everything goes
to standard error, and nothing here can fail the demo.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tailrace.core.checkpoint import Checkpoint, Snapshotting
from tailrace.core.errors import TailraceError
from tailrace.runtime.report import Silent

if TYPE_CHECKING:
    from tailrace.control.health import TableCounts

_LINE_SECONDS = 3.0


class Board(Silent):
    """The figures of a run, as told by its reports; a `Reporter`."""

    def __init__(self, tables: Sequence[str], targets: Mapping[str, str], tell: Callable[[str], None]) -> None:
        self._tables = tuple(tables)
        self._targets = dict(targets)
        self._tell = tell
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._source: dict[str, int] = {}
        self._rows = {target: dict.fromkeys(tables, 0) for target in targets}
        self._upto = dict.fromkeys(targets, -1)
        self._applied = 0
        self._pages: deque[tuple[int, float]] = deque()
        self._logged = 0
        self.phase = "starting"
        self.current = threading.Event()
        """Set once every target has taken the snapshot."""
        self.transactions = 0
        self.doing = ""

    # -- what the run reports

    def page(self, rows: int, checkpoint: Checkpoint, total: int | None = None) -> None:
        """Count rows that are in the log."""
        with self._lock:
            self._logged += rows
            if rows:
                self._pages.append((self._logged - 1, time.monotonic()))
            if not self.current.is_set():
                self.phase = "snapshot" if isinstance(checkpoint, Snapshotting) else "first slice"

    def behind(self, target: str, after: int, head: int) -> None:
        """Take the log's own word for where it ends."""
        with self._lock:
            self._logged, self._upto[target] = head + 1, after

    def slice(self, target: str, upto: int, tables: Sequence[TableCounts], seconds: float) -> None:
        """Count what a slice did to each table."""
        with self._lock:
            self._upto[target] = upto
            while self._pages and self._pages[0][0] <= self.upto:
                self._pages.popleft()
            rows = self._rows[target]
            for counts in tables:
                self._applied += counts.applied
                grown = getattr(counts, "inserted", 0) - getattr(counts, "deleted", 0)
                rows[counts.table] = rows.get(counts.table, 0) + grown
            if not self.current.is_set() and self.upto >= 0:
                self.phase = "following"
                self.current.set()

    def warning(self, text: str) -> None:
        """Show it."""
        self._tell(f"warning: {text}")

    def failed(self, target: str, error: TailraceError) -> None:
        """Show it."""
        self._tell(f"target {target}: {error.render()}")

    def halted(self, part: str, error: TailraceError) -> None:
        """Show it."""
        self._tell(f"target {part}: {error.render()}")

    def event(self, name: str, **fields: object) -> None:
        """Show it."""
        self._tell(" ".join([name, *(f"{key}={value}" for key, value in fields.items())]))

    # -- what is shown

    @property
    def upto(self) -> int:
        """The offset of the newest event that every target has applied."""
        return min(self._upto.values())

    def source_has(self, rows: Mapping[str, int]) -> None:
        """Take the source's row counts."""
        with self._lock:
            self._source = dict(rows)

    def lag(self) -> tuple[int, float]:
        """Return how many logged events are not applied yet, and how long the oldest has been waiting."""
        with self._lock:
            oldest = time.monotonic() - self._pages[0][1] if self._pages else 0.0
            return max(0, self._logged - 1 - self.upto), oldest

    def line(self) -> str:
        """Return everything in one line."""
        events, seconds = self.lag()
        with self._lock:
            rows = ", ".join(f"{sum(rows.values()):,} in {self._targets[name]}" for name, rows in self._rows.items())
            return (
                f"{self._elapsed()} {self.phase}: {self.transactions} transactions, "
                f"{sum(self._source.values()):,} rows in the source, {rows}, "
                f"{self._applied:,} events applied, {events:,} behind ({seconds:.1f} s)"
            )

    def table(self) -> Table:
        """Return everything as a table."""
        events, seconds = self.lag()
        drawn = Table(
            title=f"a shop in PostgreSQL, kept current   {self.phase}   {self._elapsed()}", title_justify="left"
        )
        for heading in ("table", "PostgreSQL", *self._targets.values()):
            drawn.add_column(heading, justify="left" if heading == "table" else "right", min_width=14)
        with self._lock:
            for table in self._tables:
                source = f"{self._source[table]:,}" if table in self._source else ""
                drawn.add_row(table, source, *(f"{rows[table]:,}" for rows in self._rows.values()))
            drawn.caption = (
                f"lag {events:,} events, {seconds:.1f} s   {self._applied:,} events applied   last: {self.doing}"
            )
        drawn.caption_justify = "left"
        return drawn

    def _elapsed(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        return f"{minutes:02d}:{seconds:02d}"


class Steps:
    """Tells what is going on, one line per step; above the live table when there is one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._console = Console(file=stream) if stream.isatty() else None
        self._lock = threading.Lock()

    def __call__(self, text: str) -> None:
        """Write one line; a reader that went away is no reason to stop."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            if self._console:
                self._console.print(text, markup=False, highlight=False)
            else:
                print(text, file=self._stream, flush=True)

    @contextlib.contextmanager
    def showing(self, board: Board) -> Iterator[None]:
        """Keep `board` in view."""
        if self._console:
            with Live(get_renderable=board.table, console=self._console, refresh_per_second=4):
                yield
            return
        done = threading.Event()

        def lines() -> None:
            while not done.wait(_LINE_SECONDS):
                self(board.line())

        teller = threading.Thread(target=lines, name="view", daemon=True)
        teller.start()
        try:
            yield
        finally:
            done.set()
            teller.join()
