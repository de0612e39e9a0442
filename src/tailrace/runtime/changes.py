"""`apply_changes`: a DataFrame of change rows into a table, for users with a DataFrame or a stream of their own.

The arguments are resolved against the columns of the source once; from there on the rows go the way that
those of a drain go, through `apply.flow`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Literal, Protocol, cast

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from tailrace.apply import engine
from tailrace.apply.arguments import Arguments, Names, resolve
from tailrace.apply.engine import OFFSET, OLD_KEY, OP, POSITION, PROBLEM, UNCHANGED, column
from tailrace.apply.flow import Flow, Outcome
from tailrace.apply.history import Tracking
from tailrace.apply.order import sortable
from tailrace.apply.target import ANYONE, Forgetting, Historic, Mark, Target
from tailrace.apply.view import shared_view
from tailrace.config.plugin import Kind, available, options_of
from tailrace.core.change import Op
from tailrace.core.errors import Halt, Misconfigured
from tailrace.core.table import SEQUENCE, Evolution, Table, fit
from tailrace.spark.effort import suit

_TABLE = "changes"
_LOG = "apply_changes"
_COLLECT_EVERY = 50
_REMEMBERED = 100
"""How many batch ids a table remembers, the latest ones."""


@dataclass(frozen=True)
class ApplyResult:
    """What became of the change rows: `read = applied + superseded + rejected`.

    `rejects` holds the rows that were rejected, each with its reason in `_cdc_problem`; `None` if there were none.
    """

    read: int = 0
    applied: int = 0
    superseded: int = 0
    rejected: int = 0
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    rejects: DataFrame | None = None


class _Keyed(Target, Historic, Forgetting, Protocol):
    """A target that `apply_changes` can write to."""


def apply_changes(
    source: DataFrame,
    target: str,
    keys: Names,
    sequence_by: str | Expression,
    *,
    apply_as_deletes: str | Expression | None = None,
    apply_as_truncates: str | Expression | None = None,
    column_list: Names | None = None,
    except_column_list: Names | None = None,
    stored_as_scd_type: Literal[1, 2] | str = 1,
    track_history_column_list: Names | None = None,
    track_history_except_column_list: Names | None = None,
    ignore_null_updates: bool = False,
    ignore_null_updates_column_list: Names | None = None,
    soft_delete_column: str | None = None,
    schema_evolution: Literal["skip", "fail", "alter"] = "alter",
    on_invalid: Literal["reject", "fail"] = "reject",
    batch_id: str | int | None = None,
) -> ApplyResult:
    """Apply the change rows of `source` to `target`, in one commit; doing it again changes nothing.

    Names follow Spark's `create_auto_cdc_flow`; docs/guides/apply-changes.md says what each does. With a
    `batch_id` that was applied before, nothing is read at all.
    """
    arguments = resolve(
        source,
        keys=keys,
        sequence_by=sequence_by,
        deletes=apply_as_deletes,
        truncates=apply_as_truncates,
        columns=column_list,
        except_columns=except_column_list,
        scd_type=stored_as_scd_type,
        track=track_history_column_list,
        track_except=track_history_except_column_list,
        ignore_nulls=ignore_null_updates,
        ignore_nulls_of=ignore_null_updates_column_list,
        soft=soft_delete_column,
    )
    evolution, fails = _choice(schema_evolution, Evolution, "schema_evolution"), on_invalid == "fail"
    if on_invalid not in ("reject", "fail"):
        raise Misconfigured("bad-argument", f'on_invalid is "{on_invalid}"', 'Give "reject" or "fail".')
    ours = _session(source.sparkSession)
    opened = _open(target, ours, arguments.mode)
    mark = opened.mark(_TABLE) or Mark(_LOG, -1)
    batch = () if batch_id is None else (str(batch_id),)
    if batch and batch[0] in mark.batches:
        return ApplyResult()
    return _Application(arguments, opened, mark, evolution, fails=fails).run(source, ours, batch)


def read(target: str) -> DataFrame:
    """Return the visible rows of `target`, without the columns that Tailrace keeps for itself.

    The table may be one that `apply_changes` or a pipeline has made.
    """
    from tailrace.spark import session

    spark = SparkSession.getActiveSession() or session()
    opened = _open(target, spark, "scd1", pipeline_id=ANYONE)
    if opened.have(_TABLE) is None:
        raise Halt(
            "table-missing", f'there is no table at "{_shown(target)}"', "apply_changes makes it with its first batch."
        )
    rows = opened.current(_TABLE)
    return rows.select(*(column(name) for name in rows.columns if not name.startswith("_cdc_")))


class _Application:
    """One call: the shape of its rows, and what they meet in the target."""

    def __init__(self, arguments: Arguments, target: _Keyed, mark: Mark, policy: Evolution, *, fails: bool) -> None:
        self._target = target
        self._mark = mark
        self._fails = fails
        self._rejects: DataFrame | None = None
        self._have = target.have(_TABLE)
        if self._have is not None:
            arguments = arguments.without_new(self._have) if policy is Evolution.SKIP else arguments
        self._arguments = arguments = arguments.typed(self._have)
        if self._have is not None:
            arguments.refuse_drift(self._have, target.notes(_TABLE))
        # Spark does not tell names apart by case, so a column goes by the name that the table has for it.
        stored = {name.lower(): name for name in (self._have.names() if self._have else ())}
        self._named = {name: stored.get(name.lower(), name) for name in arguments.want.names()}
        columns = tuple(replace(c, name=self._named[c.name]) for c in arguments.want.columns)
        self._want = Table(_TABLE, columns, tuple(self._named[key] for key in arguments.want.keys))
        have = self._have and Table(_TABLE, self._have.columns, self._want.keys)
        fitted = fit(have, self._want, policy, narrower=False, pad=arguments.mode == "scd2")
        for text in fitted.skipped:
            warnings.warn(text, stacklevel=4)
        self._fitted = replace(fitted, notes=arguments.notes() if fitted.create else ())
        carried = set(self._want.names())
        self._shape = Table(_TABLE, tuple(c for c in fitted.table.columns if c.name in carried), self._want.keys)
        # Of a new column that is skipped nothing can be left out, of one that the source has lost all of it can.
        self._stored = {name: own for name, own in self._named.items() if own in self._shape.names()}
        self._others = tuple(c.name for c in fitted.table.columns if c.name not in carried)

    def run(self, source: DataFrame, ours: SparkSession, batch: tuple[str, ...]) -> ApplyResult:
        """Apply the rows, and say what became of them."""
        arguments = self._arguments
        events = engine.align([(engine.judge(self._events(source), self._want.keys), self._want)], self._shape)
        if arguments.mode == "scd2":
            events = events.withColumn(SEQUENCE, F.col("_cdc_changed_at")).drop("_cdc_changed_at")
        seen = Observation()
        with shared_view(_taken(events.observe(seen, F.count(F.lit(1)).alias("rows")))) as view:
            suit(ours, seen.get["rows"])
            events = ours.table(view)
        tracked = tuple(self._named[name] for name in arguments.tracked)
        required = arguments.required(self._stored, self._others)
        flow = Flow(
            self._target,
            arguments.mode,
            self._fitted,
            self._shape,
            self._have is not None,
            self._mark,
            engine.by_content(self._shape, required if arguments.partial else None),
            self._reject,
            partial=arguments.partial,
            required=required,
            truncates=arguments.truncates is not None,
            kept=True,
            alone=True,
            ties=True,
            soft=self._named.get(arguments.soft, ""),
            tracking=Tracking(tracked, arguments.sequence_type) if arguments.mode == "scd2" else None,
        )
        batches = (*self._mark.batches, *batch)[-_REMEMBERED:]
        outcome = flow.apply(events, lambda high, floor: Mark(_LOG, self._mark.offset + 1, high, floor, batches))
        if outcome.mark and outcome.mark.offset % _COLLECT_EVERY == _COLLECT_EVERY - 1:
            self._target.collect_tombstones()
        return self._result(outcome)

    def _events(self, source: DataFrame) -> DataFrame:
        """Give change rows the reserved columns that the engine reads."""
        arguments = self._arguments
        sequence, keys = arguments.sequence, arguments.want.keys
        op = F.when(F.coalesce(arguments.deletes, F.lit(False)), Op.DELETE.value).otherwise(Op.UPDATE.value)
        if arguments.truncates is not None:
            op = F.when(F.coalesce(arguments.truncates, F.lit(False)), Op.TRUNCATE.value).otherwise(op)
        missing = F.when(sequence.isNull(), "missing-sequence: sequence_by is null")
        unknown = F.when(op == Op.UPDATE.value, arguments.unknown(self._have.names() if self._have else ()))
        reserved = {
            OP: op,
            POSITION: sortable(sequence, arguments.sequence_type),
            # `align` passes this one on as it is: the sequence rides in it.
            "_cdc_changed_at": sequence,
            "_cdc_topic": F.lit(None).cast("string"),
            "_cdc_partition": F.lit(None).cast("int"),
            OFFSET: F.lit(0).cast("bigint"),
            UNCHANGED: arguments.unchanged(self._stored, self._others),
            PROBLEM: F.coalesce(missing, unknown),
            OLD_KEY: F.when(F.lit(False), F.struct(*(arguments.value(k).alias(self._named[k]) for k in keys))),
        }
        values = (arguments.value(c.name).alias(self._named[c.name]) for c in arguments.want.columns)
        return source.select(*(value.alias(name) for name, value in reserved.items()), *values)

    def _reject(self, rejected: DataFrame) -> None:
        if self._fails:
            # As in Spark's own, the table is there when its first batch fails.
            if self._have is None:
                self._target.evolve(_TABLE, self._fitted)
            # As in Spark's own, a row without a sequence is told of before one without a key.
            first = rejected.select(PROBLEM).orderBy(~column(PROBLEM).startswith("missing-seq"), PROBLEM).first()
            code, _, text = str(first[0] if first else "").partition(": ")
            raise Halt(
                {"missing-sequence": "null-sequence", "missing-key": "null-key"}.get(code, "event-rejected"),
                f"a change row cannot be applied: {text}",
                'Nothing was written. Mend the row, or use on_invalid="reject" to leave such rows out.',
            )
        hidden = (OP, POSITION, "_cdc_changed_at", "_cdc_topic", "_cdc_partition", OFFSET, UNCHANGED, OLD_KEY, SEQUENCE)
        rows = rejected.select(PROBLEM, *(column(name) for name in self._shape.names())).drop(*hidden)
        self._rejects = rows if self._rejects is None else self._rejects.unionByName(rows)

    def _result(self, outcome: Outcome) -> ApplyResult:
        tally, done = outcome.tally, outcome.done
        return ApplyResult(
            tally.counted,
            tally.applied,
            tally.superseded,
            tally.rejected,
            done.inserted,
            done.updated,
            done.deleted,
            self._rejects,
        )


def _taken(events: DataFrame) -> DataFrame:
    """Read the source, the only time; tell of its own failures as such."""
    try:
        return events.localCheckpoint()
    except (PySparkException, Py4JJavaError) as error:
        said = error.getCondition() if isinstance(error, PySparkException) else None
        raise Halt(
            "source-failed",
            f"the change rows could not be computed: {said or type(error).__name__}",
            "Nothing was written. Spark says more, below this error. Mend the source, or the expressions of the call.",
        ) from error


def _open(target: str, spark: SparkSession, mode: str, **owner: str) -> _Keyed:
    kind, _, where = target.partition(":") if isinstance(target, str) else ("", "", "")
    if where and kind in available(Kind.TARGET):
        options_of(Kind.TARGET, kind)  # which says what to install, if something is missing
        opens = getattr(import_module(f"tailrace.targets.{kind}"), "open_table", None)
        if opens is not None:
            return cast("_Keyed", opens(where, _TABLE, spark, mode, **owner))
    raise Misconfigured(
        "unknown-target",
        f'there is no target "{kind}:"' if where and kind.isalnum() else "the target does not begin with a kind",
        'Name one as "delta:<folder with a slash, or table>", "iceberg:[catalog.]<namespace.table>", '
        '"parquet:<folder>", "sqlite:<file>#<table>", "duckdb:<file>#<table>", "postgres:<dsn>#<schema.table>" or '
        '"mysql:<dsn>#<schema.table>".',
    )


def _shown(target: str) -> str:
    """Return `target` without what a connection string may hold."""
    kind, _, where = target.partition(":")
    place, _, table = where.rpartition("#")
    return f"{kind}:...#{table}" if "@" in place or "=" in place else target


def _session(of: SparkSession) -> SparkSession:
    """Return a session beside that of the source, set as small statements want it."""
    session = of.newSession()
    # A new session knows only the catalogs that the process began with.
    for name, value in of.conf.getAll.items():
        if name.startswith("spark.sql.catalog."):
            session.conf.set(name, value)
    # Replanning between stages doubles the jobs of a small batch.
    session.conf.set("spark.sql.adaptive.enabled", "false")
    return session


def _choice(value: str, kind: type[Evolution], name: str) -> Evolution:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(f'"{member.value}"' for member in kind)
        raise Misconfigured("bad-argument", f'{name} is "{value}"', f"Give one of {known}.") from None
