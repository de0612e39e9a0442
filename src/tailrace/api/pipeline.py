"""Pipelines as decorated functions: what is declared, and how it becomes a configuration.

    connections, tables, pipelines ──▶ Document (target, transform) ──▶ config.load ──▶ PipelineConfig

Until `load`, nothing is connected, looked up or expanded: importing a module of pipelines is cheap and has no effect.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from tailrace.api.connection import Connection, find_connection
from tailrace.api.table import table_of
from tailrace.config.document import Document, Node, Place
from tailrace.config.load import Loaded, pipeline_from
from tailrace.config.model import Loc
from tailrace.config.pipeline import PipelineConfig
from tailrace.config.problem import Caution, quoted
from tailrace.core.errors import Misconfigured


class CDC:
    """How messages are opened and deletes are kept; the keys of `cdc` in a file."""

    def __init__(
        self,
        envelope: str = "debezium",
        *,
        op_field: str | None = None,
        before_field: str | None = None,
        after_field: str | None = None,
        key_field: str | None = None,
        ts_field: str | None = None,
        op_map: Mapping[str, str] | None = None,
        delete_mode: str | None = None,
        soft_delete_column: str | None = None,
        schema_evolution: str | None = None,
        out_of_order_tolerance_ms: int | None = None,
        **unknown: object,
    ) -> None:
        given = {
            "envelope": envelope,
            "op_field": op_field,
            "before_field": before_field,
            "after_field": after_field,
            "key_field": key_field,
            "ts_field": ts_field,
            "op_map": op_map,
            "delete_mode": delete_mode,
            "soft_delete_column": soft_delete_column,
            "schema_evolution": schema_evolution,
            "out_of_order_tolerance_ms": out_of_order_tolerance_ms,
            **unknown,
        }
        self.settings = {key: value for key, value in given.items() if value is not None}


class Target:
    """One target of a pipeline: a connection, its table, and the keys that a sink has in a file."""

    def __init__(
        self,
        connection: Connection | str,
        table: type | tuple[str, str] | str | None = None,
        *,
        primary_key: Sequence[str] | None = None,
        track_history: Sequence[str] | None = None,
        **settings: object,
    ) -> None:
        self.connection = connection
        self.table = table
        own = {"primary_key": primary_key, "track_history": track_history}
        self.of_table = {key: value for key, value in own.items() if value is not None}
        self.settings = {key: value for key, value in settings.items() if value is not None}


@dataclass(frozen=True, slots=True)
class StreamingPipeline:
    """A declared pipeline; `load` makes it a configuration."""

    module: str
    attribute: str
    name: str
    source: Connection | str
    targets: tuple[Target, ...]
    cdc: CDC | None
    settings: Mapping[str, object]

    @property
    def title(self) -> str:
        """What commands and errors call it."""
        return f"{self.module}:{self.attribute}"

    def load(self, environ: Mapping[str, str] = os.environ) -> Loaded[PipelineConfig]:
        """Return the configuration, as a file of the same content gives it."""
        writing = _Writing(self)
        loaded = pipeline_from(writing.document(), environ)
        return Loaded(loaded.config, (*loaded.warnings, *writing.cautions))


def streaming_pipeline(
    *,
    source: Connection | str,
    source_query: str | None = None,
    target: type | Target | Connection | None = None,
    target_connection: Connection | str | None = None,
    target_table: tuple[str, str] | str | None = None,
    target_primary_key: Sequence[str] | None = None,
    targets: Sequence[Target] = (),
    cdc: CDC | None = None,
    name: str | None = None,
    **settings: object,
) -> Callable[[Callable[..., object]], StreamingPipeline]:
    """Declare a pipeline: the function's name is the pipeline's, unless `name` says another; its body is not run."""

    def declare(function: Callable[..., object]) -> StreamingPipeline:
        title = f"{function.__module__}:{function.__name__}"
        _refuse(title, [cdc] if cdc is not None else [], CDC, "cdc")
        _refuse(title, targets, Target, "targets")
        for key, own in _OWN.items():
            if key in settings:
                raise Misconfigured("wrong-value", f"{title}: {quoted(key)} is a key of files", f"Write {own}.")
        single = _single(title, target, target_connection, target_table, target_primary_key)
        if single and targets:
            text = f"{title}: target and targets say the same"
            raise Misconfigured("wrong-value", text, "Remove one of the two.")
        given = {"source_query": source_query, **settings}
        return StreamingPipeline(
            function.__module__,
            function.__name__,
            name or function.__name__,
            source,
            (single,) if single else tuple(targets),
            cdc,
            {key: value for key, value in given.items() if value is not None},
        )

    return declare


_OWN = {"pipeline_name": "name", "transform": "cdc"}
"""What a file says, and the argument that says it here."""


def _refuse(title: str, values: Sequence[object], kind: type, argument: str) -> None:
    for value in values:
        if not isinstance(value, kind):
            text = f"{title}: {quoted(argument)} has a {type(value).__name__} where a {kind.__name__} should be"
            raise Misconfigured("wrong-value", text, f"Write tailrace.{kind.__name__}(...).")


def _single(
    title: str,
    target: type | Target | Connection | None,
    connection: Connection | str | None,
    table: tuple[str, str] | str | None,
    primary_key: Sequence[str] | None,
) -> Target | None:
    """Return the one target that the arguments with `target` in their names describe, if they do."""
    given = {"target_connection": connection, "target_table": table, "target_primary_key": primary_key}
    beside = [name for name, value in given.items() if value is not None]
    if isinstance(target, Target):
        allowed: tuple[str, ...] = ()
        found = target
    elif isinstance(target, Connection):
        allowed = ("target_table", "target_primary_key")
        found = Target(target, table, primary_key=primary_key)
    elif connection is not None:
        allowed = tuple(given) if target is None else ("target_connection", "target_primary_key")
        found = Target(connection, table if target is None else target, primary_key=primary_key)
    elif target is None and not beside:
        return None
    else:
        text = f'{title}: "target_connection" is missing'
        raise Misconfigured("missing-setting", text, "Say by name where the table is.")
    if extra := [name for name in beside if name not in allowed]:
        text = f"{title}: {quoted(extra[0])} has no meaning beside this target"
        raise Misconfigured("wrong-value", text, "The target says it itself. Remove the argument.")
    return found


@dataclass(slots=True)
class _Writing:
    """Writes one pipeline as a document."""

    pipeline: StreamingPipeline
    places: dict[Loc, Place] = field(default_factory=dict)
    cautions: list[Caution] = field(default_factory=list)

    def document(self) -> Document:
        pipeline = self.pipeline
        data = self.plain(pipeline.settings, "the pipeline")
        data["pipeline_name"] = pipeline.name
        data["source"] = self.connected(pipeline.source, ("source",))
        if len(pipeline.targets) == 1:
            data["target"] = self.target(pipeline.targets[0], ("target",))
        elif pipeline.targets:
            targets = [self.target(target, ("targets", index)) for index, target in enumerate(pipeline.targets)]
            data["targets"] = list(targets)
        if pipeline.cdc is not None:
            self.places["transform",] = Place(0, 0, "CDC")
            data["transform"] = {"cdc": self.plain(pipeline.cdc.settings, "CDC")}
        return Document(pipeline.title, data, dict(self.places))

    def connected(self, wanted: Connection | str, loc: Loc) -> dict[str, Node]:
        known = find_connection(wanted, self.pipeline.module, self.pipeline.title)
        self.places[loc] = Place(0, 0, known.title)
        return {**self.plain(known.settings, known.title), "kind": known.kind}

    def target(self, target: Target, loc: Loc) -> dict[str, Node]:
        data = {**self.connected(target.connection, loc), **self.plain(target.settings, "Target")}
        of_table = self.table(target.table, (*loc, "table")) | self.plain(target.of_table, "Target")
        return {**data, "table": of_table} if of_table else data

    def table(self, wanted: object, loc: Loc) -> dict[str, Node]:
        if declared := table_of(wanted):
            self.places[loc] = Place(0, 0, declared.title)
            if declared.typed:
                text = f"{self.pipeline.title}, {declared.title}: types have no effect: a column has its source's type"
                self.cautions.append(Caution("no-effect", text, "Annotate columns with typing.Any to say so."))
            written: dict[str, object] = {"schema": declared.schema, "name": declared.name}
            written |= {"columns": declared.columns, "primary_key": declared.primary_key or None}
            return self.plain(written, declared.title)
        match wanted:
            case None:
                return {}
            case str():
                return {"name": wanted}
            case (str(schema), str(name)):
                return {"schema": schema, "name": name}
        text = f"{self.pipeline.title}: target {quoted(wanted)} is not a table"
        raise Misconfigured("wrong-value", text, "Declare it with tailrace.table, or give (schema, name).")

    def plain(self, settings: Mapping[str, object], part: str) -> dict[str, Node]:
        return {str(key): self.node(value, part, str(key)) for key, value in settings.items() if value is not None}

    def node(self, value: object, part: str, key: str) -> Node:
        """Return `value` as a file's reader gives it: text, lists and mappings."""
        match value:
            case bool():
                return "true" if value else "false"
            case Enum():
                return self.node(value.value, part, key)
            case str() | int() | float() | Path():
                return str(value)
            case Mapping():
                return {str(inner): self.node(item, part, str(inner)) for inner, item in value.items()}
            case list() | tuple() | set() | frozenset():
                return [
                    self.node(item, part, key)
                    for item in (sorted(value) if isinstance(value, set | frozenset) else value)
                ]
        text = f"{self.pipeline.title}, {part}: {quoted(key)} is of type {type(value).__name__}"
        raise Misconfigured("wrong-value", text, "Give text, a number, true or false, a list or a mapping.")
