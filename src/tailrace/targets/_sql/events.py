"""One table that holds the events of all tables of a pipeline, as JSON: a row for each message of the log.

    event_key, event_value, source_topic, source_partition, source_offset

Every source table has a control row of its own, and its events and its mark are one transaction, so each event is
there once. The table may be one that somebody has made for it, with these columns and others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tailrace.apply.engine import OFFSET, OP, PARTITION, TOPIC, column
from tailrace.apply.target import Applied, Batch
from tailrace.core.change import Op
from tailrace.core.errors import Halt
from tailrace.core.failpoint import failpoint
from tailrace.core.table import Fit, Table
from tailrace.targets._events import JSON, after_of, before_of, key_of, told_of, value
from tailrace.targets._sql.control import Entry, Owner
from tailrace.targets._sql.dialect import Database, Session
from tailrace.targets._sql.table import SqlTable
from tailrace.targets._sql.target import SqlTarget

ORIGIN = {"source_topic": "string", "source_partition": "int", "source_offset": "bigint"}
COLUMNS = {"event_key": "string", "event_value": "string", **ORIGIN}

_UNIQUE = """
SELECT 1 FROM pg_index i
WHERE i.indrelid = to_regclass($1) AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND (
    SELECT array_agg(a.attname::text ORDER BY a.attname::text COLLATE "C")
    FROM generate_series(0, i.indnkeyatts - 1) n LEFT JOIN pg_attribute a
    ON a.attrelid = i.indrelid AND a.attnum = i.indkey[n]
) = $2::text[]
"""


class EventsTarget(SqlTarget):
    """A table of events; see `apply.target.Target` and `Sending` for what each method promises."""

    sends = True

    def __init__(
        self,
        name: str,
        database: Database,
        event_table: str,
        *,
        upsert: bool,
        spark: Callable[[], SparkSession],
        pipeline_id: str,
        tables: Sequence[str],
    ) -> None:
        names = dict.fromkeys(tables, event_table)
        super().__init__(name, database, spark=spark, pipeline_id=pipeline_id, tables=names, mode="append")
        self._upsert = upsert

    def have(self, table: str) -> Table | None:
        """Return nothing: an event has whatever columns its change has."""
        return None

    def notes(self, table: str) -> dict[str, str]:
        return {}

    def _open(self, table: str) -> SqlTable:
        owner = Owner(self._pipeline_id, self.name, table)
        return EventTable(self._spark, self._database, self._names[table], owner, upsert=self._upsert)


class EventTable(SqlTable):
    """The events of one source table, in the table that they share."""

    def __init__(
        self, spark: Callable[[], SparkSession], database: Database, name: str, owner: Owner, *, upsert: bool
    ) -> None:
        super().__init__(spark, database, name, owner, "append")
        self._shared = name
        self._name = f"{name}#{owner.table}"
        self._upsert = upsert
        self._suits = False

    def evolve(self, change: Fit) -> None:
        """Make the table and the control row if they are not there."""
        failpoint("C20")
        with self._session("reading the schema") as session:
            if self._entry(session) is not None:
                self._refuse_unsuited(session)
                return
        with self._session("making the table", write=True) as session:
            if self._dialect.before is not None:
                self._dialect.before(session)
            self._control.create(session)
            if self._control.exists(session, self._shared):
                self._refuse_other_columns(session)
                self._refuse_unsuited(session)
            else:
                self._create(session)
            self._control.put(
                session, self._name, Entry(self._owner.text(), "append", Table(change.table.name, (), ()))
            )
            session.commit()
        failpoint("C21")

    def _append(self, session: Session, entry: Entry, batch: Batch) -> Applied:
        rows = events(batch.rows, batch.table)
        if not self._upsert:
            return Applied(inserted=self._load(session, self._table, rows, COLUMNS))
        names = ", ".join(COLUMNS)
        session.run(
            f"CREATE TEMPORARY TABLE {self._stage} ON COMMIT DROP AS SELECT {names} FROM {self._table} WITH NO DATA"
        )
        count = self._load(session, self._stage, rows, COLUMNS)
        sets = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name not in ORIGIN)
        written = session.run(
            f"INSERT INTO {self._table} AS stored ({names}) SELECT {names} FROM {self._stage} "
            f"ON CONFLICT ({', '.join(ORIGIN)}) DO UPDATE SET {sets} "
            f"WHERE {_position('stored')} = {_position('excluded')}"
        )
        if written < count:
            self._refuse_another_event(session)
        return Applied(inserted=count)

    def _create(self, session: Session) -> None:
        origin = ", ".join(f"{name} {self._dialect.kind(kind).sql} NOT NULL" for name, kind in ORIGIN.items())
        unique = f", UNIQUE ({', '.join(ORIGIN)})" if self._upsert else ""
        session.run(f"CREATE TABLE {self._table} (event_key jsonb, event_value jsonb NOT NULL, {origin}{unique})")

    def _refuse_other_columns(self, session: Session) -> None:
        found = session.ask(
            "SELECT attname::text FROM pg_attribute "
            "WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped",
            [self._table],
        )
        missing = [name for name in COLUMNS if (name,) not in found]
        if missing:
            raise Halt(
                "foreign-table",
                f'the table "{self._shared}" has no column "{missing[0]}", which a table of events has',
                "Nothing was written to it. Give target_table another name, or make the table with its five columns.",
            )

    def _refuse_unsuited(self, session: Session) -> None:
        """Halt if the table cannot be upserted into; one that can is asked once."""
        if not self._upsert or self._suits:
            return
        if not session.ask(_UNIQUE, [self._table, sorted(ORIGIN)]):
            listed = ", ".join(ORIGIN)
            raise Halt(
                "constraint-missing",
                f'the table "{self._shared}" has no unique constraint on {listed}, which upsert needs',
                f"Nothing was written to it. Run ALTER TABLE ... ADD UNIQUE ({listed}), or set upsert to false.",
            )
        self._suits = True

    def _refuse_another_event(self, session: Session) -> None:
        """Halt if what lies where a new event belongs is not that event, as after offsets began again."""
        origin = ", ".join(ORIGIN)
        found = session.ask(
            f"SELECT {origin} FROM {self._table} AS stored JOIN {self._stage} AS staged USING ({origin}) "
            f"WHERE {_position('stored')} IS DISTINCT FROM {_position('staged')} ORDER BY {origin} LIMIT 1"
        )
        if found:
            topic, partition, offset = found[0]
            raise Halt(
                "events-of-another-log",
                f'the table "{self._shared}" has another event at offset {offset} of topic "{topic}", partition '
                f"{partition}, as from before the last resync, which the new one would replace",
                "Nothing of the batch was written. Move the events of before to another table, or give target_table "
                "another name.",
            )

    def _entry(self, session: Session, *, lock: bool = False) -> Entry | None:
        entry = self._control.load(session, self._name, self._owner.table, lock=lock, of=self._shared)
        if entry is not None and entry.owner != self._owner.text():
            raise self._foreign(f"belongs to pipeline, target and table {entry.owner}")
        return entry


def events(rows: DataFrame, table: Table) -> DataFrame:
    """Return the changes of a batch as rows of a table of events: one for each message of the log.

    A changed key is two changes of one message, a delete and what came of it: together they are one update.
    """
    names = dict(zip((TOPIC, PARTITION, OFFSET), ORIGIN, strict=True))
    told = dict(zip(("_cdc_at", "_cdc_source", "_cdc_left_out"), told_of(table), strict=True))
    parts = {"_cdc_key": key_of(table), "_cdc_before": before_of(table), "_cdc_after": after_of(table), **told}
    alive = (column(OP) != Op.DELETE.value).cast("int").alias("_cdc_half")
    split = rows.select(
        *(column(name).alias(own) for name, own in names.items()),
        column(OP),
        alive,
        *(part.alias(name) for name, part in parts.items()),
    )
    last = {name: F.max_by(name, "_cdc_half") for name in ("_cdc_key", *told)}
    op = F.when(F.count(F.lit(1)) > 1, Op.UPDATE.value).otherwise(F.max(OP))
    joined = split.groupBy(*ORIGIN).agg(
        op.alias(OP),
        *(F.first(name, ignorenulls=True).alias(name) for name in ("_cdc_before", "_cdc_after")),
        *(picked.alias(name) for name, picked in last.items()),
    )
    body = value(*(F.col(name) for name in (OP, "_cdc_before", "_cdc_after", *told)))
    return joined.select(_json(F.col("_cdc_key")).alias("event_key"), _json(body).alias("event_value"), *ORIGIN)


def _position(row: str) -> str:
    """Return the position of a stored event: that of no event of another life, however its columns are told."""
    return f"({row}.event_value::text::json #>> '{{source,position}}')"


def _json(document: Expression) -> Expression:
    return F.to_json(document, JSON)
