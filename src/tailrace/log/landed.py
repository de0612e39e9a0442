"""The change log we write: Parquet files in a folder, one per page, in the order of the source.

    <root>/<log>/pages/0000000000000000-0000000000016383-s.parquet     a page of the snapshot
    <root>/<log>/pages/0000000000016384-0000000000020011-t.parquet     a page after it
    <root>/<log>/schemas/<fingerprint>.json                            what the rows of a page look like
    <root>/<log>/empty.json                                            the tables that the snapshot found without rows

A file's name carries its range of offsets; its footer carries what it holds and the two checkpoints it
lies between. It is written under another name, made durable, and then renamed, so it is there whole or
not at all, and the newest page is itself a copy of the checkpoint that it earned: a crash between the
append and the saved checkpoint costs nothing and repeats nothing.

A snapshot is visible to readers once it is complete. Half a snapshot equals the source at no position.
One that was interrupted goes on where it ended if the source can do that, and is else taken again from the
start. What the rows look like is a `Shape`; rows of Convex lie in `raw_change_log` and not in `pages`.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tailrace.core import checkpoint as checkpoints
from tailrace.core.checkpoint import Checkpoint, Snapshotting
from tailrace.core.errors import Halt, Retryable, Unreachable
from tailrace.core.failpoint import failpoint
from tailrace.core.page import Page
from tailrace.core.table import Table
from tailrace.log.schemas import EmptyTables, SchemaFile, SchemaFolder, sync
from tailrace.log.shape import LIKE_KAFKA, Part, Shape
from tailrace.log.slice import Contents, Slice, total, written_with

_FOOTER = b"tailrace"


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    first: int
    last: int
    snapshot: bool


@dataclass(frozen=True, slots=True)
class _Footer:
    contents: Contents
    since: Checkpoint | None
    checkpoint: Checkpoint


class LandedLog:
    """The change log of one life of a pipeline, in a folder of its own."""

    ordered = True
    """Changes of one key lie in the log in the order of their positions."""
    reads_ahead = False
    replaces = False

    def __init__(self, folder: Path, name: str, epoch: int, shape: Shape = LIKE_KAFKA) -> None:
        self.name = name
        self.epoch = epoch
        self.envelope = shape.envelope
        self._shape = shape
        self._pages = folder / name / shape.folder
        self._schemas: SchemaFile | SchemaFolder = (
            SchemaFile(self._pages) if shape.one_schema_file else SchemaFolder(folder / name / "schemas")
        )
        self._empty = EmptyTables(folder / name)
        self._known: dict[str, Table] = {}
        self._footers: dict[Path, _Footer] = {}
        self._listed: list[_File] | None = None
        self._at: Checkpoint | None = None
        self._grown = threading.Condition()

    # -- the pump's side

    def recover(self, saved: Checkpoint | None) -> Checkpoint | None:
        """Return where the log really stands: the page after `saved` may have been appended.

        An unfinished snapshot is cleared away, together with what a crash left half written. A checkpoint
        that was lost is taken from the newest page; a log that was lost cannot be taken from anywhere.
        """
        if saved is not None and not self._pages.is_dir():
            raise _gap(f'the change log at "{self._pages}" is gone')
        with self._grown, self._writing():
            self._pages.mkdir(parents=True, exist_ok=True)
            for leftover in self._pages.glob(".*"):
                leftover.unlink()
            # A page that was renamed just before the crash counts, so its name must last from here on.
            sync(self._pages)
            self._listed = None
            files = self._files()
            if files:
                tail = self._footer(files[-1])
                behind = isinstance(saved, Snapshotting) and not files[-1].snapshot
                saved = tail.checkpoint if behind or saved in (None, tail.since) else saved
            if isinstance(saved, Snapshotting) and not saved.resumable:
                for file in reversed(files):
                    file.path.unlink()
                self._listed = None
                # The next snapshot may use these names again.
                self._footers.clear()
            self._at = saved
            return saved

    def append(self, page: Page[pa.Table]) -> None:
        """Make the rows of `page` durable and visible; appending it again does nothing."""
        files = self._files()
        if files and (tail := self._footer(files[-1])).since == page.since and tail.checkpoint == page.checkpoint:
            return
        if page.since != self._at:
            raise Halt(
                "broken-chain",
                f"a page follows {page.since}, and the log stands at {self._at}",
                "This is a defect: please report it. The log was left as it is.",
            )
        first = files[-1].last + 1 if files else 0
        ends_snapshot = bool(files) and files[-1].snapshot and not isinstance(page.checkpoint, Snapshotting)
        if page.empty:
            # Before the page: after a crash in between, the snapshot or its last page comes again and says the same.
            with self._writing():
                self._empty.put(page.empty)
        if page.rows.num_rows or ends_snapshot:
            with self._writing():
                # One that is known was read from where it is kept, or put there.
                if new := {name: table for name, table in page.schemas.items() if name not in self._known}:
                    self._schemas.put(new)
                    self._known.update(new)
                self._write(page, first)
        with self._grown:
            self._at = page.checkpoint
            self._grown.notify_all()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            said = f'the change log at "{self._pages}" could not be written: {error.strerror or error}'
            hint = "Free some space on its disk, or set log.root to another one."
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise Unreachable("disk-full", said, hint) from error
            raise Retryable("log-write", said, hint) from error

    def _write(self, page: Page[pa.Table], first: int) -> None:
        last = first + page.rows.num_rows - 1
        phase = "s" if isinstance(page.checkpoint, Snapshotting) else "t"
        path = self._pages / f"{first:016d}-{last:016d}-{phase}.parquet"
        temporary = path.with_name(f".{path.name}.tmp")
        self._pages.mkdir(parents=True, exist_ok=True)
        failpoint("C05")
        try:
            footer = self._write_parquet(temporary, page, first)
            failpoint("C08")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync(self._pages)
        self._footers[path] = footer
        self._files().append(_File(path, first, last, phase == "s"))
        failpoint("C09")

    def _write_parquet(self, temporary: Path, page: Page[pa.Table], first: int) -> _Footer:
        parts = self._shape.parts(self._shape.numbered(page.rows, first))
        contents = _contents(parts)
        footer = {
            "counts": [[topic, fingerprint, count] for (topic, fingerprint), count in contents.counts.items()],
            "features": {topic: sorted(found) for topic, found in contents.features.items()},
            "since": None if page.since is None else checkpoints.to_json(page.since),
            "checkpoint": checkpoints.to_json(page.checkpoint),
        }
        with temporary.open("wb") as file:
            with pq.ParquetWriter(
                file,
                self._shape.arrow,
                compression="zstd",
                compression_level=1,
                use_dictionary=list(self._shape.dictionary),
                write_statistics=list(self._shape.statistics),
            ) as writer:
                # One row group per table: a reader of one skips the others by their statistics.
                for part in parts:
                    writer.write_table(part.rows)
                failpoint("C06")
                writer.add_key_value_metadata({_FOOTER: json.dumps(footer).encode()})
            file.flush()
            failpoint("C07")
            os.fsync(file.fileno())
        return _Footer(contents, page.since, page.checkpoint)

    # -- the drain's side

    def head(self) -> int:
        """Return the last offset that readers may see; -1 if there is none."""
        files = self._visible()
        return files[-1].last if files else -1

    def slice(self, after: int, max_rows: int, upto: int | None = None) -> Slice | None:
        """Return the next rows after offset `after`, about `max_rows` of them; `None` if there are none.

        It ends with a page and does not go beyond the page that holds `upto`.
        """
        chosen: list[_File] = []
        needed = after + 1
        for file in self._visible():
            if file.last < needed:
                continue
            if file.first > needed:
                raise _gap(f"the change log goes on at offset {file.first}, and {needed} is needed")
            too_many = chosen and file.last - chosen[0].first + 1 > max_rows
            if too_many or (upto is not None and file.first > upto):
                break
            chosen.append(file)
            needed = file.last + 1
        if not chosen:
            if after > self.head():
                raise _gap(f"the change log ends at offset {self.head()}, and {needed} is needed")
            return None
        paths = [str(file.path) for file in chosen]

        def read(spark: SparkSession) -> DataFrame:
            return self._read(spark, paths)

        return Slice(after, chosen[-1].last, total(self._footer(file).contents for file in chosen), read)

    def _read(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        # The name of a folder may hold what would be a pattern.
        found = spark.read.schema(self._shape.spark).option("__globPaths__", "false").parquet(*paths)
        return self._shape.view(found)

    def again(self, offsets: Collection[int], spark: SparkSession) -> Slice:
        """Return a slice of the rows at `offsets`, wherever they lie; those whose pages are gone are not in it."""
        chosen = [f for f in self._visible() if any(f.first <= offset <= f.last for offset in offsets)]
        paths = [str(file.path) for file in chosen]
        wanted = F.col("offset").isin(sorted(offsets))

        def read(session: SparkSession) -> DataFrame:
            return self._read(session, paths).where(wanted)

        every = total(self._footer(file).contents for file in chosen)
        groups = read(spark).groupBy("topic", written_with()).count().collect() if chosen else []
        found = {(topic, fingerprint): count for topic, fingerprint, count in groups}
        counts = {key: found[key] for key in every.counts if key in found}
        return Slice(-1, -1, Contents(counts, every.features), read)

    def reached(self, offset: int) -> Checkpoint | None:
        """Return where the source stood when the log ended with the page of `offset`; `None` if that is not known.

        Of the last page it is where the source stands by now: since then it has sent nothing.
        """
        # Asked for before the end of the log: a page that is appended in between is not said to be reached.
        at = self._at
        files = self._visible()
        if offset == (files[-1].last if files else -1) and not isinstance(at, Snapshotting):
            return at
        return next((self._footer(file).checkpoint for file in reversed(files) if file.last == offset), None)

    def whole_from(self) -> int | None:
        """Return the offset with which the snapshot that the log began with is complete; `None` if it is not yet."""
        files = self._visible()
        for file in files:
            if not file.snapshot:
                since = self._footer(file).since
                return file.last if since is None or isinstance(since, Snapshotting) else files[0].first - 1
        return None

    def begins(self) -> int:
        """Return the offset before the first that is still there; -1 if nothing has expired."""
        files = self._visible()
        return files[0].first - 1 if files else -1

    def require_rest(self, place: int) -> None:
        """Halt if anything behind `place` is gone."""
        if (first := self.begins()) > place:
            raise _gap(f"the change log begins at offset {first + 1}, and {place + 1} is needed")

    def empty(self) -> Mapping[str, Table]:
        """Return, by topic, the tables that the snapshot found without rows."""
        try:
            return self._empty.get()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _corrupt(f'file "{self._empty.path}"', error) from error

    def schema(self, fingerprint: str) -> Table:
        """Return the table schema that rows with `fingerprint` were written with."""
        if fingerprint not in self._known:
            try:
                self._known[fingerprint] = self._schemas.get(fingerprint)
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise _corrupt(f'schema "{self._schemas.place(fingerprint)}"', error) from error
        return self._known[fingerprint]

    def awaited(self, topic: str) -> frozenset[str] | None:
        """Return nothing: a schema says every column of its table."""
        return None

    def wait(self, seconds: float) -> None:
        """Return when a page was appended, or after `seconds`."""
        with self._grown:
            self._grown.wait(seconds)

    def expire(self, upto: int, older_than: timedelta) -> int:
        """Remove pages that end at or before `upto` and are older than `older_than`; return how many.

        The newest page always stays: it holds the checkpoint.
        """
        oldest = (datetime.now(UTC) - older_than).timestamp()
        # Under the lock: the drain of every target asks for it.
        with self._grown, self._writing():
            expired = [f for f in self._visible()[:-1] if f.last <= upto and f.path.stat().st_mtime < oldest]
            for file in expired:
                file.path.unlink()
                self._footers.pop(file.path, None)
                self._files().remove(file)
            return len(expired)

    # -- files

    def _files(self) -> list[_File]:
        # Under the lock: a reader that lists while the pump appends must not put back the shorter list.
        with self._grown:
            if self._listed is None:
                found = []
                for path in self._pages.glob("*.parquet"):
                    first, last, phase = path.stem.split("-")
                    found.append(_File(path, int(first), int(last), phase == "s"))
                self._listed = sorted(found, key=lambda file: (file.first, file.last))
            return self._listed

    def _visible(self) -> list[_File]:
        files = list(self._files())
        return files if files and not files[-1].snapshot else []

    def _footer(self, file: _File) -> _Footer:
        if file.path not in self._footers:
            try:
                stored = json.loads((pq.read_metadata(file.path).metadata or {})[_FOOTER])
                self._footers[file.path] = _Footer(
                    Contents(
                        {(topic, fingerprint): count for topic, fingerprint, count in stored["counts"]},
                        {topic: frozenset(found) for topic, found in stored["features"].items()},
                    ),
                    None if stored["since"] is None else checkpoints.from_json(stored["since"]),
                    checkpoints.from_json(stored["checkpoint"]),
                )
            except (OSError, KeyError, ValueError) as error:
                raise _corrupt(f'page "{file.path}"', error) from error
        return self._footers[file.path]


def _corrupt(what: str, error: Exception) -> Halt:
    return Halt(
        "corrupt-log",
        f"{what} of the change log cannot be read: {error}",
        "Restore the file. If that is not possible, run cdc run <file> --resync, which takes a new snapshot.",
    )


def _gap(what: str) -> Halt:
    return Halt(
        "log-gap",
        what,
        "Pages that were still needed were removed. Restore them, or run cdc run <file> --resync, which takes a new "
        "snapshot.",
    )


def _contents(parts: list[Part]) -> Contents:
    counts = {(part.topic, fingerprint): count for part in parts for fingerprint, count in part.fingerprints.items()}
    return Contents(counts, {part.topic: part.features for part in parts})
