"""A declared pipeline by its name, `package.module:name`."""

from __future__ import annotations

import importlib
import re

from tailrace.api.pipeline import StreamingPipeline
from tailrace.config.problem import quoted
from tailrace.core.errors import Misconfigured, TailraceError

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def is_reference(text: str) -> bool:
    """Say whether `text` has the form of a declared pipeline's name, `package.module:name`."""
    return _REFERENCE.fullmatch(text) is not None


def find_pipeline(reference: str) -> StreamingPipeline:
    """Return the declared pipeline called `package.module:name`."""
    where, _, name = reference.partition(":")
    try:
        module = importlib.import_module(where)
    except TailraceError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{where}.".startswith(f"{error.name}."):
            text = f"there is no module {quoted(error.name)}"
            hint = "Start cdc in the folder that holds it, or install it."
            raise Misconfigured("no-module", text, hint) from error
        text = f"module {quoted(where)} cannot be imported: {type(error).__name__}: {quoted(error)}"
        raise Misconfigured("module-failed", text, f"Try: python -c 'import {where}'") from error
    declared = {key: value for key, value in vars(module).items() if isinstance(value, StreamingPipeline)}
    if name not in declared:
        found = f"is a {type(getattr(module, name)).__name__}" if hasattr(module, name) else "is not there"
        text = f"{reference}: there is no pipeline {quoted(name)} in module {quoted(where)}: it {found}"
        names = f"Its pipelines are: {', '.join(sorted(declared))}." if declared else "It has none."
        raise Misconfigured("no-pipeline", text, f"{names} Declare one with tailrace.streaming_pipeline.")
    wanted = declared[name]
    for key, other in declared.items():
        if other is not wanted and other.name == wanted.name:
            text = f"{reference}: {quoted(key)} is a pipeline called {quoted(wanted.name)} too"
            raise Misconfigured("duplicate-pipeline", text, "What they remember would be mixed up. Rename one of them.")
    return wanted
