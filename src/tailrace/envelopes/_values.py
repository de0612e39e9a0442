"""How a value is written in JSON, by its column's encoding: what to read it as, and what to make of it.

Column expressions only. A value that cannot be what it claims to be becomes NULL, which the caller takes
for a reason to reject the message: nothing is patched. So does a day or a time outside of the years 1 to 9999:
that is the range that Spark gives its types, and beyond it neither Python nor most databases follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from tailrace.core.change import Op
from tailrace.core.table import Column

_RAW = {
    "decimal-text": "string",
    "decimal-variable": "struct<scale: int, value: string>",
    "date-days": "int",
    "timestamp-millis": "bigint",
    "timestamp-micros": "bigint",
    "timestamp-nanos": "bigint",
    "timestamp-iso": "string",
    "time-millis": "bigint",
    "time-micros": "bigint",
    "time-nanos": "bigint",
    "base64": "string",
}
_DECIMAL_BYTES, _DECIMAL_BINARY = "decimal-bytes:", "decimal-binary:"
"""An unscaled number with its scale: in base64, and as bytes."""

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_FIRST_TIME, _LAST_TIME = _FIRST_DAY * 86_400_000_000, (_LAST_DAY + 1) * 86_400_000_000 - 1
"""The years 1 to 9999, in days and in microseconds. Debezium's numbers for `infinity` lie outside."""
_DAYS = 100 * 86_400_000
_CAN_FAIL = (
    "timestamp-millis",
    "time-millis",
    "decimal-text",
    "decimal-variable",
    "date-days",
    "timestamp-iso",
    "timestamp-micros",
    "timestamp-nanos",
    "time-nanos",
    "base64",
    _DECIMAL_BYTES,
    _DECIMAL_BINARY,
)

Decoder = Callable[[Expression], Expression]


def quoted(name: str) -> str:
    """Return `name` as Spark SQL writes an identifier."""
    return "`" + name.replace("`", "``") + "`"


def raw_type(column: Column) -> str:
    """Return the type to read the column's JSON as."""
    if column.encoding.startswith("array:"):
        return f"array<{_raw(column.encoding.removeprefix('array:'), '')}>"
    return _raw(column.encoding, column.type)


def _raw(encoding: str, type_name: str) -> str:
    return "string" if encoding.startswith(_DECIMAL_BYTES) else _RAW.get(encoding, type_name)


def unreadable(column: Column, raw: Expression, value: Expression, keys: Sequence[str], op: Expression) -> Expression:
    """Say of a value that was read as `raw` whether it is to be rejected for what `decode` made of it.

    Of a deleted row only the key counts: what else it held must not keep it in the target.
    """
    failed = raw.isNotNull() & value.isNull()
    return failed if column.name in keys or not keys else failed & (op != Op.DELETE.value)


def can_fail(encoding: str) -> bool:
    """Say whether there are values that `decode` makes NULL."""
    return encoding.removeprefix("array:").startswith(_CAN_FAIL)


def decode(encoding: str, type_name: str) -> Decoder:
    """Return what makes a value of `type_name` out of one that was read as `raw_type` says."""
    if encoding.startswith("array:"):
        element = decode(encoding.removeprefix("array:"), type_name.removeprefix("array<").removesuffix(">"))
        # An array with an element that cannot be read is no array at all: it must be rejected, not patched.
        return lambda value: F.when(
            ~F.exists(value, lambda e: e.isNotNull() & element(e).isNull()), F.transform(value, element)
        )
    if encoding.startswith(_DECIMAL_BINARY):
        places = F.lit(int(encoding.removeprefix(_DECIMAL_BINARY)))
        return lambda value: _decimal_text(value, places).try_cast(type_name)
    if encoding.startswith(_DECIMAL_BYTES):
        scale = F.lit(int(encoding.removeprefix(_DECIMAL_BYTES)))
        return lambda value: _decimal_text(_base64(value), scale).try_cast(type_name)
    decoders: dict[str, Decoder] = {
        "": lambda value: value,
        "decimal-text": lambda value: value.try_cast(type_name),
        "decimal-variable": lambda value: _decimal_text(_base64(value["value"]), _scale(value["scale"])),
        "decimal-variable-binary": lambda value: _decimal_text(value["value"], _scale(value["scale"])),
        "date-days": lambda value: F.when(value.between(_FIRST_DAY, _LAST_DAY), F.date_from_unix_date(value)),
        "timestamp-millis": lambda value: instant(value).cast("timestamp_ntz"),
        "timestamp-micros": lambda value: _moment(value).cast("timestamp_ntz"),
        "timestamp-nanos": lambda value: _moment(_thousandth(value)).cast("timestamp_ntz"),
        "timestamp-iso": lambda value: _moment(F.unix_micros(value.try_cast("timestamp"))),
        "time-millis": lambda value: _time_text(F.when(value.between(-_DAYS, _DAYS), value * 1000)),
        "time-micros": _time_text,
        "time-nanos": lambda value: _time_text(_thousandth(value)),
        "base64": _base64,
    }
    return decoders[encoding]


def instant(millis: Expression) -> Expression:
    """Return a number of milliseconds as a time; NULL if it is none."""
    return F.when(millis.between(_FIRST_TIME // 1000, _LAST_TIME // 1000), F.timestamp_millis(millis))


def _moment(micros: Expression) -> Expression:
    return F.when(micros.between(_FIRST_TIME, _LAST_TIME), F.timestamp_micros(micros))


def _time_text(signed: Expression) -> Expression:
    """Write microseconds since midnight as a database shows a time: `08:30:00`, `08:30:00.25`, `-838:59:59`."""
    micros = F.abs(F.when(signed > -(2**62), signed))
    seconds = F.floor(micros / 1_000_000).cast("bigint")
    fraction = F.pmod(micros, F.lit(1_000_000))
    clock = F.format_string(
        "%02d:%02d:%02d",
        F.floor(seconds / 3600).cast("bigint"),
        F.floor(seconds % 3600 / 60).cast("bigint"),
        seconds % 60,
    )
    text = F.rtrim(F.concat(F.lit("."), F.lpad(fraction.cast("string"), 6, "0")), F.lit("0"))
    whole = F.concat(F.when(signed < 0, "-").otherwise(""), clock, F.when(fraction == 0, "").otherwise(text))
    return F.when(signed.isNotNull(), whole)


def _decimal_text(data: Expression, scale: Expression) -> Expression:
    """Write an unscaled number, big-endian in two's complement, as a decimal; NULL beyond 38 digits."""
    digits = F.hex(data)
    negative = F.substring(digits, 1, 1) >= "8"
    wide = F.when(negative, F.lpad(digits, 32, "F")).otherwise(F.lpad(digits, 32, "0"))
    wide = F.when((F.length(digits) > 0) & (F.length(digits) <= 32), wide)
    high = F.conv(F.substring(wide, 1, 16), 16, -10).try_cast("decimal(20,0)")
    low = F.conv(F.substring(wide, 17, 16), 16, 10).try_cast("decimal(20,0)")
    number = F.try_add(F.try_multiply(high, F.lit(str(2**64)).cast("decimal(20,0)")), low)
    plain = F.abs(number).cast("string")
    # At least one digit stands before the point.
    padded = F.when(F.length(plain) > scale, plain).otherwise(F.lpad(plain, scale + 1, F.lit("0")))
    whole = padded.substr(F.lit(1), F.length(padded) - scale)
    text = (
        F.when(scale > 0, F.concat(whole, F.lit("."), padded.substr(F.length(padded) - scale + 1, scale)))
        .when(scale < 0, F.concat(plain, F.repeat(F.lit("0"), -scale)))
        .otherwise(plain)
    )
    return F.when(number < 0, F.concat(F.lit("-"), text)).otherwise(text)


def _base64(text: Expression) -> Expression:
    return F.try_to_binary(text, F.lit("base64"))


def _scale(scale: Expression) -> Expression:
    """Return a scale that a decimal of a database can have; one beyond would be a number of gigabytes."""
    return F.when(scale.between(-16_384, 16_384), scale)


def _thousandth(number: Expression) -> Expression:
    """Divide by a thousand, downwards and without passing through a float; NULL for what would overflow."""
    value = F.when(number > -(2**62), number)
    return F.call_function("div", value - F.pmod(value, F.lit(1000)), F.lit(1000))
