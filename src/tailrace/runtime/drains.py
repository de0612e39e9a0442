"""From a sink of the configuration to a drain: the target opened, the names of its tables, the fold.

The tables of a life are the same for every target. A table that is added must not change the name of another
one in any of them.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import cast

from pyspark.sql import SparkSession

from tailrace.apply.target import Landing, Replacing, Target
from tailrace.config.pipeline import Mode, PipelineConfig, SinkConfig
from tailrace.config.platform import PlatformConfig
from tailrace.control.checkpoints import Checkpoints, Life
from tailrace.control.deliveries import Deliveries
from tailrace.control.progress import Progress
from tailrace.control.rejects import Aside
from tailrace.core.errors import Halt, Misconfigured
from tailrace.core.table import file_name, in_order, told_apart
from tailrace.runtime.drain import Drain, Pace
from tailrace.runtime.fold import Fold
from tailrace.runtime.inlet import Reading, ReadLog, Tables
from tailrace.runtime.landing import LandingFold
from tailrace.runtime.maintenance import Maintenance
from tailrace.runtime.report import Reporter
from tailrace.runtime.rules import Choice, Rules
from tailrace.runtime.staging import StagingFold


class Drains:
    """What the drains of one pipeline are made of."""

    def __init__(
        self,
        pipeline: PipelineConfig,
        platform: PlatformConfig,
        checkpoints: Checkpoints,
        progress: Progress,
        rejects: Aside,
        spark: Callable[[], SparkSession],
        stop: threading.Event,
    ) -> None:
        self._pipeline = pipeline
        self._platform = platform
        self._checkpoints = checkpoints
        self._progress = progress
        self._rejects = rejects
        self._spark = spark
        self._stop = stop
        self.run_id = ""
        self._extending = threading.Lock()

    def chosen(self, targets: Sequence[str] | None) -> list[SinkConfig]:
        """Return the enabled sinks, or those of them that `targets` names."""
        sinks = {sink.sink_id: sink for sink in self._pipeline.enabled_sinks}
        for name in targets or ():
            if name not in sinks:
                raise Misconfigured(
                    "unknown-target", f'there is no target "{name}"', f"Enabled targets are: {', '.join(sinks)}."
                )
        return [sink for name, sink in sinks.items() if not targets or name in targets]

    def refuse_keyless(self, keys: Tables) -> None:
        """Halt if a target could not tell the rows of a table apart."""
        for sink in self._pipeline.enabled_sinks:
            for table, key in keys.items():
                settings = sink.tables.get(table)
                told = key is None or key or (settings and settings.primary_key)
                if sink.mode is not Mode.APPEND and not told:
                    raise Misconfigured(
                        "no-key",
                        f'table "{table}" has no primary key, so target "{sink.sink_id}" cannot tell its rows apart',
                        "Give it a primary key, name one with primary_key under tables, or use mode: append.",
                    )

    def begin(self, tables: tuple[str, ...], *, growing: bool) -> Life:
        """Return the present life, or begin one; halt if its tables are others and it does not grow."""
        if growing:
            return self._extend(tables)
        life = self._checkpoints.begin(tables)
        if set(life.tables) != set(tables):
            new, gone = sorted(set(tables) - set(life.tables)), sorted(set(life.tables) - set(tables))
            raise Halt(
                "tables-changed",
                f"the tables of this pipeline changed since its snapshot: added {new}, removed {gone}",
                "Rows of an added table from before now would be missing. Run cdc run <file> --resync, "
                "which takes a new snapshot of all tables.",
            )
        return life

    def _extend(self, tables: tuple[str, ...]) -> Life:
        """Return the life with `tables` added; halt if a table would get another name in a target by that."""
        with self._extending:
            before = self._checkpoints.known()
            every = in_order(before, tables)
            for sink in self._pipeline.enabled_sinks:
                old, new = sink.names(before), sink.names(every)
                moved = [table for table in before if new[table] != old[table]]
                if moved:
                    raise Misconfigured(
                        "name-collision",
                        f'a new table has the name "{old[moved[0]]}" too, which table "{moved[0]}" has in target '
                        f'"{sink.sink_id}"',
                        "Give one of them a name of its own under tables.",
                    )
            return self._checkpoints.extend(every)

    def open_target(self, sink: SinkConfig, tables: tuple[str, ...]) -> Target:
        """Return the target of `sink` for `tables`; nothing is connected yet."""
        module = _module(sink)
        sources = getattr(module, "SOURCES", None)
        if sources is not None and self._pipeline.source.source_type not in sources:
            raise Misconfigured(
                "wrong-source",
                f'sink_type "{sink.sink_type}" of target "{sink.sink_id}" takes no rows of source_type '
                f'"{self._pipeline.source.source_type}"',
                f"It is for: {', '.join(sources)}.",
            )
        kept: dict[str, object] = {}
        if getattr(module, "KEEPS_NOTES", False):
            folder = self._platform.control_root(self._pipeline.pipeline_id) / "deliveries"
            kept = {"notes": Deliveries(folder, sink.sink_id, told_apart(tables)), "stop": self._stop}
        if getattr(module, "NAMES_RUNS", False):
            kept = {"run_id": self.run_id}
        return cast(
            Target,
            module.open_target(
                sink.sink_id,
                sink.options,
                spark=self._spark,
                pipeline_id=self._pipeline.pipeline_id,
                tables=sink.names(tables),
                mode=sink.mode.value,
                **kept,
            ),
        )

    def jars(self) -> tuple[str, ...]:
        """Return the packages whose locked jars the enabled targets need beyond those of every session."""
        asked = ((getattr(_module(sink), "jars", None), sink) for sink in self._pipeline.enabled_sinks)
        return tuple(sorted({name for jars, sink in asked if jars for name in jars(sink.options)}))

    def drain(
        self,
        sink: SinkConfig,
        life: Life,
        log: ReadLog,
        report: Reporter,
        passed: Callable[[], None] = lambda: None,
        *,
        prefix: str = "",
        growing: bool = False,
        rejects: Aside | None = None,
    ) -> Drain:
        """Return the drain that keeps the target of `sink` current from `log`; `rejects`, if not in the usual place."""
        rules = Rules(sink.mode.value, sink.schema_evolution, self._platform.limits.max_event_bytes, sink.flag)
        choices = {f"{prefix}{table}": _choice(sink, table) for table in life.tables}
        target = self.open_target(sink, life.tables)
        kind = StagingFold if isinstance(target, Replacing) else LandingFold if isinstance(target, Landing) else Fold
        fold = kind(self._spark, log, target, rules, rejects or self._rejects, report)

        def grow(topics: Sequence[str]) -> None:
            tables = {topic: topic.removeprefix(prefix) for topic in topics}
            fold.target = self.open_target(sink, self._extend(tuple(tables.values())).tables)
            choices.update({topic: _choice(sink, table) for topic, table in tables.items()})

        def renew() -> None:
            fold.renew(self.open_target(sink, self._checkpoints.known()))
            if isinstance(log, Reading):
                log.let_go()

        return Drain(
            sink.sink_id,
            log,
            fold,
            choices,
            self._progress,
            Pace(self._platform.slice.max_rows, self._platform.slice.interval_seconds),
            report,
            passed,
            grow if growing else None,
            self._maintenance(sink, fold, choices, report),
            renew=renew,
        )

    def _maintenance(
        self, sink: SinkConfig, fold: Fold, choices: Mapping[str, Choice], report: Reporter
    ) -> Callable[[], None]:
        settings = getattr(sink.options, "maintenance", None)
        if settings is None or not settings.enabled:
            return lambda: None
        folder = self._platform.control_root(self._pipeline.pipeline_id) / "maintenance"
        return Maintenance(
            lambda: fold.target,
            lambda: [choice.table for choice in choices.values()],
            settings,
            folder / f"{file_name(sink.sink_id)}.json",
            report,
        )


def _module(sink: SinkConfig) -> ModuleType:
    return importlib.import_module(f"tailrace.targets.{sink.sink_type}")


def _choice(sink: SinkConfig, table: str) -> Choice:
    settings = sink.tables.get(table)
    if settings is None:
        return Choice(table)
    tracked = settings.track_history if sink.mode is Mode.SCD2 else None
    return Choice(table, tuple(settings.primary_key or ()), tuple(settings.columns or ()), tuple(tracked or ()))
