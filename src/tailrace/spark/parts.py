"""Rows of a DataFrame for this process, part by part as Spark makes them: never all of them in memory.

Spark hands parts over in the thread that serves every job of the session. Whoever takes his time with one would hold up
the others, so parts are taken at once and wait here: some in memory, the rest in files.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
from pyspark.errors.exceptions.captured import unwrap_spark_exception
from pyspark.sql import DataFrame
from pyspark.sql.pandas.serializers import ArrowCollectSerializer
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.util import _load_from_socket

IN_MEMORY = 64 * 1024 * 1024
"""Parts of so many bytes may wait in memory."""


def parts(rows: DataFrame) -> Iterator[pa.RecordBatch]:
    """Yield all rows of `rows` in no order, each part as soon as it is there."""
    schema = to_arrow_schema(rows.schema)
    frame: Any = rows
    port, secret, served = frame._jdf.collectAsArrowToPython()
    with tempfile.TemporaryDirectory(prefix="tailrace-parts-") as folder:
        waiting = _Waiting(Path(folder))
        taking = threading.Thread(target=_take, args=((port, secret), waiting), name="parts", daemon=True)
        taking.start()
        try:
            while (part := waiting.next()) is not None:
                yield part.cast(schema)
        finally:
            taking.join()
            # What went wrong in Spark is told here.
            with unwrap_spark_exception():
                served.getResult()
            if waiting.broken is not None:
                raise waiting.broken


def _take(address: tuple[int, str], waiting: _Waiting) -> None:
    try:
        for part in _load_from_socket(address, ArrowCollectSerializer()):  # type: ignore[no-untyped-call]
            # Last comes the order of the parts, which is not asked for.
            if isinstance(part, pa.RecordBatch):
                waiting.add(part)
    except Exception as error:  # noqa: BLE001 - it is raised in the other thread
        waiting.broken = error
    finally:
        waiting.end()


class _Waiting:
    """Parts between the two threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._queue: SimpleQueue[pa.RecordBatch | Path | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._bytes = 0
        self._files = 0
        self.broken: Exception | None = None

    def add(self, part: pa.RecordBatch) -> None:
        with self._lock:
            fits = self._bytes + part.nbytes <= IN_MEMORY
            self._bytes += part.nbytes if fits else 0
        self._queue.put(part if fits else self._written(part))

    def end(self) -> None:
        self._queue.put(None)

    def next(self) -> pa.RecordBatch | None:
        part = self._queue.get()
        if isinstance(part, Path):
            with pa.OSFile(str(part)) as file, pa.ipc.open_file(file) as reader:
                read = reader.get_batch(0)
            part.unlink()
            return read
        if part is not None:
            with self._lock:
                self._bytes -= part.nbytes
        return part

    def _written(self, part: pa.RecordBatch) -> Path:
        self._files += 1
        path = self._folder / str(self._files)
        with pa.ipc.new_file(str(path), part.schema) as writer:
            writer.write_batch(part)
        return path
