"""Tables in one schema of a PostgreSQL database, kept current in transactions of their own.

Rows come in by COPY, into a temporary table, and are folded in by a few statements over sets. Everything of a
transaction is in it, so a pooler that hands out a connection for each transaction will do. What PostgreSQL has no
type for is `jsonb`; a tinyint is a `smallint`. Text cannot hold the character 0: a value with one halts.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import psycopg
import pyarrow as pa
import pyarrow.csv as pc
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator
from pyspark.sql import Column as Expression
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tailrace.config.model import NotYet
from tailrace.core.errors import Halt, Misconfigured, NotReady, Retryable, TailraceError, Unreachable
from tailrace.core.nested import element_of
from tailrace.core.table import Column, Table
from tailrace.targets._columns import POSITION
from tailrace.targets._sql.crossing import in_utc
from tailrace.targets._sql.dialect import JSON, Dialect, Kind, Session, Values, is_nested, json_kind, text_kind
from tailrace.targets._sql.dialect import double_quoted as quote
from tailrace.targets._sql.events import EventsTarget
from tailrace.targets._sql.table import Mode
from tailrace.targets._sql.target import TOMBSTONE_DAYS, SqlTarget, one_table


class Options(BaseModel):
    """The keys under `postgres` of a sink."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, populate_by_name=True)

    host: str = "localhost"
    """Where the server is."""
    port: int = Field(5432, ge=1, le=65535)
    """The server's port."""
    database: str = Field(min_length=1)
    """The database to write to."""
    username: str = Field("cdc_user", min_length=1)
    """The user to log in as: it needs CREATE on the schema."""
    password: SecretStr = SecretStr("")
    """The user's password."""
    within: str = Field("public", alias="schema", min_length=1)
    """The schema that holds the tables; it is made if it is not there."""
    tombstone_days: int = Field(default=TOMBSTONE_DAYS, ge=1)
    """How many days a deleted row is remembered, so that no late event brings it back."""
    target_table: str | None = Field(None, pattern=r"^[^.]+(\.[^.]+)?$", max_length=127)
    """A table, `name` or `schema.name`, to hold the events of all tables as JSON, a row each, in mode append; instead
    of a table for each."""
    upsert: bool = False
    """With `target_table`: an event replaces one of the same topic, partition and offset. The table then has a unique
    constraint on these three."""
    batch_size: Annotated[
        int | None, NotYet("has no effect", "slice.max_rows of the platform bounds a batch.", refuse=False)
    ] = None
    """How many rows to write at a time."""

    @model_validator(mode="after")
    def _upsert_into_one_table(self) -> Options:
        if self.upsert and not self.target_table:
            raise ValueError("upsert is for target_table; a table of rows is always kept by its key")
        return self

    @property
    def implied_mode(self) -> str | None:
        """The sink's mode, if `target_table` says it."""
        return "append" if self.target_table else None


def folds_case(_: Options) -> bool:
    """Say no: a name is always quoted."""
    return False


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
        "dbname": options.database,
        "user": options.username,
        "password": options.password.get_secret_value(),
    }
    if options.target_table:
        schema, _, own = options.target_table.rpartition(".")
        database = Postgres(login, schema or options.within)
        return EventsTarget(
            name, database, own, upsert=options.upsert, spark=spark, pipeline_id=pipeline_id, tables=tuple(tables)
        )
    return SqlTarget(
        name,
        Postgres(login, options.within),
        spark=spark,
        pipeline_id=pipeline_id,
        tables=tables,
        mode=mode,
        tombstone_days=options.tombstone_days,
    )


def open_table(
    where: str, table: str, spark: SparkSession, mode: Mode, pipeline_id: str = "apply_changes"
) -> SqlTarget:
    """Return a target of one `table`; `where` is `<dsn>#<schema.table>`, without a schema in `public`."""
    dsn, _, place = where.rpartition("#")
    schema, _, name = place.partition(".") if "." in place else ("public", "", place)
    if not dsn or not schema or not name:
        raise Misconfigured("unknown-target", "the postgres target names no table", _FORM)
    # A scheme that comes with the name of the target is not written twice.
    full = f"postgresql:{dsn}" if dsn.startswith("//") else dsn
    try:
        login = conninfo_to_dict(full)
    except psycopg.Error:
        raise Misconfigured("unknown-target", "the postgres target has no valid connection string", _FORM) from None
    return one_table(name, table, Postgres(login, schema), spark, mode, pipeline_id)


_FORM = 'Write "postgres:postgresql://user:password@host/database#<schema.table>".'


def literal(value: object) -> str:
    """Return `value` as a literal of PostgreSQL."""
    return sql.Literal(value).as_string(None)


def _from_hex(value: Expression) -> Expression:
    return F.unhex(F.substring(value, 3, 2**31 - 1))


_C = ' COLLATE "C"'
_PLAIN = {
    "string": Kind("text", pa.string(), ranged=True),
    "boolean": Kind("boolean", pa.bool_()),
    "tinyint": Kind("smallint", pa.int64(), back=lambda v: v.cast("tinyint"), ranged=True),
    "smallint": Kind("smallint", pa.int64(), back=lambda v: v.cast("smallint"), ranged=True),
    "int": Kind("integer", pa.int64(), back=lambda v: v.cast("int"), ranged=True),
    "bigint": Kind("bigint", pa.int64(), ranged=True),
    "float": Kind("real", pa.float32()),
    "double": Kind("double precision", pa.float64()),
    "binary": Kind("bytea", pa.string(), lambda v: F.concat(F.lit("\\x"), F.hex(v)), _from_hex),
    "date": text_kind("date", "date", ranged=True),
    # Arrow writes a timestamp on its way in, where it knows the zone.
    "timestamp": Kind("timestamptz", pa.string(), back=lambda v: v.cast("timestamp")),
    "timestamp_ntz": Kind("timestamp", pa.string(), back=lambda v: v.cast("timestamp_ntz")),
    # It keeps the text, which jsonb does not; see ADR 29.
    "json": Kind("json", pa.string()),
    # These are met in tables that somebody else has made.
    "jsonb": Kind("jsonb", pa.string()),
    "uuid": Kind("uuid", pa.string()),
    "text": Kind("text", pa.string(), ranged=True),
}
_LISTED = ("string", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date", "decimal")
"""Arrays of these are arrays in PostgreSQL too; others are JSON."""


def kind(name: str) -> Kind:
    """Return how values of the Spark type called `name` are stored."""
    if name.startswith("decimal("):
        return text_kind(f"numeric{name[7:]}", name, ranged=True)
    element = element_of(name)
    if element is not None and element.partition("(")[0] in _LISTED:
        array = json_kind("", name)
        return Kind(f"{kind(element).sql}[]", pa.string(), _array, array.back, read="array_to_json({})")
    return _PLAIN.get(name) or (json_kind("jsonb", name) if is_nested(name) else text_kind("text", name))


def _array(value: Expression) -> Expression:
    def quoted(item: Expression) -> Expression:
        text = F.regexp_replace(item.cast("string"), r'(["\\])', r"\\$1")
        return F.coalesce(F.concat(F.lit('"'), text, F.lit('"')), F.lit("NULL"))

    return F.concat(F.lit("{"), F.array_join(F.transform(value, quoted), ","), F.lit("}"))


def widen(table: str, column: str, old: str, new: str) -> list[str]:
    """Return what gives a column its new type."""
    have, want = kind(old).sql, kind(new).sql
    value = f"{column}::timestamp AT TIME ZONE 'UTC'" if (old, new) == ("date", "timestamp") else f"{column}::{want}"
    if want == "jsonb":
        # An array of days that become moments; it has no cast to JSON.
        value = f"to_jsonb({column})"
    return [] if have == want else [f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {want} USING {value}"]


_REFLECTED = {
    "text": "string",
    "character varying": "string",
    "character": "string",
    "boolean": "boolean",
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "real": "float",
    "double precision": "double",
    "bytea": "binary",
    "date": "date",
    "timestamp with time zone": "timestamp",
    "timestamp without time zone": "timestamp_ntz",
    "json": "json",
    "jsonb": "jsonb",
    "uuid": "uuid",
}
_COLUMNS = """
SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), array_position(i.indkey::int[], a.attnum::int),
       coalesce(c.collname, 'C'), a.attidentity = 'a'
FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
LEFT JOIN pg_collation c ON c.oid = a.attcollation
WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


def _reflect(schema: str) -> Callable[[Session, str], Table | str]:
    def reflect(session: Session, name: str) -> Table | str:
        columns, keys = [], {}
        for column, declared, place, collation, numbered in session.ask(_COLUMNS, [f"{quote(schema)}.{quote(name)}"]):
            numeric = re.fullmatch(r"numeric\((\d+,\d+)\)", declared)
            kind = (
                f"decimal({numeric[1]})"
                if numeric
                else _REFLECTED.get(re.sub(r"^(character( varying)?)\(\d+\)$", r"\1", declared))
            )
            if kind is None or (place is not None and (kind in JSON or declared.startswith("character("))):
                return f'its {"column" if place is None else "key"} "{column}" is of type {declared}'
            if numbered and place is None:
                return f'its column "{column}", which is no key, is GENERATED ALWAYS AS IDENTITY'
            if place is not None:
                keys[place] = column
                if collation not in ("C", "default"):
                    return f'its key "{column}" is neither COLLATE "C" nor of the collation of the database'
                # No two texts are one in the collation of a database; what it is compared with must have the same.
                kind = "text" if collation == "default" and kind == "string" else kind
            columns.append(Column(column, kind))
        return Table(name, tuple(columns), tuple(keys[n] for n in sorted(keys))) if keys else "it has no primary key"

    return reflect


def dialect(schema: str) -> Dialect:
    """Return how PostgreSQL spells things in `schema`."""
    here = literal(schema)
    missing = f"NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = {here})"
    make = f"BEGIN IF {missing} THEN CREATE SCHEMA {quote(schema)}; END IF; END"

    def before(session: Session) -> None:
        # Two that make their first tables at once would both make the control table.
        session.run(f"SELECT pg_advisory_xact_lock(hashtextextended({literal('tailrace ' + schema)}, 0))")
        session.run(f"DO {literal(make)}")

    return Dialect(
        "PostgreSQL",
        kind,
        quote,
        parameter=lambda n: f"${n}",
        exists="SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        f"WHERE n.nspname = {here} AND c.relname = CAST($1 AS name) AND c.relkind IN ('r','p','v','m','f')",
        positioned=lambda name: (
            "SELECT 1 FROM pg_catalog.pg_attribute WHERE attname = "
            f"'{POSITION}' AND NOT attisdropped AND attrelid = to_regclass({literal(f'{quote(schema)}.{quote(name)}')})"
        ),
        widen=widen,
        reflect=_reflect(schema),
        schema=quote(schema),
        stage="CREATE TEMPORARY TABLE {name} ({columns}) ON COMMIT DROP",
        staged=("ANALYZE {name}",),
        lock=" FOR UPDATE",
        position=f"text{_C}",
        collate=_C,
        before=before,
        documents=True,
        given="OVERRIDING SYSTEM VALUE ",
        literal=literal,
        longest=63,
    )


LOCK_WAIT = "60s"
"""For so long a statement waits for a lock that somebody else holds."""
_DEAD_PEER = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 60_000}
"""A server that is gone without a word is noticed after a minute, and not when the kernel gives up hours later."""


_READ_ONLY = "25006"
_NOT_NOW = (_READ_ONLY, "25P03", "25P04")
"""What a server says that may not be written to, or that a transaction took too long for."""


class Postgres:
    """A database, connected to anew for every transaction."""

    errors: tuple[type[Exception], ...] = (psycopg.Error,)

    def __init__(self, login: Mapping[str, Any], schema: str) -> None:
        ours = {"connect_timeout": 10, "application_name": "tailrace", **_DEAD_PEER}
        self._login = {**ours, **login, "client_encoding": "UTF8"}
        self.dialect = dialect(schema)

    @contextlib.contextmanager
    def connect(self, *, write: bool) -> Iterator[_Session]:
        with contextlib.closing(
            psycopg.connect(**self._login, cursor_factory=psycopg.RawCursor, prepare_threshold=None, autocommit=True)
        ) as connection:
            # Several queries of a reader see one state; a writer sees what the lock it waited for has left.
            session = _Session(connection, "BEGIN" if write else "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            session.begin()
            # Closing without a commit undoes everything.
            yield session

    def translate(self, error: Exception, what: str) -> TailraceError:
        state = (getattr(error, "sqlstate", None) or "") if isinstance(error, psycopg.Error) else ""
        name = type(error).__name__
        if state in ("40P01", "40001", "55P03"):
            hint = "Nothing was committed. Apply the batch again, one writer at a time."
            said = f"PostgreSQL gave way to another transaction while {what} ({name})"
            # Whoever has the lock may have it for long, and is not to be outlived.
            return (Unreachable if state == "55P03" else Retryable)("write-conflict", said, hint)
        if state == "53100":
            hint = "Nothing was committed. Free some space; the batch is then applied again."
            return Unreachable("disk-full", f"PostgreSQL had no space left while {what}", hint)
        if state[:2] in ("53", "57", "58") or state in _NOT_NOW:
            hint = "Nothing was committed. See in the server's log what it lacks, and apply the batch again."
            # Its own words for: not now, the server starts or ends, or is another one's copy until a failover is over.
            kind = Unreachable if state.startswith("57P") or state == _READ_ONLY else Retryable
            return kind("target-unavailable", f"PostgreSQL could not go on while {what} ({name})", hint)
        if state == "42501":
            hint = f'Give the user "{self._login.get("user")}" CREATE on the schema, and its own tables.'
            return NotReady("missing-grant", f"PostgreSQL refused the right to do it while {what}", hint)
        if state[:2] == "23":
            hint = "Something else has put a constraint on the table. Remove it, or leave the column out with columns."
            return Halt("constraint-violated", f"a row breaks a constraint, met while {what} ({name})", hint)
        if state in ("22001", "22021", "22P02", "22P05", "54000", "22008", "22003"):
            hint = "PostgreSQL cannot hold it: text has no character 0 and is no longer than its column allows, json "
            hint += (
                "is JSON, and a key must be short enough for an index. Widen the column if it is yours, mend the row "
            )
            hint += "in the source, or leave the column out with columns."
            return Halt("value-refused", f"PostgreSQL cannot store a value, met while {what} ({name})", hint)
        if isinstance(error, psycopg.OperationalError) and (not state or state[:2] == "08"):
            return self._unreachable(error, what)
        return Halt(
            "sql-failed",
            f"PostgreSQL failed while {what}: {name} {state}",
            "The cause is in the log, below this error. Nothing of the batch was committed.",
        )

    def _unreachable(self, error: psycopg.Error, what: str) -> TailraceError:
        said, user = str(error), self._login.get("user")
        if "password" in said and ("authentication failed" in said or "no password supplied" in said):
            hint = "Set username and password of the target."
            return NotReady("wrong-password", f'PostgreSQL refused the password of user "{user}"', hint)
        if 'database "' in said and "does not exist" in said:
            hint = "Set database of the target, or create it."
            return NotReady("unknown-database", f'PostgreSQL has no database "{self._login.get("dbname")}"', hint)
        if "pg_hba.conf" in said or 'role "' in said:
            hint = "Create the role, or add it to pg_hba.conf."
            return NotReady("login-refused", f'PostgreSQL refused the login of user "{user}"', hint)
        hint = "See that the server is up, and that host and port are right."
        return Unreachable(
            "target-unavailable", f"the connection to PostgreSQL was lost, or not made, while {what}", hint
        )


class _Session:
    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]], start: str) -> None:
        self._connection = connection
        self._start = start

    def begin(self) -> None:
        """Start a transaction that writes values as `kind` reads them, whatever the server is set to."""
        self.run(self._start)
        settings = {"TimeZone": "UTC", "DateStyle": "ISO", "bytea_output": "hex", "extra_float_digits": "1"}
        settings["lock_timeout"] = LOCK_WAIT
        self.run("; ".join(f"SET LOCAL {name} = '{value}'" for name, value in settings.items()))

    def run(self, sql: str, values: Values = ()) -> int:
        return self._connection.execute(sql.encode(), values or None).rowcount

    def ask(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql.encode(), values or None).fetchall()

    def fetch(self, sql: str, values: Values, kinds: Mapping[str, Kind]) -> pa.Table:
        types = {f"c{n}": kind.arrow for n, kind in enumerate(kinds.values())}
        copied = io.BytesIO()
        with self._connection.cursor().copy(f"COPY ({sql}) TO STDOUT (FORMAT csv)".encode()) as rows:
            for block in rows:
                copied.write(block)
        size = copied.tell()
        if not size:
            return pa.schema(types.items()).empty_table()
        copied.seek(0)
        return pc.read_csv(
            copied,
            # A row must lie within one block.
            read_options=pc.ReadOptions(
                column_names=list(types), block_size=min(max(size + 1, 1 << 20), (1 << 31) - 1)
            ),
            parse_options=pc.ParseOptions(newlines_in_values=True),
            convert_options=pc.ConvertOptions(
                column_types=types,
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=[""],
                true_values=["t"],
                false_values=["f"],
            ),
        )

    def load(self, table: str, columns: Sequence[str], batches: Iterable[pa.RecordBatch]) -> None:
        statement = f"COPY {table} ({', '.join(columns)}) FROM STDIN (FORMAT csv)"
        with self._connection.cursor().copy(statement.encode()) as rows:
            for batch in batches:
                buffer = pa.BufferOutputStream()
                pc.write_csv(_numbered(batch), buffer, pc.WriteOptions(include_header=False))
                rows.write(buffer.getvalue())

    def commit(self) -> None:
        self.run("COMMIT")
        self.begin()


def _numbered(batch: pa.RecordBatch) -> pa.RecordBatch:
    # A session is in UTC, so a time without a zone is taken for one there.
    columns = [in_utc(column) if pa.types.is_timestamp(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, [f"c{n}" for n in range(len(columns))])
