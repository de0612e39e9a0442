"""`cdc demo`: a shop in an embedded PostgreSQL that keeps changing, kept current in Delta and DuckDB, then compared.

Exit code 0 means that every value of every row is equal, or that the user stopped it before it could tell.
Nothing keeps running afterwards, and nothing stays on disk that was not asked for.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from pathlib import Path

from tailrace.core.errors import Misconfigured
from tailrace.demo.view import Steps


def demo(
    seconds: float = 25,
    seed: int = 1,
    directory: Path | None = None,
    *,
    keep: bool = False,
    stop: threading.Event | None = None,
) -> int:
    """Run the demo and return its exit code: 0 if source and target are equal or it was stopped, 1 if they differ.

    `directory` must be new or empty, and stays; without one a temporary folder is used, which stays only if
    `keep` is set or the tables differ. Setting `stop` ends the demo soon and cleanly.
    """
    steps = Steps(sys.stderr)
    folder = _folder(directory)
    steps(f"working in {folder}; starting PostgreSQL")
    kept = keep or directory is not None
    try:
        code = _run(folder, seconds, seed, steps, stop or threading.Event())
        kept = kept or code == 1
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
    if code is None:
        steps("stopped before the comparison, so nothing was compared")
        return 0
    _tell_what_next(steps, folder, kept=kept)
    return code


def _run(folder: Path, seconds: float, seed: int, steps: Steps, stop: threading.Event) -> int | None:
    # Spark is imported only now: whoever waits has seen by then that something is going on.
    from tailrace.demo.stages import Demo, Stopped

    try:
        return Demo(folder, seconds, seed, steps, stop).run()
    except (Stopped, KeyboardInterrupt):
        return None


def _folder(directory: Path | None) -> Path:
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="tailrace-demo-"))
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise Misconfigured(
            "folder-in-use", f'the folder "{directory}" is not empty', "Give a folder that is new or empty."
        )
    directory.mkdir(parents=True, exist_ok=True)
    return directory.absolute()


def _tell_what_next(steps: Steps, folder: Path, *, kept: bool) -> None:
    files = f"{folder}/pipeline.yaml --platform-config {folder}/platform.yaml"
    steps(
        f"the pipeline file: {folder}/pipeline.yaml"
        if kept
        else "cdc demo --dir DIR keeps the pipeline file and all data"
    )
    steps(f"what it remembers: cdc status {files}" if kept else "cdc run FILE keeps targets of yours current")
    steps("how to write one for a database of yours: docs/tutorials")
