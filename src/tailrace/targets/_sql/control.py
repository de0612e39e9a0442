"""The control row of a table: whose it is, what it looks like, what its rows include, and who may write.

It lies in the same database, so that it changes in the transaction that changes the rows. `epoch` is the number
of the writer that has the table: a writer takes the next one with its first commit, and whoever has an older
one can commit no more. See ADR 8.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace.apply.target import Mark, mark_from_json
from tailrace.core.errors import Halt
from tailrace.core.table import Column, Table
from tailrace.targets._sql.dialect import JSON, NATIVE, Dialect, Session, in_spark

CONTROL = "_tailrace_tables"
_FORMAT, _PLAIN = 2, 1
"""What this version reads, and what it writes of a table that an earlier one understands."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The one writer of a table: a source table in a target of a pipeline."""

    pipeline: str
    target: str
    table: str

    def text(self) -> str:
        """Return the form that is stored."""
        return json.dumps([self.pipeline, self.target, self.table])


@dataclass(frozen=True, slots=True)
class Entry:
    """What the control row of a table says."""

    owner: str
    mode: str
    shape: Table
    notes: Mapping[str, str] = field(default_factory=dict)
    epoch: int = 0
    commits: int = 0
    """How many commits there were: the number of the next is one more."""
    mark: Mark | None = None
    adding: tuple[str, ...] = ()
    """Columns that may be there already, though the shape has them not: an earlier try began to add them."""
    claimed: bool = True
    """The table is ours already, and not one that somebody else has made for us."""
    natives: Mapping[str, str] = field(default_factory=dict)
    """Columns that lie as a kind that Spark has no name for."""
    given: bool = False
    """Somebody else has made the table: that a column of his takes JSON only is not ours to change."""

    def kinds(self) -> dict[str, str]:
        """Return the columns of the source as they are stored."""
        return {column.name: self.natives.get(column.name, column.type) for column in self.shape.columns}

    @property
    def sequence(self) -> str:
        """Return the type of the sequence in a table of records."""
        return self.notes.get("sequence", "string")


class Control:
    """The control rows of one database."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._table = dialect.table(CONTROL)

    def exists(self, session: Session, name: str) -> bool:
        """Say whether there is a table called `name`."""
        return bool(session.ask(self._dialect.exists, [self._dialect.fold(name)]))

    def load(self, session: Session, name: str, table: str, *, lock: bool = False, of: str = "") -> Entry | None:
        """Return what is known under `name` of the table `of`, which usually is `name`; `None` if that is not there."""
        if not self.exists(session, CONTROL):
            return None
        query = f"SELECT body, owner, epoch, commits, mark FROM {self._table} WHERE name = {self._dialect.parameter(1)}"
        found = session.ask(query + (self._dialect.lock if lock else ""), [self._dialect.fold(name)])
        if not found or not self.exists(session, of or name):
            return None
        if not of and not session.ask(self._dialect.positioned(self._dialect.name_of(name))):
            # Ours was dropped, and this one made in its place: the row is of one that is gone.
            return None
        body, owner, epoch, commits, mark = found[0]
        stored = json.loads(body)
        if stored["format"] > _FORMAT:
            raise Halt(
                "mark-too-new",
                f'the control row of table "{name}" has format {stored["format"]}, newer than {_FORMAT}',
                "A newer Tailrace wrote it. Run that one.",
            )
        given = bool(stored.get("given", False))
        columns = [Column(name, in_spark(kind), json=kind in JSON and not given) for name, kind in stored["columns"]]
        return Entry(
            owner,
            stored["mode"],
            Table(table, tuple(columns), tuple(stored["keys"])),
            stored["notes"],
            int(epoch),
            int(commits),
            mark_from_json(json.loads(mark)) if mark else None,
            tuple(stored.get("adding", ())),
            natives={name: kind for name, kind in stored["columns"] if kind in NATIVE},
            given=given,
        )

    def create(self, session: Session) -> None:
        """Make the table of control rows if it is not there."""
        kind, name = self._dialect.kind("string").sql, self._dialect.key_type("string", ["name"])
        columns = (
            f"name {name} NOT NULL, owner {kind} NOT NULL, body {kind} NOT NULL, "
            f"epoch BIGINT NOT NULL, commits BIGINT NOT NULL, mark {kind}"
        )
        if self._dialect.keyed:
            columns += ", PRIMARY KEY (name)"
        if not self.exists(session, CONTROL):
            session.run(f"CREATE TABLE {self._table} ({columns})")

    def put(self, session: Session, name: str, entry: Entry) -> None:
        """Write the control row of a new table, in the place of that of a table that is gone.

        That one may have a writer yet, who sleeps: its epoch is none of the new one's.
        """
        at = self._dialect.parameter
        key = self._dialect.fold(name)
        gone = session.ask(f"SELECT epoch FROM {self._table} WHERE name = {at(1)}", [key])
        session.run(f"DELETE FROM {self._table} WHERE name = {at(1)}", [key])
        places = ", ".join(at(n) for n in range(1, 6))
        session.run(
            f"INSERT INTO {self._table} (name, owner, body, epoch, commits) VALUES ({places})",
            [key, entry.owner, _body(entry), gone[0][0] + 1 if gone else entry.epoch, entry.commits],
        )

    def reshape(self, session: Session, name: str, entry: Entry) -> None:
        """Write the shape of a table that was altered."""
        at = self._dialect.parameter
        session.run(
            f"UPDATE {self._table} SET body = {at(1)} WHERE name = {at(2)}", [_body(entry), self._dialect.fold(name)]
        )

    def move(self, session: Session, name: str, entry: Entry, epoch: int, mark: Mark) -> bool:
        """Set the mark and the epoch; say whether the row still had the epoch of `entry`."""
        at = self._dialect.parameter
        text = json.dumps(mark.to_json())
        query = (
            f"UPDATE {self._table} SET mark = {at(1)}, epoch = {at(2)}, commits = commits + 1 "
            f"WHERE name = {at(3)} AND epoch = {at(4)}"
        )
        return session.run(query, [text, epoch, self._dialect.fold(name), entry.epoch]) == 1


def _body(entry: Entry) -> str:
    stored = {
        "format": _FORMAT if entry.natives else _PLAIN,
        "mode": entry.mode,
        "keys": list(entry.shape.keys),
        "columns": [[name, kind] for name, kind in entry.kinds().items()],
        "notes": dict(entry.notes),
    }
    more = {"adding": list(entry.adding), "given": entry.given}
    return json.dumps(stored | {name: value for name, value in more.items() if value})
