"""Plain values to a model, with what pydantic finds told in our words and placed in the file.

No value is shown unless it stood in the file as it is and its field is not a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tailrace.config.document import Document
from tailrace.config.model import OPTIONS, Loc, fields_of, is_secret, model_at
from tailrace.config.problem import Problem, nearest, quoted

_LOGIN = re.compile(r"://[^/\s]*@")
"""The user and password of an address, which may be secret though the address is not."""

Validated = TypeVar("Validated", bound=BaseModel)


def validate(
    model: type[Validated], data: Mapping[str, object], document: Document, loc: Loc, problems: list[Problem]
) -> Validated | None:
    """Return `data`, which stands at `loc` of `document`, as a `model`; or add to `problems` why not."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        problems += [_problem(model, detail, document, loc) for detail in details]
        return None


def _problem(model: type[BaseModel], detail: ErrorDetails, document: Document, prefix: Loc) -> Problem:
    inner = tuple(step for step in detail["loc"] if step != "[key]")
    loc, name = (*prefix, *inner), quoted((*prefix, *inner)[-1] if prefix or inner else "file")
    match detail["type"]:
        case "extra_forbidden":
            section = model_at(model, inner[:-1])
            return unknown_key(loc, [key for key in fields_of(section) if key != OPTIONS] if section else [])
        case "missing":
            return Problem("missing-setting", loc[:-1], f"key {name} is missing", f"Add {inner[-1]}.", at_key=True)
        case "value_error":
            what = str(detail["ctx"]["error"])
        case "string_pattern_mismatch":
            what = f"should match {detail['ctx']['pattern']}"
        case _:
            what = detail["msg"].removeprefix("Input ")
            what = what[:1].lower() + what[1:]
    field = _field(model, inner)
    if field and not is_secret(field.annotation):
        what += _shown(document, loc)
    hint = " ".join((field.description or "").split()) if field else ""
    return Problem("wrong-value", loc, f"{name} {what}", hint)


def _field(model: type[BaseModel], inner: Loc) -> FieldInfo | None:
    section = model_at(model, inner[:-1])
    return fields_of(section).get(str(inner[-1])) if section and inner else None


def _shown(document: Document, loc: Loc) -> str:
    try:
        value = document.at(loc)
    except (KeyError, IndexError, TypeError):
        return ""
    hidden = loc in document.expanded or isinstance(value, dict | list)
    shown = "null" if value is None else _LOGIN.sub("://***@", str(value))
    return "" if hidden else f", not {quoted(shown)}"


def unknown_key(loc: Loc, known: Iterable[str]) -> Problem:
    """Return the problem of a key that nothing reads, with the nearest of the `known` ones."""
    keys = sorted(known)
    near = nearest(str(loc[-1]), keys)
    hint = f"Did you mean {quoted(near)}?" if near else f"Known keys here are: {', '.join(keys)}." if keys else ""
    return Problem("unknown-key", loc, f"unknown key {quoted(loc[-1])}", hint, at_key=True)
