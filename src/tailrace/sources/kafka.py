"""Topics of Kafka that somebody else fills: a change log already, so there is nothing to pump.

This module has the settings only; `log.kafka` reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tailrace.config.platform import KafkaConfig
from tailrace.core.errors import Misconfigured
from tailrace.core.table import table_called

TopicName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
Qualified = Annotated[str, Field(pattern=r"^[^.]+\..+$")]


class Route(BaseModel):
    """A rule that says whose messages a topic holds."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    topic: str
    """A regular expression that the whole name of a topic must match."""
    table: str
    """The table; `\\1` or `\\g<name>` stands for what a group of the expression captured."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Route:
        try:
            re.compile(self.topic)
            # This one matches nothing at all, with the same groups.
            nothing = re.match(f"{self.topic}|", "")
            if nothing:
                nothing.expand(self.table)
        except (re.error, IndexError) as error:
            raise ValueError(f"is no regular expression with the groups that its table names: {error}") from error
        return self

    def table_of(self, topic: str) -> str | None:
        """Return the table of `topic`; `None` if the rule is not about it."""
        found = re.fullmatch(self.topic, topic)
        return found.expand(self.table) if found else None


class Options(BaseModel):
    """The `source:` section, for `source_type: kafka`: exactly one of `topics` and `topic_pattern`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    topics: tuple[TopicName, ...] = ()
    """The topics to read."""
    topic_pattern: str = ""
    """A regular expression that the whole name of a topic must match. It is looked at when a run starts."""
    tables: tuple[Qualified, ...] = ()
    """The tables that messages may belong to (`public.orders`); a message of another one is a dead letter. If empty, a
    topic called like a table (`cdc.public.orders`) holds that table and those that a sink names, and a topic called
    otherwise (`maxwell`) holds whatever its messages name."""
    other_tables: Literal["reject", "filter"] = "reject"
    """What becomes of a message of a table that is not named: a dead letter, or nothing; it is counted in any case."""
    operations: tuple[Literal["r", "c", "u", "d", "t"], ...] = ("r", "c", "u", "d", "t")
    """The operations to apply: rows read by a snapshot, creates, updates, deletes, truncates. Changes of others are
    counted as filtered. A change of a row's key is a delete of the old one and a create or update of the new one."""
    routes: tuple[Route, ...] = ()
    """Whose messages a topic holds, whatever they say themselves; the first rule that matches its name counts."""
    value_format: Literal["json", "avro"] | None = None
    """How Debezium's messages are written: `json`, with schema blocks or without, or `avro` with a schema registry. If
    unset, as most of the first ones that are read."""
    bootstrap_servers: Annotated[str, Field(min_length=1)] | None = None
    """The brokers, if they are not those of the platform's `kafka`; how they are spoken to is said there."""
    schema_registry_url: Annotated[str, Field(min_length=1)] | None = None
    """The schema registry, if it is not that of the platform's `kafka`."""
    unavailable_value: str = "__debezium_unavailable_value"
    """What the connector writes for a value that the database did not send (its `unavailable.value.placeholder`)."""

    def over(self, kafka: KafkaConfig) -> KafkaConfig:
        """Return `kafka` with what was written here in its place."""
        own = {"bootstrap_servers": self.bootstrap_servers, "schema_registry_url": self.schema_registry_url}
        return kafka.model_copy(update={name: value for name, value in own.items() if value})

    def routed(self, topics: Sequence[str]) -> dict[str, str]:
        """Return the tables of those of `topics` that a rule is about."""
        found = {topic: next((t for r in self.routes if (t := r.table_of(topic))), "") for topic in topics}
        return {topic: table for topic, table in found.items() if table}

    @field_validator("topic_pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"is not a regular expression: {error}") from error
        return pattern

    @model_validator(mode="after")
    def _one_of_two(self) -> Options:
        if bool(self.topics) == bool(self.topic_pattern):
            raise ValueError("needs either topics or topic_pattern")
        return self


def refuse_twins(topics: Sequence[str], routed: Mapping[str, str]) -> None:
    """Halt if two topics are of the same table: their databases have nothing to do with each other."""
    called: dict[str, str] = {}
    for topic in topics:
        for table in (routed[topic],) if topic in routed else tables_of([topic]):
            other = called.setdefault(table, topic)
            if other != topic:
                raise Misconfigured(
                    "name-collision",
                    f'topics "{other}" and "{topic}" are both of table "{table}"',
                    "Rows of two databases would replace each other. Use a pipeline for each.",
                )


def tables_of(topics: Sequence[str]) -> tuple[str, ...]:
    """Return the tables that `topics` are called after: `<prefix>.<schema>.<table>`."""
    return tuple(sorted({table for topic in topics if (table := table_called(topic))}))
