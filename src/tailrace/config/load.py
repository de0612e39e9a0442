"""A file to a configuration: read, expand, fetch secrets, validate, check, in that order.

`read_yaml` and `read_toml` know a format and no models, `pipeline_from` and `platform_from` know models and no format.
Whatever is wrong in a file is told at once, with its place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel

from tailrace.config.address import take_apart
from tailrace.config.document import MAX_BYTES, Document, Node
from tailrace.config.environment import expand
from tailrace.config.model import OPTIONS, Loc, Model, not_yet_in
from tailrace.config.pipeline import PipelineConfig, cautions_of, problems_of
from tailrace.config.platform import PlatformConfig
from tailrace.config.plugin import Kind, available, modes_of, options_of
from tailrace.config.problem import Caution, Problem, quoted, raise_all
from tailrace.config.secret import fetch_secrets
from tailrace.config.target_layout import has_target_layout, with_sinks
from tailrace.config.toml_text import read_toml
from tailrace.config.validation import unknown_key, validate
from tailrace.config.yaml_text import read_yaml
from tailrace.core.errors import Misconfigured

Config = TypeVar("Config", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[Config]):
    """A configuration that can be run, and what is doubtful about it."""

    config: Config
    warnings: tuple[Caution, ...] = ()

    def refuse_warnings(self) -> None:
        """Raise what is doubtful as errors."""
        raise_all([Misconfigured(caution.code, caution.message, caution.hint) for caution in self.warnings])


def load_pipeline(path: Path | str, environ: Mapping[str, str] = os.environ) -> Loaded[PipelineConfig]:
    """Return the pipeline that the file at `path` describes."""
    return pipeline_from(read(path), environ)


def load_platform(path: Path | str | None, environ: Mapping[str, str] = os.environ) -> Loaded[PlatformConfig]:
    """Return the platform that the file at `path` describes; without a file, the defaults."""
    if path is None:
        return Loaded(PlatformConfig())
    return platform_from(read(path), environ)


def read(path: Path | str) -> Document:
    """Return what the file at `path` says: TOML if its name ends so, else YAML."""
    reader = read_toml if Path(path).suffix.lower() == ".toml" else read_yaml
    return reader(str(path), _bytes(Path(path)))


def platform_from(document: Document, environ: Mapping[str, str]) -> Loaded[PlatformConfig]:
    """Return the platform that `document` describes."""
    problems = expand(document, environ)
    cautions = fetch_secrets(PlatformConfig, document, (), problems)
    platform = validate(PlatformConfig, document.data, document, (), problems)
    if platform:
        _judge(platform, (), problems, cautions)
    return _finish(document, platform, problems, cautions)


def pipeline_from(document: Document, environ: Mapping[str, str]) -> Loaded[PipelineConfig]:
    """Return the pipeline that `document` describes, with the settings of its plugins."""
    other = has_target_layout(document)
    if other:
        take_apart(document)
    problems, cautions = expand(document, environ), list[Problem]()
    if other:
        rewritten = with_sinks(document, problems)
        if rewritten is None:
            return _finish(document, None, problems, cautions)
        document = rewritten
    shaped: dict[str, object] = {**document.data}
    for key in sorted(document.data.keys() & (PlatformConfig.model_fields.keys() - PipelineConfig.model_fields.keys())):
        hint = "Move it to the platform file, and pass that with --platform-config."
        problems.append(Problem("platform-key", (key,), f"key {quoted(key)} is the platform's", hint, at_key=True))
        del shaped[key]
    plugins = _Plugins(document, problems, cautions)
    if "source" in document.data:
        shaped["source"] = plugins.source(document.data["source"])
    if isinstance(sinks := shaped.get("sinks"), list):
        shaped["sinks"] = [plugins.sink(sink, ("sinks", index)) for index, sink in enumerate(sinks)]
    pipeline = validate(PipelineConfig, shaped, document, (), problems)
    if pipeline:
        _judge(pipeline, (), problems, cautions)
        problems += problems_of(pipeline)
        cautions += cautions_of(pipeline)
    return _finish(document, pipeline, problems, cautions)


@dataclass(frozen=True, slots=True)
class _Plugins:
    """Puts the plugins' own models where the file has their keys."""

    document: Document
    problems: list[Problem]
    cautions: list[Problem]

    def source(self, section: Node) -> object:
        if not isinstance(section, dict):
            return section
        name = section.get("source_type", "postgres")
        options = self._options(Kind.SOURCE, name, ("source",), {"source_type"})
        return {"source_type": name, OPTIONS: options}

    def sink(self, section: Node, loc: Loc) -> object:
        if not isinstance(section, dict):
            return section
        name = section.get("sink_type")
        sections = set(available(Kind.TARGET)) if name not in available(Kind.TARGET) else {name}
        shaped: dict[str, object] = {key: value for key, value in section.items() if key not in {name, *sections}}
        if OPTIONS in shaped:
            self.problems.append(unknown_key((*loc, OPTIONS), [str(name)]))
        options = self._options(Kind.TARGET, name, (*loc, str(name)), set())
        implied = getattr(options, "implied_mode", None)
        if implied and shaped.setdefault("mode", implied) != implied:
            text = f"mode {quoted(shaped['mode'])} and write_mode of the target contradict each other"
            self.problems.append(Problem("wrong-value", (*loc, "mode"), text, "Remove one of the two."))
        modes = modes_of(str(name)) if type(options) is not Model else ()
        if modes and shaped.setdefault("mode", modes[0]) not in modes:
            of = f"target {quoted(section.get('sink_id'))} of sink_type {quoted(name)}"
            hint = f"It has {' and '.join(modes)}. Set mode to that, or remove the key."
            self.problems.append(
                Problem("not-available", (*loc, "mode"), f"{of} has no mode {quoted(shaped['mode'])}", hint)
            )
        return {**shaped, OPTIONS: options}

    def _options(self, kind: Kind, name: Node, loc: Loc, drop: set[str]) -> BaseModel:
        """Return the settings at `loc`, or an empty model if they are wrong, so that the rest is still checked."""
        nothing, here = Model(), loc if kind is Kind.SOURCE else loc[:-1]
        if not isinstance(name, str):
            return nothing
        try:
            model = options_of(kind, name)
        except Misconfigured as error:
            self.problems.append(Problem(error.code, (*here, kind.key), str(error), error.hint))
            return nothing
        try:
            section = self.document.at(loc)
        except KeyError:
            section = None
        if not isinstance(section, dict | None):
            text = f"{quoted(loc[-1])} should be a section with the keys of its type"
            self.problems.append(Problem("wrong-value", loc, text))
            return nothing
        self.cautions.extend(fetch_secrets(model, self.document, loc, self.problems))
        data = {key: value for key, value in (section or {}).items() if key not in drop}
        options = validate(model, data, self.document, loc, self.problems)
        if options is None:
            return nothing
        _judge(options, loc, self.problems, self.cautions)
        return options


def _judge(config: BaseModel, loc: Loc, problems: list[Problem], cautions: list[Problem]) -> None:
    """Tell what `config`, which stands at `loc`, asks for and this release does not do."""
    for here, value, marker in not_yet_in(config, loc):
        name = ".".join(step for step in here if isinstance(step, str))
        text = f"{name} {quoted(value)} {marker.why}" if marker.values else f"{name} {marker.why}"
        if marker.refuse:
            problems.append(Problem("not-available", here, text, marker.hint))
        else:
            cautions.append(Problem("no-effect", here, text, marker.hint))


def _finish(
    document: Document, config: Config | None, problems: list[Problem], cautions: list[Problem]
) -> Loaded[Config]:
    """Raise what is wrong, once per place: the first reason given is the cause of the others."""
    first = {(problem.loc, problem.message if problem.at_key else ""): problem for problem in reversed(problems)}
    raise_all(document.errors(first.values()))
    if config is None:
        raise AssertionError("a configuration without problems was not built")
    warnings = [Caution(error.code, str(error), error.hint) for error in document.errors(cautions)]
    return Loaded(config, tuple(warnings))


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        why = (error.strerror or "unknown reason").lower()
        raise Misconfigured("no-file", f"file {quoted(path)} cannot be read: {why}", "Check the path.") from error
