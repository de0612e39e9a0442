"""How tests set their Spark session: small tables, so little is prepared for a statement that is run once.

Compiling the plan of a statement takes longer here than running it, and so does planning it anew between its stages or
describing it for a page that nobody looks at. What is left out here is run by the demo.
"""

from __future__ import annotations

SMALL = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.ui.explainMode": "simple",
}

SHORT = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
"""Options of a JVM that runs for a minute: the quick compiler only, and room for what it makes, which it would else make again."""

COMMAND = {name: value for name, value in SMALL.items() if name != "spark.master"}
"""Settings of a command that is killed."""

QUICK = {"JAVA_TOOL_OPTIONS": SHORT}
"""What the environment of such a command says to both of its JVMs, Spark's and the engine's."""
