"""Every type of PostgreSQL with values of it, what each target is to give back, and the page that tells what was found.

A value is compared with what PostgreSQL's own client says of it. Where a target has no such type, `FORMS` says how its
client's value is read: that is the whole of what may differ.
"""

from __future__ import annotations

import base64
import datetime
import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

Read = Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    """A column of the type `declared`."""

    declared: str
    family: str
    """What its values are in every target: one of Spark's types without its numbers, `[]` behind it for an array."""
    values: tuple[str, ...]
    """As SQL writes them."""
    lost: tuple[str, ...] = ()
    """Values that no target can hold."""
    asked: str = ""
    """How PostgreSQL is asked for the value that is to arrive, where its own text is not it."""
    made: Read | None = None
    """Makes that value of what PostgreSQL answers, where it has no expression for it."""
    about: str = ""
    """What of the type is in this column, if not all."""

    @property
    def query(self) -> str:
        if self.asked:
            return self.asked
        return {"string": "{}::text", "string[]": "{}::text[]"}.get(self.family, "{}")

    @property
    def title(self) -> str:
        return f"`{self.declared}`" + (f", {self.about}" if self.about else "")


def _bits(text: str) -> bytes:
    """Bytes from the lowest bits on, without those that are zero at the end; the type says how many bits there are."""
    number = int(text, 2)
    return number.to_bytes((number.bit_length() + 7) // 8, "little")


def _doubles(text: str) -> str:
    return re.sub(r"[-.\d]+", lambda number: str(float(number[0])), text)


def _point(text: str) -> str:
    x, y = map(float, text.strip("()").split(","))
    place = base64.b64encode(struct.pack("<BIdd", 1, 1, x, y)).decode()
    return json.dumps({"x": x, "y": y, "wkb": place, "srid": None}, separators=(",", ":"))


def text(declared: str, *values: str, **more: Any) -> Case:
    return Case(declared, "string", values, **more)


INTERVAL = (
    "CASE WHEN {0} IS NOT NULL THEN format('P%sY%sM%sDT%sH%sM%sS', extract(year from {0}), extract(month from {0}), extract(day from {0}), "
    "extract(hour from {0}), extract(minute from {0}), trim_scale(extract(second from {0}))) END"
)
NO_NUMBER = ("'NaN'", "'Infinity'", "'-Infinity'")
CASES = {
    "i2": Case("smallint", "smallint", ("-32768", "32767")),
    "i4": Case("integer", "int", ("-2147483648", "2147483647")),
    "i8": Case("bigint", "bigint", ("-9223372036854775808", "9223372036854775807")),
    "f4": Case("real", "float", ("1.1", "'-0'", "'1e-45'", "'3.4028235e38'")),
    "f8": Case("double precision", "double", ("0.1", "'-0'", "'5e-324'", "'1.7976931348623157e308'")),
    "f4x": Case("real", "float", NO_NUMBER, about="`NaN` and infinities"),
    "f8x": Case("double precision", "double", NO_NUMBER, about="`NaN` and infinities"),
    "n102": Case("numeric(10,2)", "decimal", ("12.5", "-0.5", "99999999.99", "0"), ("'NaN'",)),
    "n380": Case("numeric(38,0)", "decimal", ("'" + "9" * 38 + "'", "'-" + "9" * 38 + "'")),
    "n3830": Case("numeric(38,30)", "decimal", ("'12345678." + "0" * 29 + "1'",)),
    "n39": text("numeric(39,2)", "'" + "9" * 37 + ".99'", about="more than 38 digits"),
    "nneg": text("numeric(3,-2)", "12300", about="a scale below 0 or above the digits"),
    "n": text("numeric", "'1" + "0" * 49 + ".1230'", "1e-20", *NO_NUMBER, about="no precision"),
    "money": text("money", "1234.5::numeric", "-0.01::numeric", asked="{}::numeric::text"),
    "ok": Case("boolean", "boolean", ("true", "false")),
    "t": text("text", "E'h\\u00e9 e\\u0301 \\U0001F600 \" '' \\\\ \\n\\t\\x01'", "''", "' a '", "'NULL'"),
    "vc": text("varchar(5)", "'ab '"),
    "ch": text("char(4)", "'ab'", asked="{}"),
    "ch1": text('"char"', "'a'"),
    "by": Case("bytea", "binary", ("'\\x00ff10'", "''")),
    "bit1": Case("bit(1)", "boolean", ("B'1'", "B'0'"), asked="{}::int::boolean"),
    "bit9": Case("bit(9)", "binary", ("B'100000010'", "B'000000001'"), about="more than one bit", asked="{}::text", made=_bits),
    "vb": text("bit varying", "B'001'", "B'1'", "B''", "B'0000000000001'"),
    "d": Case("date", "date", ("'2020-02-29'", "'0001-01-01'", "'9999-12-31'"), ("'infinity'", "'-infinity'", "'0044-03-15 BC'", "'10000-01-01'")),
    "ts": Case("timestamp", "timestamp_ntz", ("'2020-02-29 12:34:56.123456'", "'0001-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.999999'"), ("'infinity'", "'-infinity'", "'0044-03-15 BC'", "'10000-01-01'")),
    "tz": Case("timestamptz", "timestamp", ("'2020-02-29 12:34:56.123456+05:30'", "'0001-01-01 00:00+00'", "'9999-12-31 23:59:59.999999+00'"), ("'infinity'", "'-infinity'", "'0044-03-15 00:00+00 BC'", "'10000-01-01 00:00+00'")),
    "ti": text("time", "'12:34:56.123456'", "'00:00'", "'24:00:00'"),
    "titz": text("timetz", "'12:34:56.123456+02'", "'01:00:00.000001+05:30'", asked="to_char('2000-01-01'::date + {}, 'HH24:MI:SS.US\"Z\"')"),
    "iv": text("interval", "'1 year 2 mons 3 days 04:05:06.789'", "'-1 day 25:00:00.000001'", asked=INTERVAL),
    "u": text("uuid", "'6E9D6F4E-0000-4000-8000-000000000001'"),
    "j": text("json", "'{\"a\": 1.10, \"a\":  2}'", "'null'"),
    "jb": text("jsonb", "'{\"b\":[1,null], \"a\": 12345678901234567890.10}'", "'null'"),
    "jp": text("jsonpath", "'$.a[*] ? (@ > 1)'"),
    "e": text("mood", "'happy'", about="an enum"),
    "comp": text("pair", "'(1,x)'", about="a composite type"),
    "dom": Case("small", "int", ("5",), about="a domain over `integer`"),
    "domn": text("price", "5.25", about="a domain over `numeric(8,2)`"),
    "ip": text("inet", "'10.0.0.1/8'", "'::1'", asked="trim(both '\"' from to_json({})::text)"),
    "cd": text("cidr", "'10.0.0.0/8'"),
    "mac": text("macaddr", "'08:00:2b:01:02:03'"),
    "mac8": text("macaddr8", "'08:00:2b:01:02:03:04:05'"),
    "r4": text("int4range", "'[1,5)'", "'empty'", "'(,5)'"),
    "r8": text("int8range", "'[1,5)'"),
    "rn": text("numrange", "'[1.10,5)'"),
    "rd": text("daterange", "'[2020-01-01,infinity)'"),
    "rt": text("tsrange", "'[2020-01-01 01:02:03.4,2020-01-02)'"),
    "rtz": text("tstzrange", "'[2020-01-01 01:02:03+05,)'"),
    "mr": text("nummultirange", "'{[1,5),[7,8)}'"),
    "pt": text("point", "'(1.5,-2)'", "'(0.1,3)'", made=_point),
    "ln": text("line", "'{1,2,3}'", made=_doubles),
    "ls": text("lseg", "'[(1,2),(3,4)]'", made=_doubles),
    "bx": text("box", "'(3,4),(1,2)'", made=_doubles),
    "pa": text("path", "'[(1,2),(3,4)]'", "'((1,2),(3,4))'", made=_doubles),
    "pg": text("polygon", "'((1,2),(3,4),(5,6))'", made=_doubles),
    "ci": text("circle", "'<(1,2),3>'", made=_doubles),
    "tsv": text("tsvector", "'a:1A fat:2'"),
    "tsq": text("tsquery", "'fat & ( rat | !cat )'"),
    "oid": Case("oid", "bigint", ("4294967295",)),
    "lsn": text("pg_lsn", "'16/B374D848'"),
    "ai": Case("integer[]", "int[]", ("'{1,NULL,3}'", "'{}'"), ("'{{1,2},{3,4}}'",)),
    "al": Case("bigint[]", "bigint[]", ("'{9007199254740993,NULL}'",)),
    "af": Case("double precision[]", "double[]", ("'{1.5,NaN,-Infinity,-0}'",)),
    "ab": Case("boolean[]", "boolean[]", ("'{t,f,NULL}'",)),
    "an": Case("numeric(10,2)[]", "decimal[]", ("'{1.5,NULL,-0.05}'",), ("'{NaN}'",)),
    "anu": Case("numeric[]", "string[]", ("'{1.50,NaN,NULL}'",)),
    "at": Case("text[]", "string[]", ("ARRAY['a',NULL,'NULL','','x,\"y\\ é']",)),
    "ach": Case("char(4)[]", "string[]", ("'{ab}'",), asked="{}"),
    "aby": Case("bytea[]", "binary[]", ("ARRAY['\\x00ff'::bytea,NULL]",)),
    "ad": Case("date[]", "date[]", ("'{2020-02-29,NULL}'",), ("'{infinity}'",)),
    "ats": Case("timestamp[]", "timestamp_ntz[]", ("'{2020-02-29 12:34:56.123456,2020-02-29}'",), ("'{infinity}'",)),
    "atz": Case("timestamptz[]", "timestamp[]", ("'{2020-02-29 12:34:56.1+05:30,2020-02-29 00:00+00}'",), ("'{infinity}'",)),
    "au": Case("uuid[]", "string[]", ("'{6e9d6f4e-0000-4000-8000-000000000001}'",)),
    "ajb": Case("jsonb[]", "string[]", ("ARRAY['{\"a\":1}'::jsonb]",)),
    "ae": Case("mood[]", "string[]", ("'{happy,sad}'",), about="an array of an enum"),
}  # fmt: skip
REFUSED = ("interval[]", "money[]", "bit(3)[]", "bit varying[]", "point[]", "xml[]", '"char"[]')
"""Types that the source does not take."""


def _flag(value: Any) -> bool:
    return {0: False, 1: True}[value]


def _json(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


def _in_utc(value: datetime.datetime) -> datetime.datetime:
    assert value.tzinfo is None
    return value.replace(tzinfo=datetime.UTC)


_DAY, _MOMENT = datetime.date.fromisoformat, datetime.datetime.fromisoformat
IN_JSON: dict[str, Read] = {
    "float": float, "double": float, "decimal": Decimal, "binary": base64.b64decode,
    "date": _DAY, "timestamp": _MOMENT, "timestamp_ntz": _MOMENT,
}  # fmt: skip
"""JSON has text, numbers, and no other."""


@dataclass(frozen=True)
class Forms:
    """How the values that a target's client gives are read, by their family, where they are not Python's own."""

    title: str
    client: str
    plain: Mapping[str, Read] = field(default_factory=dict)
    within: Mapping[str, Read] = field(default_factory=dict)
    """The same for elements of arrays."""
    array: Read = list

    def read(self, family: str, value: Any) -> Any:
        if value is None:
            return None
        if not family.endswith("[]"):
            return self.plain.get(family, _same)(value)
        element = self.within.get(family.removesuffix("[]"), _same)
        return [None if one is None else element(one) for one in self.array(value)]


def _same(value: Any) -> Any:
    return value


FORMS = {
    "delta": Forms("Delta", "`deltalake`"),
    "iceberg": Forms("Iceberg", "`pyiceberg`"),
    "parquet": Forms("Parquet", "`pyarrow`"),
    "duckdb": Forms("DuckDB", "`duckdb`"),
    "postgres": Forms("PostgreSQL", "`psycopg`", {}, {k: IN_JSON[k] for k in ("binary", "timestamp", "timestamp_ntz")}),
    "mysql": Forms("MariaDB", "`pymysql`", {"boolean": _flag, "timestamp": _in_utc}, IN_JSON, _json),
    "sqlite": Forms("SQLite", "`sqlite3`", {**{k: v for k, v in IN_JSON.items() if k != "binary"}, "boolean": _flag}, IN_JSON, _json),
    "webhook": Forms("Webhook", "JSON of the body", IN_JSON, IN_JSON),
}  # fmt: skip
CHANGED = {("sqlite", "float", "-0.0"): "0.0", ("sqlite", "double", "-0.0"): "0.0"}
"""Values that a target does not tell apart: target, family, what PostgreSQL has, what comes back."""
HALTS = {("mysql", "f4x"): "value-refused", ("mysql", "f8x"): "value-refused"}
"""Columns whose values a target refuses, with the error that it halts with."""


def exact(family: str, value: Any) -> str:
    """Return a value so that equal texts are equal values: with the sign of zero, all digits, and the zone."""
    if isinstance(value, list):
        return "[" + ", ".join(exact(family.removesuffix("[]"), one) for one in value) + "]"
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC).isoformat()
    if family == "float" and value is not None:
        return repr(struct.unpack("f", struct.pack("f", value))[0])
    return repr(value)


@dataclass(frozen=True)
class Found:
    """What was found in one target."""

    types: Mapping[str, str]
    """Of each column."""
    rows: Mapping[int, Mapping[str, Any]]
    """By key, as the client gives them."""


def page(
    asked: Mapping[int, Mapping[str, Any]],
    shown: Mapping[int, Mapping[str, str]],
    found: Mapping[str, Found],
    letters: Sequence[tuple[str, str, str]],
    refused: Mapping[str, str],
) -> str:
    """Return the page: `asked` is what PostgreSQL says is to arrive, `shown` its own text."""
    lines = [HEAD.format(", ".join(f"{form.title} ({form.client})" for form in FORMS.values()))]
    lines += _table(["PostgreSQL", "as", *(form.title for form in FORMS.values())], map_cases(asked, shown, found))
    lines += ["", CELLS, "", "## Values that are dead letters", "", LETTERS, ""]
    lines += _table(["type", "value", "reason"], [(f"`{a}`", f"`{b}`", c) for a, b, c in letters])
    lines += ["", "## Values that one target cannot hold", "", ONE, ""]
    lines += _table(["target", "type", "value", "what happens"], _exceptions())
    lines += ["", "## Types that are not captured", "", UNCAPTURED, ""]
    lines += _table(
        ["type", "error"], [(f"`{kind}`", f"[`{code}`](errors.md#{code})") for kind, code in refused.items()]
    )
    return "\n".join([*lines, "", END, ""])


def map_cases(
    asked: Mapping[int, Mapping[str, Any]], shown: Mapping[int, Mapping[str, str]], found: Mapping[str, Found]
) -> list[tuple[str, ...]]:
    rows = []
    for name, case in CASES.items():
        arrives = case.family.replace("string", "text").replace("timestamp_ntz", "timestamp without zone")
        if case.family == "string" and asked[1][name] != shown[1][name]:
            arrives += f": `{shown[1][name]}` is `{asked[1][name]}`"
        rows.append((case.title, arrives, *(_cell(target, name, case, asked, found) for target in FORMS)))
    return rows


def _cell(
    target: str, name: str, case: Case, asked: Mapping[int, Mapping[str, Any]], found: Mapping[str, Found]
) -> str:
    if (target, name) in HALTS:
        return "refused"
    value = found[target].rows[1][name]
    kind = f"`{found[target].types[name]}`"
    expected = exact(case.family, asked[1][name])
    # A value that stands for itself needs no example, and neither does a number of JSON.
    number = target == "webhook" and isinstance(value, int | Decimal)
    if number or (type(value) is type(asked[1][name]) and exact(case.family, value) == expected):
        return kind
    return f"{kind} `{json.dumps(value, default=float) if isinstance(value, list) else value}`"


def _exceptions() -> list[tuple[str, ...]]:
    rows = [
        (FORMS[target].title, CASES[name].title, "", f"halts with [`{code}`](errors.md#{code})")
        for (target, name), code in HALTS.items()
    ]
    rows += [
        (FORMS[target].title, f"`{family}`", f"`{had}`", f"is `{has}`")
        for (target, family, had), has in CHANGED.items()
    ]
    return rows


def _table(head: Sequence[str], rows: Sequence[tuple[str, ...]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return [line(head), "|" + "---|" * len(head), *map(line, rows)]


HEAD = """# Types

What becomes of each type of PostgreSQL in each target. This page is written by a test: it takes a snapshot of one table with all of these
columns, has every target keep it, and reads it back with the target's own client. Every value must be the one that PostgreSQL's own
client gives. The clients:
{}.
"""
CELLS = """The second column says what a value is everywhere; the others, the type of the column. A value behind it is what the client gives of
the first value that was written, where that is not the value itself but a text or a number that stands for it."""
LETTERS = """No target can hold these. The event is a dead letter that names the column, the others go on, and the row stays as it was before."""
ONE = """Nothing else is changed or refused by a single target."""
UNCAPTURED = """A table with such a column is refused before anything is read."""
END = """The [guide to PostgreSQL](../guides/postgres.md#types) says more of what is a dead letter, and of what the engine does not tell apart."""
