"""A type name is a module name: `source_type: postgres` is `tailrace.sources.postgres`.

Plugins are found by looking, never registered, so adding one is adding its file. Only names of files
in the package are imported, whatever a configuration says.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from tailrace.config.model import Model
from tailrace.config.problem import nearest, quoted
from tailrace.core.errors import Misconfigured, NotReady
from tailrace.core.table import target_names, told_apart


class Kind(StrEnum):
    """The packages that hold plugins."""

    SOURCE = "sources"
    TARGET = "targets"

    @property
    def key(self) -> str:
        """The key that names a plugin of this kind in a pipeline file."""
        return "source_type" if self is Kind.SOURCE else "sink_type"


def available(kind: Kind) -> list[str]:
    """Return the types that this release has."""
    places = importlib.import_module(f"tailrace.{kind}").__path__
    return sorted(module.name for module in pkgutil.iter_modules(places) if not module.name.startswith("_"))


def modes_of(name: str) -> tuple[str, ...]:
    """Return the modes of the target called `name`, the one it has unless told otherwise first; none if it has all."""
    return tuple(_said(name, "MODES") or ())


def promise_of(name: str) -> str:
    """Return what the target called `name` promises, where it differs from what its mode does; else nothing."""
    return str(_said(name, "PROMISE") or "")


def names_of(name: str, options: BaseModel, tables: Sequence[str], chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the name that each of `tables`, in the order in which they came, has in the target called `name`.

    A target may have names of its own for tables; those that are `chosen` for single ones come before them. One that
    does not say that it tells case apart is given no two names that differ in that alone. Options that could not be
    read say nothing.
    """
    if type(options) is Model:
        return target_names(tables, chosen)
    folds = _said(name, "folds_case")
    folding = folds is None or folds(options)
    told = told_apart(tables) if folding else {table: table for table in tables}
    if _said(name, "OWN_NAMES"):
        return told
    own = _said(name, "table_names")
    named = own(options, tuple(told.values())) if own else {}
    usual = {table: named[apart] for table, apart in told.items() if apart in named}
    return target_names(tables, {**usual, **chosen}, folds=folding)


def _said(name: str, what: str) -> Any:
    known = name in available(Kind.TARGET)
    return getattr(importlib.import_module(f"tailrace.{Kind.TARGET}.{name}"), what, None) if known else None


def options_of(kind: Kind, name: str) -> type[BaseModel]:
    """Return the model of the settings of the type called `name`."""
    types = available(kind)
    if name not in types:
        raise Misconfigured("unknown-type", f"{kind.key} {quoted(name)} is unknown", _choice(name, types))
    try:
        module = importlib.import_module(f"tailrace.{kind}.{name}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "tailrace"):
            raise
        extra = "embedded" if kind is Kind.SOURCE else name
        raise NotReady(
            "missing-extra",
            f"{kind.key} {quoted(name)} needs the Python package {quoted(missing)}, which is not installed",
            f"Run: pip install 'tailrace[{extra}]'",
        ) from error
    options = getattr(module, "Options", None)
    if not (isinstance(options, type) and issubclass(options, BaseModel)):
        raise Misconfigured("unknown-type", f"{kind.key} {quoted(name)} is unknown", _choice(name, types))
    return options


def _choice(name: str, types: list[str]) -> str:
    near = nearest(name, types)
    return f"Available are: {', '.join(types)}." + (f" Did you mean {quoted(near)}?" if near else "")
