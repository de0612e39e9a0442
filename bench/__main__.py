"""Every benchmark, or those that are named: figures as JSON on standard output and in `bench/results`.

    python -m bench                  all of them: most of an hour
    python -m bench apply tables     two of them

Each runs in a process of its own, so that none profits or suffers from what another left, and ends by comparing what it
made with what it must be, and a wrong table fails the run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_FIRST_JOB = """
import sys, time
from tailrace.spark import session
session().range(1).count()
print(time.time() - float(sys.argv[1]))
"""


def _first_job() -> list[float]:
    """Return how long it takes from the start of a process to its first Spark job, three times."""
    times = []
    for _ in range(3):
        command = [sys.executable, "-c", _FIRST_JOB, str(time.time())]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        times.append(round(float(done.stdout.strip().splitlines()[-1]), 2))
    return times


def _capture() -> Any:
    from bench import capture

    return capture.run(200_000)


def _apply() -> Any:
    from bench import apply

    return apply.run(events=500_000, keys=100_000, slices=(1, 5))


def _tables() -> Any:
    from bench import tables

    return tables.run([10_000, 1_000_000, 10_000_000], ["close", "random"], [1, 2])


def _targets() -> Any:
    from bench import targets

    return targets.run(500_000, 100_000, (1, 6, 10), targets.TARGETS)


def _webhook() -> Any:
    from bench import webhook

    return webhook.run(20_000, 4_000)


def _kafka() -> Any:
    from bench import kafka

    return [kafka.run(500_000, 100_000, form) for form in ("json", "avro")]


def _convex() -> Any:
    from bench import convex

    return convex.run(convex.SIZES, convex.UNIT, convex.GROWN)


def _files() -> Any:
    from bench import files

    return list(files.run(files.TARGETS, files.SIZES, files.MANY, few=True))


PARTS: dict[str, Callable[[], Any]] = {
    "first_job": _first_job,
    "capture": _capture,
    "apply": _apply,
    "tables": _tables,
    "targets": _targets,
    "webhook": _webhook,
    "kafka": _kafka,
    "convex": _convex,
    "files": _files,
}


def _is_right(figures: Any) -> bool:
    """Say whether nothing in `figures` tells of a table that is not what it must be."""
    if isinstance(figures, dict):
        return figures.get("equal", True) is True and all(map(_is_right, figures.values()))
    return all(map(_is_right, figures)) if isinstance(figures, list) else True


def main() -> None:
    """Run them; exit 1 if a table is wrong or a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"any of: {', '.join(PARTS)}")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if unknown := set(chosen.parts) - PARTS.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if chosen.alone:
        with redirect_stdout(sys.stderr):
            found = PARTS[chosen.parts[0]]()
        print(json.dumps(found))
        return
    figures: dict[str, Any] = {"at": datetime.now(UTC).isoformat(timespec="seconds")}
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    result = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S}.json"
    failed = []
    for part in chosen.parts or PARTS:
        command = [sys.executable, "-m", "bench", "--alone", part]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            failed.append(part)
            continue
        figures[part] = json.loads(done.stdout)
        result.write_text(json.dumps(figures, indent=2))
    print(json.dumps(figures, indent=2))
    for part in failed:
        print(f"{part} failed", file=sys.stderr)
    raise SystemExit(1 if failed or not _is_right(figures) else 0)


if __name__ == "__main__":
    main()
