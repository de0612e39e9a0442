"""A pipeline that runs beside the test, and ends with it: one that a failed test leaves behind would keep the tier from ending."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tailrace.runtime.build import Pipeline
from tailrace.runtime.report import Reporter
from tailrace.runtime.run import RunReport


class Running:
    """A run in a thread of its own."""

    def __init__(self, pipeline: Pipeline, report: Reporter) -> None:
        self.reports: list[RunReport] = []
        self._pipeline, self._report = pipeline, report
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.reports.append(self._pipeline.run(once=False, report=self._report))

    def ended(self) -> RunReport:
        """Wait for the end of the run, which the test has asked for or expects."""
        self._thread.join(60)
        (report,) = self.reports
        return report

    def close(self) -> None:
        self._pipeline.stop()
        self._thread.join(60)


@contextmanager
def running(pipeline: Pipeline, report: Reporter) -> Iterator[Running]:
    """Run `pipeline` until it is stopped, or until the block ends in whatever way."""
    run = Running(pipeline, report)
    try:
        yield run
    finally:
        run.close()
