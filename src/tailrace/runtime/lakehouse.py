"""What `cdc lakehouse` does to the tables of a pipeline's lakehouse targets.

Looking takes no lock. What changes a table takes the lock of the pipeline, so that no run applies meanwhile, and a
rollback is refused if the change log could not make the table current again.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import cast

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tailrace.apply.target import Target
from tailrace.apply.versions import Version, Versioned
from tailrace.config.pipeline import SinkConfig
from tailrace.control.checkpoints import Checkpoints, Life
from tailrace.control.lock import only_one
from tailrace.control.progress import Progress
from tailrace.core import offsets
from tailrace.core.errors import Halt, Misconfigured
from tailrace.runtime.drains import Drains
from tailrace.runtime.inlet import Inlet
from tailrace.runtime.maintenance import Settings, compact, expire
from tailrace.targets._events import JSON
from tailrace.targets._merge import quote


@dataclass(frozen=True, slots=True)
class Moment:
    """When: a snapshot by its id, or the last one at a time; without either, now."""

    snapshot: int | None = None
    at: datetime.datetime | None = None


class Lakehouse:
    """The lakehouse targets of one pipeline."""

    def __init__(
        self,
        drains: Drains,
        checkpoints: Checkpoints,
        progress: Progress,
        inlet: Inlet,
        folder: Path,
    ) -> None:
        self._drains = drains
        self._checkpoints = checkpoints
        self._progress = progress
        self._inlet = inlet
        self._folder = folder

    def snapshots(self, target: str | None, table: str | None, most: int) -> list[dict[str, object]]:
        """Return what the tables were, the latest first."""
        rows = []
        for sink in self._sinks(target):
            opened = self._open(sink)
            for name in self._tables(sink, table):
                rows += [_row(sink.sink_id, name, version) for version in opened.versions(name, most)]
        return rows

    def query(
        self, target: str | None, table: str | None, moment: Moment, sql: str | None, most: int
    ) -> list[dict[str, object]]:
        """Return rows of a table, or what `sql` says of the tables by their names in the target; changes nothing."""
        sink = self._one_sink(target)
        opened = self._open(sink)
        chosen = self._one_table(sink, table) if table or not sql or moment != Moment() else None
        version = self._version(opened, chosen, moment) if chosen else None
        if sql is None:
            return _collected(opened.rows_at(cast(str, chosen), version), most)
        rows = {
            own: opened.rows_at(name, version if name == chosen else None)
            for name, own in self._names(sink).items()
            if opened.versions(name, 1)
        }
        with _views(rows) as session, _asked():
            # Only a query can stand in brackets: a statement that changes anything is a mistake of grammar.
            return _collected(session.sql(f"SELECT * FROM (\n{sql.rstrip().rstrip(';')}\n)"), most)

    def rollback(self, target: str | None, table: str | None, moment: Moment) -> dict[str, object]:
        """Take a table back to what it was; the next run applies what it then lacks."""
        sink = self._one_sink(target)
        name = self._one_table(sink, table)
        with only_one(self._folder):
            life = self._checkpoints.life()
            opened = self._open(sink)
            version = self._version(opened, name, moment)
            if version is None:
                raise Misconfigured("wrong-value", "nothing says where to go back to", "Give --snapshot-id or --as-of.")
            mark = opened.mark_at(name, version)
            if life is None:
                raise _not_again(name, version, "the pipeline has no change log any more")
            now = cast(Target, opened).mark(name)
            if now and now.log == life.log and now.replays > (mark.replays if mark and mark.log == life.log else 0):
                raise _not_again(name, version, "dead letters were replayed since, and are not kept")
            place = mark.offset if mark is not None and mark.log == life.log else -1
            self._require(life, name, version, place)
            opened.take_back(name, version)
            self._progress.lower(sink.sink_id, life.log, place, name, mark)
        return {"target": sink.sink_id, "table": name, "snapshot_id": version, "upto": offsets.to_json(place)}

    def compact(self, target: str | None, table: str | None, threshold: int | None) -> list[dict[str, object]]:
        """Join small files of the tables."""

        def one(opened: Versioned, name: str, settings: Settings) -> Mapping[str, int]:
            return compact(opened, name, settings, threshold)

        return self._each(target, table, one)

    def expire(self, target: str | None, table: str | None, seconds: float | None) -> list[dict[str, object]]:
        """Let go of what the tables were long ago."""

        def one(opened: Versioned, name: str, settings: Settings) -> Mapping[str, int]:
            return expire(opened, name, settings.expire_snapshots_older_than_seconds if seconds is None else seconds)

        return self._each(target, table, one)

    def _each(
        self, target: str | None, table: str | None, act: Callable[[Versioned, str, Settings], Mapping[str, int]]
    ) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        with only_one(self._folder):
            for sink in self._sinks(target):
                opened, settings = self._open(sink), cast(Settings, sink.options.maintenance)  # type: ignore[attr-defined]
                there = [name for name in self._tables(sink, table) if opened.versions(name, 1)]
                rows += [{"target": sink.sink_id, "table": name, **act(opened, name, settings)} for name in there]
        return rows

    def _require(self, life: Life, table: str, version: int, place: int) -> None:
        log = self._inlet.open(life).log
        try:
            log.require_rest(place)
        except Halt as error:
            raise _not_again(table, version, str(error)) from error

    def _sinks(self, target: str | None) -> list[SinkConfig]:
        sinks = [s for s in self._drains.chosen([target] if target else None) if hasattr(s.options, "maintenance")]
        if not sinks:
            raise Misconfigured(
                "no-target",
                f'target "{target}" is no lakehouse' if target else "no sink of this pipeline is a lakehouse",
                "cdc lakehouse is for sinks of sink_type delta and iceberg.",
            )
        return sinks

    def _one_sink(self, target: str | None) -> SinkConfig:
        sinks = self._sinks(target)
        if len(sinks) > 1:
            found = ", ".join(sink.sink_id for sink in sinks)
            raise Misconfigured("no-target", "the pipeline has several lakehouse targets", f"Give --target: {found}.")
        return sinks[0]

    def _names(self, sink: SinkConfig) -> dict[str, str]:
        return sink.names(self._checkpoints.known())

    def _tables(self, sink: SinkConfig, table: str | None) -> Sequence[str]:
        names = self._names(sink)
        chosen = [name for name, own in names.items() if table in (None, name, own)]
        if not chosen and table is not None:
            found = ", ".join(names) or "none: the pipeline never ran"
            raise Misconfigured("unknown-table", f'the pipeline has no table "{table}"', f"Tables are: {found}.")
        return chosen

    def _one_table(self, sink: SinkConfig, table: str | None) -> str:
        tables = self._tables(sink, table)
        if len(tables) != 1:
            found = ", ".join(self._names(sink)) or "none: the pipeline never ran"
            raise Misconfigured("unknown-table", "which table is meant is not said", f"Give --table: {found}.")
        return tables[0]

    def _open(self, sink: SinkConfig) -> Versioned:
        return cast(Versioned, self._drains.open_target(sink, self._checkpoints.known()))

    def _version(self, opened: Versioned, table: str, moment: Moment) -> int | None:
        if moment.at is None:
            return moment.snapshot
        found = opened.version_at(table, moment.at)
        if found is None:
            raise Halt(
                "unknown-snapshot",
                f'table "{table}" has no snapshot of {moment.at.isoformat()} or before',
                "It was expired, or never was. See cdc lakehouse snapshots.",
            )
        return found


def _row(target: str, table: str, version: Version) -> dict[str, object]:
    mark = version.mark
    return {
        "target": target,
        "table": table,
        "snapshot_id": version.id,
        "at": version.at.isoformat(timespec="milliseconds"),
        "operation": version.operation,
        "upto": offsets.to_json(mark.offset) if mark else None,
        "position": mark.high if mark else None,
        "log": mark.log if mark else None,
        "current": version.current,
    }


@contextmanager
def _views(rows: Mapping[str, DataFrame]) -> Iterator[SparkSession]:
    """Let tables be known by their names in the session that they are read in."""
    if not rows:
        raise Halt("table-missing", "no table of the target is there yet", "Run the pipeline first.")
    session = next(iter(rows.values())).sparkSession
    for name, found in rows.items():
        found.createOrReplaceTempView(quote(name))
    try:
        yield session
    finally:
        for name in rows:
            session.catalog.dropTempView(quote(name))


def _collected(rows: DataFrame, most: int) -> list[dict[str, object]]:
    line = F.to_json(F.struct("*"), JSON).alias("line")
    with _asked():
        found = rows.limit(most).select(line).collect()
    # A number with a point may be a decimal, which no float holds.
    return [json.loads(row["line"], parse_float=Decimal) for row in found]


@contextmanager
def _asked() -> Iterator[None]:
    try:
        yield
    except (ParseException, AnalysisException) as error:
        said = " ".join(str(error).split())[:300]
        raise Misconfigured(
            "wrong-query", f"the query cannot be run: {said}", "Give one SELECT of tables of the target."
        ) from error
    except (PySparkException, Py4JJavaError) as error:
        raise Halt(
            "query-failed",
            f"the query failed: {getattr(error, 'getCondition', str)() or type(error).__name__}",
            "Files of the snapshot may have been removed by expiry. Choose a later one.",
        ) from error


def _not_again(table: str, version: int, why: str) -> Halt:
    return Halt(
        "log-gap",
        f'table "{table}" cannot go back to snapshot {version}: {why}',
        "What came after that snapshot could not be applied again. Nothing was changed. Choose a later snapshot, or "
        "take a new snapshot of the source with cdc run <file> --resync.",
    )
