"""Failures of Spark and of a table format as ours: what may work next time, and what a person must look at.

Messages carry the class or condition of the failure and never its text where that could quote a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from tailrace.core.errors import Halt, Retryable, TailraceError, Unreachable
from tailrace.spark.causes import causes_of, no_room

__all__ = ["LIBRARY_ERRORS", "Format", "causes_of"]

LIBRARY_ERRORS = (Py4JError, PySparkException, OSError)
"""What a call into Spark may raise; an OSError is the connection to the JVM."""

_STORAGE = ("java.io.", "java.net.", "org.apache.hadoop.fs.")


@dataclass(frozen=True, slots=True)
class Format:
    """A table format: the code of what it halts with, its name, and how its own failures are called."""

    code: str
    name: str
    conflicts: Sequence[str]
    """Parts of the names of classes that say that another writer was first."""
    outages: Sequence[str] = ()
    """Beginnings of the names of classes that say that its catalog did not answer; their text is not shown."""

    def translate(self, error: Exception, what: str) -> TailraceError:
        """Return `error`, met while doing `what`, as one of ours."""
        if isinstance(error, Py4JNetworkError | ConnectionError):
            return Retryable("spark-lost", f"Spark went away while {what}", "It is started again for the next try.")
        causes = causes_of(error)
        if no_room(causes):
            return Unreachable(
                "disk-full",
                f"there was no space left while {what}",
                "Nothing was committed. Free some space; the batch is then applied again.",
            )
        for name, _ in causes:
            if any(part in name for part in self.conflicts):
                short = name.rsplit(".", 1)[-1]
                said = f"another writer committed first while {what} ({short})"
                return Retryable("write-conflict", said, "Apply the batch again, one writer at a time.")
        for name, text in causes:
            if name.startswith(tuple(self.outages)):
                said = f"the catalog failed while {what}: {name.rsplit('.', 1)[-1]}"
                return Unreachable("target-unavailable", said, "See that the catalog is up and can be reached.")
            if name.startswith(_STORAGE):
                said = text.splitlines()[0][:300] if text else name
                hint = "See that the path is right, that it may be written to, and that the storage is up."
                return Retryable("target-unavailable", f"storage failed while {what}: {said}", hint)
        return Halt(
            self.code,
            f"{self.name} failed while {what}: {_condition(error) or causes[0][0]}",
            "The cause is in the log, below this error. Nothing of the batch was committed.",
        )

    @contextmanager
    def doing(self, what: str, table: str) -> Iterator[None]:
        """Tell of what fails within as one of ours, met while doing `what` of `table`."""
        try:
            yield
        except TailraceError:
            raise
        except LIBRARY_ERRORS as error:
            raise self.translate(error, f'{what} of table "{table}"') from error


def _condition(error: Exception) -> str:
    return (error.getCondition() or "") if isinstance(error, PySparkException) else ""
