"""A deployment's data: tables as versioned tablets, and one log of everything that was ever committed.

Each transaction has a timestamp of its own, in nanoseconds, greater than all before. Nothing is overwritten:
a read at an older timestamp sees what was there then, and the log keeps every revision in order.

Names and ids follow Convex: a *tablet* is one life of a table, a *component* is a namespace of tables with a
path that may change, `""` for the application itself.
"""

from __future__ import annotations

import random
import re
import threading
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum

from tailrace.testing.convex.held import Held
from tailrace.testing.convex.ids import document_id
from tailrace.testing.convex.values import Document, Value

_IDENTIFIER = re.compile(r"(?=.*[A-Za-z0-9])[A-Za-z_][A-Za-z0-9_]{0,63}")
_STEP = 1_000_000
"""Nanoseconds between two transactions when nobody moves the clock."""


class State(Enum):
    """What a tablet is to a reader."""

    ACTIVE = "active"
    HIDDEN = "hidden"
    DELETED = "deleted"


@dataclass
class Component:
    """A namespace of tables; without a path it is not mounted."""

    paths: list[tuple[int, str | None]]

    def path_at(self, ts: int) -> str | None:
        """Return the path at `ts`; `None` if it was not mounted."""
        found = [path for at, path in self.paths if at <= ts]
        return found[-1] if found else None

    def was_at(self, ts: int) -> str | None:
        """Return the path that a component which is not mounted at `ts` had before; `None` if it is, or had none."""
        found = [path for at, path in self.paths if at <= ts]
        return found[-2] if len(found) > 1 and found[-1] is None else None


@dataclass
class Tablet:
    """One life of a table."""

    id: bytes
    component: Component
    name: str
    number: int
    states: list[tuple[int, State]]
    revisions: dict[str, list[tuple[int, Document | None]]] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    """In their order."""
    held: Held = field(default_factory=Held)

    @property
    def system(self) -> bool:
        """System tables are in the log, and in nobody's export."""
        return self.name.startswith("_")

    def state_at(self, ts: int) -> State | None:
        """Return what the tablet was at `ts`; `None` before it was made."""
        found = [state for at, state in self.states if at <= ts]
        return found[-1] if found else None

    def documents_at(self, ts: int, after: str = "") -> Iterator[tuple[str, int, Document]]:
        """Yield id, timestamp and document of what there was at `ts`, in the order of ids, from behind `after`."""
        for n in range(bisect_right(self.keys, after), len(self.keys)):
            revisions = self.revisions[self.keys[n]]
            at = bisect_right(revisions, ts, key=lambda revision: revision[0]) - 1
            if at >= 0 and (document := revisions[at][1]) is not None:
                yield self.keys[n], revisions[at][0], document

    def put(self, key: str, ts: int, document: Document | None) -> None:
        """Add a revision, which is the newest."""
        if key not in self.revisions:
            self.revisions[key] = []
            insort(self.keys, key)
        self.revisions[key].append((ts, document))
        self.held.put(key, document)


@dataclass(frozen=True, slots=True)
class Entry:
    """One revision in the log; without a document it is a tombstone."""

    ts: int
    tablet: Tablet
    id: str
    document: Document | None


class Deployment:
    """What the application writes to, and what an emulator serves. All of it follows from `seed`."""

    def __init__(self, seed: int = 0, now: int = 1_700_000_000_000_000_000) -> None:
        self.chance = random.Random(f"convex {seed}")
        self.lock = threading.RLock()
        self.clock = now
        self.log: list[Entry] = []
        self.head = now
        self.document_retention = timedelta(days=14)
        self.snapshot_age = timedelta(days=5)
        self.tablets: list[Tablet] = []
        self.components = [Component([(0, "")])]
        self._numbers = 10_000
        self._system = self._new_tablet(self.components[0], "_tables", State.ACTIVE, now)

    # -- writing

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Collect writes and commit them at one timestamp; an exception commits nothing."""
        with self.lock:
            made = Transaction(self)
            yield made
            self._commit(made.writes)

    def insert(self, table: str, document: Mapping[str, Value], component: str = "") -> str:
        """Add one document in a transaction of its own; return its id."""
        with self.transaction() as made:
            return made.insert(table, document, component)

    def patch(self, table: str, key: str, changes: Mapping[str, Value], component: str = "") -> None:
        """Change some fields of one document in a transaction of its own."""
        with self.transaction() as made:
            made.patch(table, key, changes, component)

    def replace(self, table: str, key: str, document: Mapping[str, Value], component: str = "") -> None:
        """Replace one document in a transaction of its own."""
        with self.transaction() as made:
            made.replace(table, key, document, component)

    def delete(self, table: str, key: str, component: str = "") -> None:
        """Delete one document in a transaction of its own."""
        with self.transaction() as made:
            made.delete(table, key, component)

    def clear(self, table: str, component: str = "", batch: int = 100) -> None:
        """Delete all documents, as the dashboard does: real deletes, some at a time."""
        keys = list(self.documents(table, component))
        for start in range(0, len(keys), batch):
            with self.transaction() as made:
                for key in keys[start : start + batch]:
                    made.delete(table, key, component)

    def write_system(self, rows: int = 1) -> None:
        """Commit rows of a system table: nobody sees them, but they are read on the way."""
        with self.lock:
            self._commit({(id(self._system), f"{n:032d}"): (self._system, {"n": n}) for n in range(rows)})

    # -- structure

    def create_table(self, table: str, component: str = "") -> Tablet:
        """Make an empty table; writing to a table that is not there does so too."""
        with self.lock:
            found = self.table(table, component)
            if found is None:
                if not _IDENTIFIER.fullmatch(table) or table.startswith("_"):
                    raise ValueError(f"not a table name: {table!r}")
                found = self._new_tablet(self._component(component), table, State.ACTIVE, self._structural())
            return found

    def drop_table(self, table: str, component: str = "") -> None:
        """Delete a table: its rows vanish without tombstones."""
        with self.lock:
            self._known(table, component).states.append((self._structural(), State.DELETED))

    def import_table(self, table: str, documents: Iterable[Mapping[str, Value]], component: str = "") -> list[str]:
        """Replace a table at once by `documents`, as an import or a restore does; return their ids."""
        started = self.begin_import(table, component)
        keys = [started.stage(document) for document in documents]
        started.commit()
        return keys

    def begin_import(self, table: str, component: str = "") -> Import:
        """Start an import whose staged rows are in the log before it is committed or aborted."""
        with self.lock:
            old = self.table(table, component)
            number = old.number if old else None
            new = self._new_tablet(self._component(component), table, State.HIDDEN, self._structural(), number)
            return Import(self, old, new)

    def mount(self, path: str) -> None:
        """Mount a component at `path`, with whatever tables it had there before."""
        with self.lock:
            for component in self.components:
                if component.was_at(self.clock) == path:
                    component.paths.append((self._structural(), path))
                    return
            self._component(path)

    def unmount(self, path: str) -> None:
        """Unmount a component: its tables vanish without tombstones."""
        self.move_component(path, None)

    def move_component(self, path: str, to: str | None) -> None:
        """Give a component another path; without one it is unmounted."""
        with self.lock:
            for component in self.components:
                if component.path_at(self.clock) == path:
                    component.paths.append((self._structural(), to))
                    return
            raise KeyError(path)

    # -- time

    def advance(self, by: timedelta) -> None:
        """Let the clock go on; without a commit the newest timestamp stays where it is."""
        with self.lock:
            self.clock += int(by.total_seconds() * 1e9)

    def oldest_cursor(self) -> int:
        """Return the oldest timestamp that the log still has."""
        return self.clock - int(self.document_retention.total_seconds() * 1e9)

    def oldest_snapshot(self) -> int:
        """Return the oldest timestamp that a snapshot may be read at."""
        return self.clock - int(self.snapshot_age.total_seconds() * 1e9)

    # -- reading

    def table(self, name: str, component: str = "") -> Tablet | None:
        """Return the table as it is now; `None` if there is none."""
        return self.tables_at(self.clock).get((component, name))

    def tables_at(self, ts: int) -> dict[tuple[str, str], Tablet]:
        """Return the application's tables at `ts`, by component path and name."""
        found = {}
        for tablet in self.tablets:
            path = tablet.component.path_at(ts)
            if path is not None and not tablet.system and tablet.state_at(ts) is State.ACTIVE:
                found[path, tablet.name] = tablet
        return found

    def documents(self, table: str, component: str = "") -> dict[str, Document]:
        """Return the documents of a table now, by id."""
        with self.lock:
            found = self.table(table, component)
            return {key: document for key, _, document in found.documents_at(self.head)} if found else {}

    def dump(self) -> dict[tuple[str, str], dict[str, Document]]:
        """Return every document there is now, by component path and table, then by id."""
        with self.lock:
            return {(path, name): self.documents(name, path) for path, name in sorted(self.tables_at(self.clock))}

    # -- inside

    def next_ts(self) -> int:
        """Return the timestamp of the next commit, which is then taken."""
        self.clock = max(self.clock, self.head) + _STEP + self.chance.randrange(_STEP)
        return self.clock

    def new_id(self, tablet: Tablet) -> str:
        """Return an id that no document has."""
        return document_id(tablet.number, self.chance.randbytes(16))

    def _commit(self, writes: Mapping[tuple[int, str], tuple[Tablet, Document | None]]) -> None:
        if not writes:
            return
        ts = self.next_ts()
        entries = [Entry(ts, tablet, key, document) for (_, key), (tablet, document) in writes.items()]
        for entry in sorted(entries, key=lambda entry: (entry.tablet.id, entry.id)):
            self.log.append(entry)
            entry.tablet.put(entry.id, ts, entry.document)
        self.head = ts

    def _structural(self) -> int:
        self.write_system()
        return self.head

    def _component(self, path: str) -> Component:
        for component in self.components:
            if component.path_at(self.clock) == path:
                return component
        if not all(_IDENTIFIER.fullmatch(part) for part in path.split("/")):
            raise ValueError(f"not a component path: {path!r}")
        made = Component([(self._structural(), path)])
        self.components.append(made)
        return made

    def _known(self, table: str, component: str) -> Tablet:
        found = self.table(table, component)
        if found is None:
            raise KeyError((component, table))
        return found

    def _new_tablet(self, component: Component, name: str, state: State, ts: int, number: int | None = None) -> Tablet:
        self._numbers += 1
        made = Tablet(self.chance.randbytes(16), component, name, number or self._numbers, [(ts, state)])
        self.tablets.append(made)
        return made


class Transaction:
    """Writes that become visible together; of several writes to one document the last counts."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.writes: dict[tuple[int, str], tuple[Tablet, Document | None]] = {}

    def insert(self, table: str, document: Mapping[str, Value], component: str = "") -> str:
        """Add a document; return its id."""
        tablet = self._deployment.create_table(table, component)
        key = self._deployment.new_id(tablet)
        self._put(tablet, key, whole(document, key, self._deployment.clock))
        return key

    def patch(self, table: str, key: str, changes: Mapping[str, Value], component: str = "") -> None:
        """Set some fields of a document; a field is removed by `replace`."""
        tablet, old = self._existing(table, key, component)
        self._put(tablet, key, {**old, **changes})

    def replace(self, table: str, key: str, document: Mapping[str, Value], component: str = "") -> None:
        """Set a document as a whole; it keeps its id and its creation time."""
        tablet, old = self._existing(table, key, component)
        self._put(tablet, key, {**document, "_id": key, "_creationTime": old["_creationTime"]})

    def delete(self, table: str, key: str, component: str = "") -> None:
        """Delete a document, even one that this transaction made: the log then has a lone tombstone."""
        tablet, _ = self._existing(table, key, component)
        self._put(tablet, key, None)

    def _existing(self, table: str, key: str, component: str) -> tuple[Tablet, Document]:
        tablet = self._deployment.create_table(table, component)
        stored = tablet.revisions.get(key, [(0, None)])[-1][1]
        _, document = self.writes.get((id(tablet), key), (tablet, stored))
        if document is None:
            raise KeyError(key)
        return tablet, document

    def _put(self, tablet: Tablet, key: str, document: Document | None) -> None:
        self.writes[id(tablet), key] = (tablet, document)


class Import:
    """A table being replaced: a hidden tablet that takes the place of the old one at once."""

    def __init__(self, deployment: Deployment, old: Tablet | None, new: Tablet) -> None:
        self._deployment = deployment
        self._old = old
        self._new = new

    def stage(self, document: Mapping[str, Value]) -> str:
        """Write one document to the hidden table; it may bring an id of its own."""
        with self._deployment.lock:
            key = str(document.get("_id") or self._deployment.new_id(self._new))
            made = whole(document, key, self._deployment.clock)
            self._deployment._commit({(id(self._new), key): (self._new, made)})
            return key

    def commit(self) -> None:
        """Put the new table in the place of the old one, whose rows get no tombstones."""
        with self._deployment.lock:
            ts = self._deployment._structural()
            if self._old is not None:
                self._old.states.append((ts, State.DELETED))
            self._new.states.append((ts, State.ACTIVE))

    def abort(self) -> None:
        """Drop the hidden table; what was delivered of it stays delivered."""
        with self._deployment.lock:
            self._new.states.append((self._deployment._structural(), State.DELETED))


def whole(document: Mapping[str, Value], key: str, clock: int) -> Document:
    """Return `document` with the two fields that every stored document has."""
    return {"_creationTime": clock // 1000 / 1000.0, **document, "_id": key}
