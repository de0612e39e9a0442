"""Rows of a DataFrame for this process, part by part as Spark makes them: never all of them in memory.

Spark hands parts over in the thread that serves every job of the session. Whoever takes his time with one would hold up
the others, so parts are taken at once and wait here: some in memory, the rest in a file without a name, which is gone
with the process however that ends.
"""

from __future__ import annotations

import errno
import os
import socket
import tempfile
import threading
from collections.abc import Generator
from contextlib import suppress
from queue import SimpleQueue
from typing import IO, Any

import pyarrow as pa
from pyspark.errors.exceptions.captured import unwrap_spark_exception
from pyspark.sql import DataFrame
from pyspark.sql.pandas.serializers import ArrowCollectSerializer
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType
from pyspark.util import local_connect_and_auth

from tailrace.core.errors import Unreachable

IN_MEMORY = 64 * 1024 * 1024
"""Parts of so many bytes may wait in memory."""


def parts(rows: DataFrame) -> Generator[pa.RecordBatch]:
    """Yield all rows of `rows` in no order, each part as soon as it is there.

    Whoever goes no further closes the generator. Spark then gives up with its next part, and nobody waits for that.
    """
    # Inside a struct that is NULL nothing has a value, also what never is NULL where there is one.
    either = zip(rows.schema, rows.schema.toNullable(), strict=True)
    schema = to_arrow_schema(StructType([StructField(own.name, free.dataType, own.nullable) for own, free in either]))
    frame: Any = rows
    port, secret, served = frame._jdf.collectAsArrowToPython()
    stream, link = local_connect_and_auth(port, secret)
    # Connecting has a limit; how long a part takes is for nobody to say.
    link.settimeout(None)
    waiting = _Waiting()
    taking = threading.Thread(target=_take, args=(stream, link, waiting), name="parts", daemon=True)
    taking.start()
    try:
        while (part := waiting.next()) is not None:
            yield part.cast(schema)
    except BaseException:
        with suppress(OSError):
            link.shutdown(socket.SHUT_RDWR)
        raise
    finally:
        taking.join()
        waiting.close()
    if isinstance(waiting.broken, OSError) and waiting.broken.errno in (errno.ENOSPC, errno.EDQUOT):
        raise Unreachable(
            "disk-full",
            f'no room in "{tempfile.gettempdir()}" for rows on their way from Spark',
            "Free some space there, or set TMPDIR to a place that has some.",
        ) from waiting.broken
    with unwrap_spark_exception():
        # What went wrong in Spark is told here.
        served.getResult()
    if waiting.broken is not None:
        raise waiting.broken


def _take(stream: IO[bytes], link: socket.socket, waiting: _Waiting) -> None:
    try:
        for part in ArrowCollectSerializer().load_stream(stream):  # type: ignore[no-untyped-call]
            # Last comes the order of the parts, which is not asked for.
            if isinstance(part, pa.RecordBatch):
                waiting.add(part)
    except Exception as error:  # noqa: BLE001 - it is raised in the other thread
        waiting.broken = error
    finally:
        # Left open, Spark would wait for us to read on.
        link.close()
        with suppress(OSError):
            stream.close()
        waiting.end()


class _Waiting:
    """Parts between the two threads."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[pa.RecordBatch | tuple[int, int] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._bytes = 0
        self._file: Any = None
        self._schema: pa.Schema | None = None
        self.broken: Exception | None = None

    def add(self, part: pa.RecordBatch) -> None:
        with self._lock:
            fits = self._bytes + part.nbytes <= IN_MEMORY
            if fits:
                self._bytes += part.nbytes
            place = None if fits else self._write(part)
        self._queue.put(place or part)

    def end(self) -> None:
        self._queue.put(None)

    def next(self) -> pa.RecordBatch | None:
        part = self._queue.get()
        if part is None:
            return None
        with self._lock:
            if isinstance(part, tuple):
                return self._read(*part)
            self._bytes -= part.nbytes
        return part

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, part: pa.RecordBatch) -> tuple[int, int]:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="tailrace-parts-")  # noqa: SIM115 - closed in `close`
        self._schema = part.schema
        start, packed = self._file.seek(0, os.SEEK_END), part.serialize()
        self._file.write(packed)
        return start, packed.size

    def _read(self, start: int, size: int) -> pa.RecordBatch:
        self._file.seek(start)
        return pa.ipc.read_record_batch(pa.py_buffer(self._file.read(size)), self._schema)
