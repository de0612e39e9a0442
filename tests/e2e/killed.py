"""Applies numbered batches to an SQLite table; run as a process of its own, which a failpoint kills.

    python -m tests.e2e.killed <file>

Each run begins with the first batch again: those that are in the table are recognised by their names.
"""

from __future__ import annotations

import os
import sys

import tailrace
from tailrace.core import failpoint
from tailrace.spark.frame import frame
from tests.sessions import SHORT, SMALL

BATCHES = 6
SCHEMA = "id bigint, value string, seq bigint, op string"


def changes(n: int) -> list[tuple[int, str | None, int, str]]:
    """Return the rows of batch `n`: it makes five, changes two of the batch before and deletes one of them."""
    made = [(n * 10 + m, f"made by {n}", n, "u") for m in range(5)]
    before = (n - 1) * 10
    return [
        *made,
        (before, f"changed by {n}", n, "u"),
        (before + 1, f"changed by {n}", n, "u"),
        (before + 2, None, n, "d"),
    ]


def expected() -> dict[int, str | None]:
    """Return the table after every batch."""
    rows: dict[int, str | None] = {}
    for n in range(1, BATCHES + 1):
        for key, value, _, op in changes(n):
            rows.pop(key, None) if op == "d" else rows.update({key: value})
    return rows


def main(path: str) -> None:
    """Apply every batch."""
    failpoint.arm(os.environ)
    spark = tailrace.session(**SMALL | {"spark.driver.extraJavaOptions": SHORT})
    for n in range(1, BATCHES + 1):
        tailrace.apply_changes(
            frame(spark, changes(n), SCHEMA),
            f"sqlite:{path}#things",
            keys=["id"],
            sequence_by="seq",
            apply_as_deletes="op = 'd'",
            except_column_list=["seq", "op"],
            batch_id=n,
        )


if __name__ == "__main__":
    main(sys.argv[1])
