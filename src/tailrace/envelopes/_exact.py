"""Text as a value of a type: exactly what it says, or nothing.

Spark rounds, cuts off, and fills in today's date where text does not fit a type. Here such text is no value: it
becomes NULL, which the caller takes for a reason to reject the row. So does a day or a time outside of the years 1 to
9999, as everywhere else; see `_values`.
"""

from __future__ import annotations

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

_DAY = r"[+-]?\d{4,6}(-\d{1,2}(-\d{1,2})?)?"
_CLOCK = r"[T ]\d{1,2}(:\d{1,2}(:\d{1,2}(\.\d{0,6}0*)?)?)?"
_ZONE = r"\s*[A-Za-z+-].*"
_TIMES = {
    "date": rf"^\s*{_DAY}\s*$",
    "timestamp": rf"^\s*{_DAY}({_CLOCK}({_ZONE})?)?\s*$",
    # A zone says which moment it is, and the type cannot.
    "timestamp_ntz": rf"^\s*{_DAY}({_CLOCK})?\s*$",
}
_NUMBER = r"^\s*[+-]?([0-9.]+)([eE]([+-]?[0-9]+))?\s*$"
_INFINITE = (float("inf"), float("-inf"))


def typed(text: Expression, kind: str) -> Expression:
    """Return text as a value of type `kind`; NULL if it is none, or only by leaving something out."""
    if kind in ("string", "binary"):
        return text.cast(kind)
    value = text.try_cast(kind)
    if kind in _TIMES:
        return F.when(value.between(*_years(kind)) & text.rlike(_TIMES[kind]), value)
    if kind.startswith("decimal"):
        return _decimal(text, value, scale_of(kind))
    if kind in ("float", "double"):
        return F.when(~infinite(value) | text.rlike("(?i)inf"), value)
    return value


def _years(kind: str) -> tuple[Expression, Expression]:
    return F.lit("0001-01-01").cast(kind), F.lit("9999-12-31 23:59:59.999999").cast(kind)


def _decimal(text: Expression, value: Expression, scale: int) -> Expression:
    # Nearly all text is settled by the first question; a pattern takes ten times as long as to make it a number.
    point = F.instr(text, ".")
    short = (point == 0) | (F.length(text) - point <= scale)
    plain = ~text.contains("e") & ~text.contains("E")
    only_zeros = rf"^\s*[+-]?\d*\.\d{{0,{scale}}}0*\s*$"
    exact = plain & (short | text.rlike(only_zeros)) | ~plain & (_fraction_digits(text) <= scale)
    return F.when(exact, value)


def infinite(value: Expression) -> Expression:
    """Say whether a number is none: a text beyond what a float can hold becomes infinite by itself."""
    return value.isin(*_INFINITE)


def scale_of(kind: str) -> int:
    """Return how many digits a `decimal(p,s)` has behind the point."""
    return int(kind[8:-1].split(",")[1])


def _fraction_digits(text: Expression) -> Expression:
    """Return how many digits behind the point a number needs, whatever zeros it ends with; 0 for what is none."""
    digits = F.regexp_extract(text, _NUMBER, 1)
    exponent = F.coalesce(F.regexp_extract(text, _NUMBER, 3).try_cast("int"), F.lit(0))
    plain = F.replace(digits, F.lit("."), F.lit(""))
    zeros = F.length(plain) - F.length(F.rtrim(plain, F.lit("0")))
    behind = F.when(digits.contains("."), F.length(F.substring_index(digits, ".", -1))).otherwise(0)
    return F.when(F.length(plain) == zeros, 0).otherwise(behind - zeros - exponent)
