"""The pipeline file as values: what to capture, and where to keep it current.

A source's and a target's own settings are models in the plugin's file; here they are `options`. A
`PipelineConfig` from `tailrace.config.load` has passed every check that needs no connection, so that
nothing further down checks again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from tailrace.config.model import Loc, Model, NotYet
from tailrace.config.plugin import names_of
from tailrace.config.problem import Problem, quoted
from tailrace.core import convex
from tailrace.core.errors import Misconfigured
from tailrace.core.table import RESERVED, Evolution, in_order

Identifier = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,47}$")]
"""Names folders and slots, so it is safe in both and short enough to be extended."""

FieldPath = Annotated[str, Field(pattern=r"^[^.'\"\[\]$\s][^'\"\[\]$]*$")]
"""The way to a field from the outside in, with dots: `payload.new_state`."""


class Mode(StrEnum):
    """What a target keeps of a table."""

    APPEND = "append"
    SCD1 = "scd1"
    SCD2 = "scd2"


class DeleteMode(StrEnum):
    """What a delete in the source does to the target's row."""

    HARD = "hard"
    SOFT = "soft"


class RetryConfig(Model):
    """How often, and how patiently, a page or a slice is tried again after an error that may pass."""

    max_attempts: Annotated[int, Field(ge=1)] = 5
    """How many times in all, the first one included. A run without `--once` waits for a server that is away however
    long that takes."""
    initial_wait_seconds: Annotated[float, Field(ge=0)] = 1.0
    """The wait before the second attempt."""
    max_wait_seconds: Annotated[float, Field(ge=0)] = 60.0
    """No wait is longer than this."""
    multiplier: Annotated[float, Field(ge=1)] = 2.0
    """Each wait is this many times the one before."""
    jitter: bool = True
    """Spread each wait at random, so that many pipelines do not come back at the same moment."""

    def over(self, base: RetryConfig) -> RetryConfig:
        """Return `base` with what was written here in its place."""
        return base.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})


class SourceConfig(Model):
    """The system whose changes are read; its further keys are those of its type."""

    source_type: str = "postgres"
    """The kind of system."""
    options: BaseModel
    """The keys of the type, as the `Options` of its module."""


class OperationsConfig(Model):
    """The words that rows of files have for what happened; a word that is not listed makes a row a dead letter."""

    insert: tuple[str, ...] = ("I", "insert", "INSERT", "c")
    """A new row."""
    update: tuple[str, ...] = ("U", "update", "UPDATE", "u")
    """A changed row."""
    delete: tuple[str, ...] = ("D", "delete", "DELETE", "d")
    """A deleted row."""


class CdcConfig(Model):
    """How messages or files are opened, where the source does not say so itself: for `kafka` and `files`."""

    envelope: Literal["debezium", "maxwell", "custom"] = "debezium"
    """The message format: Debezium's JSON with or without schemas, Maxwell's JSON, or what the keys below describe."""
    op_field: FieldPath | None = None
    """Where a custom message says what happened."""
    before_field: FieldPath | None = None
    """Where a custom message has the row as it was."""
    after_field: FieldPath | None = None
    """Where a custom message has the row as it became."""
    key_field: FieldPath | None = None
    """Where a custom message has the row's key; its last name is the key's column."""
    ts_field: FieldPath | None = None
    """Where a custom message has its position: a time, or a number that grows, always in the same unit. Without it, the
    log's order counts."""
    op_map: dict[str, Literal["c", "u", "d", "r", "t"]] | None = None
    """A custom message's words for `c`, `u`, `d`, `r` and `t`."""
    keys: tuple[str, ...] | None = None
    """The columns that identify a row of a file."""
    operation_column: str | None = None
    """Where a row of a file says what happened; without it, every row is as it became."""
    sequence_by: tuple[str, ...] | str | None = None
    """The columns that order changes of one row; they must be among `source.columns`. Without it, the order of the
    files counts, and in a file that of the rows."""
    operations: OperationsConfig | None = None
    """A file's words for inserts, updates and deletes."""
    out_of_order_tolerance_ms: Annotated[
        int | None,
        NotYet("has no effect", "Changes are ordered by their position, however late they come.", refuse=False),
    ] = None
    """How late a change may come in a source that has no position of its own."""

    @property
    def sequence(self) -> tuple[str, ...]:
        """The columns of `sequence_by`."""
        return (self.sequence_by,) if isinstance(self.sequence_by, str) else self.sequence_by or ()


class TableConfig(Model):
    """How one target keeps one table."""

    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """The table's name in the target; its own name if unset, with its schema where two would collide, and with digits
    where two differ only in case and the target does not tell them apart."""
    primary_key: tuple[str, ...] | None = None
    """The columns that identify a row; the source's key if unset."""
    columns: tuple[str, ...] | None = None
    """The columns to keep; all of them if unset. The key's columns must be among them."""
    track_history: tuple[str, ...] | None = None
    """The columns whose changes begin a new record of a row in mode scd2; all but the key's if unset. A change of
    another column is written into the record that stands. It must not change once the table was written."""


class SinkConfig(Model):
    """One target; a section named after its type holds the keys of that type."""

    sink_id: Identifier
    """The target's name, in commands, logs and marks: lower-case letters, digits, `_` and `-`. It must not change."""
    sink_type: str
    """The kind of system."""
    enabled: bool = True
    """A target that is not enabled is checked and left alone."""
    mode: Mode = Mode.SCD1
    """`scd1` keeps the current rows, `append` keeps one row per change event, `scd2` keeps history."""
    delete_mode: DeleteMode = DeleteMode.HARD
    """`hard` removes the row, `soft` keeps it and marks it as deleted; for mode scd1."""
    soft_delete_column: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """The column that has the time of the delete with `delete_mode: soft`, and NULL while the row is there;
    `deleted_at` if unset."""
    schema_evolution: Evolution = Evolution.SKIP
    """What a new column or wider type in the source does: `skip` it with a warning, `fail`, or `alter` the target."""
    tables: dict[str, TableConfig] = Field(default_factory=dict)
    """Exceptions for single tables, by the table's name in the source."""
    retry: RetryConfig = RetryConfig()
    """Exceptions from the platform's `retry` for this target."""
    options: BaseModel
    """The section named after the type, as the `Options` of its module."""

    @property
    def flag(self) -> str:
        """The column that marks deleted rows; empty if they are removed."""
        return (self.soft_delete_column or "deleted_at") if self.delete_mode is DeleteMode.SOFT else ""

    def names(self, tables: Sequence[str]) -> dict[str, str]:
        """Return the name that each of `tables` has in this target."""
        chosen = {table: settings.name for table, settings in self.tables.items() if settings.name}
        return names_of(self.sink_type, self.options, tables, chosen)


class PipelineConfig(Model):
    """One source, read once, and the targets kept current from it."""

    pipeline_id: Identifier
    """The pipeline's name, also of its folder and of what it creates in the source: lower-case letters, digits, `_` and
    `-`. It must not change."""
    topic_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,100}$")] = "cdc"
    """Begins the topic of every table: `<prefix>.<schema>.<table>`."""
    source: SourceConfig
    """The system whose changes are read."""
    cdc: CdcConfig = CdcConfig()
    """How messages are opened, where the source does not say so itself."""
    sinks: tuple[SinkConfig, ...]
    """The targets, each with a `sink_id` of its own."""

    @property
    def tables(self) -> tuple[str, ...]:
        """The source's tables, by their qualified names; empty for a source that is not told its tables."""
        return tuple(getattr(self.source.options, "tables", ()))

    @property
    def enabled_sinks(self) -> tuple[SinkConfig, ...]:
        """The targets that a run keeps current."""
        return tuple(sink for sink in self.sinks if sink.enabled)

    def names(self, sink: SinkConfig) -> dict[str, str]:
        """Return the name that each source table has in `sink`."""
        names = sink.names(in_order((), self.tables))
        return {table: names[table] for table in self.tables}


_QUALIFIED = re.compile(r"[^.\s][^.]*(\.[^.\s][^.]*)+")


def problems_of(pipeline: PipelineConfig) -> Iterator[Problem]:
    """Yield what is wrong between the parts of `pipeline`, each part being right in itself."""
    if pipeline.source.source_type != "files":
        yield from _table_problems(pipeline.tables)
    yield from _cdc_problems(pipeline)
    if not pipeline.enabled_sinks:
        yield Problem("no-target", ("sinks",), "no sink is enabled", "Set enabled to true for at least one sink.")
    first: dict[str, int] = {}
    for index, sink in enumerate(pipeline.sinks):
        if first.setdefault(sink.sink_id, index) != index:
            yield Problem(
                "duplicate-sink",
                ("sinks", index, "sink_id"),
                f"sink_id {quoted(sink.sink_id)} is used twice",
                "A target's marks are kept under its sink_id. Give each sink its own.",
            )
        yield from _sink_problems(pipeline, sink, ("sinks", index))


def cautions_of(pipeline: PipelineConfig) -> Iterator[Problem]:
    """Yield what is doubtful in `pipeline`: settings that say nothing, and what keeps a target from being enabled."""
    for index, sink in enumerate(pipeline.sinks):
        if not sink.enabled:
            yield from _name_problems(pipeline, sink, ("sinks", index))
        for table, settings in sink.tables.items():
            if settings.track_history is not None and sink.mode is not Mode.SCD2:
                loc = ("sinks", index, "tables", table, "track_history")
                text = f"track_history of table {quoted(table)} has no effect: this target has mode {sink.mode}"
                yield Problem("no-effect", loc, text, "Only mode scd2 keeps history. Set it, or remove the key.")


def _table_problems(tables: tuple[str, ...]) -> Iterator[Problem]:
    for index, table in enumerate(tables):
        loc: Loc = ("source", "tables", index)
        if not table.isprintable() or not _QUALIFIED.fullmatch(table):
            hint = "Write it as schema.table, for example public.orders."
            yield Problem("table-name", loc, f"table {quoted(table)} is not schema-qualified", hint)
        elif table in tables[:index]:
            yield Problem("duplicate-table", loc, f"table {quoted(table)} is listed twice", "Remove one of the two.")


_CUSTOM = ("op_field", "before_field", "after_field", "key_field", "ts_field", "op_map")
_FILES = ("keys", "operation_column", "sequence_by", "operations")


def _cdc_problems(pipeline: PipelineConfig) -> Iterator[Problem]:
    cdc = pipeline.cdc
    written = [name for name in _CUSTOM if getattr(cdc, name) is not None]
    if pipeline.source.source_type == "files":
        yield from _file_problems(pipeline)
    else:
        for name in _FILES:
            if getattr(cdc, name) is not None:
                yield Problem("wrong-value", ("cdc", name), f"{name} belongs to source_type files", "Remove the key.")
    if pipeline.source.source_type != "kafka":
        hint = f"A {pipeline.source.source_type} source knows its own messages. Remove the key."
        if cdc.envelope != "debezium":
            yield Problem(
                "wrong-value", ("cdc", "envelope"), f"envelope {quoted(cdc.envelope)} has no meaning here", hint
            )
        for name in written:
            yield Problem("wrong-value", ("cdc", name), f"{name} has no meaning here", hint)
    elif cdc.envelope != "custom":
        for name in written:
            hint = "Set envelope to custom, or remove the key."
            yield Problem("wrong-value", ("cdc", name), f"{name} belongs to envelope custom", hint)
    else:
        for name in ("op_field", "after_field", "key_field"):
            if name not in written:
                yield Problem(
                    "missing-setting", ("cdc",), f"key {quoted(name)} is missing", f"Add {name}.", at_key=True
                )


def _file_problems(pipeline: PipelineConfig) -> Iterator[Problem]:
    """Yield what is wrong between the columns of the files and what `cdc` says of them."""
    cdc = pipeline.cdc
    columns = {column.name: column.type for column in getattr(pipeline.source.options, "columns", ())}
    hint = "List it under source.columns, with its type."
    for name in cdc.sequence:
        if name not in columns:
            text = f"sequence_by names {quoted(name)}, which has no type"
            yield Problem("wrong-value", ("cdc", "sequence_by"), text, hint)
        elif columns[name] in ("float", "double", "boolean", "binary"):
            text = f"sequence_by names {quoted(name)}, which is a {columns[name]}"
            yield Problem("wrong-value", ("cdc", "sequence_by"), text, "Use a whole number, a decimal, a time or text.")
    for name in cdc.keys or ():
        if columns and name not in columns:
            yield Problem("wrong-value", ("cdc", "keys"), f"column {quoted(name)} of keys is not listed", hint)
    words = cdc.operations or OperationsConfig()
    every = [*words.insert, *words.update, *words.delete]
    if len(set(every)) < len(every):
        text, hint = "operations has a word with two meanings", "List each word once."
        yield Problem("wrong-value", ("cdc", "operations"), text, hint)
    if not cdc.keys:
        for sink in pipeline.enabled_sinks:
            chosen = [sink.tables[table].primary_key for table in pipeline.tables if table in sink.tables]
            if sink.mode is not Mode.APPEND and not any(chosen):
                text = f"rows of the files have no key, so target {quoted(sink.sink_id)} cannot tell them apart"
                yield Problem("no-key", ("cdc",), text, "Add keys, or set mode to append for this target.", at_key=True)


def _sink_problems(pipeline: PipelineConfig, sink: SinkConfig, loc: Loc) -> Iterator[Problem]:
    for table, settings in sink.tables.items():
        here = (*loc, "tables", table)
        if pipeline.tables and table not in pipeline.tables:
            known = ", ".join(pipeline.tables)
            yield Problem(
                "unknown-table",
                here,
                f"table {quoted(table)} is not one of the pipeline's",
                f"The source's tables are: {known}.",
                at_key=True,
            )
        yield from _column_problems(table, settings, here)
        if pipeline.source.source_type == "convex" and settings.primary_key not in (None, (convex.ID,)):
            text = f"documents of table {quoted(table)} are told apart by {quoted(convex.ID)} and by nothing else"
            hint = "A delete carries no other field, so by another key none could be applied. Remove the setting."
            yield Problem("wrong-value", (*here, "primary_key"), text, hint)
    yield from _delete_problems(sink, loc)
    if sink.enabled:
        yield from _name_problems(pipeline, sink, loc)


def _name_problems(pipeline: PipelineConfig, sink: SinkConfig, loc: Loc) -> Iterator[Problem]:
    if len(set(pipeline.tables)) == len(pipeline.tables):
        try:
            pipeline.names(sink)
        except Misconfigured as error:
            yield Problem(error.code, (*loc, "tables") if sink.tables else loc, str(error), error.hint)


def _delete_problems(sink: SinkConfig, loc: Loc) -> Iterator[Problem]:
    if sink.delete_mode is DeleteMode.SOFT and sink.mode is not Mode.SCD1:
        text = f"delete_mode soft belongs to mode scd1, and this target has {sink.mode}"
        hint = "A history and an event log keep what was deleted as they are. Remove the key, or set mode to scd1."
        yield Problem("wrong-value", (*loc, "delete_mode"), text, hint)
    elif sink.soft_delete_column is not None and sink.delete_mode is not DeleteMode.SOFT:
        text = "soft_delete_column has no meaning without delete_mode soft"
        yield Problem("wrong-value", (*loc, "soft_delete_column"), text, "Set delete_mode to soft, or remove the key.")
    elif sink.flag.lower().startswith(RESERVED):
        text = f"soft_delete_column {quoted(sink.flag)} starts with {quoted(RESERVED)}"
        yield Problem("wrong-value", (*loc, "soft_delete_column"), text, "Names that start so are ours.")


def _column_problems(table: str, settings: TableConfig, loc: Loc) -> Iterator[Problem]:
    lists: Mapping[str, tuple[str, ...] | None] = {
        "primary_key": settings.primary_key,
        "columns": settings.columns,
        "track_history": settings.track_history,
    }
    for key, columns in lists.items():
        if columns is not None and (not columns or len(set(columns)) < len(columns)):
            text = f"{key} of table {quoted(table)} is empty or names a column twice"
            yield Problem("wrong-value", (*loc, key), text, "List each column once, or remove the key.")
    missing = set(settings.primary_key or ()) - set(settings.columns or settings.primary_key or ())
    if missing:
        text = f"columns of table {quoted(table)} leaves out {quoted(min(missing))} of its key"
        yield Problem("key-left-out", (*loc, "columns"), text, "A row cannot be found without its key. Add the column.")
    tracked = set(settings.track_history or ())
    lost = tracked & set(settings.primary_key or ()) or (tracked - set(settings.columns) if settings.columns else set())
    if lost:
        text = f"track_history of table {quoted(table)} names {quoted(min(lost))}, which is of its key or not kept"
        yield Problem("wrong-value", (*loc, "track_history"), text, "Name columns that are kept and can change.")
