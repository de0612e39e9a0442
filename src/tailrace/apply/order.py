"""A sequence of any type as text: two texts compare as the two sequences do, in Spark, in Python and in SQL.

The text stands in `_cdc_position`, so that one comparison serves every source, every target and every
type of sequence. Whole numbers are shifted to be positive and written with all their digits; a field of
a struct is told from NULL by its first letter and ends in a mark that sorts below every character. That
mark is not the character 0, which PostgreSQL has no room for in a text. An array says before each element,
which is written like a field, that it goes on, and at its end that it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tailrace.core.errors import Misconfigured


def sortable(value: Expression, kind: DataType) -> Expression:
    """Return `value` of type `kind` as text of the same order; NULL stays NULL, inside a struct it sorts first."""
    if isinstance(kind, StringType):
        return value
    if isinstance(kind, StructType):
        return F.when(value.isNotNull(), F.concat(*(_field(value[field.name], field.dataType) for field in kind)))
    if isinstance(kind, ArrayType):
        parts = F.transform(value, lambda element: F.concat(F.lit("1"), _field(element, kind.elementType)))
        return F.concat(F.array_join(parts, ""), F.lit("0"))
    for kinds, text in _TEXTS:
        if isinstance(kind, kinds):
            return text(value, kind)
    raise Misconfigured(
        "sequence-type",
        f"sequence_by has the type {kind.simpleString()}, which has no order",
        "Use a number, text, a date, a timestamp, or a struct or an array of those.",
    )


def _field(value: Expression, kind: DataType) -> Expression:
    text = sortable(value, kind)
    if isinstance(kind, StringType):
        for low, two in (("\x02", "\x02\x03"), ("\x01", "\x02\x02"), ("\x00", "\x02\x01")):
            text = F.replace(text, F.lit(low), F.lit(two))
    if isinstance(kind, StringType | BinaryType | TimestampNTZType):
        # A text that goes on must sort above one that ends, whatever the next field begins with.
        text = F.concat(text, F.lit("\x01"))
    return F.when(value.isNull(), F.lit("0")).otherwise(F.concat(F.lit("1"), text))


def _whole(value: Expression) -> Expression:
    flipped = value.cast("bigint").bitwiseXOR(F.lit(-(1 << 63)))
    return F.when(value.isNotNull(), F.lpad(F.lower(F.hex(flipped)), 16, "0"))


def _decimal(value: Expression, kind: DecimalType) -> Expression:
    # Not `abs`: it rounds to 34 digits.
    plain = F.translate(F.format_number(value, kind.scale), ",-", "")
    digits = F.lpad(plain, kind.precision + 2, "0")
    below = F.concat(F.lit("0"), F.translate(digits, "0123456789", "9876543210"))
    return F.when(value < 0, below).when(value.isNotNull(), F.concat(F.lit("1"), digits))


def _floating(value: Expression) -> Expression:
    # Zero has one place though it has two signs; the bits of a negative number grow as it falls. Java is never asked
    # of a NULL, which would fail: Spark may compute this part before it looks at the condition below.
    even = F.when(value.isNull() | (value == 0), F.lit(0.0)).otherwise(value)
    bits = F.java_method(F.lit("java.lang.Double"), F.lit("doubleToLongBits"), even).cast("bigint")
    ordered = F.when(bits < 0, bits.bitwiseXOR(F.lit((1 << 63) - 1))).otherwise(bits)
    return F.when(value.isNotNull(), _whole(ordered))


def _local(value: Expression) -> Expression:
    # The text of such a time, unlike a format of it, takes no time zone into account.
    return F.concat(_whole(F.unix_date(value.cast("date"))), F.substring_index(value.cast("string"), " ", -1))


_TEXTS: tuple[tuple[tuple[type[DataType], ...], Callable[[Expression, Any], Expression]], ...] = (
    ((ByteType, ShortType, IntegerType, LongType, BooleanType), lambda value, _: _whole(value)),
    ((DateType,), lambda value, _: _whole(F.unix_date(value))),
    ((TimestampType,), lambda value, _: _whole(F.unix_micros(value))),
    ((TimestampNTZType,), lambda value, _: _local(value)),
    ((DecimalType,), _decimal),
    ((FloatType, DoubleType), lambda value, _: _floating(value.cast("double"))),
    ((BinaryType,), lambda value, _: F.hex(value)),
)
