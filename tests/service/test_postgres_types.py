"""Every type exactly: what the snapshot and the stream write, and what the page's table says about it."""

from __future__ import annotations

import base64

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tailrace.envelopes import debezium
from tailrace.spark.frame import frame
from tests.service.reading import Database, events

# column: declared type, value in SQL, our type, encoding, the value in the message
TYPES: dict[str, tuple[str, str, str, str, object]] = {
    "i2": ("smallint", "-32768", "smallint", "", -32768),
    "i4": ("int", "2147483647", "int", "", 2147483647),
    "i8": ("bigint", "-9223372036854775808", "bigint", "", -9223372036854775808),
    "i8max": ("bigint", "9223372036854775807", "bigint", "", 9223372036854775807),
    "f4": ("real", "1.1", "float", "", 1.1),
    "f4nan": ("real", "'NaN'", "float", "", "NaN"),
    "f8": ("float8", "0.1", "double", "", 0.1),
    "f8nan": ("float8", "'NaN'", "double", "", "NaN"),
    "f8inf": ("float8", "'Infinity'", "double", "", "Infinity"),
    "f8ninf": ("float8", "'-Infinity'", "double", "", "-Infinity"),
    "n": ("numeric", "'12345678901234567890123456789012345678901234567890.1230'", "string", "", "12345678901234567890123456789012345678901234567890.1230"),
    "nnan": ("numeric", "'NaN'", "string", "", "NaN"),
    "ninf": ("numeric", "'Infinity'", "string", "", "Infinity"),
    "nninf": ("numeric", "'-Infinity'", "string", "", "-Infinity"),
    "n102": ("numeric(10,2)", "12.5", "decimal(10,2)", "decimal-text", "12.50"),
    "n102nan": ("numeric(10,2)", "'NaN'", "decimal(10,2)", "decimal-text", "NaN"),
    "n38": ("numeric(38,0)", "'99999999999999999999999999999999999999'", "decimal(38,0)", "decimal-text", "9" * 38),
    "n39": ("numeric(39,2)", "1", "string", "", "1.00"),
    "nneg": ("numeric(3,-2)", "12300", "string", "", "12300"),
    "nsmall": ("numeric(2,5)", "0.00012", "string", "", "0.00012"),
    "money": ("money", "1234.5::numeric", "string", "", "1234.50"),
    "ok": ("boolean", "false", "boolean", "", False),
    "t": ("text", "E'h\\u00e9 \\U0001F600 \" \\\\ \\n\\t\\x01'", "string", "", 'hé 😀 " \\ \n\t\x01'),
    "tempty": ("text", "''", "string", "", ""),
    "vc": ("varchar(5)", "'ab'", "string", "", "ab"),
    "ch": ("char(4)", "'ab'", "string", "", "ab  "),
    "by": ("bytea", "'\\x00ff10'", "binary", "base64", "AP8Q"),
    "byempty": ("bytea", "''", "binary", "base64", ""),
    "bit1": ("bit(1)", "B'1'", "boolean", "", True),
    "bit9": ("bit(9)", "B'100000001'", "binary", "base64", "AQE="),
    "vb": ("varbit", "B'001'", "string", "", "001"),
    "vbempty": ("varbit", "B''", "string", "", ""),
    "d": ("date", "'2020-02-29'", "date", "date-days", 18321),
    "dold": ("date", "'0001-01-01'", "date", "date-days", -719162),
    "dfar": ("date", "'9999-12-31'", "date", "date-days", 2932896),
    "djulian": ("date", "'1500-03-01'", "date", "date-days", -171605),
    "ts": ("timestamp", "'2020-02-29 12:34:56.123456'", "timestamp_ntz", "timestamp-micros", 1582979696123456),
    "ts0": ("timestamp(0)", "'2020-02-29 12:34:56'", "timestamp_ntz", "timestamp-micros", 1582979696000000),
    "tsold": ("timestamp", "'0001-01-01 00:00:00.000001'", "timestamp_ntz", "timestamp-micros", -62135596799999999),
    "tsinf": ("timestamp", "'infinity'", "timestamp_ntz", "timestamp-micros", 9223372036825200000),
    "tz": ("timestamptz", "'2020-02-29 12:34:56.123456+05:30'", "timestamp", "timestamp-iso", "2020-02-29T07:04:56.123456Z"),
    "tzinf": ("timestamptz", "'infinity'", "timestamp", "timestamp-iso", "infinity"),
    "tzninf": ("timestamptz", "'-infinity'", "timestamp", "timestamp-iso", "-infinity"),
    "ti": ("time", "'12:34:56.123456'", "string", "time-micros", 45296123456),
    "ti24": ("time", "'24:00:00'", "string", "time-micros", 86400000000),
    "titz": ("timetz", "'12:34:56.123456+02'", "string", "", "10:34:56.123456Z"),
    "iv": ("interval", "'1 year 2 mons 3 days 04:05:06.789'", "string", "", "P1Y2M3DT4H5M6.789S"),
    "u": ("uuid", "'6e9d6f4e-0000-4000-8000-000000000001'", "string", "", "6e9d6f4e-0000-4000-8000-000000000001"),
    "j": ("json", "'{\"a\": 1.10}'", "string", "", '{"a": 1.10}'),
    "jb": ("jsonb", "'{\"b\":[1,null]}'", "string", "", '{"b": [1, null]}'),
    "e": ("mood", "'happy'", "string", "", "happy"),
    "dom": ("small", "5", "int", "", 5),
    "domn": ("price", "5.25", "string", "", "5.25"),
    "ip": ("inet", "'10.0.0.1/8'", "string", "", "10.0.0.1/8"),
    "r": ("int4range", "'[1,5)'", "string", "", "[1,5)"),
    "mr": ("int4multirange", "'{[1,5)}'", "string", "", "{[1,5)}"),
    "comp": ("pair", "'(1,x)'", "string", "", "(1,x)"),
    "pt": ("point", "'(1,2)'", "string", "", '{"x":1.0,"y":2.0,"wkb":"AQEAAAAAAAAAAADwPwAAAAAAAABA","srid":null}'),
    "tsv": ("tsvector", "'a b'", "string", "", "'a' 'b'"),
    "oid": ("oid", "4294967295", "bigint", "", 4294967295),
    "ai": ("int[]", "ARRAY[1,NULL,3]", "array<int>", "", [1, None, 3]),
    "aempty": ("text[]", "'{}'", "array<string>", "", []),
    "at": ("text[]", "ARRAY['a',NULL,'NULL','x,\"y']", "array<string>", "", ["a", None, "NULL", 'x,"y']),
    "al": ("bigint[]", "ARRAY[9007199254740993]", "array<bigint>", "", [9007199254740993]),
    "af": ("float8[]", "ARRAY[1.5,'NaN']::float8[]", "array<double>", "", [1.5, "NaN"]),
    "ab": ("bool[]", "ARRAY[true,NULL]", "array<boolean>", "", [True, None]),
    "an": ("numeric(10,2)[]", "ARRAY[1.5,NULL]::numeric[]", "array<decimal(10,2)>", "array:decimal-text", ["1.50", None]),
    "anu": ("numeric[]", "ARRAY[1.50]::numeric[]", "array<string>", "", ["1.50"]),
    "ad": ("date[]", "ARRAY['2020-02-29'::date,NULL]", "array<date>", "array:date-days", [18321, None]),
    "ats": ("timestamp[]", "ARRAY['2020-02-29 12:34:56.123456'::timestamp]", "array<timestamp_ntz>", "array:timestamp-micros", [1582979696123456]),
    "atz": ("timestamptz[]", "ARRAY['2020-02-29 12:34:56.1+00'::timestamptz]", "array<timestamp>", "array:timestamp-iso", ["2020-02-29T12:34:56.100000Z"]),
    "aby": ("bytea[]", "ARRAY['\\x01'::bytea]", "array<binary>", "array:base64", ["AQ=="]),
    "au": ("uuid[]", "ARRAY['6e9d6f4e-0000-4000-8000-000000000001'::uuid]", "array<string>", "", ["6e9d6f4e-0000-4000-8000-000000000001"]),
    "aj": ("jsonb[]", "ARRAY['{}'::jsonb]", "array<string>", "", ["{}"]),
    "ae": ("mood[]", "ARRAY['happy'::mood]", "array<string>", "", ["happy"]),
}  # fmt: skip


def declare(database: Database) -> None:
    database.run(
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE DOMAIN small AS int",
        "CREATE DOMAIN price AS numeric(8,2)",
        "CREATE TABLE a (id int PRIMARY KEY, " + ", ".join(f"{name} {kind[0]}" for name, kind in TYPES.items()) + ")",
        "ALTER TABLE a REPLICA IDENTITY FULL",
    )


def insert(database: Database, key: int) -> None:
    database.run(f"INSERT INTO a SELECT {key}, " + ", ".join(kind[1] for kind in TYPES.values()))


def test_every_type_is_exact_in_snapshot_and_stream(database: Database) -> None:
    declare(database)
    insert(database, 1)
    database.run("CREATE TABLE b (LIKE a INCLUDING ALL)", "ALTER TABLE b REPLICA IDENTITY FULL")
    source = database.source()
    source.check()
    first = database.read(source)
    insert(database, 2)
    database.run("INSERT INTO a (id) VALUES (3)")
    second = database.read(source, first[-1].checkpoint)
    read, created, empty = (event["after"] for event in events(first + second))
    expected = {name: kind[4] for name, kind in TYPES.items()}
    assert read == {"id": 1, **expected}
    assert created == {"id": 2, **expected}
    assert empty == {"id": 3, **dict.fromkeys(TYPES)}
    (table,) = {table for page in first + second for table in page.schemas.values()}
    assert [(column.name, column.type, column.encoding, column.nullable) for column in table.columns] == [
        ("id", "int", "", False),
        *[(name, kind[2], kind[3], True) for name, kind in TYPES.items()],
    ]
    # A table without rows is known as well as one that has some.
    (empty_table,) = [table for page in first for table in page.empty.values()]
    assert (empty_table.name, empty_table.keys) == ("public.b", table.keys)
    assert empty_table.columns == table.columns


def test_values_are_exact_whatever_the_database_is_set_to(database: Database) -> None:
    for setting in ("intervalstyle = 'sql_standard'", "bytea_output = 'escape'", "extra_float_digits = 0"):
        database.run(f"ALTER DATABASE {database.name} SET {setting}")
    database.run("CREATE TABLE a (id int PRIMARY KEY, i interval, b bytea, f float8)")
    row = "'1 year 2 mons -3 days 04:05:06.789'::interval, '\\xff5c'::bytea, 0.1::float8 + 0.2::float8"
    database.run(f"INSERT INTO a SELECT 1, {row}")
    pages = database.read(database.source())
    database.run(f"INSERT INTO a SELECT 2, {row}")
    pages += database.read(database.source(), pages[-1].checkpoint)
    values = {"i": "P1Y2M-3DT4H5M6.789S", "b": "/1w=", "f": 0.30000000000000004}
    assert [event["after"] for event in events(pages)] == [{"id": 1, **values}, {"id": 2, **values}]


def test_a_domain_over_bytes_is_bytes(database: Database) -> None:
    database.run(
        "CREATE DOMAIN one AS bytea",
        "CREATE DOMAIN two AS one",
        "CREATE TABLE a (id int PRIMARY KEY, v one, w two, n int)",
        "ALTER TABLE a ALTER v SET STORAGE EXTERNAL",
        "INSERT INTO a VALUES (1, '\\xff', '\\x00')",
    )
    pages = database.read(database.source())
    database.run(
        "INSERT INTO a VALUES (2, decode(repeat('ff', 5000), 'hex'), '\\xfe')", "UPDATE a SET n = 1 WHERE id = 2"
    )
    pages += database.read(database.source(), pages[-1].checkpoint)
    read, created, updated = events(pages)
    assert read["after"] == {"id": 1, "v": "/w==", "w": "AA==", "n": None}
    assert base64.b64decode(created["after"].pop("v")) == b"\xff" * 5000
    assert created["after"] == {"id": 2, "w": "/g==", "n": None}
    assert (updated["unchanged"], updated["after"]) == (["v"], {"id": 2, "w": "/g==", "n": 1})
    assert {t.column("v").type for page in pages for t in page.schemas.values()} == {"binary"}


def test_bits_of_any_length_go_through_defaults_domains_and_deletes(database: Database) -> None:
    database.run(
        "CREATE DOMAIN flags AS bit varying(8)",
        "CREATE TABLE a (id int PRIMARY KEY, v bit varying NOT NULL DEFAULT B'01', f flags)",
        "INSERT INTO a VALUES (1, B'001', B'0010')",
    )
    source = database.source()
    first = database.read(source)
    database.run("INSERT INTO a (id) VALUES (2)", "UPDATE a SET id = 3 WHERE id = 1", "DELETE FROM a")
    read, *later = events(first + database.read(source, first[-1].checkpoint))
    assert read["after"] == {"id": 1, "v": "001", "f": "0010"}
    assert [(event["op"], (event["after"] or event["key"])["id"]) for event in later] == [
        ("c", 2), ("d", 1), ("c", 3), ("d", 2), ("d", 3),
    ]  # fmt: skip
    assert later[0]["after"] == {"id": 2, "v": "01", "f": None}
    assert later[2]["after"] == {"id": 3, "v": "001", "f": "0010"}


@pytest.mark.parametrize("sign", ["-0.0", "0.0"])
def test_the_sign_of_zero_is_kept(database: Database, sign: str) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY, f float8)", f"INSERT INTO a VALUES (1, '{sign}')")
    (page, *_) = database.read(database.source())
    assert f'"f":{sign}'.encode() in page.rows["value"][0].as_py()


# column: declared type, values that a table here holds, with what it then shows, and values that none can hold
EDGES: dict[str, tuple[str, dict[str, str], list[str]]] = {
    "d": (
        "date",
        {"0001-01-01": "0001-01-01", "1582-10-04": "1582-10-04", "9999-12-31": "9999-12-31"},
        ["infinity", "-infinity", "4713-11-24 BC", "0044-03-15 BC", "0001-12-31 BC", "10000-01-01", "5874897-12-31"],
    ),
    "t": (
        "timestamp",
        {"0001-01-01": "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999": "9999-12-31 23:59:59.999999"},
        ["infinity", "-infinity", "0044-03-15 01:02:03 BC", "10000-01-01", "294247-01-10 04:00:54.8", "294276-12-31"],
    ),
    "z": (
        "timestamptz",
        {"0001-01-01 00:00+00": "0001-01-01 00:00:00", "9999-12-31 23:59:59+00": "9999-12-31 23:59:59"},
        ["infinity", "-infinity", "0044-03-15 01:02:03+00 BC", "10000-01-01 00:00+00", "294276-12-31 00:00+00"],
    ),
    "n": ("numeric(10,2)", {"-0.5": "-0.50"}, ["NaN"]),
    "u": ("numeric", {"NaN": "NaN", "-Infinity": "-Infinity"}, []),
    "ad": ("date[]", {"{1500-03-01,NULL}": "[1500-03-01, null]"}, ["{infinity,2020-01-01}", "{0044-03-15 BC}"]),
    "at": (
        "timestamp[]",
        {"{1500-03-01 01:02:03.000004}": "[1500-03-01 01:02:03.000004]"},
        ["{-infinity}", "{0044-03-15 BC}", "{294276-12-31}"],
    ),
    "az": (
        "timestamptz[]",
        {"{1500-03-01 01:02:03+05:30}": "[1500-02-28 19:32:03]"},
        ["{infinity}", "{-infinity}", "{0044-03-15 00:00+00 BC}"],
    ),
    "an": ("numeric(10,2)[]", {"{1.5,NULL}": "[1.50, null]"}, ["{NaN}", "{{1,2},{3,4}}"]),
    "au": ("numeric[]", {"{NaN,1.50,-Infinity}": "[NaN, 1.50, -Infinity]"}, []),
    "i": ("int[]", {"[0:1]={1,2}": "[1, 2]", "{}": "[]"}, ["{{1,2},{3,4}}", "{{{1}}}"]),
    "ae": ("mood[]", {'{happy,NULL,"so, so"}': "[happy, null, so, so]", "{}": "[]"}, ["{{happy},{happy}}"]),
    "x": ("text[]", {'{"{",NULL,"a,\\"b"}': '[{, null, a,"b]'}, ["{{a,b},{c,NULL}}"]),
}


def test_a_value_at_the_edge_is_exact_or_rejected_by_name(database: Database, spark: SparkSession) -> None:
    database.run(
        "CREATE TYPE mood AS ENUM ('happy', 'so, so')",
        "CREATE TABLE a (id int PRIMARY KEY, " + ", ".join(f"{name} {kind[0]}" for name, kind in EDGES.items()) + ")",
        "ALTER TABLE a REPLICA IDENTITY FULL",
    )
    cases = [(name, value, shown) for name, (_, held, _) in EDGES.items() for value, shown in held.items()]
    cases += [(name, value, None) for name, (_, _, lost) in EDGES.items() for value in lost]
    for n, (name, value, _) in enumerate(cases):
        database.sql.execute(f"INSERT INTO a (id, {name}) VALUES ({n}, %s)", [value])
    source = database.source()
    first = database.read(source)
    database.run("UPDATE a SET id = id + 1000", "DELETE FROM a")
    pages = [page for page in first + database.read(source, first[-1].checkpoint) if page.rows.num_rows]
    (table,) = {table for page in pages for table in page.schemas.values()}
    rows = [(r["topic"], 0, n, r["value"]) for n, r in enumerate(r for page in pages for r in page.rows.to_pylist())]
    messages = frame(spark, rows, "topic string, partition int, offset bigint, value binary")
    shown = [F.when(F.col(name).isNotNull(), F.col(name).cast("string")).alias(name) for name in EDGES]
    opened = debezium.open_rows(messages, table, 1, 1 << 20).select("_cdc_op", "_cdc_problem", "id", *shown)
    seen = {(row["_cdc_op"], row["id"]): row for row in opened.collect()}
    for n, (name, value, expected) in enumerate(cases):
        for row in (seen["r", n], seen["c", n + 1000]):
            if expected is None:
                assert f'column "{name}"' in (row["_cdc_problem"] or ""), (name, value, row)
            else:
                assert (row["_cdc_problem"], row[name]) == (None, expected), (name, value)
        # What cannot be held must not keep a row from being deleted.
        assert seen["d", n]["_cdc_problem"] is None
        assert seen["d", n + 1000]["_cdc_problem"] is None
