"""An inlet that is a log already: topics of Kafka.

Options, PlatformConfig ──▶ topics, tables ──▶ format, log, dead letters
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tailrace.apply.target import Target
from tailrace.config.pipeline import PipelineConfig
from tailrace.config.platform import PlatformConfig
from tailrace.control import state
from tailrace.control.checkpoints import Life
from tailrace.control.dead_letters import DeadLetters
from tailrace.control.lag import TargetLag
from tailrace.control.rejects import Kept
from tailrace.core.checkpoint import Checkpoint
from tailrace.core.errors import NotReady, Retryable
from tailrace.core.offsets import least
from tailrace.core.subjects import Registered
from tailrace.envelopes import rows as landed_rows
from tailrace.envelopes.custom import Custom
from tailrace.envelopes.debezium_avro import DebeziumAvro
from tailrace.envelopes.debezium_either import DebeziumEither
from tailrace.envelopes.debezium_json import DebeziumJson
from tailrace.envelopes.maxwell import Maxwell
from tailrace.envelopes.message import Format
from tailrace.log._broker import Broker
from tailrace.log._cluster import Memory
from tailrace.log._registry import Registry
from tailrace.log._routing import Routing
from tailrace.log._settings import for_librdkafka, for_spark
from tailrace.log._subjects import Subjects
from tailrace.log.kafka import KafkaLog
from tailrace.log.slice import Slice
from tailrace.runtime.inlet import Opened, Tables
from tailrace.runtime.look import changes
from tailrace.sources.kafka import Options, refuse_twins, tables_of


@dataclass(frozen=True, slots=True)
class _File:
    """What a log must know again after a restart, in a state file."""

    path: Path

    def load(self) -> dict[str, Any] | None:
        return state.load(self.path)

    def save(self, content: dict[str, Any]) -> None:
        state.save(self.path, content)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a run has put into the state file, for an onlooker: who only looks must not decide what a topic is."""

    path: Path | None

    def load(self) -> dict[str, Any] | None:
        return state.load(self.path) if self.path else None

    def save(self, content: dict[str, Any]) -> None:
        """Keep nothing."""


class Topics:
    """The topics of one pipeline; see `runtime.inlet.Inlet` for what each method promises."""

    prefix = ""
    anew = False
    growing = True

    def __init__(
        self, pipeline: PipelineConfig, platform: PlatformConfig, folder: Path, spark: Callable[[], SparkSession]
    ) -> None:
        if not isinstance(pipeline.source.options, Options):
            raise TypeError("not a pipeline of topics")
        self._pipeline = pipeline
        self._options = pipeline.source.options
        self._platform = platform.model_copy(update={"kafka": self._options.over(platform.kafka)})
        self._folder = folder
        self._spark = spark
        self._logs: dict[str, KafkaLog] = {}
        self._broker = Broker(for_librdkafka(self._platform.kafka), for_spark(self._platform.kafka))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The topics there are, as far as the pipeline names them; dead letters are not among them."""
        try:
            found = self._broker.names(self._options.topic_pattern or ".*")
        except Retryable as error:
            raise NotReady(error.code, str(error), error.hint) from error
        letters = f".{self._platform.dlq.topic_suffix}"
        if self._options.topics:
            if missing := sorted(set(self._options.topics) - set(found)):
                hint = "Create it, or mend source.topics. Topics are not created by reading."
                raise NotReady("topic-missing", f'there is no topic "{missing[0]}"', hint)
            return self._options.topics
        chosen = tuple(name for name in found if not name.endswith(letters))
        if not chosen:
            raise NotReady(
                "topic-missing",
                f'no topic matches "{self._options.topic_pattern}"',
                "Mend source.topic_pattern, or wait until the connector has made its topics.",
            )
        return chosen

    def check(self) -> Tables:
        """Return the tables that are named; their messages tell the keys."""
        return dict.fromkeys(self.tables())

    def plan(self) -> list[str]:
        """Return nothing: topics are not created by reading."""
        return []

    def tables(self) -> tuple[str, ...]:
        """Return the tables that are named: by the pipeline, or by their topics. There may be others, see `loose`."""
        routed = self._options.routed(self.names)
        refuse_twins(self.names, routed)
        rest = [name for name in self.names if name not in routed]
        if self._pipeline.cdc.envelope == "custom":
            return tuple(sorted({*routed.values(), *rest}))
        told = {*self._options.tables, *(table for sink in self._pipeline.enabled_sinks for table in sink.tables)}
        called = () if self._options.tables else tables_of(rest)
        return tuple(sorted({*told, *routed.values(), *called}))

    @property
    def loose(self) -> tuple[str, ...]:
        """The topics whose names do not tell a table: whatever their messages name is taken."""
        if self._pipeline.cdc.envelope == "custom" or self._options.tables:
            return ()
        routed = self._options.routed(self.names)
        return tuple(name for name in self.names if name not in routed and not tables_of([name]))

    def open(self, life: Life) -> Opened:
        """Return the log of `life`; every target reads the same."""
        return Opened(self.log(life), watch=self._watch(life))

    def log(self, life: Life) -> KafkaLog:
        """Return the log of `life`."""
        if life.log not in self._logs:
            self._logs[life.log] = self._open_log(life, lambda what: _File(self._memory(life, what)))
        return self._logs[life.log]

    def _seen(self, life: Life | None) -> KafkaLog:
        """Return the log as an onlooker reads it, who remembers nothing."""
        return self._open_log(life or Life(1, "none"), lambda what: _Seen(self._memory(life, what) if life else None))

    def _memory(self, life: Life, what: str) -> Path:
        return self._folder / "topics" / f"{life.log}{what}.json"

    def _watch(self, life: Life) -> Callable[[], Registered | None] | None:
        """Return what looks for new versions in the registry, and has the log halt where that was asked for."""
        log, strict = self.log(life), self._platform.stop_on_incompatible_schema
        if not isinstance(log.envelope, DebeziumAvro | DebeziumEither):
            return None

        @functools.cache
        def subjects() -> Subjects:
            return Subjects(self._registry, self.names, _File(self._memory(life, ".subjects")), strict=strict)

        def look() -> Registered | None:
            if isinstance(log.envelope, DebeziumEither) and log.envelope.written != "avro":
                return None
            found = subjects().look()
            for change in found.changes if strict else ():
                if change.why is not None:
                    log.refuse(f'subject "{change.subject}", version {change.new_version},', change.why)
            return found

        return look

    @cached_property
    def _registry(self) -> Registry:
        return Registry(self._platform.kafka.schema_registry_url, self._folder / "topics" / "avro")

    def begin(self, life: Life, target: Target, at: Callable[[], int]) -> None:
        """Halt if a target without progress has marks beyond which the log begins: what lies between is gone."""
        for table in life.tables if at() < 0 else ():
            mark = target.mark(table)
            if mark is not None and mark.log == life.log:
                self.log(life).require(mark.offset)

    def passed(self, life: Life, target: str, reached: Mapping[str, int]) -> None:
        """Show how far the slowest target is to tools that ask Kafka for it."""
        self.log(life).commit(self.group, least(reached.values()))

    def head(self, life: Life | None) -> int:
        """Return the last offsets that there are."""
        return self._seen(life).head()

    def _gone(self, memory: Memory) -> list[str]:
        """Return the topics that were read, that the pattern still means, and that are not there: the log says so."""
        pattern, known = self._options.topic_pattern, (memory.load() or {}).get("topics", {})
        return sorted(name for name in known if pattern and re.fullmatch(pattern, name) and name not in self.names)

    def _open_log(self, life: Life, memory: Callable[[str], Memory]) -> KafkaLog:
        options = self._options
        return KafkaLog(
            life.log,
            life.epoch,
            self._broker,
            (*self.names, *self._gone(memory(""))),
            self.tables(),
            self._format(memory(".written"), read_before=bool((memory("").load() or {}).get("schemas"))),
            memory(""),
            self._spark,
            self._platform.limits.max_event_bytes,
            self.loose,
            Routing(options.routed(self.names), options.operations, options.other_tables == "filter"),
            strict=self._platform.stop_on_incompatible_schema,
        )

    def dead_letters(self) -> DeadLetters:
        """Return where events go that can never be applied."""
        kafka, dlq = self._platform.kafka, self._platform.dlq
        return DeadLetters(
            self._folder / "rejects",
            for_librdkafka(kafka),
            suffix=dlq.topic_suffix,
            enabled=dlq.enabled,
            limit=self._platform.limits.max_rejects,
            headers=dlq.include_headers,
            idempotent=kafka.enable_idempotence,
            partitions=kafka.topic_num_partitions,
            replicas=kafka.topic_replication_factor,
            topics=lambda: self.names,
        )

    @property
    def group(self) -> str:
        """The consumer group under which the pipeline shows how far it is: as it was named, or one of its own."""
        kafka = self._platform.kafka
        named = "group_id" in kafka.model_fields_set
        return kafka.group_id if named else f"{kafka.group_id}-{self._pipeline.pipeline_id}"

    def consume(self, life: Life | None, limit: int) -> Iterator[dict[str, object]]:
        """Yield the first messages that the log still has, opened; what is no change says why."""
        log = self._seen(life)
        piece = log.slice(-1, limit)
        if piece is None:
            return
        try:
            most = self._platform.limits.max_event_bytes
            yield from changes(piece, log, self._spark(), prefix="", limit=limit, max_bytes=most)
        finally:
            piece.release()

    def lag(self, checkpoint: Checkpoint | None) -> Mapping[str, object]:
        """Return nothing: what fills the topics is not asked."""
        return {}

    def again(self, life: Life, letters: Sequence[Kept], spark: SparkSession) -> Slice:
        """Return a slice of dead letters as they were sent: the messages that they were may be gone by now."""
        rows = [
            {
                "topic": letter.event.topic,
                "partition": letter.event.partition,
                "offset": letter.event.offset,
                "key": letter.event.key,
                "value": letter.event.value,
                "headers": [{"key": name, "value": value} for name, value in letter.event.headers],
            }
            for letter in letters
        ]
        return self.log(life).again(pa.Table.from_pylist(rows, schema=landed_rows.ARROW))

    def expire(self, opened: Opened, upto: int) -> None:
        """Do nothing: Kafka keeps its topics as it was told."""

    def deploy(self) -> list[str]:
        """Return nothing: somebody else fills the topics."""
        return []

    def undeploy(self) -> list[str]:
        """Return nothing: nothing was created."""
        return []

    def behind(self, found: TargetLag) -> list[dict[str, object]]:
        """Return how far a target is behind, by partition."""
        rows: list[dict[str, object]] = []
        for name, lag, have, last in found.partitions():
            topic, _, number = name.rpartition(":")
            if topic:
                place: dict[str, object] = {"part": found.target, "topic": topic, "partition": int(number)}
                rows.append({**place, "lag_events": lag, "upto": have, "head": last})
        return rows

    def _format(self, noted: Memory, *, read_before: bool) -> Format:
        cdc = self._pipeline.cdc
        if cdc.envelope == "maxwell":
            return Maxwell()
        if cdc.envelope == "custom":
            return Custom(
                cdc.op_field or "",
                cdc.after_field or "",
                cdc.key_field or "",
                cdc.before_field or "",
                cdc.ts_field or "",
                cdc.op_map or {},
            )
        json = DebeziumJson(self._options.unavailable_value)
        avro = DebeziumAvro(self._writer, self._options.unavailable_value)
        if self._options.value_format:
            return avro if self._options.value_format == "avro" else json
        known = (noted.load() or {}).get("value_format")
        if known is None and read_before:
            # By a release that did not look: the next message, which may be anything, must not decide.
            known = "avro" if self._options.schema_registry_url else "json"
        return DebeziumEither(json, avro, known, lambda found: noted.save({"value_format": found}))

    def _writer(self, number: int) -> Mapping[str, Any]:
        """Return the schema with the id `number`; who reads JSON only needs no registry, whatever its address is."""
        return self._registry.schema(number)
