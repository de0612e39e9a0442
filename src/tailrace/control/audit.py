"""The catalogue of a feed's files, and what became of each: a table for operators, in SQLite.

    pending ──▶ processing ──▶ committed
                    └────────▶ failed

A file is entered once, with a number and offsets that are never given again. What a target includes is in the
target itself; the states here follow it, and are put right from its mark after a crash. To claim files is one
transaction. A claim whose owner has not been heard of for a while may be taken over; should that owner wake, the
target's own mark and epoch keep it from applying anything twice.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tailrace.core.errors import Halt, Retryable
from tailrace.core.feed import Entry, Examined, Outcome, Seen

_FORMAT = 1
_PATIENCE = 30.0
_TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS files (
  number INTEGER PRIMARY KEY, name TEXT NOT NULL, size INTEGER NOT NULL, modified_ns INTEGER NOT NULL,
  sequence TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, sha256 TEXT NOT NULL, content TEXT NOT NULL,
  entered_at TEXT NOT NULL, repeats INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS files_name ON files (name, number);
CREATE INDEX IF NOT EXISTS files_sha256 ON files (sha256);
CREATE TABLE IF NOT EXISTS work (
  target TEXT NOT NULL, number INTEGER NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL, worker TEXT NOT NULL,
  claimed_at TEXT NOT NULL, heartbeat TEXT NOT NULL, rows INTEGER, rejected INTEGER, error TEXT, run_id TEXT NOT NULL,
  upto INTEGER, settled_at TEXT, PRIMARY KEY (target, number));
CREATE INDEX IF NOT EXISTS work_state ON work (target, state, number);
"""
_COLUMNS = "number, name, size, modified_ns, sequence, first, last, content, repeats"


class Audit:
    """The catalogue and the audit of one feed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = threading.Lock()

    # -- the catalogue

    def about(self, name: str) -> str | None:
        """Return what is remembered under `name`."""
        with self._open() as db:
            found = db.execute("SELECT value FROM about WHERE name = ?", [name]).fetchone()
            return None if found is None else str(found[0])

    def remember(self, name: str, value: str) -> None:
        """Remember `value` under `name`."""
        with self._open(write=True) as db:
            db.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", [name, value])

    def enter(self, files: Iterable[tuple[Seen, Examined, int]]) -> list[Entry]:
        """Give files their numbers and offsets, all in one transaction; each says which entry it repeats, or -1.

        A file that is no repeat and is there already, because somebody else has seen it too, is left out.
        """
        entered = []
        with self._open(write=True) as db:
            number, last = db.execute("SELECT coalesce(max(number), -1), coalesce(max(last), -1) FROM files").fetchone()
            for seen, content, repeats in files:
                same = "SELECT 1 FROM files WHERE name = ? AND sequence = ? AND sha256 = ? AND repeats < 0"
                if repeats < 0 and db.execute(same, [seen.name, seen.order, content.sha256]).fetchone():
                    continue
                number, first, last = number + 1, last + 1, last + max(content.rows, 1)
                entry = Entry(number, seen.name, seen.size, seen.modified_ns, seen.order, first, last, content, repeats)
                db.execute(
                    "INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    [
                        number, seen.name, seen.size, seen.modified_ns, seen.order, first, last, content.sha256,
                        json.dumps(asdict(content)), _now(), repeats,
                    ],
                )  # fmt: skip
                entered.append(entry)
        return entered

    def latest(self, name: str) -> Entry | None:
        """Return the newest entry of the file called `name`."""
        return self.newest([name]).get(name)

    def newest(self, names: Sequence[str]) -> dict[str, Entry]:
        """Return the newest entry of each of the files called `names` that has one."""
        newest = f"SELECT max(number) FROM files WHERE name IN ({','.join('?' * len(names))}) GROUP BY name"
        return {entry.name: entry for entry in self._entries(f"WHERE number IN ({newest})", names)}

    def repeated(self, numbers: Sequence[int]) -> set[int]:
        """Return those of `numbers` that were asked for again, and so stand in the catalogue once more, further on."""
        marks = ",".join("?" * len(numbers))
        with self._open() as db:
            return {
                row[0] for row in db.execute(f"SELECT repeats FROM files WHERE repeats IN ({marks})", list(numbers))
            }

    def versions(self, name: str) -> int:
        """Return how many different contents the file called `name` has had."""
        with self._open() as db:
            return int(db.execute("SELECT count(*) FROM files WHERE name = ? AND repeats < 0", [name]).fetchone()[0])

    def touched(self, number: int, seen: Seen) -> None:
        """Note that a file has another time of change, and the content that it had."""
        with self._open(write=True) as db:
            db.execute(
                "UPDATE files SET size = ?, modified_ns = ? WHERE number = ?", [seen.size, seen.modified_ns, number]
            )

    def after(self, offset: int, upto: int, most: int) -> list[Entry]:
        """Return the first entries that lie behind `offset`, and not behind `upto`."""
        return self._entries("WHERE first > ? AND first <= ? ORDER BY number LIMIT ?", [offset, upto, most])

    def head(self) -> int:
        """Return the last offset of the last entry; -1 if there is none."""
        with self._open() as db:
            return int(db.execute("SELECT coalesce(max(last), -1) FROM files").fetchone()[0])

    def find(self, what: str) -> list[Entry]:
        """Return the entries of the file called `what`, or whose hash begins like that."""
        if len(what) >= 8 and all(char in "0123456789abcdef" for char in what.lower()):
            found = self._entries(
                "WHERE sha256 >= ? AND sha256 < ? ORDER BY number", [what.lower(), what.lower() + "g"]
            )
            if found:
                return found
        return self._entries("WHERE name = ? ORDER BY number", [what])

    # -- who works on what

    def claim(self, target: str, numbers: Sequence[int], worker: str, run_id: str, stale: timedelta) -> bool:
        """Take files for `target`, all or none; false if somebody else has one of them and was heard of lately."""
        with self._open(write=True) as db:
            for number in numbers:
                held = db.execute(
                    "SELECT worker, heartbeat FROM work WHERE target = ? AND number = ? AND state = 'processing'",
                    [target, number],
                ).fetchone()
                if held and held[0] != worker and datetime.fromisoformat(held[1]) > datetime.now(UTC) - stale:
                    return False
            for number in numbers:
                db.execute(
                    "INSERT INTO work VALUES (?, ?, 'processing', 1, ?, ?, ?, NULL, NULL, NULL, ?, NULL, NULL) "
                    "ON CONFLICT (target, number) DO UPDATE SET state = 'processing', attempts = attempts + 1, "
                    "worker = excluded.worker, claimed_at = excluded.claimed_at, heartbeat = excluded.heartbeat, "
                    "error = NULL, run_id = excluded.run_id",
                    [target, number, worker, _now(), _now(), run_id],
                )
            return True

    def beat(self, target: str, worker: str) -> None:
        """Say that the owner of claims is alive."""
        with self._open(write=True) as db:
            db.execute(
                "UPDATE work SET heartbeat = ? WHERE target = ? AND worker = ? AND state = 'processing'",
                [_now(), target, worker],
            )

    def abandon(self, target: str, worker: str) -> None:
        """Let go of the claims of all workers whose names begin with `worker`; what they did not finish is pending."""
        with self._open(write=True) as db:
            db.execute(
                "UPDATE work SET state = 'pending' "
                "WHERE target = ? AND substr(worker, 1, ?) = ? AND state = 'processing'",
                [target, len(worker), worker],
            )

    def found(self, target: str, outcomes: Iterable[Outcome]) -> None:
        """Note what a slice found in its files; one with a problem has failed."""
        with self._open(write=True) as db:
            for outcome in outcomes:
                db.execute(
                    "UPDATE work SET rows = ?, rejected = ?, error = ?, "
                    "state = CASE WHEN ? THEN 'failed' ELSE state END, "
                    "settled_at = CASE WHEN ? THEN ? END WHERE target = ? AND number = ?",
                    [
                        outcome.rows, outcome.rejected, outcome.problem or None, bool(outcome.problem),
                        bool(outcome.problem), _now(), target, outcome.number,
                    ],
                )  # fmt: skip

    def settle(self, target: str, place: int, run_id: str) -> None:
        """Note that `target` includes everything up to `place`; what failed stays failed."""
        with self._open(write=True) as db:
            db.execute(
                "UPDATE work SET state = 'committed', upto = ?, settled_at = ? "
                "WHERE target = ? AND state IN ('processing', 'pending') "
                "AND number IN (SELECT number FROM files WHERE last <= ?)",
                [place, _now(), target, place],
            )
            db.execute(
                "INSERT OR IGNORE INTO work SELECT ?, number, 'committed', 0, '', ?, ?, NULL, NULL, NULL, ?, ?, ? "
                "FROM files WHERE last <= ?",
                [target, _now(), _now(), run_id, place, _now(), place],
            )

    def failed_everywhere(self, number: int) -> bool:
        """Say whether every target that has looked at an entry has refused it, and at least one has."""
        with self._open() as db:
            states = {row[0] for row in db.execute("SELECT state FROM work WHERE number = ?", [number])}
        return states == {"failed"}

    def failed(self) -> list[Entry]:
        """Return the entries that failed in some target and were not asked for again."""
        return self._entries(
            "WHERE number IN (SELECT number FROM work WHERE state = 'failed') "
            "AND number NOT IN (SELECT repeats FROM files) ORDER BY number"
        )

    def rows(self, targets: Sequence[str], numbers: Sequence[int] | None = None) -> list[dict[str, object]]:
        """Return a record for each file and target, the oldest first; of `numbers` only, if they are given."""
        query = (
            "SELECT f.number, f.name, f.size, f.sha256, f.entered_at, f.repeats, w.* FROM files f "
            "LEFT JOIN work w ON w.number = f.number AND w.target = ? {where} ORDER BY f.number"
        )
        marks = ",".join("?" * len(numbers or ()))
        where = "" if numbers is None else f"WHERE f.number IN ({marks})"
        found = []
        with self._open() as db:
            for target in targets:
                rows = db.execute(query.format(where=where), [target, *(numbers or ())])
                found += [{**_shown(row), "target": target} for row in rows]
        return sorted(found, key=lambda row: (int(str(row["number"])), str(row["target"])))

    def counts(self, targets: Sequence[str]) -> list[dict[str, object]]:
        """Return how many files are in which state, by target."""
        found = []
        with self._open() as db:
            total = int(db.execute("SELECT count(*) FROM files").fetchone()[0])
            for target in targets:
                states = dict(db.execute("SELECT state, count(*) FROM work WHERE target = ? GROUP BY state", [target]))
                known = {state: int(states.get(state, 0)) for state in ("processing", "committed", "failed")}
                found.append({"target": target, "files": total, "pending": total - sum(known.values()), **known})
        return found

    # -- the file

    @property
    def exists(self) -> bool:
        """Say whether there is a catalogue already."""
        return self._path.exists()

    def _entries(self, rest: str, values: Sequence[object] = ()) -> list[Entry]:
        with self._open() as db:
            found = db.execute(f"SELECT {_COLUMNS} FROM files {rest}", list(values)).fetchall()
        return [_entry(row) for row in found]

    @contextlib.contextmanager
    def _open(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        with self._turn, _translated(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh = not self._path.exists()
            connection = sqlite3.connect(self._path, timeout=_PATIENCE, isolation_level=None)
            with contextlib.closing(connection):
                connection.row_factory = sqlite3.Row
                connection.execute("PRAGMA synchronous = FULL")
                if fresh or connection.execute("PRAGMA user_version").fetchone()[0] == 0:
                    connection.execute("PRAGMA journal_mode = WAL")
                    connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {_FORMAT}; COMMIT;")
                self._refuse_newer(connection)
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                # Closing without a commit undoes everything.
                yield connection
                connection.execute("COMMIT")

    def _refuse_newer(self, connection: sqlite3.Connection) -> None:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > _FORMAT:
            raise Halt(
                "state-too-new",
                f'the catalogue "{self._path}" has format {version}, and this release reads up to {_FORMAT}',
                "A newer release wrote it. Run that release or a later one.",
            )


def _entry(row: sqlite3.Row) -> Entry:
    number, name, size, modified_ns, order, first, last, content, repeats = row
    return Entry(number, name, size, modified_ns, order, first, last, Examined(**json.loads(content)), repeats)


def _shown(row: sqlite3.Row) -> dict[str, object]:
    names = (
        "attempts",
        "worker",
        "claimed_at",
        "heartbeat",
        "rows",
        "rejected",
        "error",
        "run_id",
        "upto",
        "settled_at",
    )
    return {
        "number": row[0],
        "file": row["name"],
        "target": "",
        "state": row["state"] or "pending",
        "sha256": row["sha256"],
        "size": row["size"],
        "entered_at": row["entered_at"],
        "repeats": None if row["repeats"] < 0 else row["repeats"],
        **{name: row[name] for name in names},
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code: Any = getattr(error, "sqlite_errorcode", 0)
        if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise Retryable("state-write", f'another process kept the catalogue "{path}" locked') from error
        if code & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            hint = "Free some space on its disk, or set control.root to another one."
            raise Retryable("disk-full", f'the catalogue "{path}" could not be written: {error}', hint) from error
        raise Halt(
            "corrupt-state",
            f'the catalogue "{path}" cannot be read: {error}',
            "Restore it from a backup. If there is none, run cdc undeploy and then cdc run, which reads the feed anew.",
        ) from error
