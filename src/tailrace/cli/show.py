"""How results look on standard output: as JSON for machines, as aligned text for people.

Only data goes through here. Text from outside is printed without control characters.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

from tailrace.config.load import Loaded
from tailrace.config.pipeline import Mode, PipelineConfig, SinkConfig
from tailrace.config.platform import PlatformConfig
from tailrace.config.plugin import promise_of
from tailrace.core.errors import Misconfigured

_PROMISES = {
    Mode.APPEND: "each change event once, rows and mark in one commit",
    Mode.SCD2: "what each row was and when, up to the mark's position, records and mark in one commit",
    Mode.SCD1: "the source's rows at the mark's position, rows and mark in one commit",
}


def as_json(value: object) -> None:
    """Print `value` as one line of JSON; a decimal is a number with all of its digits."""
    print(_json(value), flush=True)


def rows(found: Sequence[Mapping[str, object]], *, json_wanted: bool, none: str) -> None:
    """Print records as a table, or as JSON; `none` is what a person reads if there are none."""
    if json_wanted:
        as_json([dict(row) for row in found])
    else:
        print("\n".join(_aligned(found)) if found else none, flush=True)


def tree(value: Mapping[str, object], *, json_wanted: bool) -> None:
    """Print nested values by indentation, or as JSON."""
    if json_wanted:
        as_json(dict(value))
    else:
        print("\n".join(_indented(value)), flush=True)


def described(pipeline: Loaded[PipelineConfig], platform: Loaded[PlatformConfig]) -> dict[str, object]:
    """Return what a run of `pipeline` on `platform` would do."""
    config, place = pipeline.config, platform.config
    return {
        "pipeline_id": config.pipeline_id,
        "transport": place.transport_mode,
        "source": {"type": config.source.source_type, "tables": list(config.tables)},
        "change_log": str(place.log_root(config.pipeline_id)),
        "state": str(place.control_root(config.pipeline_id)),
        "targets": [_target(config, sink) for sink in config.sinks],
        "warnings": [caution.message for caution in (*pipeline.warnings, *platform.warnings)],
    }


def _target(config: PipelineConfig, sink: SinkConfig) -> dict[str, object]:
    return {
        "target": sink.sink_id,
        "type": sink.sink_type,
        "enabled": sink.enabled,
        "mode": sink.mode.value,
        "delete_mode": sink.delete_mode.value,
        "schema_evolution": sink.schema_evolution.value,
        "tables": _names(config, sink),
        "promise": promise_of(sink.sink_type) or _PROMISES[sink.mode],
    }


def _names(config: PipelineConfig, sink: SinkConfig) -> dict[str, str]:
    try:
        return config.names(sink)
    except Misconfigured:
        # Only of a target that is not enabled; a warning says why.
        return {}


def _json(value: object) -> str:
    match value:
        case Mapping():
            return "{" + ", ".join(f"{json.dumps(str(key))}: {_json(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_json, value)) + "]"
        case Decimal() if value.is_finite():
            return str(value)
        case _:
            return json.dumps(value, default=str)


def _aligned(found: Sequence[Mapping[str, object]]) -> Iterator[str]:
    names = list(dict.fromkeys(name for row in found for name in row))
    table = [names, *([_cell(row.get(name)) for name in names] for row in found)]
    widths = [max(len(line[column]) for line in table) for column in range(len(names))]
    for line in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _indented(value: object, margin: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            inner = list(_indented(item, f"{margin}  "))
            yield f"{margin}{_cell(key)}:" if inner else f"{margin}{_cell(key)}: {_cell(item)}"
            yield from inner
    elif isinstance(value, list | tuple):
        for item in value:
            first, *rest = list(_indented(item, f"{margin}  ")) or [f"{margin}  {_cell(item)}"]
            yield f"{margin}- {first.removeprefix(margin + '  ')}"
            yield from rest


def _cell(value: object) -> str:
    match value:
        case None | [] | ():
            return "-"
        case Mapping() if not value:
            return "-"
        case bool():
            return "yes" if value else "no"
        case _:
            text = _json(value) if isinstance(value, Mapping | list | tuple) else str(value)
            return "".join(char if char.isprintable() else "�" for char in text)


def tell(text: str) -> None:
    """Write a line for the person at the terminal, on standard error."""
    print(text, file=sys.stderr, flush=True)
