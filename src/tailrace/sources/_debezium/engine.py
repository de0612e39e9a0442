"""The Debezium engine in this process: started, read batch by batch, and stopped.

Java packs a batch into column buffers and waits; Python copies them out in one crossing and releases the
batch with the place that is durable. Nothing is acknowledged to the database before that.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tailrace.core.table import Table
from tailrace.envelopes.rows import ARROW, SCHEMA_HEADER
from tailrace.sources._debezium.jvm import Family, java
from tailrace.sources._debezium.schema import table_of


@dataclass(frozen=True, slots=True)
class Batch:
    """What the engine read, as log rows, and how far that is."""

    rows: pa.Table
    schemas: Mapping[str, Table]
    snapshot_done: bool
    snapshot_rows: int
    stand: str
    """How far the rows have come, as the family's track writes it."""
    message: int
    """What the track says beside it: of PostgreSQL, the place of the newest message of ours, 0 if there was none."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One link of the chain of errors that ended the engine."""

    kind: str
    state: str
    message: str


def said_by(causes: Sequence[Cause], secret: str) -> str:
    """Return what the server said, on one line and without `secret`."""
    # The innermost message is the server's own; what wraps it says where in the engine it happened.
    text = next((cause.message for cause in reversed(causes) if cause.message), "no reason given")
    if secret:
        text = text.replace(secret, "***")
    return " ".join(text.split())[:400]


@dataclass(slots=True)
class _Layouts:
    """What the numbers in a batch stand for; grows as tables and schemas are met."""

    topics: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    fingerprints: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Resume:
    """Where an engine begins: the stand of its track, and its own offset, which is JSON."""

    stand: str
    offset: str


class Engine:
    """One run of the engine over `tables` (name to key columns); `close` may come from any thread.

    A statement that the engine leaves out and `watched`, a pattern, matches ends it. `sent` has the columns of a row
    as it was, for the tables of which the database does not send all. `completed` is asked of tables that changes have
    come of for the first time, or in a new shape: it may know of them what the engine does not.
    """

    def __init__(
        self,
        family: Family,
        config: Mapping[str, str],
        topic_prefix: str,
        tables: Mapping[str, tuple[str, ...]],
        resume: Resume | None,
        watched: str = "",
        sent: Mapping[str, tuple[str, ...]] | None = None,
        completed: Callable[[Sequence[Table]], Sequence[Table]] = lambda tables: tables,
    ) -> None:
        made = java(family)
        self._completed = completed
        self._placeholder = f"unavailable-{secrets.token_hex(16)}"
        keys, known = made.HashMap(), made.HashMap()
        for lists, named in ((keys, tables), (known, sent or {})):
            for table, columns in named.items():
                lists.put(table, made.ArrayList(list(columns)))
        self._track = made.Track()
        self._consumer = made.Consumer(topic_prefix, self._placeholder, keys, known, self._track)
        self._layouts = _Layouts()
        properties = made.Properties()
        for name, value in config.items():
            properties.setProperty(name, value)
        properties.setProperty("unavailable.value.placeholder", self._placeholder)
        properties.setProperty("offset.storage", "tailrace.Consumer$Offsets")
        properties.setProperty("offset.flush.interval.ms", "0")
        properties.setProperty("errors.max.retries", "0")
        if resume:
            self._track.resume(resume.stand)
            self._consumer.resume()
            properties.setProperty("tailrace.offset", resume.offset)
        name = secrets.token_hex(8)
        for setting, value in (("converters", "exact"), ("exact.type", family.exact), ("exact.engine", name)):
            properties.setProperty(setting, value)
        self._known = made.Known.announce(name, properties)
        made.Tripwire.reset(watched)
        with made.current():
            self._consumer.start(made.build(properties, self._consumer))

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
        packed = self._consumer
        self._learn({int(number): json.loads(str(text)) for number, text in packed.descriptions})
        count = int(packed.rows)
        ids = pa.Array.from_buffers(pa.int32(), count, [None, _copy(packed.layoutIds, 4 * count)])
        nulls = pa.Array.from_buffers(pa.uint8(), count, [None, _copy(packed.keyNulls, count)])
        columns = [
            pa.array(self._layouts.topics, pa.string()).take(ids),
            _binary(count, packed.keyOffsets, packed.keyData, nulls.cast(pa.bool_()).buffers()[1] if count else None),
            _binary(count, packed.valueOffsets, packed.valueData, None),
            pa.Array.from_buffers(ARROW.field("timestamp").type, count, [None, _copy(packed.timestamps, 8 * count)]),
            self._headers(ids),
        ]
        names = ["topic", "key", "value", "timestamp", "headers"]
        used = {self._layouts.fingerprints[number]: number for number in ids.unique().to_pylist()}
        return Batch(
            rows=pa.table(columns, schema=pa.schema([ARROW.field(name) for name in names])),
            schemas={text.decode(): self._layouts.tables[number] for text, number in used.items()},
            snapshot_done=bool(packed.snapshotDone),
            snapshot_rows=int(packed.snapshotRows),
            stand=str(self._track.stand()),
            message=int(self._track.message()),
        )

    def _learn(self, described: Mapping[int, dict[str, Any]]) -> None:
        if not described:
            return
        tables = self._completed([table_of(text) for text in described.values()])
        for (number, text), table in zip(described.items(), tables, strict=True):
            while len(self._layouts.topics) <= number:
                self._layouts.topics.append("")
                self._layouts.tables.append(Table("", (), ()))
                self._layouts.fingerprints.append(b"")
            self._layouts.topics[number] = str(text["topic"])
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
