"""The slice behind the one in hand, read while that one is applied: reading waits for others, applying for itself."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from tailrace.log.slice import Slice

Read = Callable[[int], Slice | None]


class Ahead:
    """Reads slices with `read`, and one ahead if it is told where that begins; to be left when no more is wanted."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
        self._coming: Future[Slice | None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        coming, self._coming = self._coming, None
        if coming and not coming.cancelled() and not coming.exception() and (piece := coming.result()):
            piece.release()

    def begin(self, at: int) -> None:
        """Have the slice after `at` read meanwhile; it is the one that is asked for next."""
        self._coming = self._pool.submit(self._read, at)

    def after(self, at: int) -> Slice | None:
        """Return the slice after `at`; what kept it from being read ahead is told now, and tried again if asked again.

        That there was nothing then is not to say that there is nothing now.
        """
        coming, self._coming = self._coming, None
        return (coming.result() if coming else None) or self._read(at)
