"""The reference page of every key, made from the models: `python -m tailrace.config.reference > PAGE`.

What the page says is what the code does, because the page has no other source.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tailrace.config.model import OPTIONS, Hidden, NotYet, fields_of, is_model, is_secret, parts
from tailrace.config.pipeline import (
    CdcConfig,
    OperationsConfig,
    PipelineConfig,
    RetryConfig,
    SinkConfig,
    SourceConfig,
    TableConfig,
)
from tailrace.config.platform import PlatformConfig
from tailrace.config.plugin import Kind, available, options_of

_INTRO = """\
# Configuration

Made from the models by `python -m tailrace.config.reference`; do not edit by hand.

A pipeline is one file, in YAML or in TOML, or is declared in Python; a platform file is optional and says how pipelines
are run. `cdc validate` checks both. The keys below are those of every spelling; [Spellings](../guides/spellings.md)
shows one pipeline in each, and the layout with `target` that a file may have instead of `sinks`.

- Unknown keys are errors, with file, line and column and the nearest known key. Problems are told all at once.
- `${NAME}` and `${NAME:-default}` are replaced by environment variables: once, and in values only. A variable that is
  not set and has no default is an error. `$${` stands for a plain `${`.
- A secret is best written as `${NAME}` or `{file: path}`. One that stands in the file gets a warning, and
  `cdc validate --strict` refuses it. Secrets are never printed.
- Every scalar but null is text until its key gives it a type: `no`, `010`, `1e3` need no quotes where text is wanted.
- A file may have 1,000,000 bytes and 32 levels; in YAML also 100,000 values, its aliases expanded, and no tags.
- Relative paths are relative to where `cdc` is started.
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([_INTRO, *_pipeline(), *_platform()]).rstrip() + "\n"


def _pipeline() -> Iterator[str]:
    yield from _section("## Pipeline file", PipelineConfig)
    yield from _section("### `source`", SourceConfig)
    for name in available(Kind.SOURCE):
        options = options_of(Kind.SOURCE, name)
        yield from _section(f"#### `source` with `source_type: {name}`", options)
        for key, field in options.model_fields.items():
            for part in parts(field.annotation):
                for inner in get_args(part) if get_origin(part) is tuple else ():
                    if is_model(inner):
                        yield from _section(f"##### `{key}`, each, with `source_type: {name}`", inner)
    yield from _section("### `cdc`", CdcConfig)
    yield from _section("#### `cdc.operations`", OperationsConfig)
    yield from _section("### `sinks`, each", SinkConfig)
    yield from _section("#### `tables.<table>`", TableConfig)
    yield from _section("#### `retry`", RetryConfig)
    for name in available(Kind.TARGET):
        options = options_of(Kind.TARGET, name)
        yield from _section(f"#### `{name}` with `sink_type: {name}`", options)
        for key, field in options.model_fields.items():
            for part in parts(field.annotation):
                if is_model(part):
                    yield from _section(f"##### `{name}.{key}`", part)


def _platform() -> Iterator[str]:
    yield from _section("## Platform file", PlatformConfig)
    for key, field in PlatformConfig.model_fields.items():
        for part in parts(field.annotation):
            if is_model(part):
                yield from _section(f"### `{key}`", part)


def _section(heading: str, model: type[BaseModel]) -> Iterator[str]:
    yield heading
    yield ""
    yield " ".join((model.__doc__ or "").split())
    yield ""
    rows = [_row(key, field) for key, field in fields_of(model).items() if key != OPTIONS]
    if rows:
        yield "| key | type | default | meaning |"
        yield "|---|---|---|---|"
        yield from rows
        yield ""


def _row(key: str, field: FieldInfo) -> str:
    meaning = " ".join((field.description or "").split()).replace("|", "\\|")
    for marker in field.metadata:
        if isinstance(marker, NotYet):
            values = " or ".join(f"`{value.lower()}`" for value in marker.values)
            meaning += f" *{values} {marker.why}.*" if values else f" *This {marker.why}.*"
    return f"| `{key}` | {_type(field.annotation)} | {_default(field)} | {meaning} |".replace("  ", " ")


def _type(annotation: Any) -> str:
    kinds = [part for part in parts(annotation) if part is not type(None)]
    return " or ".join(dict.fromkeys(_one_type(part) for part in kinds))


_NAMES = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path"}


def _one_type(part: Any) -> str:
    origin, arguments = get_origin(part), get_args(part)
    if is_secret(part) or is_model(part):
        return "text, never shown" if is_secret(part, Hidden) else "secret" if is_secret(part) else "section"
    if origin is Literal or (isinstance(part, type) and issubclass(part, StrEnum)):
        return ", ".join(f"`{value}`" for value in (arguments or part))
    if origin is dict:
        return f"mapping to {_type(arguments[1])}"
    if origin in (tuple, list):
        return f"list of {_type(arguments[0])}"
    return _NAMES.get(part, str(getattr(part, "__name__", part)))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None or value is PydanticUndefined or isinstance(value, BaseModel | dict | tuple | list):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    sys.stdout.write(page())
