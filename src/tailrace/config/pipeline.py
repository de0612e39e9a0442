"""The pipeline file as values: what to capture, and where to keep it current.

A source's and a target's own settings are models in the plugin's file; here they are `options`. A
`PipelineConfig` from `tailrace.config.load` has passed every check that needs no connection, so that
nothing further down checks again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from tailrace.config.model import Loc, Model, NotYet
from tailrace.config.problem import Problem, quoted
from tailrace.core.errors import Misconfigured
from tailrace.core.table import Evolution, target_names

Identifier = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,47}$")]
"""Names folders and slots, so it is safe in both and short enough to be extended."""

_CDC_DEFAULT = NotYet(
    "is not in this release",
    "A postgres source orders changes by their position and reads Debezium's own fields. Remove the key.",
)


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
    """How many times in all, the first one included."""
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


class CdcConfig(Model):
    """How messages are opened, where the source does not say so itself."""

    envelope: Annotated[
        Literal["debezium", "maxwell", "custom"],
        NotYet("is not in this release", "Set it to debezium, or leave it out.", values=("maxwell", "custom")),
    ] = "debezium"
    """The message format."""
    op_field: Annotated[str | None, _CDC_DEFAULT] = None
    """Where a custom message says what happened."""
    before_field: Annotated[str | None, _CDC_DEFAULT] = None
    """Where a custom message has the row as it was."""
    after_field: Annotated[str | None, _CDC_DEFAULT] = None
    """Where a custom message has the row as it became."""
    key_field: Annotated[str | None, _CDC_DEFAULT] = None
    """Where a custom message has the row's key."""
    ts_field: Annotated[str | None, _CDC_DEFAULT] = None
    """Where a custom message has its position."""
    op_map: Annotated[dict[str, str] | None, _CDC_DEFAULT] = None
    """A custom message's words for `c`, `u`, `d`, `r` and `t`."""
    out_of_order_tolerance_ms: Annotated[
        int | None,
        NotYet("has no effect", "A postgres source has a position for every change; none is late.", refuse=False),
    ] = None
    """How late a change may come in a source that has no position of its own."""


class TableConfig(Model):
    """How one target keeps one table."""

    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """The table's name in the target; its own name if unset, with its schema where two would collide."""
    primary_key: tuple[str, ...] | None = None
    """The columns that identify a row; the source's key if unset."""
    columns: tuple[str, ...] | None = None
    """The columns to keep; all of them if unset. The key's columns must be among them."""
    track_history: Annotated[
        tuple[str, ...] | None,
        NotYet("has no effect", "It belongs to mode scd2, which is not in this release.", refuse=False),
    ] = None
    """The columns whose changes begin a new version of a row in mode scd2."""


class SinkConfig(Model):
    """One target; a section named after its type holds the keys of that type."""

    sink_id: Identifier
    """The target's name, in commands, logs and marks: lower-case letters, digits, `_` and `-`. It must not change."""
    sink_type: str
    """The kind of system."""
    enabled: bool = True
    """A target that is not enabled is checked and left alone."""
    mode: Annotated[
        Mode, NotYet("is not in this release", "Use scd1 for current rows or append for events.", values=("scd2",))
    ] = Mode.SCD1
    """`scd1` keeps the current rows, `append` keeps one row per change event, `scd2` keeps history."""
    delete_mode: Annotated[
        DeleteMode, NotYet("is not in this release", "Set it to hard, or leave it out.", values=("soft",))
    ] = DeleteMode.HARD
    """`hard` removes the row, `soft` keeps it and marks it as deleted."""
    soft_delete_column: Annotated[
        str | None, NotYet("is not in this release", "It belongs to delete_mode soft. Remove the key.")
    ] = None
    """The column that marks a deleted row with `delete_mode: soft`."""
    schema_evolution: Evolution = Evolution.SKIP
    """What a new column or wider type in the source does: `skip` it with a warning, `fail`, or `alter` the target."""
    tables: dict[str, TableConfig] = Field(default_factory=dict)
    """Exceptions for single tables, by the table's name in the source."""
    retry: RetryConfig = RetryConfig()
    """Exceptions from the platform's `retry` for this target."""
    options: BaseModel
    """The section named after the type, as the `Options` of its module."""


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
        chosen = {table: settings.name for table, settings in sink.tables.items() if settings.name}
        return target_names(self.tables, chosen)


_QUALIFIED = re.compile(r"[^.\s][^.]*(\.[^.\s][^.]*)+")


def problems_of(pipeline: PipelineConfig) -> Iterator[Problem]:
    """Yield what is wrong between the parts of `pipeline`, each part being right in itself."""
    yield from _table_problems(pipeline.tables)
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


def _table_problems(tables: tuple[str, ...]) -> Iterator[Problem]:
    for index, table in enumerate(tables):
        loc: Loc = ("source", "tables", index)
        if not table.isprintable() or not _QUALIFIED.fullmatch(table):
            hint = "Write it as schema.table, for example public.orders."
            yield Problem("table-name", loc, f"table {quoted(table)} is not schema-qualified", hint)
        elif table in tables[:index]:
            yield Problem("duplicate-table", loc, f"table {quoted(table)} is listed twice", "Remove one of the two.")


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
    if len(set(pipeline.tables)) == len(pipeline.tables):
        try:
            pipeline.names(sink)
        except Misconfigured as error:
            yield Problem(error.code, (*loc, "tables") if sink.tables else loc, str(error), error.hint)


def _column_problems(table: str, settings: TableConfig, loc: Loc) -> Iterator[Problem]:
    lists: Mapping[str, tuple[str, ...] | None] = {"primary_key": settings.primary_key, "columns": settings.columns}
    for key, columns in lists.items():
        if columns is not None and (not columns or len(set(columns)) < len(columns)):
            text = f"{key} of table {quoted(table)} is empty or names a column twice"
            yield Problem("wrong-value", (*loc, key), text, "List each column once, or remove the key.")
    missing = set(settings.primary_key or ()) - set(settings.columns or settings.primary_key or ())
    if missing:
        text = f"columns of table {quoted(table)} leaves out {quoted(min(missing))} of its key"
        yield Problem("key-left-out", (*loc, "columns"), text, "A row cannot be found without its key. Add the column.")
