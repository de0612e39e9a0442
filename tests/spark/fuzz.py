"""Random histories through `apply_changes`, against the oracle: thousands packed into one table, under three batchings.

    python -m tests.spark.fuzz --seconds 600 --seed 1

Everything follows from the seed, the kind and the number of histories. Whatever goes wrong names them, as the command
that does it again.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import tailrace
from tailrace.spark.frame import from_arrow
from tests.oracle import Event, Scd1, Scd2, Soft
from tests.packed import batchings, packed


@dataclass(frozen=True)
class Kind:
    """One way to use `apply_changes`."""

    scd_type: int
    partial: bool = False
    truncates: bool = False
    ignore_nulls: bool = False
    tracked: tuple[str, ...] | None = None
    soft: bool = False

    def __str__(self) -> str:
        told = "" if self.tracked is None else f"-tracking-{''.join(self.tracked) or 'nothing'}"
        uses = [name for name in ("partial", "truncates", "ignore_nulls", "soft") if getattr(self, name)]
        return "-".join([f"scd{self.scd_type}", *uses]) + told

    def oracle(self) -> Scd1 | Scd2 | Soft:
        if self.soft:
            return Soft()
        if self.scd_type == 1:
            return Scd1(ignore_nulls=self.ignore_nulls)
        return Scd2(None if self.tracked is None else list(self.tracked), ignore_nulls=self.ignore_nulls)


KINDS = {
    1: [
        Kind(1),
        Kind(1, truncates=True),
        Kind(1, ignore_nulls=True),
        Kind(1, partial=True),
        Kind(1, soft=True),
        Kind(1, soft=True, partial=True, truncates=True),
    ],
    2: [
        Kind(2),
        Kind(2, tracked=("a",)),
        Kind(2, tracked=()),
        Kind(2, ignore_nulls=True),
        Kind(2, partial=True),
        Kind(2, partial=True, truncates=True, tracked=("a",)),
    ],
}


def check(spark: SparkSession, folder: Path, seed: int, kind: Kind, histories: int) -> None:
    """Deliver the histories of `seed` in three ways, and compare the table with the oracle after each."""
    try:
        _check(spark, folder, seed, kind, histories)
    except Exception as error:
        error.add_note(
            f"To see it again: python -m tests.spark.fuzz --seconds 0 --seed {seed} --kind {kind} --histories {histories}"
        )
        raise


def _check(spark: SparkSession, folder: Path, seed: int, kind: Kind, histories: int) -> None:
    made = packed(seed, histories, scd_type=kind.scd_type, partial=kind.partial, ties=True, truncates=kind.truncates)
    for way, batches in enumerate(batchings(made, seed)):
        oracle, target = kind.oracle(), f"delta:{folder}/{way}"
        for batch in batches:
            oracle.apply(batch)
            done = apply(spark, target, kind, batch)
            assert done.read == done.applied + done.superseded + done.rejected == len(batch)
        wrong = _difference(found(target, kind), expected(oracle))
        assert not wrong, f"way {way}: {len(wrong)} differ, for example {wrong[:3]}"


def apply(spark: SparkSession, target: str, kind: Kind, batch: Sequence[Event]) -> tailrace.ApplyResult:
    """Apply one batch of events."""
    columns: dict[str, pa.Array] = {
        "h": pa.array([event.key[0] for event in batch], pa.int32()),
        "k": pa.array([event.key[1] for event in batch], pa.int32()),
        "seq": pa.array([event.sequence for event in batch], pa.int64()),
        "op": pa.array(["t" if event.truncate else "d" if event.delete else "u" for event in batch], pa.string()),
        "a": pa.array([event.values.get("a") for event in batch], pa.string()),
        "b": pa.array([event.values.get("b") for event in batch], pa.int32()),
    }
    if kind.partial:
        columns["_cdc_unchanged"] = pa.array([sorted(event.unchanged) for event in batch], pa.list_(pa.string()))
    options: dict[str, Any] = {"track_history_column_list": list(kind.tracked)} if kind.tracked is not None else {}
    options |= {"soft_delete_column": "gone"} if kind.soft else {}
    return tailrace.apply_changes(
        from_arrow(spark, pa.table(columns)),
        target,
        keys=["h", "k"],
        sequence_by="seq",
        apply_as_deletes="op = 'd'",
        apply_as_truncates="op = 't'" if kind.truncates else None,
        except_column_list=["seq", "op"],
        stored_as_scd_type=kind.scd_type,
        ignore_null_updates=kind.ignore_nulls,
        **options,
    )


def found(target: str, kind: Kind) -> set[tuple[Any, ...]]:
    """Return the rows of the table."""
    times = ["__START_AT", "__END_AT"] if kind.scd_type == 2 else []
    mark = ["gone IS NOT NULL"] if kind.soft else []
    rows = tailrace.read(target).selectExpr("h", "k", "a", "b", *times, *mark).collect()
    assert len(rows) == len(set(rows))
    return set(map(tuple, rows))


def expected(oracle: Scd1 | Scd2 | Soft) -> set[tuple[Any, ...]]:
    """Return the rows that the table must have."""
    if isinstance(oracle, Soft):
        return {(*key, row.get("a"), row.get("b"), row["marked"]) for key, row in oracle.rows().items()}
    if isinstance(oracle, Scd1):
        return {(*key, row["a"], row["b"]) for key, row in oracle.rows().items()}
    return {(*key, row["a"], row["b"], start, end) for key, row, start, end in oracle.rows()}


def _difference(have: set[tuple[Any, ...]], want: set[tuple[Any, ...]]) -> list[tuple[str, tuple[Any, ...]]]:
    wrong = [("surplus", row) for row in have - want] + [("missing", row) for row in want - have]
    return sorted(wrong, key=lambda one: tuple(map(str, one[1])))


def main() -> None:
    """Try one seed after another until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--histories", type=int, default=5_000)
    parser.add_argument("--scd-type", type=int, choices=[1, 2], help="only this type")
    parser.add_argument("--kind", choices=[str(kind) for kinds in KINDS.values() for kind in kinds], help="only this")
    options = parser.parse_args()
    chosen = [
        kind
        for scd_type, kinds in KINDS.items()
        for kind in kinds
        if options.scd_type in (None, scd_type) and options.kind in (None, str(kind))
    ]
    spark, until, seed, tried = tailrace.session(), time.monotonic() + options.seconds, options.seed, 0
    while tried == 0 or time.monotonic() < until:
        for kind in chosen:
            folder = Path(tempfile.mkdtemp(prefix="tailrace-fuzz-"))
            try:
                check(spark, folder, seed, kind, options.histories)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            tried += options.histories
            print(f"seed {seed}: {kind} agrees, {tried} histories so far", flush=True)
            if time.monotonic() > until:
                break
        seed += 1


if __name__ == "__main__":
    main()
