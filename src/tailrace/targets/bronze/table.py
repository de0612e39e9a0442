"""One bronze table: events are appended, in one commit with the mark of what the table then includes.

The mark stands in the metadata of the commit, and with it the number of the commit among ours. That number is Delta's
own transaction too, and Delta takes each once: of two processes that have read one mark, one commits (ADR 26). Only
what Delta offers to everybody is used (`DESCRIBE DETAIL`, `DESCRIBE HISTORY`, options of a write), so the same code
runs where Delta's classes have other names: on Databricks.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tailrace.apply.target import Applied, Batch, Mark, mark_from_json
from tailrace.core.errors import Halt, Retryable, TailraceError
from tailrace.core.failpoint import failpoint
from tailrace.core.table import RESERVED, Column, Fit, Table
from tailrace.spark.kinds import kind_of
from tailrace.targets._failures import LIBRARY_ERRORS, Format
from tailrace.targets._merge import quote
from tailrace.targets.bronze import columns
from tailrace.targets.bronze.place import Place

translate = Format(
    "delta-failed",
    "Delta",
    ("io.delta.exceptions.", "delta.Concurrent", "tahoe.Concurrent", "FileAlreadyExistsException"),
).translate

_STAMP = '{"tailrace":'
_FORMAT = 1
_RECENT = 20
"""How many commits are looked at for the mark, before all are: those of others lie in between."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was found of the table, or written to it. A commit of anybody else fails ours, and it is looked at anew."""

    properties: dict[str, str]
    mark: Mark | None
    commits: int
    """How many commits of ours the mark comes of."""


class BronzeTable:
    """The events of one source table; used by one thread at a time."""

    def __init__(self, base: SparkSession, place: Place, owner: tuple[str, str, str]) -> None:
        self._place = place
        self._owner = owner
        self._session = base.newSession()
        # Names and values come from outside: "${...}" in them is text.
        self._session.conf.set("spark.sql.variable.substitute", "false")
        self._session.conf.set("spark.sql.adaptive.enabled", "false")
        # As in `targets.delta`: other readers take a time far away in nanoseconds for another one.
        self._session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        self._seen: _Seen | None = None
        self._told: tuple[Mark | None] | None = None

    def mark(self) -> Mark | None:
        """Return what the rows include, also when an earlier change log brought them.

        A batch is made for the mark that was told last: if the table has another one by then, it is refused.
        """
        with self._doing("reading the mark"):
            found = self._open()
            self._told = (found.mark if found else None,)
            return self._told[0]

    def have(self) -> Table | None:
        """Return the columns for fields of documents; `None` if the table does not exist."""
        with self._doing("reading the schema"):
            if self._open() is None:
                return None
            fields = (field for field in self.rows().schema if not field.name.startswith(RESERVED))
            return Table(self._owner[2], tuple(Column(f.name, kind_of(f.dataType)) for f in fields), ())

    def notes(self) -> dict[str, str]:
        """Return what was to be remembered with the table when it was created."""
        with self._doing("reading the notes"):
            found = self._open()
            return dict(json.loads(found.properties.get(columns.KEYS[1], "{}"))) if found else {}

    def rows(self) -> DataFrame:
        """Return the events as stored."""
        return self._place.read(self._session)

    def evolve(self, change: Fit) -> None:
        """Create the table or add what it has no column for; a step that was done already is not done again."""
        failpoint("C20")
        with self._doing("changing the table"):
            if self._open() is None:
                owner, notes = columns.owner_of(*self._owner), json.dumps(dict(change.notes))
                self._place.create(self._session, columns.create_statement(self._place.sql, change.table, owner, notes))
            elif change.add:
                have = set(self.rows().columns)
                if missing := [c for c in change.add if c.name not in have]:
                    listed = ", ".join(f"{quote(c.name)} {c.type}" for c in missing)
                    self._session.sql(f"ALTER TABLE {self._place.sql} ADD COLUMNS ({listed})")
        failpoint("C21")

    def apply(self, batch: Batch) -> Applied:
        """Append the rows of `batch`, in one commit with its mark, unless the table includes them already."""
        with self._doing("appending a batch"):
            found = self._open() or _Seen({}, None, 0)
            if found.mark and found.mark.includes(batch.mark):
                return Applied()
            if self._told and self._told[0] != found.mark:
                raise self._conflict()
            failpoint("C19")
            number = found.commits + 1
            stamp = self._stamp(batch.mark, number)
            try:
                failpoint("C22")
                self._append(batch, number, stamp)
            except LIBRARY_ERRORS as error:
                # The outcome is unknown until the history has been asked: the commit may have landed all the same.
                landed = self._landed(stamp)
                if landed is None:
                    raise translate(error, f'appending to table "{self._owner[2]}"') from error
            else:
                failpoint("C23")
                landed = self._landed(stamp)
            if landed is None:
                raise self._not_taken(number, batch.mark)
        self._seen, self._told = replace(found, mark=batch.mark, commits=number), (batch.mark,)
        failpoint("C25")
        return landed

    def _not_taken(self, number: int, mark: Mark) -> TailraceError:
        """Return why Delta passed over a commit: somebody else has made one of this number, or nobody knows."""
        self._seen = None
        now = self._open()
        if now and now.commits >= number:
            return self._conflict()
        return Halt(
            "commit-not-seen",
            f'table "{self._owner[2]}" did not take the batch up to offset {mark.offset} of log "{mark.log}"',
            "Delta skips a commit that it has had before. Was the table restored, or replaced by a copy? "
            "Write to a new target table.",
        )

    def _conflict(self) -> Retryable:
        return Retryable(
            "write-conflict",
            f'another writer committed to table "{self._owner[2]}" in the meantime',
            "Nothing was written. Stop the other process that runs this pipeline.",
        )

    def _append(self, batch: Batch, number: int, stamp: str) -> None:
        app = "/".join(("tailrace", *self._owner))
        self._place.append(batch.rows, txnAppId=app, txnVersion=str(number), userMetadata=stamp)

    def _stamp(self, mark: Mark, number: int) -> str:
        told = {"tailrace": _FORMAT, "owner": list(self._owner), "mark": mark.to_json(), "commit": number}
        return json.dumps({**told, "attempt": secrets.token_hex(8)})

    def _landed(self, stamp: str) -> Applied | None:
        for row in self._history(f" LIMIT {_RECENT}").collect():
            if row["userMetadata"] == stamp:
                return Applied(inserted=int((row["operationMetrics"] or {}).get("numOutputRows", 0)))
        return None

    def _newest(self) -> tuple[Mark | None, int]:
        """Return the mark of the newest commit that carries one, and its number; halt if that may be gone."""
        recent = self._history(f" LIMIT {_RECENT}").collect()
        for row in recent:
            if row["operation"] == "RESTORE" or (row["userMetadata"] or "").startswith(_STAMP):
                return self._unstamp(row)
        if recent[-1]["version"] == 0:
            return None, 0
        every = self._history()
        ours = every.where(F.col("userMetadata").startswith(_STAMP) | (F.col("operation") == "RESTORE"))
        for row in ours.orderBy(F.desc("version")).limit(1).collect():
            return self._unstamp(row)
        if every.agg(F.min("version")).collect()[0][0] == 0:
            return None, 0
        raise Halt(
            "mark-lost",
            f'the mark of table "{self._owner[2]}" in target "{self._owner[1]}" no longer says what it includes',
            "The commit that carried it is too old, and events might be appended twice. Write to a new table.",
        )

    def _unstamp(self, row: Any) -> tuple[Mark, int]:
        if row["operation"] == "RESTORE":
            raise Halt(
                "table-restored",
                f'table "{self._owner[2]}" was restored to an earlier version, by commit {row["version"]}',
                "Its rows no longer include what its mark says. Drop the table, so that it is built again.",
            )
        stored = json.loads(row["userMetadata"])
        if stored["tailrace"] > _FORMAT:
            raise Halt(
                "mark-too-new",
                f'the mark of table "{self._owner[2]}" has format {stored["tailrace"]}, newer than {_FORMAT}',
                "A newer Tailrace wrote it. Run that one.",
            )
        return mark_from_json(stored["mark"]), int(stored["commit"])

    def _history(self, limit: str = "") -> DataFrame:
        return self._session.sql(f"DESCRIBE HISTORY {self._place.sql}{limit}")

    def _open(self) -> _Seen | None:
        """Return what is known of the table; `None` if there is none here, a halt if it is not ours."""
        if self._seen is None and (properties := self._properties()) is not None:
            self._seen = _Seen(properties, *self._newest())
        return self._seen

    def _properties(self) -> dict[str, str] | None:
        found = self._place.detail(self._session)
        if found is None:
            return None
        properties = dict(found["properties"] or {})
        held = properties.get(columns.KEYS[0], "")
        if held != columns.owner_of(*self._owner):
            what = f"belongs to pipeline, target and table {held}" if held else "is a table that we did not create"
            raise Halt(
                "foreign-table",
                f'the place "{self._place.path or self._place.sql}" {what}',
                "Nothing was written to it. Name another place for this target, or remove what is there.",
            )
        return properties

    @contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        try:
            yield
        except TailraceError:
            self._seen = None
            raise
        except LIBRARY_ERRORS as error:
            self._seen = None
            raise translate(error, f'{what} of table "{self._owner[2]}"') from error
