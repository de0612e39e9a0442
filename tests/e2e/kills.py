"""A feed that grows file by file into one target, and a process that is killed at a failpoint, over and over.

    python -m tests.e2e.kills --seed 1 --targets delta,postgres

Each file is a slice. After every kill the table must be what the first files make, no fewer than before; at the end,
what all of them make; and one more run changes nothing. So what a kill loses, doubles or brings back is seen at the next
look at the latest, and is told with the kills that led to it.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from dev import services
from tailrace.demo.postgres import EmbeddedPostgres
from tests.clients import EVERY, FILES, Row, Store, in_files, in_mysql, in_postgres
from tests.e2e import convex_kills, landing
from tests.e2e.command import PLATFORM, Command
from tests.receiver import Receiver, receiving

POINTS = ("C19", "C20", "C21", "C22", "C23", "C25")
"""The failpoints of a target, in `docs/explanation/crashes.md`."""
SENDING = ("C19", "C23", "C24", "C25")
"""Those of a webhook."""
MODES = ("scd1", "append")
TABLE = "people"


@dataclass
class Feed(Command):
    """The files so far, and the pipeline that reads them into `sinks`."""

    sinks: Sequence[dict[str, Any]]
    events: list[list[Row]] = field(default_factory=list)
    """By file."""
    max_rows: int = 1
    """So many a slice has, unless a single file has more."""

    def __post_init__(self) -> None:
        (self.folder / "in").mkdir(parents=True)
        pipeline = {
            "pipeline_id": "kills",
            "source": {
                "source_type": "files", "path": str(self.folder / "in"), "format": "parquet", "table": TABLE,
                "stable_seconds": 0,
            },
            "cdc": {"keys": ["id"], "operation_column": "op"},
            "sinks": [{"schema_evolution": "alter", **sink} for sink in self.sinks],
        }  # fmt: skip
        self.write(pipeline, PLATFORM | {"slice": {"max_rows": self.max_rows}})

    def put(self, *, grows: bool = False) -> None:
        """Add a file: it makes rows, changes and deletes some of the one before, and may have a column that is new."""
        n = len(self.events) + 1
        new, old, extra = n * 10, (n - 1) * 10, f"extra{n}"
        rows: list[Row] = [{"op": "I", "id": new + m, "name": f"made by {n}", extra: m} for m in range(5)]
        if n > 1:
            rows += [{"op": "U", "id": old + m, "name": f"changed by {n}", extra: 9} for m in (0, 1)]
            rows += [{"op": "D", "id": old + 2, "name": None, extra: None}]
        rows += [{"op": "U", "id": new, "name": f"changed at once by {n}", extra: n}]
        types = [("op", pa.string()), ("id", pa.int64()), ("name", pa.string()), (extra, pa.int32())]
        file = pa.Table.from_pylist(rows, pa.schema(types if grows else types[:3]))
        self.events.append(file.to_pylist())
        hidden = self.folder / "in" / ".unfinished"
        pq.write_table(file, hidden)
        hidden.rename(self.folder / "in" / f"{n:04d}.parquet")

    def expected(self, files: int, mode: str) -> Counter[tuple[Any, ...]]:
        """Return what the table holds after so many files."""
        events = [event for rows in self.events[:files] for event in rows]
        if mode == "append":
            return Counter(told(event) for event in events)
        current: dict[int, Row] = {}
        for event in events:
            current.pop(event["id"], None)
            if event["op"] != "D":
                current[event["id"]] = event
        return Counter(told(row) for row in current.values())


def told(row: Row) -> tuple[Any, ...]:
    """Return the values of a row that are there, by column, without what says how it came."""
    return tuple(
        sorted((name, value) for name, value in row.items() if value is not None and name != "op" and name[0] != "_")
    )


@dataclass
class Kept:
    """A table that is looked at after every kill."""

    feed: Feed
    store: Store
    mode: str
    files: int = 0
    """So many are in it, as far as was seen."""

    def look(self) -> str:
        """Return what is wrong with the table; nothing if it is what the first files make, no fewer than before."""
        found = Counter(map(told, self.store.read(TABLE)))
        for files in range(self.files, len(self.feed.events) + 1):
            if found == self.feed.expected(files, self.mode):
                self.files = files
                return ""
        nearest = self.feed.expected(self.files, self.mode)
        return f"after {self.files} files: missing {list(nearest - found)[:3]}, left over {list(found - nearest)[:3]}"

    def end(self) -> str:
        """Return what is wrong with the table once everything is applied."""
        return self.look() or (f"has {self.files} of {len(self.feed.events)} files" if self.missing else "")

    @property
    def missing(self) -> int:
        return len(self.feed.events) - self.files


@dataclass
class Sent:
    """What a receiver of messages got: each event at least once, those of a row in their order, by ids that repeat."""

    feed: Feed
    receiver: Receiver

    def look(self) -> str:
        """Return what is wrong with the messages so far."""
        firsts = list({got.id: got for got in reversed(self.receiver.got)}.values())[::-1]
        seen: dict[str, list[int]] = {}
        for got in firsts:
            seen.setdefault(json.dumps(got.json["key"]), []).append(got.offset)
        doubled = len(firsts) - len({got.offset for got in firsts})
        changed = len({(got.id, got.body) for got in self.receiver.got}) - len(firsts)
        mixed = [key for key, offsets in seen.items() if offsets != sorted(offsets)]
        return (
            f"{doubled} with two ids, {changed} with two bodies, not in order: {mixed[:3]}"
            if doubled or changed or mixed
            else ""
        )

    def end(self) -> str:
        """Return what is wrong with the messages once everything was sent."""
        events = sum(map(len, self.feed.events))
        offsets = {got.offset for got in self.receiver.got}
        return self.look() or ("" if offsets == set(range(events)) else f"{len(offsets)} of {events} events came")


class Looked(Protocol):
    """What is looked at after every kill, and at the end; each returns what is wrong."""

    def look(self) -> str: ...

    def end(self) -> str: ...


def story(feed: Command, kept: Looked, points: Sequence[str], chance: random.Random) -> Iterator[tuple[str, str]]:
    """Kill twice in a row at each of `points`, then go to the end; yield what was done, and what is wrong after it."""
    for point in points:
        for turn in ("killed", "killed again"):
            yield f"{point} {turn}", _kill(feed, point, chance.randint(1, 2) if turn == "killed" else 1) or kept.look()
    done = feed.run()
    yield "at the end", f"exit {done.returncode}: {done.stderr[-2000:]}" if done.returncode else kept.end()
    again = feed.run()
    tables = [table for target in json.loads(again.stdout.splitlines()[-1])["targets"] for table in target["tables"]]
    applied = sum(table["applied"] for table in tables)
    yield "once more", f"{applied} events were applied again" if applied else kept.end()


def _kill(feed: Command, point: str, hit: int) -> str:
    """Run until `point` is passed for the `hit`-th time; return why that did not come about."""
    for _ in range(hit + 2):
        feed.put(grows=point == "C21")
        done = feed.run(f"{point}=kill:{hit}")
        if done.returncode == -signal.SIGKILL:
            return ""
        if done.returncode:
            return f"exit {done.returncode}: {done.stderr[-2000:]}"
        # What an earlier kill left was not enough for so many hits.
        hit = 1
    return "was never reached"


@contextmanager
def stores(folder: Path, kinds: Sequence[str]) -> Iterator[dict[str, Store]]:
    """Open a store of each kind, with the server that it needs."""
    with ExitStack() as stack:
        found = {kind: in_files(kind, folder / kind) for kind in kinds if kind in FILES}
        for store in found.values():
            Path(str(store.options.get("path") or store.options["warehouse"])).parent.mkdir(parents=True, exist_ok=True)
        if "postgres" in kinds:
            found["postgres"] = in_postgres(stack.enter_context(EmbeddedPostgres(folder / "pg")), "copy")
        if "mysql" in kinds:
            up = stack.enter_context(services.running("mariadb", folder=folder / "servers"))
            found["mysql"] = in_mysql(up.mariadb, "copy")
        yield found


def main() -> None:
    """Try every target in every mode at every failpoint; say what failed, and fail then."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--targets", default=",".join((*EVERY, "webhook", "bronze", "convex")), help="only these")
    parser.add_argument("--modes", default=",".join(MODES), help="only these, of targets that keep tables")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    folder, failures = Path(tempfile.mkdtemp(prefix="tailrace-kills-")), list[str]()
    modes = options.modes.split(",")
    for kind in options.targets.split(","):
        for mode in modes if kind in EVERY else ["append"]:
            here = folder / f"{kind}-{mode}"
            failures += [f"{kind} {mode} {text}" for text in tried(here, kind, mode, options.seed)]
            shutil.rmtree(here, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    print(f"seed {options.seed}: {len(failures)} failed", *failures, sep="\n  ")
    sys.exit(1 if failures else 0)


def points_of(kind: str) -> tuple[str, ...]:
    """Return the failpoints of a target of this kind."""
    return {"webhook": SENDING, "bronze": landing.POINTS}.get(kind, POINTS)


def tried(folder: Path, kind: str, mode: str, seed: int) -> list[str]:
    """Kill at every failpoint of a target; return what failed. It ends with the first, since what follows may come of it."""
    chance = random.Random(f"{seed} {kind} {mode}")
    if kind == "convex":
        folder.mkdir(parents=True)
        try:
            convex_kills.killed_at(folder, convex_kills.Points())
        except AssertionError as error:
            return [str(error)]
        return []
    began, points = time.monotonic(), list(points_of(kind))
    chance.shuffle(points)
    with ExitStack() as stack:
        feed: Command
        kept: Looked
        if kind == "bronze":
            feed, kept = stack.enter_context(landing.landing(folder / "feed"))
        elif kind == "webhook":
            receiver = stack.enter_context(receiving())
            options = {"url": receiver.address, "allow_http": True, "allow_private": True}
            files = Feed(folder / "feed", [{"sink_id": "hook", "sink_type": kind, "mode": mode, kind: options}])
            feed, kept = files, Sent(files, receiver)
        else:
            store = stack.enter_context(stores(folder, [kind]))[kind]
            files = Feed(folder / "feed", [store.sink("copy", mode=mode)])
            feed, kept = files, Kept(files, store, mode)
        for what, wrong in story(feed, kept, points, chance):
            print(f"{kind} {mode}: {what}: {wrong or 'holds'}", flush=True)
            if wrong:
                return [f"{what} (in the order {' '.join(points)}): {wrong}"]
    print(f"{kind} {mode}: {2 * len(points)} kills in {time.monotonic() - began:.0f} s", flush=True)
    return []


if __name__ == "__main__":
    main()
