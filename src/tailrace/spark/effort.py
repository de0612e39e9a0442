"""How much a session prepares before it runs a statement, and into how many parts it divides the work.

Spark writes a program for each stage of a statement and compiles it, which pays when many rows go through it. For the
few rows of a small batch that takes longer than the work: such a statement is better run as it stands. Many rows are
divided into more parts, so that one part fits into memory however many there are.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

FEW = 5_000
"""Up to so many rows a statement is not compiled. The figures are in docs/explanation/speed.md."""

PART = 500_000
"""About so many rows go through one task."""

_AS_IT_STANDS = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_PARTS = "spark.sql.shuffle.partitions"


def suit(session: SparkSession, rows: int) -> None:
    """Have the statements of `session`, one that is ours alone, prepared as suits work on `rows` rows."""
    # Not `getConf()`, which copies every setting one by one.
    context = session.sparkContext._conf
    defaults = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    for name, value in defaults.items():
        session.conf.set(name, _AS_IT_STANDS[name] if rows <= FEW else context.get(name, value))
    least = context.get(_PARTS, "200")
    # Databricks has "auto", and then needs no help.
    if least.isdecimal():
        session.conf.set(_PARTS, str(max(int(least), rows // PART)))
