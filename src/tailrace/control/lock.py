"""One process at a time runs a pipeline: the lock that says so, and who holds it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.core.errors import NotReady


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the pipeline's lock; the system lets go of it when the process ends, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise NotReady(
                "already-running",
                f"process {file.read().strip() or 'unknown'} runs this pipeline already",
                "Stop that process first, or give this pipeline a pipeline_id or control.root of its own.",
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
