"""How much a session prepares before it runs a statement.

Spark writes a program for each stage of a statement and compiles it, which pays when many rows go through it. For the
few rows of a small batch that takes longer than the work: such a statement is better run as it stands.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

FEW = 5_000
"""Up to so many rows a statement is not compiled. The figures are in docs/explanation/speed.md."""

_AS_IT_STANDS = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


def suit(session: SparkSession, rows: int) -> None:
    """Have the statements of `session`, one that is ours alone, prepared as suits work on `rows` rows."""
    # Not `getConf()`, which copies every setting one by one.
    context = session.sparkContext._conf
    defaults = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    for name, value in defaults.items():
        session.conf.set(name, _AS_IT_STANDS[name] if rows <= FEW else context.get(name, value))
