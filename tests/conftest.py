"""What every tier shares: the time each one took, said at the end."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seconds: dict[str, float] = defaultdict(float)
    tests: dict[str, set[str]] = defaultdict(set)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                tier = Path(report.nodeid).parts[1]
                seconds[tier] += report.duration
                tests[tier].add(report.nodeid)
    for tier in sorted(seconds):
        terminalreporter.write_line(f"tier {tier}: {len(tests[tier])} tests in {seconds[tier]:.1f} s")
