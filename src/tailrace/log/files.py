"""A change log that somebody else fills: files of changes in one place, each taken once and for good.

    list  ->  examine (hash, header)  ->  enter into the catalogue  ->  cut  ->  read once, open, keep, count

A place in this log is an offset: each file has a range of them, given when it is entered and never again. What a file
is stands in the catalogue, how far a target is stands in the target, so a slice may be read again, and a file that is
no longer what it was halts. The rows of a slice are read once and kept; a file with too many bad rows is left out of
the slice whole. Where a row lies in its file is found by counting: the rows of a stretch of a file are read in order.
"""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from tailrace.core.errors import Halt, ResyncRequired, Retryable
from tailrace.core.feed import Entry, Fate, Outcome, State
from tailrace.core.position import Phase
from tailrace.core.table import Table, table_from_json
from tailrace.envelopes.flat import Flat
from tailrace.log._file_rows import Rows
from tailrace.log._file_slice import FileSlice
from tailrace.log._heart import Heart
from tailrace.log._inferred import widened
from tailrace.log._intake import Catalogue, Feed, Intake, changed
from tailrace.log._place import Changed, Lent
from tailrace.log._unfit import Unfit, problem_of, refuse_odd_names, refuse_passing
from tailrace.log.slice import Contents
from tailrace.spark.frame import frame

_MOST_FILES = 5000
"""In one slice: what is known of a file takes memory."""
_MANY_FILES = {
    # The files are named one by one: a job to list them takes longer than looking.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": str(10 * _MOST_FILES),
    # Small files share a task, a hundred of them and more.
    "spark.sql.files.openCostInBytes": str(1 << 20),
}
STALE = timedelta(seconds=60)
"""A claim whose owner was not heard of for so long may be taken over."""
_LATER = "replaced: the file was asked for again, and is read further on"
_RESYNC = (
    "Rows would be missing if it went on. Put it back as it was; it then goes on. If that cannot be done, run "
    "cdc undeploy <file> and then cdc run <file>, which reads the feed from its beginning. Nothing was changed."
)


class FileLog:
    """A feed, as the log that one target reads."""

    ordered = False
    """A file may come late, and one that failed may be asked for again."""
    reads_ahead = False
    """A file is claimed when it is read, so the one behind it may be another worker's."""
    replaces = False

    def __init__(
        self,
        name: str,
        epoch: int,
        feed: Feed,
        envelope: Flat,
        catalogue: Catalogue,
        spark: Callable[[], SparkSession],
        target: str = "",
        run_id: str = "",
        warn: Callable[[str], None] = lambda _: None,
        stale: timedelta = STALE,
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.envelope = envelope
        self.only_topic = envelope.table
        self._feed = feed
        self._intake = Intake(feed, catalogue)
        self._catalogue = catalogue
        self._spark = spark
        self._target = target
        self._run_id = run_id
        self._warn = warn
        self._stale = stale
        self._worker = f"{here()}{uuid.uuid4().hex[:12]}"
        self._tables: dict[str, Table] = {}
        self._session: SparkSession | None = None
        self._lock = threading.RLock()

    # -- which files there are

    def head(self) -> int:
        """Take in the files that are there and whole; return the last offset that they have."""
        self._intake.scan()
        return self._catalogue.head()

    def require(self, place: int) -> None:
        """Halt if the catalogue does not reach up to `place`: it is not the one that was read."""
        if place > (head := self._catalogue.head()):
            raise ResyncRequired(
                f"the catalogue of the feed ends at offset {head}, and a target was read up to {place}",
                "It is not the one that was in use. Restore control.root, or run cdc undeploy and then cdc run.",
            )

    def require_rest(self, place: int) -> None:
        """Halt if any file behind `place` is gone or not what it was."""
        self.require(place)
        while entries := self._catalogue.after(place, self._catalogue.head(), _MOST_FILES):
            self._chosen(entries)
            place = entries[-1].last

    # -- what a slice holds

    def slice(self, after: int, max_rows: int, upto: int | None = None) -> FileSlice | None:
        """Return the next files behind `after`, of about `max_rows` rows together; at least one."""
        if upto is None and self._intake.is_time():
            self._intake.scan()
        self.require(after)
        entries = self._catalogue.after(after, self._catalogue.head() if upto is None else upto, _MOST_FILES)
        chosen = [e for e in entries if e.last - entries[0].first < max_rows] or entries[:1]
        if not chosen:
            return None
        if not self._catalogue.claim(self._target, [e.number for e in chosen], self._worker, self._run_id, self._stale):
            raise Retryable(
                "file-claimed",
                f'another process is at work on file "{chosen[0].name}"',
                after=self._stale.total_seconds(),
            )
        beat = Heart(
            lambda: self._catalogue.beat(self._target, self._worker),
            lambda: self._catalogue.abandon(self._target, self._worker),
            max(self._stale.total_seconds() / 4, 1.0),
        )
        try:
            return self._open(after, chosen, beat)
        except BaseException:
            beat.stop()
            raise

    def wait(self, seconds: float) -> None:
        """Return after `seconds`: nobody tells us that a file has come."""
        time.sleep(seconds)

    def schema(self, fingerprint: str) -> Table:
        """Return the table schema that rows with `fingerprint` were written with."""
        return self._tables[fingerprint]

    def commit(self, group: str, place: int) -> None:
        """Do nothing: there is nobody to tell."""

    def _open(self, after: int, entries: list[Entry], beat: Heart) -> FileSlice:
        good, outcomes = self._chosen(entries)
        lent = self._lent(good)
        try:
            try:
                piece, found = self._read(after, entries[-1].last, good, lent, beat.stop)
            except (Unfit, Py4JError, PySparkException) as error:
                self._refuse_other_faults(error, good, lent)
                if len(entries) > 1:
                    # One of them is at fault; which, is found by halving.
                    lent.release()
                    return self._open(after, entries[: len(entries) // 2], beat)
                found = [Outcome(entries[0].number, problem=problem_of(error))]
                piece = self._without_rows(after, entries[-1].last, (), lent, beat.stop)
        except BaseException:
            lent.release()
            raise
        try:
            self._note(entries, [*outcomes, *found])
            if not piece.topics():
                # Nothing will be committed, and all there is to say of files without rows is known.
                piece.note([Fate(entry.number, 0, 0) for entry, _ in piece.files])
        except BaseException:
            piece.release()
            raise
        return piece

    def _chosen(self, entries: Sequence[Entry]) -> tuple[list[Entry], list[Outcome]]:
        """Return the entries to be read, and why the others are not."""
        good, outcomes = [], []
        repeated = self._catalogue.repeated([entry.number for entry in entries])
        wanted = [entry for entry in entries if entry.number not in repeated]
        states = self._feed.directory.place.states([entry.name for entry in wanted])
        for entry in entries:
            if entry.number in repeated:
                outcomes.append(Outcome(entry.number, problem=_LATER))
                continue
            problem = entry.content.problem or self._gone_or_changed(entry, states.get(entry.name))
            if problem:
                outcomes.append(Outcome(entry.number, problem=problem))
            else:
                good.append(entry)
        return good, outcomes

    def _lent(self, entries: Sequence[Entry]) -> Lent:
        try:
            return self._feed.directory.place.lend(list({entry.name: entry for entry in entries}.values()))
        except Changed as error:
            raise Retryable("file-changed", f'file "{error}" changed while it was read', "It is read again.") from error

    def _note(self, entries: Sequence[Entry], outcomes: Sequence[Outcome]) -> None:
        self._catalogue.found(self._target, self._worker, outcomes)
        names = {entry.number: entry.name for entry in entries}
        for outcome in outcomes:
            if not outcome.problem or outcome.problem == _LATER:
                continue
            text = f'nothing of file "{names[outcome.number]}" is applied: {outcome.problem}'
            if self._feed.directory.order == "manifest":
                hint = "In the order of manifests no file is passed over. Have it mended, and run cdc files requeue."
                raise Halt("file-failed", text, hint)
            self._warn(text)

    def _gone_or_changed(self, entry: Entry, state: State | None) -> str:
        """Halt if a file is not what it was; say why it is passed over, if a newer one takes its place."""
        if state is None:
            raise ResyncRequired(f'file "{entry.name}" is gone, and was not yet applied', _RESYNC)
        if state == entry.state:
            return ""
        content = self._feed.examine(entry.name, state)
        if content is None:
            raise Retryable("file-changed", f'file "{entry.name}" changed while it was read', "It is read again.")
        if content.sha256 == entry.content.sha256:
            self._catalogue.touched(entry.number, state)
            return ""
        newer = self._catalogue.latest(entry.name)
        if self._feed.on_change == "apply" or (newer is not None and newer.number > entry.number):
            return "replaced: the file was replaced by another one before it was read"
        raise changed(entry, content)

    def _read(
        self, after: int, upto: int, entries: Sequence[Entry], lent: Lent, stop: Callable[[], None]
    ) -> tuple[FileSlice, list[Outcome]]:
        spark = self._own_session()
        rows = Rows(spark, lent.paths, self._feed.kind, self._feed.encoding, self._feed.max_row_bytes)
        absent = {e.number: problem for e in entries if (problem := rows.absent(e, self.envelope))}
        outcomes = [Outcome(number, problem=problem) for number, problem in absent.items()]
        entries = [entry for entry in entries if entry.number not in absent]
        table = self._learn(rows, entries) if entries else None
        if table is None:
            none = tuple((entry, Outcome(entry.number)) for entry in entries)
            return self._without_rows(after, upto, none, lent, stop), [*outcomes, *(outcome for _, outcome in none)]
        kept = rows.opened(entries, self.envelope, table).persist(StorageLevel.MEMORY_AND_DISK)
        view = f"tailrace_slice_{uuid.uuid4().hex}"

        def drop() -> None:
            stop()
            with suppress(Py4JError, PySparkException, OSError):
                spark.catalog.dropGlobalTempView(view)
                kept.unpersist()
            lent.release()

        try:
            stretches = _stretches(kept)
            if lent.copies is None:
                self._refuse_changing(entries)
            found, places, lowest = self._located(rows, entries, stretches)
            where = frame(spark, places, _PLACES)
            kept.join(F.broadcast(where), ["file", "block"]).withColumns(
                {"number": F.col("id") + F.col("shift"), "offset": F.col("id") + F.col("shift") + F.col("first")}
            ).createGlobalTempView(view)
        except BaseException:
            drop()
            raise
        fingerprint = table.fingerprint()
        self._tables[fingerprint] = table
        fine = {outcome.number: outcome for outcome in found if not outcome.problem}
        count = sum(outcome.rows for outcome in fine.values())
        topic = self.envelope.table
        contents = Contents({(topic, fingerprint): count}, {}, {topic: lowest}) if count else Contents()
        piece = FileSlice(
            after,
            upto,
            contents,
            lambda session: session.table(f"global_temp.{view}"),
            drop,
            tuple((entry, fine[entry.number]) for entry in entries if entry.number in fine),
            self._feed.directory.order,
            self._expect,
        )
        return piece, [*outcomes, *found]

    def _without_rows(
        self, after: int, upto: int, files: tuple[tuple[Entry, Outcome], ...], lent: Lent, stop: Callable[[], None]
    ) -> FileSlice:
        lent.release()
        nothing = Contents(), lambda session: frame(session, [], "x int")
        # The claim is kept until the slice is released: what became of its files is still to be noted.
        return FileSlice(after, upto, *nothing, drop=stop, files=files, note=self._expect)

    def _expect(self, fates: Sequence[Fate]) -> None:
        self._catalogue.expect(self._target, self._worker, fates)

    def _located(
        self, rows: Rows, entries: Sequence[Entry], stretches: Sequence[Row]
    ) -> tuple[list[Outcome], list[tuple[object, ...]], str]:
        """Say what each file holds, and where the rows of its stretches lie; files that fail are left out."""
        by_file: dict[str, list[Row]] = {}
        for stretch in stretches:
            by_file.setdefault(stretch["file"], []).append(stretch)
        outcomes: list[Outcome] = []
        places: list[tuple[object, ...]] = []
        lowest: list[str] = []
        uris = rows.uris({entry.name for entry in entries})
        if strange := by_file.keys() - set(uris.values()):
            raise Halt("miscounted", f'rows came from "{min(strange)}"', "This is a defect: please report it.")
        for entry in entries:
            uri = uris[entry.name]
            mine = sorted(by_file.get(uri, []), key=lambda stretch: stretch["block"])
            count, bad = sum(s["count"] for s in mine), sum(s["bad"] for s in mine)
            problem = ""
            if bad > self._feed.max_reject_fraction * count:
                example = min(s["problem"] for s in mine if s["problem"])
                problem = f"too-many-bad-rows: {bad} of {count} rows are bad, one with {example}"
            elif count > entry.last - entry.first + 1:
                raise Halt(
                    "miscounted",
                    f'file "{entry.name}" has {count} rows, more than lines',
                    "This is a defect: please report it.",
                )
            outcomes.append(Outcome(entry.number, count, bad, problem))
            if problem:
                continue
            before = 0
            for stretch in mine:
                places.append((uri, stretch["block"], before - stretch["least"], entry.first, entry.order, entry.name))
                before += stretch["count"]
            lowest += [f"{s['lowest']}.{entry.order}" for s in mine if s["lowest"] is not None]
        return outcomes, places, f"{self.epoch:04x}.{Phase.CHANGE:d}.{min(lowest, default='')}"

    def _refuse_changing(self, entries: Sequence[Entry]) -> None:
        states = self._feed.directory.place.states([entry.name for entry in entries])
        for entry in entries:
            if (state := states.get(entry.name)) == entry.state:
                continue
            have = self._catalogue.latest(entry.name)
            if have is None or (have.state, have.content.sha256) != (state, entry.content.sha256):
                raise Retryable("file-changed", f'file "{entry.name}" changed while it was read', "It is read again.")

    def awaited(self, topic: str) -> frozenset[str] | None:
        """Return nothing: what files do not have is no column of theirs."""
        return None

    def _learn(self, rows: Rows, entries: Sequence[Entry]) -> Table | None:
        """Return the table that the rows of `entries` go into: as declared, or as learned so far.

        `None`, if nothing was learned so far and there are no rows to learn from.
        """
        if (declared := self.envelope.declared()) is not None:
            return declared
        stored = self._catalogue.about("table")
        have = table_from_json(json.loads(stored)) if stored else None
        found = {n: k for n, k in rows.kinds(entries).items() if n != self.envelope.operation_column}
        if have is None and not found and rows.is_blank(entries):
            return None
        refuse_odd_names(have, found, self.envelope.keys)
        table = widened(have, found, self.envelope.table, self.envelope.keys)
        if table != have:
            self._catalogue.remember("table", json.dumps(table.to_json()))
        return table

    def _refuse_other_faults(self, error: Exception, entries: Sequence[Entry], lent: Lent) -> None:
        """Raise what is no fault of a file: it changed, the machine is at its limits, or Spark is broken."""
        if isinstance(error, Unfit):
            return
        if lent.copies is None:
            self._refuse_changing(entries)
        refuse_passing(error, [entry.name for entry in entries])
        try:
            self._own_session().range(1).count()
        except (Py4JError, PySparkException):
            raise error from None

    def let_go(self) -> None:
        """Read in another session from now on: the one that there was went away."""
        with self._lock:
            self._session = None

    def _own_session(self) -> SparkSession:
        with self._lock:
            if self._session is None:
                self._session = self._spark().newSession()
                # Replanning between stages doubles the jobs of a small slice.
                for name, value in {"spark.sql.adaptive.enabled": "false", **_MANY_FILES}.items():
                    self._session.conf.set(name, value)
            return self._session


_PLACES = "file string, block bigint, shift bigint, first bigint, order string, name string"


def _stretches(kept: DataFrame) -> list[Row]:
    bad = F.col("problem").isNotNull()
    return (
        kept.groupBy("file", "block")
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.min("id").alias("least"),
            F.count_if(bad).alias("bad"),
            F.min("problem").alias("problem"),
            F.min(F.when(~bad, F.col("sequence"))).alias("lowest"),
        )
        .collect()
    )


def here() -> str:
    """Return what the names of the workers of this machine begin with."""
    return f"{socket.gethostname()}/"


def shown(entry: Entry) -> dict[str, Any]:
    """Return an entry as commands print it."""
    return {"number": entry.number, "file": entry.name, "sha256": entry.content.sha256, "size": entry.size}
