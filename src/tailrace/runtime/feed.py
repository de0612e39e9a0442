"""An inlet that is a log already: a directory or a bucket of files.

Options, PlatformConfig ──▶ feed, catalogue ──▶ a log for each target, dead letters, what `cdc files` shows
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tailrace.apply.target import Target
from tailrace.apply.versions import Versioned
from tailrace.config.pipeline import Mode, OperationsConfig, PipelineConfig
from tailrace.config.platform import PlatformConfig
from tailrace.control._audit_store import PostgresStore
from tailrace.control.audit import Audit
from tailrace.control.checkpoints import Life
from tailrace.control.lag import TargetLag
from tailrace.control.rejects import Kept, Rejects
from tailrace.core.change import Op
from tailrace.core.checkpoint import Checkpoint
from tailrace.core.errors import Halt, Misconfigured, ResyncRequired
from tailrace.core.feed import Entry, Examined, Seen
from tailrace.core.table import Table
from tailrace.envelopes._values import quoted
from tailrace.envelopes.flat import Flat, Given
from tailrace.log._intake import Feed, changed
from tailrace.log._listing import Directory, again
from tailrace.log._place import Place, open_place
from tailrace.log.files import FileLog, here, shown
from tailrace.log.slice import Slice
from tailrace.runtime.inlet import Opened, Tables
from tailrace.sources.files import Options

_KEYS_SHOWN = 20
_VERSIONS_SEEN = 1000
"""So many commits are looked through for the one that brought a file: each is a small file to read."""


class FileFeed:
    """The feed of one pipeline; see `runtime.inlet.Inlet` for what each method promises."""

    prefix = ""
    anew = False
    growing = True

    def __init__(
        self, pipeline: PipelineConfig, platform: PlatformConfig, folder: Path, spark: Callable[[], SparkSession]
    ) -> None:
        if not isinstance(pipeline.source.options, Options):
            raise TypeError("not a pipeline of files")
        self._pipeline = pipeline
        self._options = pipeline.source.options
        self._platform = platform
        self._folder = folder
        self._spark = spark
        self.run_id = ""
        self._swept = False

    def check(self) -> Tables:
        """Return the one table, once the feed is known to be there; whether it has keys is checked on loading."""
        self._place().check()
        return dict.fromkeys(self._options.tables)

    def plan(self) -> list[str]:
        """Return nothing: a feed is only read."""
        return []

    def dead_letters(self) -> Rejects:
        """Return where rows go that can never be applied."""
        enabled, limit = self._platform.dlq.enabled, self._platform.limits.max_rejects
        return Rejects(self._folder / "rejects", enabled=enabled, limit=limit)

    def audit(self, life: Life) -> Audit:
        """Return the catalogue of `life`."""
        dsn = self._platform.control.audit_dsn
        if dsn is None:
            return Audit(self._folder / "files" / f"{life.log}.db")
        about = f"CDC files of pipeline {self._pipeline.pipeline_id}"
        return Audit(PostgresStore(dsn.get_secret_value(), f"tailrace_files_{life.log}", about))

    def open(self, life: Life) -> Opened:
        """Return the log of `life`, which every target reads for itself: what it has taken is noted by target."""
        self._swept = False
        return Opened(self.log(life), each=functools.partial(self.log, life))

    def log(self, life: Life, target: str = "", warn: Callable[[str], None] = lambda _: None) -> FileLog:
        """Return the log of `life` as `target` reads it."""
        return FileLog(
            life.log,
            life.epoch,
            self._feed(warn),
            self._envelope(),
            self.audit(life),
            self._spark,
            target,
            self.run_id,
            warn,
        )

    def begin(self, life: Life, target: Target, at: Callable[[], int]) -> None:
        """Put the audit of a target right from the mark of its table; halt if the catalogue is another one."""
        if not self._swept:
            # What a killed run left, before any target reads.
            self._swept = True
            shutil.rmtree(self._copies, ignore_errors=True)
        audit = self.audit(life)
        marks = [m.offset for t in self._options.tables if (m := target.mark(t)) is not None and m.log == life.log]
        reached = max([at(), *marks])
        if reached > audit.head():
            raise ResyncRequired(
                f"the catalogue of the feed does not reach offset {reached}, which target {target.name} has",
                "It is not the one that was in use. Restore control.root, or run cdc undeploy and then cdc run, which "
                "reads the feed from its beginning.",
            )
        for mark in marks:
            audit.settle(target.name, mark, self.run_id)
        # The lock of the pipeline says that no other process of this machine is at work.
        audit.abandon(target.name, here())

    def passed(self, life: Life, target: str, reached: Mapping[str, int]) -> None:
        """Note how far a target is."""
        self.audit(life).settle(target, reached[target], self.run_id)

    def head(self, life: Life | None) -> int:
        """Return the last offset of the files that were taken; what has come since is not looked for."""
        return self.audit(life).head() if life else -1

    def consume(self, life: Life | None, limit: int) -> Iterator[dict[str, object]]:
        """Refuse: the files can be looked at as they are."""
        raise Misconfigured("not-available", "cdc consume does not read files in this release", "Look at the files.")

    def lag(self, checkpoint: Checkpoint | None) -> Mapping[str, object]:
        """Return nothing: who fills the feed is not asked."""
        return {}

    def again(self, life: Life, letters: Sequence[Kept], spark: SparkSession) -> Slice:
        """Refuse: rows of files are read again with their file."""
        raise Misconfigured(
            "not-available",
            "cdc dlq replay does not read files in this release",
            "Have the file read again with cdc files requeue, or send what is missing in a file of its own.",
        )

    def expire(self, opened: Opened, upto: int) -> None:
        """Do nothing: the files are somebody else's."""

    def deploy(self) -> list[str]:
        """Return nothing: somebody else fills the feed."""
        return []

    def undeploy(self) -> list[str]:
        """Return nothing: nothing was created in the feed."""
        return []

    def behind(self, found: TargetLag) -> list[dict[str, object]]:
        """Return how far a target is behind, in rows, counting the lines of headers too."""
        return [{"part": found.target, "lag_events": found.events, "upto": found.upto, "head": found.head}]

    # -- cdc files

    def status(self, life: Life | None, *, every: bool = False) -> dict[str, object]:
        """Return how many files are in which state by target, and the files that are not committed, or all."""
        about: dict[str, object] = {"feed": str(self._place()), "table": self._options.table}
        if life is None:
            return {**about, "targets": [], "files": []}
        audit, targets = self.audit(life), self._targets()
        return {**about, "targets": audit.counts(targets), "files": audit.rows(targets, every=every)}

    def requeue(self, life: Life | None, what: str | None, *, failed: bool, dry_run: bool) -> list[dict[str, object]]:
        """Enter files again, at the end: those that failed, or the one called `what`. Their order stays."""
        if life is None:
            raise _unknown(what or "--failed")
        audit = self.audit(life)
        chosen = audit.failed() if failed else audit.standing(audit.find(what or ""))
        if not chosen and not failed:
            raise _unknown(what)
        new = list(self._again(audit, chosen, failed=failed))
        appending = [sink.sink_id for sink in self._pipeline.enabled_sinks if sink.mode is Mode.APPEND]
        if dry_run:
            audit.refuse_doubling([number for _, (_, _, number) in new], appending)
        else:
            audit.enter((one for _, one in new), appending)
        return [{**shown(e), "sha256": content.sha256, "requeued": not dry_run} for e, (_, content, _) in new]

    def _again(
        self, audit: Audit, chosen: Sequence[Entry], *, failed: bool
    ) -> Iterator[tuple[Entry, tuple[Seen, Examined, int]]]:
        """Yield entries, each as it is to be entered again: at its place in the order, with what the file holds now.

        Other content in the place of what was taken would be taken for what the targets have: it comes after it, or
        halts. What was replaced is left to the entry that it was replaced by.
        """
        feed = self._feed()
        states = feed.directory.place.states([entry.name for entry in chosen])
        newest = audit.newest([entry.name for entry in chosen])
        for entry in chosen:
            state = states.get(entry.name)
            content = feed.examine(entry.name, state) if state else None
            if state is None or content is None:
                raise Halt(
                    "file-gone",
                    f'file "{entry.name}" is not there, or changes while it is read',
                    "Put the file there, whole, and run the command again. Nothing was changed.",
                )
            seen = Seen(entry.name, state.size, state.modified_ns, entry.order, tag=state.tag)
            last = newest[entry.name]
            replaced = last.number != entry.number and content.sha256 == last.content.sha256
            if content.sha256 == entry.content.sha256 or (audit.failed_everywhere(entry.number) and not replaced):
                yield entry, (seen, content, entry.number)
            elif feed.on_change != "apply":
                raise changed(entry, content)
            elif not replaced:
                yield entry, (replace(seen, order=again(seen, last.order, feed.directory.order)), content, -1)
            elif not failed and last not in chosen:
                raise changed(entry, content)

    def lineage(self, life: Life | None, what: str, opened: Sequence[Target]) -> list[dict[str, object]]:
        """Return what became of a file in each target: state, commit, and how many rows are as it left them."""
        entries = {entry.number: entry for entry in self.audit(life).find(what)} if life else {}
        if life is None or not entries:
            raise _unknown(what)
        found = []
        for row in self.audit(life).rows(self._targets(), list(entries)):
            target = next(t for t in opened if t.name == row["target"])
            entry = entries[int(str(row["number"]))]
            commit = self._commit_of(target, life.log, entry) if row["state"] == "committed" else None
            # The rows of a repeat have the very places of what it repeats: they are of the entry that was applied.
            applied = row["state"] == "committed" and row["applied"] != 0
            rows = self._rows_of(target, entry.order) if applied else {"rows_now": 0, "keys": []}
            found.append({**row, "commit": commit, **rows})
        return found

    def _commit_of(self, target: Target, log: str, entry: Entry) -> int | None:
        """Return the first version of the table that includes a file; `None` if that is not known, or no longer."""
        if not isinstance(target, Versioned):
            return None
        versions = target.versions(self._options.table, _VERSIONS_SEEN)
        with_it = [n for n, v in enumerate(versions) if v.mark and v.mark.log == log and v.mark.offset >= entry.last]
        # Before the first that has it there is one that has not, or the first one is gone.
        return versions[with_it[-1]].id if with_it and with_it[-1] + 1 < len(versions) else None

    def _rows_of(self, target: Target, order: str) -> dict[str, object]:
        table = self._options.table
        have: Table | None = target.have(table)
        if have is None:
            return {"rows_now": None, "keys": []}
        mode = next(sink.mode for sink in self._pipeline.enabled_sinks if sink.sink_id == target.name)
        # Either starts Spark: there are no expressions before.
        rows = target.known(table) if mode is Mode.SCD1 else target.current(table)
        mine = rows.where(F.substring("_cdc_position", -(len(order) + 18), len(order) + 2) == f".{order}.")
        if mode is Mode.SCD1:
            mine = mine.where("_cdc_alive")
        named = [F.col(quoted(key)).cast("string") for key in have.keys]
        sample = mine.select(*named).distinct().orderBy(*named).limit(_KEYS_SHOWN).collect() if named else []
        return {"rows_now": mine.count(), "keys": [list(row) for row in sample]}

    # -- parts

    def _targets(self) -> list[str]:
        return [sink.sink_id for sink in self._pipeline.enabled_sinks]

    @property
    def _copies(self) -> Path:
        return self._folder / "files" / "copies"

    def _place(self) -> Place:
        return open_place(self._options.path, self._options.store(), self._copies)

    def _feed(self, warn: Callable[[str], None] = lambda _: None) -> Feed:
        options = self._options
        kinds = {column.name: column.type for column in options.columns}
        return Feed(
            Directory(self._place(), options.file_pattern, options.order, options.stable_seconds, warn),
            options.format,
            options.encoding,
            options.max_reject_fraction,
            options.on_change,
            self._platform.limits.max_event_bytes,
            tuple((name, kinds[name]) for name in self._pipeline.cdc.sequence),
        )

    def _envelope(self) -> Flat:
        cdc = self._pipeline.cdc
        words = cdc.operations or OperationsConfig()
        letters = {
            **dict.fromkeys(words.insert, Op.CREATE.value),
            **dict.fromkeys(words.update, Op.UPDATE.value),
            **dict.fromkeys(words.delete, Op.DELETE.value),
        }
        columns = tuple(Given(c.name, c.at, c.type, c.required) for c in self._options.columns)
        return Flat(
            self._options.table, tuple(cdc.keys or ()), columns, cdc.operation_column or "", cdc.sequence, letters
        )


def _unknown(what: str | None) -> Misconfigured:
    return Misconfigured(
        "unknown-file", f'no file "{what}" was taken from this feed', "cdc files status --all lists names and hashes."
    )
