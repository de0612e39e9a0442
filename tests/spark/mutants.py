"""Bugs planted one at a time into the apply engine: each must be caught, or the tests prove less than they seem to.

    python -m tests.spark.mutants            all of them
    python -m tests.spark.mutants hidden     those whose name has "hidden" in it

A mutant is a piece of source text and what it is replaced with. The package is copied, changed and imported anew in this
process; then the histories of one seed go through it. A mutant that survives, or a text that is no longer there, fails.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[2] / "src" / "tailrace"
HISTORIES, SEED = 300, 11


@dataclass(frozen=True)
class Mutant:
    """One bug: `kind` says which use of `apply_changes` must notice it."""

    name: str
    file: str
    old: str
    new: str
    kind: dict[str, Any]
    histories: int = HISTORIES
    """More for a bug that few histories show."""


SCD1, SCD2 = {"scd_type": 1}, {"scd_type": 2}
NULLS, PARTIAL, TRUNCATE = SCD1 | {"ignore_nulls": True}, SCD1 | {"partial": True}, SCD1 | {"truncates": True}
NULLS2, PARTIAL2 = SCD2 | {"ignore_nulls": True}, SCD2 | {"partial": True}
SOFT = SCD1 | {"soft": True, "partial": True, "truncates": True}
TRUNCATE2 = SCD2 | {"partial": True, "truncates": True, "tracked": ("a",)}
SCAN, SCAN2 = SCD1 | {"scan": True}, SCD2 | {"scan": True}

MUTANTS = [
    Mutant("an upsert that ties is stale", "apply/engine.py", '| (level & ~F.col("_cdc_beaten"))', "", SCD1),
    Mutant(
        "a delete that ties does not shadow its upsert",
        "apply/engine.py",
        'level & ~F.col("_cdc_beaten")',
        "level & (column(OP) != Op.DELETE.value)",
        SCD1,
        histories=2_000,
    ),
    Mutant(
        "late events are not dropped", "apply/engine.py", 'F.col("_cdc_seen").isNull() | news |', "F.lit(True) |", SCD1
    ),
    Mutant(
        "what may be late is taken for new",
        "apply/flow.py",
        "return _at_or_below(self.before.high)",
        "return F.lit(False)",
        SCD1,
    ),
    Mutant(
        "an upsert wins a tie in a batch",
        "apply/engine.py",
        '(column(OP) == Op.DELETE.value).alias("d")',
        '(column(OP) != Op.DELETE.value).alias("d")',
        SCD1,
    ),
    Mutant("the oldest wins", "apply/engine.py", "F.max_by(whole, order).alias", "F.min_by(whole, order).alias", SCD1),
    Mutant(
        "values are taken from before a delete",
        "apply/engine.py",
        '(~died | (F.col(f"_cdc_given_{n}")["at"] > F.col("_cdc_died")))',
        "F.lit(True)",
        NULLS,
    ),
    Mutant(
        "a row deleted in the batch still gives values",
        "apply/engine.py",
        'F.when(died, F.array().cast("array<string>")).otherwise(left)',
        "left",
        NULLS,
    ),
    Mutant("a beaten tie gives values", "apply/engine.py", ".orderBy(order.desc())", ".orderBy(order.asc())", NULLS),
    Mutant(
        "a deleted row is there for partial images",
        "apply/engine.py",
        '(F.col("_cdc_alive") & (F.col("_cdc_life") == 0))',
        'F.col("_cdc_alive")',
        PARTIAL,
    ),
    Mutant(
        "partial images are never rejected", "apply/engine.py", "F.when(orphan, without_row())", "F.lit(None)", PARTIAL
    ),
    Mutant(
        "an upsert beats a delete in history",
        "apply/history.py",
        "_DELETED, _UPSERTED, _STARTED, _ENDED = 3, 2, 1, 0",
        "_DELETED, _UPSERTED, _STARTED, _ENDED = 2, 3, 1, 0",
        SCD2,
    ),
    Mutant(
        "the record that ends here is not read",
        "apply/history.py",
        'ends >= F.col("_cdc_from")',
        'ends > F.col("_cdc_from")',
        SCD2,
    ),
    Mutant(
        "hidden events before the first new one are not read",
        "apply/history.py",
        'F.least("_cdc_from", "_cdc_start")',
        'F.col("_cdc_from")',
        SCD2 | {"tracked": ("a",)},
    ),
    Mutant(
        "nothing is hidden",
        "apply/history.py",
        '(~F.col("_cdc_visible") & ~(F.col(_KEPT) & F.col(_HAD).eqNullSafe(_values(table))))',
        "F.lit(False)",
        SCD2,
    ),
    Mutant("a record ends where the one before began", "apply/history.py", "F.lead(SEQUENCE)", "F.lag(SEQUENCE)", SCD2),
    Mutant(
        "NULL is not equal to NULL in a run",
        "apply/history.py",
        '~F.col("_cdc_tracked").eqNullSafe(F.col("_cdc_before"))',
        '~F.coalesce(F.col("_cdc_tracked")["t0"] == F.col("_cdc_before")["t0"], F.lit(False))',
        SCD2,
    ),
    Mutant(
        "the last record does not show",
        "apply/history.py",
        "F.coalesce(after, F.lit(True))",
        "F.coalesce(after, F.lit(False))",
        SCD2,
    ),
    Mutant(
        "a record starts at its own event",
        "apply/history.py",
        "start.alias(START)",
        "F.col(SEQUENCE).alias(START)",
        SCD2,
    ),
    Mutant(
        "a record that is gone stays",
        "apply/history.py",
        '~F.col("_cdc_visible") & F.col(_WAS).isNotNull(), Op.DELETE.value',
        "F.lit(False), Op.DELETE.value",
        SCD2,
    ),
    Mutant(
        "values cross a delete in history",
        "apply/history.py",
        'F.sum(F.col(_DELETE).cast("int"))',
        "F.sum(F.lit(0))",
        NULLS2,
    ),
    Mutant(
        "what was left out is not filled",
        "apply/history.py",
        '(F.col("_cdc_settled") | ~F.array_contains(column(UNCHANGED), c.name))',
        "F.lit(True)",
        PARTIAL2,
    ),
    Mutant(
        "a MERGE refuses a tie",
        "targets/_merge.py",
        's.{POSITION} >= t.{POSITION}"',
        's.{POSITION} > t.{POSITION}"',
        SCD1,
    ),
    Mutant(
        "tombstones are not written",
        "targets/delta/tombstones.py",
        '        self._append(batch, attempt, ticket, attempt if whole is None else f"{attempt} {_WHOLE} {whole}")\n',
        "",
        SCD1,
    ),
    Mutant(
        "tombstones are not read",
        "targets/delta/tombstones.py",
        'graves.where(F.col(OP) == "d")',
        'graves.where(F.col(OP) == "x")',
        SCD1,
    ),
    Mutant(
        "the newest tombstones do not count",
        "targets/delta/tombstones.py",
        "{_ATTEMPT} = {literal(grave.attempt)}",
        "{_ATTEMPT} <> {literal(grave.attempt)}",
        SCD1,
    ),
    Mutant(
        "what a truncate hits survives at its place",
        "apply/flow.py",
        "column(POSITION) <= floor",
        "column(POSITION) < floor",
        TRUNCATE,
    ),
    Mutant(
        "a truncate is forgotten",
        "apply/flow.py",
        "max(self.before.floor, self._truncated_at",
        "max('', self._truncated_at",
        TRUNCATE,
    ),
    Mutant(
        "a whole row does not win a tie with a partial one",
        "apply/engine.py",
        'rank.append((~leaves_out(required)).alias("w"))',
        'rank.append(leaves_out(required).alias("w"))',
        PARTIAL,
    ),
    Mutant(
        "a partial image wins a tie in history",
        "apply/history.py",
        "F.asc(leaves_out(required))",
        "F.desc(leaves_out(required))",
        PARTIAL2,
    ),
    Mutant(
        "what lost its base in history goes on showing",
        "apply/history.py",
        '~F.col(_DELETE) & (F.col("_cdc_settled") | ~leaves_out(required))',
        "~F.col(_DELETE) & (F.col(_STORED) | ~leaves_out(required))",
        PARTIAL2,
    ),
    Mutant(
        "what lost its base in history is forgotten",
        "apply/history.py",
        "HIDE: F.col(WHY).isNull() & ~F.col(_KEPT)",
        "HIDE: F.lit(False)",
        PARTIAL2,
        histories=2_000,
    ),
    Mutant(
        "a soft delete makes no row",
        "apply/engine.py",
        "(deleted | ~leaves_out(required)) if deletes_stay",
        "(~deleted & ~leaves_out(required)) if deletes_stay",
        SOFT,
    ),
    Mutant(
        "what comes after a truncate that marks is dropped",
        "apply/flow.py",
        "(truncate & ended if self.soft else ended)",
        "ended",
        SOFT,
    ),
    Mutant(
        "a truncate in history is forgotten",
        "apply/history.py",
        "found = found.unionByName(_truncates_in(stored[1]))",
        "pass",
        TRUNCATE2,
    ),
    Mutant(
        "what a tie echoes is not the winner's",
        "apply/engine.py",
        "F.max_by(F.coalesce(echo, F.lit(False)), F.when(level, order))",
        "F.max(F.coalesce(echo, F.lit(False)) & level)",
        SCD1,
        histories=2_000,
    ),
    Mutant(
        "a MERGE looks at every file",
        "targets/_merge.py",
        'return " AND ".join(equal + within(self.ranges, "t."))',
        'return " AND ".join(equal)',
        SCAN,
    ),
    Mutant(
        "a MERGE of records looks at every file",
        "targets/_merge.py",
        "{' AND '.join(equal + within(self.ranges, 't.'))}",
        "{' AND '.join(equal)}",
        SCAN2,
    ),
    Mutant(
        "a range leaves out its greatest key",
        "apply/ranges.py",
        "(high // step + 1) * step",
        "high // step * step - 1",
        SCD1,
    ),
]


def fresh(folder: Path | None) -> None:
    """Import the package anew, from `folder` or, without one, from where it really is."""
    ours = ("tests.spark.fuzz", "tests.spark.scans", "tests.spark.applied")
    for name in [name for name in sys.modules if name.split(".")[0] == "tailrace" or name in ours]:
        del sys.modules[name]
    sys.path[:] = [entry for entry in sys.path if not entry.startswith(tempfile.gettempdir())]
    if folder is not None:
        sys.path.insert(0, str(folder))


def notices(kind: dict[str, Any], spark: Any, histories: int = HISTORIES) -> str:
    """Return what is wrong with the table, empty if nothing is."""
    fuzz, scans = import_module("tests.spark.fuzz"), import_module("tests.spark.scans")
    with tempfile.TemporaryDirectory(prefix="tailrace-mutant-table-") as folder:
        try:
            if "scan" in kind:
                scans.check(spark, Path(folder), kind["scd_type"])
            else:
                fuzz.check(spark, Path(folder), SEED, fuzz.Kind(**kind), histories)
        except Exception as error:  # noqa: BLE001 - any failure is a catch
            return f"{type(error).__name__}: {error}"
    return ""


def caught(mutant: Mutant, spark: Any) -> str:
    """Plant the bug; return how it was noticed, empty if it was not."""
    text = (SOURCE / mutant.file).read_text("utf-8")
    if mutant.old not in text:
        raise SystemExit(f"{mutant.name}: its text is no longer in {mutant.file}")
    with tempfile.TemporaryDirectory(prefix="tailrace-mutant-") as folder:
        package = Path(folder) / "tailrace"
        shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
        (package / mutant.file).write_text(text.replace(mutant.old, mutant.new), "utf-8")
        fresh(Path(folder))
        try:
            return notices(mutant.kind, spark, mutant.histories)
        finally:
            fresh(None)


def main() -> None:
    """Plant every bug that was asked for; exit 1 if one survives."""
    chosen = [mutant for mutant in MUTANTS if all(word in mutant.name for word in sys.argv[1:])]
    spark = import_module("tailrace").session()
    for kind in {str(mutant.kind): mutant.kind for mutant in chosen}.values():
        if wrong := notices(kind, spark):
            raise SystemExit(f"without any bug, {kind} fails already: {wrong}")
    survived = []
    for mutant in chosen:
        started = time.monotonic()
        how = caught(mutant, spark)
        print(
            f"{'caught  ' if how else 'SURVIVED'} {time.monotonic() - started:5.1f} s  {mutant.name}: {how[:120]}",
            flush=True,
        )
        if not how:
            survived.append(mutant.name)
    print(f"{len(chosen) - len(survived)} of {len(chosen)} planted bugs were caught")
    raise SystemExit(1 if survived else 0)


if __name__ == "__main__":
    main()
