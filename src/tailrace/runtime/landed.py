"""What a pipeline lands in bronze tables, described for those who set up what reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tailrace.config.pipeline import PipelineConfig, SinkConfig
from tailrace.core import convex
from tailrace.core.errors import Misconfigured
from tailrace.core.table import Table, in_order
from tailrace.envelopes import convex as envelope
from tailrace.runtime.drains import Drains
from tailrace.targets import bronze


@runtime_checkable
class Shaped(Protocol):
    """A source that says what its tables look like."""

    def shapes(self) -> dict[str, Table]:
        """Return the tables that there are now, as documents seen so far make them."""
        ...


@dataclass(frozen=True, slots=True)
class LandedTables:
    """The bronze tables of one sink: those that there are, or those that a first run would make."""

    pipeline: PipelineConfig
    sink: SinkConfig
    options: bronze.Options
    names: Mapping[str, str]
    """By the table's name in the source."""
    shapes: Mapping[str, Table]
    """The fields of the documents of each, as columns."""

    @property
    def sink_id(self) -> str:
        """The sink's name."""
        return self.sink.sink_id


def landed_tables(pipeline: PipelineConfig, drains: Drains, tables: tuple[str, ...], source: object) -> LandedTables:
    """Return `tables` as they are in bronze; where there are none yet, as `source` says that they will be."""
    sink, options = _bronze_sink(pipeline)
    if tables:
        target = drains.open_target(sink, tables)
        shapes = {table: target.have(table) or Table(table, (), ()) for table in tables}
    else:
        found = source.shapes() if isinstance(source, Shaped) else {}
        shapes = {name: _fields_of(found[name]) for name in in_order((), found)}
    return LandedTables(pipeline, sink, options, sink.names(tuple(shapes)), shapes)


def _bronze_sink(pipeline: PipelineConfig) -> tuple[SinkConfig, bronze.Options]:
    """Return the one bronze sink of `pipeline`."""
    found = [(sink, sink.options) for sink in pipeline.enabled_sinks if isinstance(sink.options, bronze.Options)]
    if len(found) != 1:
        raise Misconfigured(
            "no-target",
            f"the pipeline has {len(found)} sinks of bronze tables, and a bundle is for one",
            "Enable one sink with sink_type: bronze.",
        )
    sink, options = found[0]
    return sink, options


def _fields_of(table: Table) -> Table:
    """Return the columns that a bronze table has for the fields of a source's table."""
    shape, own = envelope.side_by_side([table], None), (convex.ID, convex.CREATED)
    return Table(table.name, tuple(column for column in shape.columns if column.name not in own), ())
