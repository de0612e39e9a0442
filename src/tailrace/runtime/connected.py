"""An inlet whose topics a connector of ours fills: `transport_mode: kafka`. Reading is that of any topics.

    note what will be made  ->  topics  ->  publication  ->  connector, until it runs

A connector that reads a binlog keeps its schema history in a topic, which is made and removed with the others.

What a deployment makes is noted before it is made, so that one that was killed can be repeated or undone. If a step
fails, what the steps before it made is removed again.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self
from urllib.parse import unquote, urlsplit, urlunsplit

from pyspark.sql import SparkSession

from tailrace.config.pipeline import PipelineConfig, SourceConfig
from tailrace.config.platform import PlatformConfig
from tailrace.control import state
from tailrace.control.dead_letters import TOPIC_SETTINGS
from tailrace.control.lag import SERVER, asked
from tailrace.core.checkpoint import Checkpoint
from tailrace.core.errors import Halt, Misconfigured, NotReady, TailraceError
from tailrace.log._settings import for_java
from tailrace.runtime.inlet import Tables
from tailrace.runtime.topics import Topics
from tailrace.sources import kafka
from tailrace.sources._connect import Connector


class Captured(Protocol):
    """What must be done in a database for a connector, and what can be asked of it."""

    remembers: bool
    """Whether the connector keeps a schema history."""

    def check(self) -> None:
        """Halt with what is missing in the environment; leave nothing behind."""
        ...

    def tables(self) -> dict[str, tuple[str, ...]]:
        """Return the tables to capture, each with its primary key."""
        ...

    def lag(self, checkpoint: Checkpoint | None) -> dict[str, object]:
        """Return what the database says of the capture."""
        ...

    def prepare(self, *, fresh: bool) -> list[str]:
        """Make what the connector needs, and return what was made; `fresh` halts if it was captured before."""
        ...

    def undeploy(self, *, publication: bool = True) -> list[str]:
        """Remove what capture made, the publication too if that is to go; return what was removed."""
        ...

    def connector_settings(self, tables: Sequence[str], *, avro: bool) -> dict[str, str]:
        """Return the settings of the connector, apart from topics and converters."""
        ...


class _Undo:
    """What takes back the steps of a deployment that fails, the latest first; left without an error, it does nothing.

    The error that led here is the one to tell. A step that could not be taken back leaves the note of what was made, so
    that a repeat of the command knows it for its own.
    """

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []
        self._last: Callable[[], object] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        worked = [_worked(step) for step in reversed(self._steps)] if error is not None else [False]
        if all(worked) and self._last:
            self._last()

    def by(self, step: Callable[[], object]) -> None:
        """Have `step` take back what is done next."""
        self._steps.append(step)

    def at_last(self, step: Callable[[], object]) -> None:
        """Have `step` done when every other one has worked."""
        self._last = step


def _worked(step: Callable[[], object]) -> bool:
    try:
        step()
    except TailraceError:
        return False
    return True


class Connected(Topics):
    """The topics of some tables of a database, and the connector that fills them."""

    def __init__(
        self, pipeline: PipelineConfig, platform: PlatformConfig, folder: Path, spark: Callable[[], SparkSession]
    ) -> None:
        self._prefix = pipeline.topic_prefix
        self._noted_at = folder / "deployment.json"
        self._connector_config = platform.connector
        module = importlib.import_module(f"tailrace.sources.{pipeline.source.source_type}")
        database = module.open_source(
            pipeline.source.options, pipeline_id=pipeline.pipeline_id, topic_prefix=pipeline.topic_prefix, epoch=1
        )
        if not hasattr(database, "connector_settings"):
            raise Misconfigured(
                "not-available",
                f'transport_mode kafka does not capture source_type "{pipeline.source.source_type}" in this release',
                "Leave transport_mode out: the capture then runs in this process.",
            )
        self._database: Captured = database
        password = getattr(pipeline.source.options, "password", None)
        secret = password.get_secret_value() if password else ""
        name = f"{pipeline.topic_prefix}-{pipeline.pipeline_id}"
        self._connector = Connector(platform.connector, name, secret)
        self._history = f"{_legal(name)}-schema-history" if database.remembers else None
        super().__init__(self._as_topics(pipeline), platform, folder, spark)

    def _as_topics(self, pipeline: PipelineConfig) -> PipelineConfig:
        """Return the pipeline as one that reads the topics."""
        tables = pipeline.tables or tuple(self._noted("tables"))
        named: dict[str, object] = (
            {"topics": tuple(map(self._topic, tables)), "tables": tables}
            if tables
            else {"topic_pattern": re.escape(self._prefix) + r"\..+"}
        )
        options = kafka.Options.model_validate({**named, "value_format": self._connector_config.value_format})
        return pipeline.model_copy(update={"source": SourceConfig(source_type="kafka", options=options)})

    # -- what a run asks for

    def check(self) -> Tables:
        """Return the tables, once the connector was deployed."""
        if not self._noted("tables"):
            raise NotReady(
                "not-deployed",
                f'the connector "{self._connector.name}" is not deployed',
                "Run cdc deploy <file> first.",
            )
        return super().check()

    def lag(self, checkpoint: Checkpoint | None) -> Mapping[str, object]:
        """Return the states of the connector and its tasks, and what the database says of its slot."""
        told = asked(functools.partial(self._database.lag, None))
        slot = {name: told[name] for name in told if name == SERVER or name.startswith("slot")}
        return {**self._connector.seen(), **slot}

    # -- what an operator asks for

    def plan(self) -> list[str]:
        """Return what `cdc deploy` would make."""
        return [] if self._noted("tables") else [f'deploy connector "{self._connector.name}"']

    def deploy(self) -> list[str]:
        """Make topics, publication and connector, or bring them up to date; all of it or nothing."""
        self._database.check()
        tables = sorted(self._database.tables())
        fresh = not self._noted("tables")
        self._refuse_others(tables, fresh=fresh)
        filled = [*self._named(tables), *([self._history] if self._history else [])]
        topics = [*filled, *self._for_letters(tables)]
        missing = sorted(set(topics) - set(self._broker.topics(topics)))
        self._refuse_lost(missing)
        self._refuse_filled(sorted(set(filled) - set(missing) - set(self._noted("topics"))))
        # Dead letters outlive a deployment, so their topics are not noted as something to remove.
        noted = {*self._noted("topics"), *(set(missing) & set(filled))}
        with _Undo() as undo:
            if fresh:
                undo.at_last(functools.partial(self._noted_at.unlink, missing_ok=True))
            state.save(self._noted_at, {"tables": tables, "topics": sorted(noted)})
            undo.by(functools.partial(self._broker.delete, missing))
            self._create(missing)
            made = self._database.prepare(fresh=fresh)
            if fresh:
                undo.by(functools.partial(self._database.undeploy, publication=bool(made)))
            told = self._register(tables, undo)
        return [*(f'topic "{topic}"' for topic in missing), *made, *told]

    def undeploy(self) -> list[str]:
        """Remove connector, slot, publication and topics; repeating it removes what is left."""
        removed = [f'connector "{self._connector.name}"'] if self._connector.remove() else []
        removed += self._database.undeploy()
        there = sorted(self._broker.topics(noted)) if (noted := self._noted("topics")) else []
        self._broker.delete(there)
        self._noted_at.unlink(missing_ok=True)
        return [*removed, *(f'topic "{topic}"' for topic in there)]

    def connector(self) -> Connector:
        """Return the connector."""
        return self._connector

    # -- parts

    def _for_letters(self, tables: Sequence[str]) -> list[str]:
        dlq = self._platform.dlq
        return [f"{topic}.{dlq.topic_suffix}" for topic in self._named(tables)] if dlq.enabled else []

    def _create(self, topics: Sequence[str]) -> None:
        partitions, replicas = (
            self._platform.kafka.topic_num_partitions,
            self._platform.kafka.topic_replication_factor,
        )
        letters = [topic for topic in topics if topic.endswith(f".{self._platform.dlq.topic_suffix}")]
        self._broker.create(letters, partitions, replicas, TOPIC_SETTINGS)
        self._broker.create([t for t in topics if t != self._history and t not in letters], partitions, replicas)
        # All of it is read at every start, and in its order.
        kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        self._broker.create([topic for topic in topics if topic == self._history], 1, replicas, kept)

    def _register(self, tables: Sequence[str], undo: _Undo) -> list[str]:
        wanted, have = self._settings(tables), self._connector.settings()
        if have == {**wanted, "name": self._connector.name}:
            # Putting it again would start its task anew.
            self._connector.await_running()
            return []
        if have is None:
            undo.by(self._connector.remove)
        else:
            undo.by(functools.partial(self._connector.put, have))
        self._connector.put(wanted)
        return [f'connector "{self._connector.name}"']

    def _settings(self, tables: Sequence[str]) -> dict[str, str]:
        avro = self._connector_config.value_format == "avro"
        made = {
            "topic.creation.default.partitions": str(self._platform.kafka.topic_num_partitions),
            "topic.creation.default.replication.factor": str(self._platform.kafka.topic_replication_factor),
        }
        converters = _avro(self._platform.kafka.schema_registry_url) if avro else _JSON
        settings = {
            **self._database.connector_settings(tables, avro=avro),
            "topic.prefix": self._prefix,
            **made,
            **(self._history_settings(self._history) if self._history else {}),
            **{f"{part}.converter{name}": value for part in ("key", "value") for name, value in converters.items()},
        }
        return {**settings, **self._connector_config.settings}

    def _history_settings(self, topic: str) -> dict[str, str]:
        named, client = "schema.history.internal", for_java(self._platform.kafka)
        address = client.pop("bootstrap.servers")
        both = {f"{named}.{role}.{name}": value for role in ("producer", "consumer") for name, value in client.items()}
        return {f"{named}.kafka.bootstrap.servers": address, f"{named}.kafka.topic": topic, **both}

    def _refuse_others(self, tables: Sequence[str], *, fresh: bool) -> None:
        if fresh and self._connector.settings() is not None:
            raise Halt(
                "connector-exists",
                f'there is a connector "{self._connector.name}" that this pipeline did not deploy',
                "Remove it, restore control.root of the pipeline that did, or change topic_prefix.",
            )
        if not fresh and tables != self._noted("tables"):
            added, gone = (
                sorted(set(tables) - set(self._noted("tables"))),
                sorted(set(self._noted("tables")) - set(tables)),
            )
            raise Halt(
                "tables-changed",
                f"the tables of this pipeline changed since it was deployed: added {added}, removed {gone}",
                "Rows that an added table has already would be missing. Run cdc undeploy and then cdc deploy.",
            )

    def _refuse_lost(self, missing: Sequence[str]) -> None:
        """Halt if the connector is there and what it must remember is not: an empty topic would not bring it back."""
        if self._history in missing and self._connector.settings() is not None:
            raise Halt(
                "schema-history-lost",
                f'the topic "{self._history}", in which the connector keeps what its tables looked like, is gone',
                "Run cdc undeploy and then cdc deploy, which takes a new snapshot, with targets that have no rows yet.",
            )

    def _refuse_filled(self, strangers: Sequence[str]) -> None:
        """Halt if a topic that we did not make has messages: they are of another capture."""
        found = self._broker.topics(strangers) if strangers else {}
        partitions = [(name, number) for name, topic in found.items() for number in range(topic.partitions)]
        filled = sorted(name for (name, _), end in self._broker.ends(partitions).items() if end)
        if filled:
            raise Halt(
                "topic-exists",
                f'topic "{filled[0]}" has messages, and this pipeline did not make it',
                "They are of another capture, and must not be mixed with this one. Remove it, or change topic_prefix.",
            )

    def _named(self, tables: Sequence[str]) -> list[str]:
        named = {table: self._topic(table) for table in tables}
        if len(set(named.values())) < len(named):
            raise Misconfigured(
                "name-collision", "two tables have the same topic", "Use a pipeline with another topic_prefix for one."
            )
        return sorted(named.values())

    def _topic(self, table: str) -> str:
        return _legal(f"{self._prefix}.{table}")

    def _noted(self, what: str) -> list[str]:
        found = (state.load(self._noted_at) or {}).get(what, [])
        return [str(name) for name in found] if isinstance(found, list) else []


_JSON = {
    "": "org.apache.kafka.connect.json.JsonConverter",
    ".schemas.enable": "true",
    ".replace.null.with.default": "false",
}


def _legal(topic: str) -> str:
    """Return the name of a topic as the connector spells it: what it must not have becomes an underscore."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", topic)


def _avro(address: str) -> dict[str, str]:
    """Return the converter's settings; user and password in the address are told apart, as it wants them."""
    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2]
    plain = urlunsplit((parts.scheme, host, parts.path, "", ""))
    settings = {"": "io.confluent.connect.avro.AvroConverter", ".schema.registry.url": plain}
    if parts.username:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        settings |= {".basic.auth.credentials.source": "USER_INFO", ".basic.auth.user.info": login}
    return settings
