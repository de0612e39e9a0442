"""Tables of targets as classes: a name, columns, a key."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints, overload

from tailrace.config.model import parts
from tailrace.config.problem import quoted
from tailrace.core.errors import Misconfigured
from tailrace.types import ColumnType

Class = TypeVar("Class", bound=type)

_DECLARED = "__tailrace_table__"


@dataclass(frozen=True, slots=True)
class PrimaryKey:
    """Marks a column that identifies a row."""


def pk() -> PrimaryKey:
    """Mark a column of a table as one that identifies its rows, inside `Annotated`."""
    return PrimaryKey()


@dataclass(frozen=True, slots=True)
class DeclaredTable:
    """A table of a target, as a class declares it; `title` is what errors call it."""

    title: str
    name: str
    schema: str | None
    columns: tuple[str, ...]
    primary_key: tuple[str, ...]
    typed: bool


@overload
def table(declared: Class) -> Class: ...
@overload
def table(*, schema: str | None = None, name: str | None = None) -> Callable[[Class], Class]: ...
def table(
    declared: Class | None = None, *, schema: str | None = None, name: str | None = None
) -> Class | Callable[[Class], Class]:
    """Declare a table of a target: its annotations are its columns.

    Without a `name` it is called like the class, in lower case with underscores.
    """

    def declare(cls: Class) -> Class:
        setattr(cls, _DECLARED, _declared(cls, schema, name))
        return cls

    return declare if declared is None else declare(declared)


def _declared(cls: type, schema: str | None, name: str | None) -> DeclaredTable:
    where = f"{cls.__module__}:{cls.__name__}"
    try:
        annotations = get_type_hints(cls, include_extras=True)
    except (NameError, TypeError) as error:
        text = f"{where}: a column's type cannot be read: {error}"
        raise Misconfigured("wrong-value", text, "Import it from tailrace.types, at the top of the module.") from error
    columns = {key: kind for key, kind in annotations.items() if get_origin(kind) is not ClassVar}
    if not columns:
        text = f"{where}: table has no columns"
        raise Misconfigured("wrong-value", text, "Write each as name: Type, with a type of tailrace.types.")
    typed = [_is_typed(kind, f'{where}: type of column "{key}"') for key, kind in columns.items()]
    keys = tuple(key for key, kind in columns.items() if _is_key(kind))
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()
    return DeclaredTable(f"table {quoted(cls.__name__)}", name or snake, schema, tuple(columns), keys, any(typed))


def _is_typed(annotation: Any, where: str) -> bool:
    """Say whether a column's annotation names a type; raise if it names anything else."""
    kinds = [kind for kind in parts(annotation) if kind is not type(None)]
    if kinds == [Any]:
        return False
    if len(kinds) == 1 and isinstance(kinds[0], type) and issubclass(kinds[0], ColumnType):
        return True
    shown = " | ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
    hint = "Use one type of tailrace.types, with | None if it may be NULL, or typing.Any."
    raise Misconfigured("wrong-value", f"{where} is {quoted(shown)}, which is not one of tailrace.types", hint)


def _is_key(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        return any(isinstance(mark, PrimaryKey) or mark is pk for mark in marks) or _is_key(inner)
    return any(_is_key(part) for part in get_args(annotation) if get_origin(part) is Annotated)


def table_of(declared: object) -> DeclaredTable | None:
    """Return the table that a class declares; `None` for anything else."""
    found = getattr(declared, _DECLARED, None)
    return found if isinstance(found, DeclaredTable) else None
