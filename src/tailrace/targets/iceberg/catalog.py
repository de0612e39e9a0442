"""The catalog that tables are found in, as one session has it.

A session learns of a catalog by settings, and a setting shows in the event log. So they are set only while the catalog
is loaded, which the session does once, and nothing runs in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailrace.core.errors import Halt, NotReady, Retryable, Unreachable
from tailrace.spark.classes import java_class
from tailrace.targets._merge import quote
from tailrace.targets.iceberg.metadata import Metadata
from tailrace.targets.iceberg.outcome import causes_of

PREFIX = "spark.sql.catalog."
IMPLEMENTATION = "org.apache.iceberg.spark.SparkCatalog"
_TABLES = "org.apache.iceberg.catalog"


@dataclass(frozen=True, slots=True)
class Place:
    """The name of a table: its catalog, its namespace, its own."""

    catalog: str
    namespace: tuple[str, ...]
    name: str

    @property
    def sql(self) -> str:
        """The name in Spark SQL."""
        return ".".join(map(quote, (self.catalog, *self.namespace, self.name)))

    @property
    def shown(self) -> str:
        """The name as a person writes it."""
        return ".".join((self.catalog, *self.namespace, self.name))

    def beside(self) -> Place:
        """Return the place of what is remembered beside the table."""
        return Place(self.catalog, self.namespace, f"_tailrace_tombstones_{self.name}")


class Catalog:
    """A catalog in a session; tables are always read as they are now, whatever the session remembers of them."""

    def __init__(self, session: SparkSession, name: str, settings: Mapping[str, str] | None = None) -> None:
        self._session = session
        self._gateway = cast("Any", session.sparkContext._gateway)
        self._string = java_class(session, "java.lang.String")
        self._namespace, self._named = (
            java_class(session, f"{_TABLES}.{one}") for one in ("Namespace", "TableIdentifier")
        )
        self._java = _load(session, name, settings or {})

    def load(self, place: Place) -> Metadata | None:
        """Return the table at `place`; `None` if there is none."""
        try:
            table = self._java.loadTable(self._identifier(place.namespace, place.name))
            table.refresh()
        except Py4JJavaError as error:
            if _is(error, "NoSuchTableException", "NoSuchNamespaceException"):
                return None
            raise
        return Metadata(self._session, table)

    def forget(self, place: Place) -> None:
        """Have the session look at the table anew when it is read."""
        self._java.invalidateTable(self._identifier(place.namespace, place.name))

    def drop(self, place: Place) -> None:
        """Remove the table at `place` with its files, if there is one."""
        self._java.dropTable(self._identifier(place.namespace, place.name), True)

    def _identifier(self, namespace: Sequence[str], name: str) -> Any:
        levels = self._gateway.new_array(self._string, len(namespace))
        for index, level in enumerate(namespace):
            levels[index] = level
        return self._named.of(self._namespace.of(levels), name)


def require_s3(session: SparkSession) -> None:
    """Raise `NotReady` unless the session has what Iceberg needs to keep files in S3."""
    try:
        loader = java_class(session, "org.apache.spark.util.Utils").getContextOrSparkClassLoader()
        loader.loadClass("software.amazon.awssdk.services.s3.S3Client")
    except Py4JJavaError as error:
        raise NotReady(
            "driver-missing",
            "the Spark session has no client for S3, which a warehouse of Iceberg there needs",
            "cdc run starts one that has it. With spark.jars: provided, add iceberg-aws-bundle of Iceberg's version to "
            "the cluster; in a process whose session runs already, start that session with it.",
        ) from error


def _load(session: SparkSession, name: str, settings: Mapping[str, str]) -> Any:
    """Return Iceberg's own catalog behind the one that `session` has, or gets now, under `name`."""
    sessions = java_class(session, "org.apache.spark.sql.classic.SparkSession")
    before = sessions.getActiveSession()
    for key, value in settings.items():
        session.conf.set(f"{PREFIX}{name}{key and '.'}{key}", value)
    sessions.setActiveSession(session._jsparkSession)
    try:
        plugin = session._jsparkSession.sessionState().catalogManager().catalog(name)
        return plugin.icebergCatalog()
    except (Py4JJavaError, PySparkException) as error:
        raise _failure(error, name) from (None if settings else error)
    finally:
        for key in settings:
            session.conf.unset(f"{PREFIX}{name}{key and '.'}{key}")
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _failure(error: Exception, name: str) -> Halt | Retryable:
    """Return what kept the catalog from loading; its own words may hold what is not to be shown."""
    causes = causes_of(error)
    if any("CatalogNotFoundException" in kind for kind, _ in causes):
        return Halt(
            "unknown-catalog",
            f'the Spark session has no catalog "{name}"',
            f'Give tailrace.session the settings "{PREFIX}{name}" and those under it.',
        )
    if any("No suitable driver" in text for _, text in causes):
        return NotReady(
            "driver-missing",
            f'the Spark session has no JDBC driver for the catalog "{name}"',
            "Start the session with tailrace.session or cdc run, which have those of SQLite and PostgreSQL; with "
            "spark.jars: provided, add the driver's jar to the cluster.",
        )
    if any(
        kind.startswith(("java.sql.", "java.net.", "java.io.", "org.sqlite.", "org.postgresql.")) for kind, _ in causes
    ):
        hint = "See that the catalog is up, and that its address is right."
        # Anything else may as well be a password or a right, which no waiting brings.
        away = any(kind.startswith("java.net.") for kind, _ in causes)
        said = f'the catalog "{name}" did not answer: {causes[-1][0]}'
        return (Unreachable if away else Retryable)("target-unavailable", said, hint)
    return Halt(
        "iceberg-failed",
        f'the catalog "{name}" could not be loaded: {causes[-1][0]}',
        "Check catalog_uri, warehouse and who may use them.",
    )


def _is(error: Py4JJavaError, *names: str) -> bool:
    return any(kind.endswith(names) for kind, _ in causes_of(error)[:1])
