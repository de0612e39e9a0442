"""Tables in one database of a MySQL or MariaDB server, kept current in transactions of their own.

Rows come in by INSERT, many at a time, into a temporary table, and are folded in by a few statements over sets. The
session is strict: a value that does not fit is an error, and so is one that the server would cut with no more than a
warning. Keys and positions are compared byte by byte, so that `a`, `A` and `a ` are three keys.

A statement that makes or alters a table commits by itself here, so `_sql/shape.py` notes what it is about to do.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tailrace.config.address import SETTINGS, taken_apart
from tailrace.core.errors import Halt, Misconfigured, Unreachable
from tailrace.core.table import Column, Table
from tailrace.targets._columns import POSITION
from tailrace.targets._mysql_session import MySQL, place
from tailrace.targets._sql.dialect import Dialect, Kind, Session, is_nested, json_kind, text_kind
from tailrace.targets._sql.table import Mode
from tailrace.targets._sql.target import TOMBSTONE_DAYS, SqlTarget, one_table


class Options(BaseModel):
    """The keys under `mysql` of a sink."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, populate_by_name=True)

    host: str = "localhost"
    """Where the server is."""
    port: int = Field(3306, ge=1, le=65535)
    """The server's port."""
    database: str = Field(min_length=1)
    """The database to log in to."""
    username: str = Field("cdc_user", min_length=1)
    """The user to log in as: it needs to make, alter, read and write tables, and temporary ones."""
    password: SecretStr = SecretStr("")
    """The user's password."""
    within: str = Field("", alias="schema")
    """The database that holds the tables, if it is another one; it is made if it is not there."""
    tombstone_days: int = Field(default=TOMBSTONE_DAYS, ge=1)
    """How many days a deleted row is remembered, so that no late event brings it back."""


def open_target(
    name: str,
    options: Options,
    *,
    spark: Callable[[], SparkSession],
    pipeline_id: str,
    tables: Mapping[str, str],
    mode: Mode,
) -> SqlTarget:
    """Return the target that `options` describe; nothing is connected yet."""
    login = {
        "host": options.host,
        "port": options.port,
        "database": options.database,
        "user": options.username,
        "password": options.password.get_secret_value(),
    }
    return SqlTarget(
        name,
        MySQL(login, dialect(options.within or options.database)),
        spark=spark,
        pipeline_id=pipeline_id,
        tables=tables,
        mode=mode,
        tombstone_days=options.tombstone_days,
    )


def open_table(
    where: str, table: str, spark: SparkSession, mode: Mode, pipeline_id: str = "apply_changes"
) -> SqlTarget:
    """Return a target of one `table`; `where` is `<dsn>#<schema.table>`, or `<dsn>#<table>` in the database named."""
    dsn, _, last = where.rpartition("#")
    # A scheme that comes with the name of the target is not written twice.
    parts = taken_apart(f"mysql:{dsn}" if dsn.startswith("//") else dsn)
    if parts is None or SETTINGS in parts or "username" not in parts or not parts.get("port", "0").isdigit():
        text = "the mysql target has no valid connection string" if dsn else "the mysql target names no table"
        raise Misconfigured("unknown-target", text, _FORM)
    schema, _, name = last.partition(".") if "." in last else (parts["database"], "", last)
    if not schema or not name:
        raise Misconfigured("unknown-target", "the mysql target names no table", _FORM)
    user, port = parts.pop("username"), int(parts.get("port", "3306"))
    login = {**parts, "user": user, "port": port}
    return one_table(name, table, MySQL(login, dialect(schema)), spark, mode, pipeline_id)


_FORM = 'Write "mysql:mysql://user:password@host:port/database#<table>", or "#<schema.table>" for another database.'


def quote(name: str) -> str:
    """Return `name` as an identifier of MySQL."""
    return "`" + name.replace("\x00", "_").replace("`", "``") + "`"


def literal(text: str) -> str:
    """Return `text` as a literal of MySQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


_TEXT, _BYTES, _TIME = "LONGTEXT CHARACTER SET utf8mb4", "LONGBLOB", "DATETIME(6)"
# A collation that takes spaces at the end for what they are has a name of its own in MariaDB and in MySQL, and each of
# them takes the other's comment for a comment.
_EXACT = " COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */"
_PLAIN = {
    "string": Kind(_TEXT, pa.string(), ranged=True),
    "boolean": Kind("BOOLEAN", pa.int64(), lambda v: v.cast("int"), lambda v: v.cast("boolean")),
    "tinyint": Kind("TINYINT", pa.int64(), back=lambda v: v.cast("tinyint"), ranged=True),
    "smallint": Kind("SMALLINT", pa.int64(), back=lambda v: v.cast("smallint"), ranged=True),
    "int": Kind("INT", pa.int64(), back=lambda v: v.cast("int"), ranged=True),
    "bigint": Kind("BIGINT", pa.int64(), ranged=True),
    # A FLOAT is shown to six digits to whoever reads it.
    "float": Kind("DOUBLE", pa.float64(), lambda v: v.cast("double"), lambda v: v.cast("float")),
    "double": Kind("DOUBLE", pa.float64()),
    # Bytes cross over as their digits.
    "binary": Kind(_BYTES, pa.binary(), lambda v: F.hex(v).cast("binary")),
    "date": text_kind("DATE", "date", ranged=True),
    # Arrow writes a timestamp on its way in, where it knows the zone.
    "timestamp": Kind(_TIME, pa.string(), back=lambda v: F.concat(v, F.lit("Z")).cast("timestamp")),
    "timestamp_ntz": Kind(_TIME, pa.string(), back=lambda v: v.cast("timestamp_ntz")),
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def kind(name: str) -> Kind:
    """Return how values of the Spark type called `name` are stored."""
    if decimal := _DECIMAL.fullmatch(name):
        if int(decimal[2]) > 30:
            hint = "Leave the column out with columns, or give it a smaller scale."
            raise Halt("unsupported-type", f"MySQL has no {name}: it keeps 30 digits behind the point", hint)
        return text_kind(name.upper(), name, ranged=True)
    if is_nested(name):
        # In JSON of MySQL a number with a point is a double.
        return json_kind(_TEXT if "decimal" in name or "variant" in name else "JSON", name)
    return _PLAIN.get(name) or text_kind(_TEXT, name)


_KEY, _POSITION = 768, 192
"""So many characters a primary key may have; a position has so many of them in mode scd2."""


def key(name: str, told: Sequence[str]) -> str:
    """Return the type of a key of the Spark type called `name`: text and bytes share what a primary key may have."""
    keys = [column for column in told if column != POSITION]
    share = (_KEY - (_POSITION if POSITION in told else 0)) // max(len(keys), 1)
    own = kind(name).sql
    if own == _BYTES:
        return f"VARBINARY({share * 4})"
    return f"VARCHAR({share}) CHARACTER SET utf8mb4{_EXACT}" if own in (_TEXT, "JSON") else own


def cast(value: str, sql: str) -> str:
    """Return a bound value as it is stored in a column of the type `sql`."""
    return {_BYTES: f"UNHEX({value})", _TIME: f"REPLACE({value}, 'Z', '')"}.get(sql, value)


def widen(table: str, column: str, old: str, new: str) -> list[str]:
    """Return what gives a column its new type."""
    have, want = kind(old).sql, kind(new).sql
    return [] if have == want else [f"ALTER TABLE {table} MODIFY COLUMN {column} {want}"]


def columns(session: Session, table: str) -> Collection[str]:
    """Return the names of the columns of `table`, in small letters."""
    return {row[0].lower() for row in session.ask(f"SHOW COLUMNS FROM {table}")}


_REFLECTED = {
    r"tinyint\(1\)": "boolean",
    r"tinyint(\(\d+\))?": "tinyint",
    r"smallint(\(\d+\))?": "smallint",
    r"int(\(\d+\))?": "int",
    r"bigint(\(\d+\))?": "bigint",
    r"double": "double",
    r"varchar\(\d+\)|(tiny|medium|long)?text": "string",
    r"varbinary\(\d+\)|(tiny|medium|long)?blob": "binary",
    r"date": "date",
    r"datetime\(6\)": "timestamp_ntz",
    r"timestamp\(6\)": "timestamp",
}
_WHOLE = ("utf8mb4_nopad_bin", "utf8mb4_0900_bin")


def _reflect(schema: str, exists: str) -> Callable[[Session, str], Table | str]:
    engine = exists.replace("SELECT 1", "SELECT engine", 1)

    def reflect(session: Session, name: str) -> Table | str:
        table = f"{quote(schema)}.{quote(name)}"
        if session.ask(engine, [name]) != [("InnoDB",)]:
            return "it is not an InnoDB table"
        listed = session.ask(f"SHOW INDEX FROM {table} WHERE Key_name = 'PRIMARY'")
        keys = {row[4]: (row[3], row[7]) for row in listed}
        found = []
        for column, declared, collation, null, _, _, extra, *_ in session.ask(f"SHOW FULL COLUMNS FROM {table}"):
            if column == POSITION:
                continue  # Left by a try to take the table over that broke off.
            spark = _reflected(declared)
            if spark is None or extra not in ("", "DEFAULT_GENERATED") or (spark == "timestamp" and null != "YES"):
                return f'its column "{column}" is {" ".join((declared, "" if null == "YES" else "not null", extra))}'
            if column in keys and (keys[column][1] or (spark == "string" and collation not in _WHOLE)):
                return f'its key "{column}" is not compared byte by byte, as with COLLATE {" or ".join(_WHOLE)}'
            found.append(Column(column, spark))
        ordered = tuple(sorted(keys, key=lambda column: int(keys[column][0])))
        return Table(name, tuple(found), ordered) if keys else "it has no primary key"

    return reflect


def _reflected(declared: str) -> str | None:
    if _DECIMAL.fullmatch(declared):
        return declared
    return next((spark for form, spark in _REFLECTED.items() if re.fullmatch(form, declared)), None)


def dialect(schema: str) -> Dialect:
    """Return how MySQL spells things in the database called `schema`."""
    here = literal(schema)
    same = "CAST(table_name AS CHAR CHARACTER SET utf8mb4)"
    exists = (
        f"SELECT 1 FROM information_schema.tables WHERE table_schema = {here} AND IF(@@lower_case_table_names = 0, "
        f"{same} COLLATE utf8mb4_bin = {place(1)}, lower({same}) COLLATE utf8mb4_bin = lower({place(1)}))"
    )
    lock = literal("tailrace " + hashlib.sha256(schema.encode()).hexdigest()[:40])

    def before(session: Session) -> None:
        # Two that make or alter a table at once would both begin. The lock ends with the session.
        if session.ask(f"SELECT GET_LOCK({lock}, 600)") != [(1,)]:
            raise Unreachable("target-locked", f'another process changes tables of database "{schema}"')
        if not session.ask(f"SELECT 1 FROM information_schema.schemata WHERE schema_name = {here}"):
            session.run(f"CREATE DATABASE IF NOT EXISTS {quote(schema)} CHARACTER SET utf8mb4")

    return Dialect(
        "MySQL",
        kind,
        quote,
        parameter=place,
        exists=exists,
        positioned=lambda name: f"SHOW COLUMNS FROM {quote(schema)}.{quote(name)} WHERE Field = '{POSITION}'",
        widen=widen,
        reflect=_reflect(schema, exists),
        schema=quote(schema),
        stage="CREATE TEMPORARY TABLE {name} ({columns}, PRIMARY KEY ({keys}))",
        now="UTC_TIMESTAMP(6)",
        lock=" FOR UPDATE",
        position=f"VARCHAR({_POSITION}) CHARACTER SET utf8mb4{_EXACT}",
        collate=_EXACT,
        key=key,
        before=before,
        columns=columns,
        joins=True,
        cast=cast,
        longest=64,
        unfit=re.compile("[\x00\ud800-\udfff\U00010000-\U0010ffff]|\\s\\Z"),
    )
