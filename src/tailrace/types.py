"""Column types for tables that are declared in Python: `name: String[256] | None`.

They are for whoever reads the declaration. A column of a target has the type that its source gives it, so that no
value is ever cut to fit; `typing.Any` says just that.
"""

from __future__ import annotations

from typing import Annotated, Any


class ColumnType:
    """What a column holds."""


class Boolean(ColumnType):
    """True or false."""


class SmallInt(ColumnType):
    """A whole number of 16 bits."""


class Integer(ColumnType):
    """A whole number of 32 bits."""


class BigInt(ColumnType):
    """A whole number of 64 bits."""


class Real(ColumnType):
    """A floating number of 32 bits."""


class Double(ColumnType):
    """A floating number of 64 bits."""


class Numeric(ColumnType):
    """An exact number: `Numeric[12, 2]` has 12 digits, two of them after the point."""

    def __class_getitem__(cls, digits: int | tuple[int, int]) -> Any:
        return Annotated[cls, digits]


class String(ColumnType):
    """Text of bounded length: `String[256]`."""

    def __class_getitem__(cls, length: int) -> Any:
        return Annotated[cls, length]


class Text(ColumnType):
    """Text."""


class Bytes(ColumnType):
    """Bytes."""


class Date(ColumnType):
    """A day."""


class Time(ColumnType):
    """A time of day."""


class Timestamp(ColumnType):
    """A date and time without a zone."""


class TimestampTZ(ColumnType):
    """A moment."""


class UUID(ColumnType):
    """A UUID."""


class JSON(ColumnType):
    """A JSON value."""


class JSONB(ColumnType):
    """A JSON value, as PostgreSQL stores it."""
