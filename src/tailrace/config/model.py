"""What every configuration model shares: frozen, strict about keys, documented by attribute docstrings.

Values come as text or as TOML's own types, so models stay lax about types: the field decides what
"5432" is. A field says what this release cannot do with it by a `NotYet`, which the loader enforces
and the reference page shows; nothing that was written is ever ignored in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, SecretStr
from pydantic.fields import FieldInfo

Loc = tuple[str | int, ...]
"""The way from the top of a file to a value: keys and list indexes."""

OPTIONS = "options"
"""The field that holds a plugin's settings; not a key of any file."""


class Model(BaseModel):
    """A section of a configuration file."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, hide_input_in_errors=True
    )


class Secret(SecretStr):
    """Text that must not be shown; only `get_secret_value()` gives it away."""

    def _display(self) -> str:
        return "***" if self._secret_value else ""


class Hidden(SecretStr):
    """Text that is not shown because it may hold a secret; only its writer knows, so it may stand in the file."""

    def _display(self) -> str:
        return "***" if self._secret_value else ""


@dataclass(frozen=True, slots=True)
class NotYet:
    """Marks a field, or the `values` of a field, that this release does nothing with.

    Such a setting is refused where running without it would do something else than was asked for, and
    gets a warning where `refuse` is false because nothing is lost by its absence.
    """

    why: str
    """A clause that follows the setting's name: `is not in this release`."""
    hint: str
    values: tuple[str, ...] = ()
    refuse: bool = True

    def concerns(self, value: object, default: object) -> bool:
        """Say whether `value`, which someone wrote, is one that this release does nothing with.

        What is refused may be written as its default, since that is what happens.
        """
        if self.values:
            return str(value) in self.values
        return value != default or not self.refuse


def key_of(name: str, field: FieldInfo) -> str:
    """Return the key that a file uses for the field called `name`."""
    alias = field.validation_alias or field.alias
    return alias if isinstance(alias, str) else name


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of `model` by the key that a file uses."""
    return {key_of(name, field): field for name, field in model.model_fields.items()}


def parts(annotation: Any) -> Iterator[Any]:
    """Yield the alternatives of a type: `X | None` gives X and None, anything else gives itself."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from parts(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for part in get_args(annotation):
            yield from parts(part)
    else:
        yield annotation


def is_model(annotation: Any) -> bool:
    """Say whether a type is a model of its own, and so a section of the file."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def is_secret(annotation: Any, kind: type[SecretStr] = SecretStr) -> bool:
    """Say whether a value of this type must not be shown, or is of the `kind` that is asked for."""
    return any(isinstance(part, type) and issubclass(part, kind) for part in parts(annotation))


def model_at(annotation: Any, loc: Loc) -> type[BaseModel] | None:
    """Return the model that describes the section at `loc`; `None` where keys are the user's own."""
    for part in parts(annotation):
        if not loc:
            if is_model(part):
                return part  # type: ignore[no-any-return]
        elif is_model(part):
            field = fields_of(part).get(str(loc[0]))
            return model_at(field.annotation, loc[1:]) if field else None
        elif arguments := get_args(part):
            return model_at(arguments[-1 if get_origin(part) is dict else 0], loc[1:])
    return None


def secrets_in(annotation: Any, value: object, loc: Loc = (), kind: type[SecretStr] = SecretStr) -> Iterator[Loc]:
    """Yield where in `value`, which `annotation` describes, secrets of this `kind` stand."""
    if is_secret(annotation, kind):
        yield loc
        return
    for part in parts(annotation):
        arguments = get_args(part)
        if is_model(part) and isinstance(value, Mapping):
            for key, field in fields_of(part).items():
                if key in value:
                    yield from secrets_in(field.annotation, value[key], (*loc, key), kind)
        elif arguments and isinstance(value, Mapping):
            for key in value:
                yield from secrets_in(arguments[-1], value[key], (*loc, key), kind)
        elif arguments and isinstance(value, list):
            for index, item in enumerate(value):
                yield from secrets_in(arguments[0], item, (*loc, index), kind)


def not_yet_in(model: BaseModel, loc: Loc = ()) -> Iterator[tuple[Loc, object, NotYet]]:
    """Yield what was written in `model`, plugins' options apart, that this release does nothing with."""
    for name in sorted(model.model_fields_set - {OPTIONS}):
        field, value = type(model).model_fields[name], getattr(model, name)
        here = (*loc, key_of(name, field))
        for marker in field.metadata:
            if isinstance(marker, NotYet) and marker.concerns(
                value, field.get_default(call_default_factory=True, validated_data={})
            ):
                yield here, value, marker
        if isinstance(value, BaseModel):
            yield from not_yet_in(value, here)
        elif isinstance(value, tuple | dict):
            for index, item in value.items() if isinstance(value, dict) else enumerate(value):
                if isinstance(item, BaseModel):
                    yield from not_yet_in(item, (*here, index))
