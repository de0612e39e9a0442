"""Every benchmark, one after the other; figures as JSON on standard output and in `bench/results`.

Each ends by comparing what it made with what it must be, and a wrong table fails the run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from bench import apply, capture, files

_FIRST_JOB = """
import sys, time
from tailrace.spark import session
session().range(1).count()
print(time.time() - float(sys.argv[1]))
"""


def first_job_seconds() -> list[float]:
    """Return how long it takes from the start of a process to its first Spark job, three times."""
    times = []
    for _ in range(3):
        command = [sys.executable, "-c", _FIRST_JOB, str(time.time())]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        times.append(round(float(done.stdout.strip().splitlines()[-1]), 2))
    return times


def main() -> None:
    """Run them all; exit 1 if a table is wrong."""
    figures = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "first_job_seconds": first_job_seconds(),
        "capture": capture.run(200_000),
        "apply": apply.run(events=500_000, keys=100_000, slices=(1, 5)),
        "files": list(files.run(files.TARGETS, files.SIZES, files.MANY, few=True)),
    }
    text = json.dumps(figures, indent=2)
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S}.json").write_text(text)
    print(text)
    runs = [figures["capture"], *figures["apply"]["runs"], *figures["files"]]
    right = all(run["equal"] for run in runs)
    raise SystemExit(0 if right else 1)


if __name__ == "__main__":
    main()
