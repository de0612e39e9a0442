"""A change log that somebody else fills: topics of Kafka, read in bounded slices with explicit offsets.

    describe (who are the topics, from where to where)  ->  cut  ->  read once, peek, keep  ->  what it holds

A place in this log is an offset for each partition, named `<topic>:<partition>`. What lies between two
places is always the same, so a slice may be read again. Nothing is ever skipped in silence: a topic made
anew, a cluster that is another one, offsets that have expired halt with `resync-required`.

The messages of a slice are read once. They are looked into by the format (`envelopes.message`), kept, and
counted by table and schema; a schema that is new is learned from one message.
"""

from __future__ import annotations

import functools
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from tailrace.core import offsets
from tailrace.core.change import Op
from tailrace.core.errors import Halt, NotReady, ResyncRequired
from tailrace.core.offsets import Offsets
from tailrace.core.table import Table, incompatible, table_called, table_from_json
from tailrace.envelopes import rows as landed_rows
from tailrace.envelopes.message import FILTERED, NO_ROW, NO_SCHEMA, Format, Sample
from tailrace.log._broker import Partition
from tailrace.log._cluster import Cluster, Memory, Messages
from tailrace.log._held import Held
from tailrace.log._inferred import inferred, named, nothing_new, widened
from tailrace.log._kafka_slice import KafkaSlice
from tailrace.log._reading import RESYNC, reading
from tailrace.log._routing import Routing
from tailrace.log.slice import Aside, Contents
from tailrace.spark.kept import forget, keep

_NOT_NEEDED = " If all of it was applied, or nothing of it is needed, leave it out of source.topics or topic_pattern."
_MOST_ASKED = 20
"""How many tables may have their rows compared with what is known of them."""


class KafkaLog:
    """Some topics, as one log of one life of a pipeline."""

    ordered = False
    """A connector that starts again repeats what it has sent."""
    replaces = True
    reads_ahead = True

    def __init__(
        self,
        name: str,
        epoch: int,
        broker: Cluster,
        topics: Sequence[str],
        tables: Collection[str],
        envelope: Format,
        memory: Memory,
        spark: Callable[[], SparkSession],
        max_event_bytes: int = 32 * 1024 * 1024,
        open_topics: Collection[str] = (),
        routing: Routing | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.envelope = envelope
        self._broker = broker
        self._topics = tuple(topics)
        self._tables = frozenset(tables)
        self._open_topics = frozenset(open_topics)
        self._routing = routing or Routing()
        self._strict = strict
        self._memory = memory
        self._spark = spark
        self._max_event_bytes = max_event_bytes
        self._known: dict[str, Any] = {}
        self._tables_by_fingerprint: dict[str, Table] = {}
        self._keyed: set[str] = set()
        """Schemas of which a message with a key was looked at."""
        self._session: SparkSession | None = None
        self._lock = threading.RLock()
        self._refusal: tuple[str, str] | None = None

    # -- where it goes from and to

    def head(self) -> Offsets:
        """Return the last offsets that readers may see."""
        ends = self._broker.ends(self._partitions())
        return Offsets({_name(place): end - 1 for place, end in ends.items()})

    def require(self, place: int) -> None:
        """Halt if the log no longer has what comes after `place`."""
        partitions = self._partitions()
        self._first(place, self._broker.starts(partitions), self._broker.ends(partitions))

    def require_rest(self, place: int) -> None:
        """Halt if anything behind `place` is gone; of a partition that `place` does not name, that is all of it."""
        nothing = {_name(partition): -1 for partition in self._partitions()}
        self.require(Offsets({**nothing, **offsets.by_partition(place)}))

    def slice(self, after: int, max_rows: int, upto: int | None = None) -> KafkaSlice | None:
        """Return the next messages after `after`, at most `max_rows`, in every partition its share."""
        if self._refusal:
            raise _incompatible(*self._refusal)
        partitions = self._partitions()
        ends = self._broker.ends(partitions)
        first = self._first(after, self._broker.starts(partitions), ends)
        last = offsets.by_partition(upto) if upto is not None else {}
        for place in ends if upto is not None else ():
            ends[place] = min(ends[place], last.get(_name(place), -1) + 1)
        ranges = cut({place: (first[place], end) for place, end in ends.items() if end > first[place]}, max_rows)
        if not ranges:
            return None
        reached = {_name(place): end - 1 for place, (_, end) in ranges.items()}
        passed = {_name(place): start - 1 for place, start in first.items()}
        # A topic that is not read for a while keeps its place: what expires meanwhile is missed when it is read again.
        every = {**offsets.by_partition(after), **passed, **reached}
        with reading():
            return self._open(after, Offsets(every), ranges)

    def again(self, messages: pa.Table) -> KafkaSlice:
        """Return a slice of `messages` of this log that are at hand (rows of `envelopes.rows`), wherever they lie."""
        self._remember()
        with reading():
            return self._open(-1, Offsets({}), {}, Held(messages))

    def wait(self, seconds: float) -> None:
        """Return after `seconds`: nobody tells us that a topic has grown."""
        time.sleep(seconds)

    def commit(self, group: str, place: int) -> None:
        """Show the group's place to tools that ask for it; nothing here depends on it."""
        named = {_partition(name): last + 1 for name, last in offsets.by_partition(place).items()}
        self._broker.commit(group, {place: offset for place, offset in named.items() if place[0] in self._topics})

    def refuse(self, what: str, why: str) -> None:
        """Have every slice from now on halt, because the schema of `what` cannot be followed; from any thread."""
        self._refusal = what, why

    def schema(self, fingerprint: str) -> Table:
        """Return the table schema that rows with `fingerprint` were written with."""
        return self._tables_by_fingerprint[fingerprint]

    def awaited(self, topic: str) -> frozenset[str] | None:
        """Return the columns that the first messages of a table named without a value; `None` if a schema says all."""
        self._remember()
        if topic not in self._known["inferred"]:
            return None
        return frozenset(self._known["awaited"].get(topic, ()))

    def _partitions(self) -> list[Partition]:
        """Return every partition there is, of topics that are the ones they were."""
        self._remember()
        found = self._broker.topics(self._topics)
        for name, known in self._known["topics"].items():
            if name in self._topics and (name not in found or found[name].id != known):
                what, rest = ("was made anew", "") if name in found else ("is gone", _NOT_NEEDED)
                raise ResyncRequired(f'topic "{name}" {what} since it was last read', RESYNC + rest)
        for name in self._topics:
            if name not in found:
                raise NotReady("topic-missing", f'there is no topic "{name}"', "Create it, or mend source.topics.")
        new = {name: topic.id for name, topic in found.items() if name not in self._known["topics"]}
        if new:
            self._save(topics={**self._known["topics"], **new})
        return [(name, number) for name in self._topics for number in range(found[name].partitions)]

    def _remember(self) -> None:
        with self._lock:
            if self._known:
                return
            cluster = self._broker.cluster()
            nothing: dict[str, Any] = {
                "topics": {},
                "schemas": {},
                "inferred": {},
                "awaited": {},
                "rowless": [],
                "truncated": {},
            }
            known = {"cluster": cluster, **nothing} | (self._memory.load() or {})
            known.setdefault("met", list(known["schemas"]))
            if known["cluster"] != cluster:
                raise ResyncRequired(
                    f"the cluster at {self._broker.address} is {cluster}, and the log was read from {known['cluster']}",
                    RESYNC,
                )
            self._tables_by_fingerprint = {name: table_from_json(stored) for name, stored in known["schemas"].items()}
            self._known = known

    def _save(self, **changed: object) -> None:
        with self._lock:
            known = {**self._known, **changed}
            self._memory.save(known)
            self._known = known

    def _first(
        self, after: int, starts: Mapping[Partition, int], ends: Mapping[Partition, int]
    ) -> dict[Partition, int]:
        """Return the first offset to read of each partition; halt if it is not there any more."""
        read = offsets.by_partition(after)
        seen = {_partition(name)[0] for name in read}
        first = {}
        for (topic, number), start in starts.items():
            name = _name((topic, number))
            if name in read:
                first[topic, number] = read[name] + 1
            else:
                if topic in seen and self.envelope.by_offset:
                    raise ResyncRequired(
                        f'topic "{topic}" has a new partition {number}, and its changes are ordered by offset alone',
                        "Keys have moved between partitions, so newer changes may have lower offsets. Set cdc.ts_field "
                        "to a field that orders them, run cdc undeploy <file>, and write to a new target table.",
                    )
                # A partition added to a topic that we read begins at 0; of a topic that is new, we take what is there.
                first[topic, number] = 0 if topic in seen else start
            if first[topic, number] < start:
                raise ResyncRequired(
                    f'topic "{topic}", partition {number}, begins at offset {start}, '
                    f"and {first[topic, number]} is needed",
                    RESYNC,
                )
            if first[topic, number] > ends[topic, number]:
                raise ResyncRequired(
                    f'topic "{topic}", partition {number}, ends before offset {ends[topic, number]}, '
                    f"and was read up to {read[name]}",
                    RESYNC,
                )
        return first

    # -- what it holds

    def _open(
        self,
        after: int,
        upto: Offsets,
        ranges: Mapping[Partition, tuple[int, int]],
        messages: Messages | None = None,
    ) -> KafkaSlice:
        messages = messages or self._broker
        spark = self._own_session()
        kept = self._peek(messages.read(spark, ranges))
        while self.envelope.learn(kept):
            forget(kept)
            kept = self._peek(messages.read(spark, ranges))
        view = f"tailrace_slice_{uuid.uuid4().hex}"

        def drop() -> None:
            with suppress(Py4JError, PySparkException, OSError):
                spark.catalog.dropGlobalTempView(view)
                forget(kept)

        try:
            contents, schemas, unreadable = self._contents(kept, messages)
            judged = _without_schema(kept, unreadable) if unreadable else kept
            if unreadable:
                contents, schemas, _ = self._contents(judged, messages)
            judged.createGlobalTempView(view)
        except BaseException:
            drop()
            raise

        def read(session: SparkSession) -> DataFrame:
            return session.table(f"global_temp.{view}")

        return KafkaSlice(after, upto, contents, read, view, ranges, messages.read, schemas, drop)

    def _peek(self, rows: DataFrame) -> DataFrame:
        peeked = self.envelope.peek(rows, self.epoch, self._max_event_bytes)
        peeked = self._routing.apply(peeked, self._tables, self._open_topics)
        return keep(peeked)

    def _contents(
        self, kept: DataFrame, messages: Messages
    ) -> tuple[Contents, dict[tuple[str, str], set[str]], list[tuple[str, str]]]:
        """Return what is in a slice, the schema of each table and fingerprint, and which schemas describe no row."""
        where = F.struct("partition", "offset")
        truncate = F.coalesce(F.col("op") == Op.TRUNCATE.value, F.lit(False))
        good, bad = F.col("fate").isNull(), F.col("fate") != FILTERED
        groups = (
            kept.groupBy(
                "topic",
                F.when(good, F.col("table")).alias("table"),
                F.when(good, F.col("schema")).alias("schema"),
                F.coalesce(bad, F.lit(False)).alias("bad"),
            )
            .agg(
                F.count(F.lit(1)).alias("count"),
                # Of a message without a key, no key can be learned.
                F.min(F.struct(truncate, "keyless", where)).alias("sample"),
                F.count_if(truncate).alias("truncates"),
                F.count_if(F.col("op") == Op.DELETE.value).alias("deletes"),
                # As a set: beside one Spark aggregates texts by hash, and without one it sorts all rows.
                F.array_max(F.collect_set("partial")).alias("partial"),
                F.min("position").alias("lowest"),
                F.max(F.when(truncate, F.col("position"))).alias("truncated"),
                F.max(F.col("before").isNotNull()).alias("before"),
                F.max(F.col("partial") & F.coalesce("old_key", "before").isNotNull()).alias("moved"),
                F.count_if(self._novel()).alias("novel"),
            )
            .collect()
        )
        counts: dict[tuple[str, str], int] = {}
        features: dict[str, frozenset[str]] = {}
        lowest: dict[str, str] = {}
        aside: dict[str, Aside] = {}
        schemas: dict[tuple[str, str], set[str]] = {}
        unreadable: list[tuple[str, str]] = []
        for group in sorted(groups, key=self._age):
            if group["table"] is None:
                old = aside.get(group["topic"], Aside())
                more = (0, group["count"]) if group["bad"] else (group["count"], 0)
                aside[group["topic"]] = Aside(
                    old.filtered + more[0], old.rejected + more[1], self._table_of(group["topic"])
                )
                continue
            table = group["table"]
            # A truncate has no key, so there is nothing to learn from truncates alone, and no need to.
            rows = group["count"] > group["truncates"]
            place = tuple(group["sample"][2])
            sample = functools.partial(_sample, messages, group["topic"], place)
            keyed = not group["sample"][1]
            told = {"novel": bool(group["novel"]), "whole": group["count"] > group["truncates"] + group["deletes"]}
            fingerprint = self._learn(kept, table, group["schema"], sample, keyed=keyed, **told) if rows else ""
            if fingerprint is None:
                unreadable.append((table, group["schema"]))
                continue
            if not rows:
                self._truncated(table, group["truncated"])
            schemas.setdefault((table, fingerprint), set()).add(group["schema"])
            counts[table, fingerprint] = counts.get((table, fingerprint), 0) + group["count"]
            lowest[table] = min(group["lowest"], lowest.get(table, group["lowest"]))
            found = {landed_rows.TRUNCATE} if group["truncates"] else set()
            found |= {landed_rows.PARTIAL} if group["partial"] else set()
            found |= {landed_rows.MOVED} if group["moved"] else set()
            found |= {landed_rows.BEFORE} if group["before"] else set()
            features[table] = features.get(table, frozenset()) | found
        floors = {table: at for table, low in lowest.items() if low <= (at := self._known["truncated"].get(table, ""))}
        return Contents(counts, features, lowest, aside, floors), schemas, unreadable

    def _truncated(self, table: str, position: str) -> None:
        """Take note of a truncate of a table that has no schema yet: no target has a table to keep it with."""
        with self._lock:
            known, met = self._known["truncated"], self._known["met"]
            if position > known.get(table, "") and not any(name.startswith(f"{table} ") for name in met):
                self._save(truncated={**known, table: position})

    def _table_of(self, topic: str) -> str:
        """Return the table that `topic` is of, by a route or by its name; empty if it may hold any."""
        called = self._routing.routes.get(topic) or table_called(topic) or ""
        return called if called in self._tables and topic not in self._open_topics else ""

    def _age(self, group: Row) -> tuple[int, str, Any]:
        """Order schemas as they were met; new ones come last, as the source's first changes with them lie.

        Where in which partition those lie says nothing of it.
        """
        met, name = self._known["met"], f"{group['table']} {group['schema']}"
        return (met.index(name) if name in met else len(met)), group["lowest"] or "", group["sample"][2]

    def _learn(
        self,
        kept: DataFrame,
        table: str,
        schema: str,
        ask: Callable[[], Sample],
        *,
        keyed: bool = True,
        novel: bool = True,
        whole: bool = True,
    ) -> str | None:
        """Return the fingerprint of what messages of `table` call `schema`, learning it if it is new; or `None`.

        It is learned again if no message that it was learned from had a key, and the one to `ask` for is `keyed`. Where
        messages bring no schema, it is inferred again from rows that are `novel`. Unless some of them are `whole`, they
        are deletes, which may tell the key and no other column: those that come next are not new to the table.
        """
        name = f"{table} {schema}"
        known = self._tables_by_fingerprint.get(name) if schema else None
        if known is not None and (known.keys or not keyed or name in self._keyed):
            self.envelope.remember(known, schema)
            return name
        if keyed:
            self._keyed.add(name)
        if schema:
            described = self.envelope.schema(table, ask())
            if described is None:
                return None
            if self._strict and known is None:
                self._refuse_incompatible(table, described)
            return self._keep(name, described)
        if self._strict:
            raise _incompatible(f'table "{table}"', "its messages bring no schema that could be compared")
        with self._lock:
            name = str(self._known["inferred"].get(table, ""))
            have = self._tables_by_fingerprint.get(name)
            rowless = self._known["rowless"]
            begins = have is None or (whole and table in rowless)
            if have is not None and not novel and not begins and (have.keys or not keyed):
                return name
            keys = have.keys if have and have.keys else self.envelope.keys(ask())
            mine = F.col("fate").isNull() & (F.col("table") == table)
            rows = kept.where(mine & self._novel()).select("row")
            now = widened(have, inferred(rows), table, keys)
            if not now.columns:
                return None
            awaited = self._known["awaited"]
            if begins:
                there = (have or now).names()
                awaited = {**awaited, table: sorted({*awaited.get(table, ()), *named(rows)}.difference(there))}
                rowless = [*(other for other in rowless if other != table), *(() if whole else (table,))]
            fingerprint = self._keep(f"{table} {now.fingerprint()}", now)
            if begins or self._known["inferred"].get(table) != fingerprint:
                self._save(inferred={**self._known["inferred"], table: fingerprint}, awaited=awaited, rowless=rowless)
            return fingerprint

    def _novel(self) -> Expression:
        """Say of a row without a schema whether it may tell more of its table's types than is known."""
        inferred = self._known["inferred"]
        told = F.lit(False)
        # Each of them is asked of every row: of very many tables, inferring costs no more.
        for table, fingerprint in sorted(inferred.items()) if len(inferred) <= _MOST_ASKED else ():
            known = F.col("row").rlike(nothing_new(self._tables_by_fingerprint[fingerprint]))
            told = F.when(F.col("table") == table, known).otherwise(told)
        return (F.col("schema") == "") & F.col("row").isNotNull() & ~told

    def _refuse_incompatible(self, table: str, described: Table) -> None:
        """Halt if a schema that is new lacks what the one met last has; nothing of the slice is applied then."""
        before = [name for name in self._known["met"] if name.startswith(f"{table} ")]
        why = incompatible(self._tables_by_fingerprint[before[-1]], described) if before else None
        if why is not None:
            raise _incompatible(f'table "{table}"', why)

    def _keep(self, fingerprint: str, table: Table) -> str:
        with self._lock:
            if self._known["schemas"].get(fingerprint) != table.to_json():
                # A stored mapping has no order, and which schema came when is needed.
                met = dict.fromkeys([*self._known["met"], fingerprint])
                self._save(schemas={**self._known["schemas"], fingerprint: table.to_json()}, met=list(met))
            self._tables_by_fingerprint[fingerprint] = table
            return fingerprint

    def let_go(self) -> None:
        """Read in another session from now on: the one that there was went away."""
        with self._lock:
            self._session = None

    def _own_session(self) -> SparkSession:
        with self._lock:
            if self._session is None:
                self._session = self._spark().newSession()
                # Replanning between stages doubles the jobs of a small slice.
                self._session.conf.set("spark.sql.adaptive.enabled", "false")
                # A slice is kept for seconds: compressing it takes longer than it saves.
                self._session.conf.set("spark.sql.inMemoryColumnarStorage.compressed", "false")
            return self._session


def cut(available: Mapping[Partition, tuple[int, int]], max_rows: int) -> dict[Partition, tuple[int, int]]:
    """Take `max_rows` offsets if there are as many, of each partition about as much as its share of all that there is.

    A partition with little to read has its turn too: one that got nothing might wait for ever.
    """
    total = sum(end - start for start, end in available.values())
    if total <= max_rows:
        return dict(available)
    chosen, left = {}, max_rows
    for place, (start, end) in sorted(available.items()):
        share = min(max(1, (end - start) * max_rows // total), left)
        if share:
            chosen[place] = (start, start + share)
        left -= share
    # What rounding left over would be a slice of its own in the end, for a handful of messages.
    for place, (start, upto) in chosen.items():
        more = min(left, available[place][1] - upto)
        chosen[place] = (start, upto + more)
        left -= more
    return chosen


def _without_schema(kept: DataFrame, unreadable: Sequence[tuple[str, str]]) -> DataFrame:
    """Give messages whose schema describes no row that fate."""
    theirs = F.struct("table", "schema").isin([F.struct(F.lit(table), F.lit(schema)) for table, schema in unreadable])
    why = F.when(F.col("schema") == "", NO_ROW).otherwise(NO_SCHEMA)
    return kept.withColumn("fate", F.coalesce("fate", F.when(theirs, why)))


def _incompatible(what: str, why: str) -> Halt:
    return Halt(
        "schema-incompatible",
        f"the schema of {what} changed in a way that stop_on_incompatible_schema does not let pass: {why}",
        "Nothing written with it was applied. Put the change back, or set the key to false to go on: a column that is "
        "gone then keeps its values in the targets.",
    )


def _sample(messages: Messages, topic: str, place: tuple[int, int]) -> Sample:
    return Sample(topic, *messages.message(topic, *place))


def _name(place: Partition) -> str:
    return f"{place[0]}:{place[1]}"


def _partition(name: str) -> Partition:
    topic, _, number = name.rpartition(":")
    return topic, int(number)
