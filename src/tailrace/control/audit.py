"""The catalogue of a feed's files, and what became of each: tables for operators, in SQLite or in PostgreSQL.

    pending ──▶ processing ──▶ committed
                    └────────▶ failed

A file is entered once, with a number and offsets that are never given again. What a target includes is in the
target itself; the states here follow it, and are put right from its mark after a crash. To claim files is one
transaction. A claim whose owner has not been heard of for a while may be taken over; should that owner wake, the
target's own mark and epoch keep it from applying anything twice, and what it says here is not heard.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tailrace.control._audit_store import Session, SqliteStore, Store
from tailrace.core.errors import Misconfigured
from tailrace.core.feed import Entry, Examined, Fate, Outcome, Seen, State

_COLUMNS = "number, name, size, modified_ns, sequence, first, last, content, repeats, tag"
_SHOWN = (
    "attempts", "worker", "claimed_at", "heartbeat", "rows", "applied", "superseded", "filtered", "rejected", "error",
    "run_id", "upto", "settled_at",
)  # fmt: skip
_MANY = 5_000
"""Values in one statement: a database takes no more than some ten thousand."""


class Audit:
    """The catalogue and the audit of one feed."""

    def __init__(self, place: Path | Store) -> None:
        self._store: Store = SqliteStore(place) if isinstance(place, Path) else place

    # -- the catalogue

    def about(self, name: str) -> str | None:
        """Return what is remembered under `name`."""
        with self._store.open(write=False) as db:
            found = db.rows("SELECT value FROM about WHERE name = ?", [name])
            return str(found[0][0]) if found else None

    def remember(self, name: str, value: str) -> None:
        """Remember `value` under `name`."""
        with self._store.open(write=True) as db:
            _remember(db, name, value)

    def enter(self, files: Iterable[tuple[Seen, Examined, int]], appending: Sequence[str] = ()) -> list[Entry]:
        """Give files their numbers and offsets, all in one transaction; each says which entry it repeats, or -1.

        A file that is no repeat and is there already, because somebody else has seen it too, is left out. A repeat of
        what one of the targets `appending` may have, or is about to have, is refused.
        """
        entered = []
        files = list(files)
        with self._store.open(write=True) as db:
            # A claim comes before this, and is seen here, or after it, and then finds the repeat.
            _refuse_doubling(db, [repeats for _, _, repeats in files], appending)
            ((number, last),) = db.rows("SELECT coalesce(max(number), -1), coalesce(max(last), -1) FROM files")
            for seen, content, repeats in files:
                same = "SELECT 1 FROM files WHERE name = ? AND sequence = ? AND sha256 = ? AND repeats < 0"
                if repeats < 0 and db.rows(same, [seen.name, seen.order, content.sha256]):
                    continue
                number, first, last = number + 1, last + 1, last + max(content.rows, 1)
                entry = Entry(
                    number, seen.name, seen.size, seen.modified_ns, seen.order, first, last, content, repeats, seen.tag
                )
                db.run(
                    "INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    [
                        number, seen.name, seen.size, seen.modified_ns, seen.tag, seen.order, first, last,
                        content.sha256, json.dumps(asdict(content)), _now(), repeats,
                    ],
                )  # fmt: skip
                entered.append(entry)
        return entered

    def refuse_doubling(self, numbers: Sequence[int], appending: Sequence[str]) -> None:
        """Refuse what `enter` would refuse."""
        with self._store.open(write=False) as db:
            _refuse_doubling(db, numbers, appending)

    def standing(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return, for each place in the order that one of `entries` has, the newest entry of the file there."""
        places = {(entry.name, entry.order) for entry in entries}
        every = (one for name in sorted({name for name, _ in places}) for one in self._named(name))
        return list({(e.name, e.order): e for e in every if (e.name, e.order) in places}.values())

    def latest(self, name: str) -> Entry | None:
        """Return the newest entry of the file called `name`."""
        return self.newest([name]).get(name)

    def newest(self, names: Sequence[str]) -> dict[str, Entry]:
        """Return the newest entry of each of the files called `names` that has one."""
        found: dict[str, Entry] = {}
        for start in range(0, len(names), _MANY):
            some = names[start : start + _MANY]
            newest = f"SELECT max(number) FROM files WHERE name IN ({_marks(some)}) GROUP BY name"
            found |= {entry.name: entry for entry in self._entries(f"WHERE number IN ({newest})", some)}
        return found

    def states(self, names: Sequence[str]) -> dict[str, State]:
        """Return what files were when they were entered last; those that never were are left out."""
        if not names:
            return {}
        newest = f"SELECT max(number) FROM files WHERE name IN ({_marks(names)}) GROUP BY name"
        query = f"SELECT name, size, modified_ns, tag FROM files WHERE number IN ({newest})"
        with self._store.open(write=False) as db:
            return {name: State(*state) for name, *state in db.rows(query, names)}

    def placed(self, orders: Sequence[str]) -> dict[str, str]:
        """Return those of `orders` at which a file was entered, with its name."""
        found: dict[str, str] = {}
        with self._store.open(write=False) as db:
            for start in range(0, len(orders), _MANY):
                some = orders[start : start + _MANY]
                query = f"SELECT sequence, name FROM files WHERE sequence IN ({_marks(some)})"
                found |= dict(db.rows(query, some))
        return found

    def followed(self) -> int | None:
        """Return the number of the last manifest all of whose files were entered; `None` if there is none."""
        said = self.about("manifest")
        return None if said is None else int(said)

    def follow(self, sequence: int) -> None:
        """Note that manifests up to number `sequence` were followed; it never goes back."""
        before = self.followed()
        if before is None or before < sequence:
            self.remember("manifest", str(sequence))

    def repeated(self, numbers: Sequence[int]) -> set[int]:
        """Return those of `numbers` that were asked for again, and so stand in the catalogue once more, further on."""
        if not numbers:
            return set()
        with self._store.open(write=False) as db:
            return {
                row[0]
                for row in db.rows(
                    "SELECT repeats FROM files WHERE repeats BETWEEN ? AND ?", [min(numbers), max(numbers)]
                )
            } & set(numbers)

    def touched(self, number: int, state: State) -> None:
        """Note that a file has another time of change, and the content that it had."""
        with self._store.open(write=True) as db:
            db.run("UPDATE files SET size = ?, modified_ns = ?, tag = ? WHERE number = ?", [*state, number])

    def after(self, offset: int, upto: int, most: int) -> list[Entry]:
        """Return the first entries that lie behind `offset`, and not behind `upto`."""
        return self._entries("WHERE first > ? AND first <= ? ORDER BY number LIMIT ?", [offset, upto, most])

    def head(self) -> int:
        """Return the last offset of the last entry; -1 if there is none."""
        with self._store.open(write=False) as db:
            return int(db.rows("SELECT coalesce(max(last), -1) FROM files")[0][0])

    def find(self, what: str) -> list[Entry]:
        """Return the entries of the file called `what`, or whose hash begins like that."""
        if len(what) >= 8 and all(char in "0123456789abcdef" for char in what.lower()):
            found = self._entries(
                "WHERE sha256 >= ? AND sha256 < ? ORDER BY number", [what.lower(), what.lower() + "g"]
            )
            if found:
                return found
        return self._named(what)

    def _named(self, name: str) -> list[Entry]:
        return self._entries("WHERE name = ? ORDER BY number", [name])

    # -- who works on what

    def claim(self, target: str, numbers: Sequence[int], worker: str, run_id: str, stale: timedelta) -> bool:
        """Take files for `target`, all or none; false if somebody else has one of them and was heard of lately."""
        mine, now = set(numbers), _now()
        with self._store.open(write=True) as db:
            held = db.rows(
                "SELECT number, worker, heartbeat FROM work WHERE target = ? AND state = 'processing' "
                "AND number BETWEEN ? AND ?",
                [target, min(mine), max(mine)],
            )
            alive = datetime.now(UTC) - stale
            if any(n in mine and who != worker and datetime.fromisoformat(beat) > alive for n, who, beat in held):
                return False
            db.many(
                "INSERT INTO work (target, number, state, attempts, worker, claimed_at, heartbeat, run_id) "
                "VALUES (?, ?, 'processing', 1, ?, ?, ?, ?) "
                "ON CONFLICT (target, number) DO UPDATE SET state = 'processing', attempts = work.attempts + 1, "
                "worker = excluded.worker, claimed_at = excluded.claimed_at, heartbeat = excluded.heartbeat, "
                "error = NULL, run_id = excluded.run_id",
                [[target, number, worker, now, now, run_id] for number in numbers],
            )
            return True

    def beat(self, target: str, worker: str) -> None:
        """Say that the owner of claims is alive."""
        with self._store.open(write=True) as db:
            db.run(
                "UPDATE work SET heartbeat = ? WHERE target = ? AND worker = ? AND state = 'processing'",
                [_now(), target, worker],
            )

    def abandon(self, target: str, worker: str) -> None:
        """Let go of the claims of all workers whose names begin with `worker`; what they did not finish is pending."""
        with self._store.open(write=True) as db:
            db.run(
                "UPDATE work SET state = 'pending' "
                "WHERE target = ? AND substr(worker, 1, ?) = ? AND state = 'processing'",
                [target, len(worker), worker],
            )

    def found(self, target: str, worker: str, outcomes: Iterable[Outcome]) -> None:
        """Note what a slice found in its files, if `worker` still has them; one with a problem has failed."""
        now = _now()
        every = list(outcomes)
        mine = "WHERE target = ? AND number = ? AND worker = ? AND state = 'processing'"
        with self._store.open(write=True) as db:
            db.many(
                f"UPDATE work SET rows = ?, rejected = ?, error = NULL, settled_at = NULL {mine}",
                [[o.rows, o.rejected, target, o.number, worker] for o in every if not o.problem],
            )
            db.many(
                "UPDATE work SET rows = ?, rejected = ?, error = ?, state = 'failed', settled_at = ?, applied = NULL, "
                f"superseded = NULL, filtered = NULL {mine}",
                [[o.rows, o.rejected, o.problem, now, target, o.number, worker] for o in every if o.problem],
            )

    def expect(self, target: str, worker: str, fates: Iterable[Fate]) -> None:
        """Note what the commit that comes next makes of the rows of files; without it, it is noted once more."""
        with self._store.open(write=True) as db:
            db.many(
                "UPDATE work SET applied = ?, rejected = ?, filtered = 0, superseded = rows - ? "
                "WHERE target = ? AND number = ? AND worker = ? AND state = 'processing'",
                [[f.applied, f.rejected, f.applied + f.rejected, target, f.number, worker] for f in fates],
            )

    def settle(self, target: str, place: int, run_id: str) -> None:
        """Note that `target` includes everything up to `place`; what failed stays failed."""
        now = _now()
        with self._store.open(write=True) as db:
            found = db.rows("SELECT number, last FROM files WHERE first <= ? ORDER BY first DESC LIMIT 1", [place])
            if not found:
                return
            upto = found[0][0] if found[0][1] <= place else found[0][0] - 1
            db.run(
                "UPDATE work SET state = 'committed', upto = ?, settled_at = ? "
                "WHERE target = ? AND state IN ('processing', 'pending') AND number <= ?",
                [place, now, target, upto],
            )
            query = "SELECT count(*) FROM work WHERE target = ? AND number <= ?"
            if db.rows(query, [target, upto])[0][0] > upto:
                return
            db.run(
                "INSERT INTO work "
                "(target, number, state, attempts, worker, claimed_at, heartbeat, run_id, upto, settled_at) "
                "SELECT ?, number, 'committed', 0, '', ?, ?, ?, ?, ? FROM files WHERE number <= ? "
                "ON CONFLICT (target, number) DO NOTHING",
                [target, now, now, run_id, place, now, upto],
            )

    def failed_everywhere(self, number: int) -> bool:
        """Say whether every target that has looked at an entry has refused it, and at least one has."""
        with self._store.open(write=False) as db:
            return {row[0] for row in db.rows("SELECT state FROM work WHERE number = ?", [number])} == {"failed"}

    def failed(self) -> list[Entry]:
        """Return the entries that failed in some target and were not asked for again."""
        return self._entries(
            "WHERE number IN (SELECT number FROM work WHERE state = 'failed') "
            "AND number NOT IN (SELECT repeats FROM files) ORDER BY number"
        )

    def rows(
        self, targets: Sequence[str], numbers: Sequence[int] | None = None, *, every: bool = True
    ) -> list[dict[str, object]]:
        """Return a record for each file and target, the oldest first; of `numbers` only, if they are given.

        Without `every`, those that are committed are left out.
        """
        asked = [] if numbers is None else [f"f.number IN ({_marks(numbers)})"]
        asked += [] if every else ["coalesce(w.state, 'pending') <> 'committed'"]
        where = f"WHERE {' AND '.join(asked)}" if asked else ""
        query = (
            "SELECT f.number, f.name, w.state, f.sha256, f.size, f.entered_at, f.repeats, "
            f"{', '.join(f'w.{name}' for name in _SHOWN)} FROM files f "
            f"LEFT JOIN work w ON w.number = f.number AND w.target = ? {where} ORDER BY f.number"
        )
        found = []
        with self._store.open(write=False) as db:
            for target in targets:
                found += [_shown(row, target) for row in db.rows(query, [target, *(numbers or ())])]
        return sorted(found, key=lambda row: (int(str(row["number"])), str(row["target"])))

    def counts(self, targets: Sequence[str]) -> list[dict[str, object]]:
        """Return how many files are in which state, by target."""
        found = []
        with self._store.open(write=False) as db:
            total = int(db.rows("SELECT count(*) FROM files")[0][0])
            for target in targets:
                query = "SELECT state, count(*) FROM work WHERE target = ? GROUP BY state"
                states = {state: int(count) for state, count in db.rows(query, [target])}
                known = {state: states.get(state, 0) for state in ("processing", "committed", "failed")}
                found.append({"target": target, "files": total, "pending": total - sum(known.values()), **known})
        return found

    def _entries(self, rest: str, values: Sequence[object] = ()) -> list[Entry]:
        with self._store.open(write=False) as db:
            return [_entry(row) for row in db.rows(f"SELECT {_COLUMNS} FROM files {rest}", values)]


def _remember(db: Session, name: str, value: str) -> None:
    db.run("INSERT INTO about VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", [name, value])


def _refuse_doubling(db: Session, numbers: Sequence[int], targets: Sequence[str]) -> None:
    """Refuse to repeat what a table of events may have: nothing there tells a repeat from a new event."""
    begun = (
        "SELECT w.target, f.name FROM work w JOIN files f ON f.number = w.number "
        f"WHERE w.state <> 'failed' AND w.number = ? AND w.target IN ({_marks(targets)})"
    )
    for number in numbers if targets else ():
        for target, name in db.rows(begun, [number, *targets]):
            raise Misconfigured(
                "already-applied",
                f'target "{target}" has the events of file "{name}", or is at work on them, and keeps each event',
                "Its events would be there twice. Send what is missing in a file of its own.",
            )


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))


def _entry(row: tuple[Any, ...]) -> Entry:
    number, name, size, modified_ns, order, first, last, content, repeats, tag = row
    return Entry(number, name, size, modified_ns, order, first, last, Examined(**json.loads(content)), repeats, tag)


def _shown(row: tuple[Any, ...], target: str) -> dict[str, object]:
    number, name, state, sha256, size, entered_at, repeats, *work = row
    return {
        "number": number,
        "file": name,
        "target": target,
        "state": state or "pending",
        "sha256": sha256,
        "size": size,
        "entered_at": entered_at,
        "repeats": None if repeats < 0 else repeats,
        **dict(zip(_SHOWN, work, strict=True)),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
