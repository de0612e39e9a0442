"""How tests set their Spark session: small tables, so nothing is compiled that is run once.

Compiling the plan of a statement takes longer here than running it. What is compiled is run by the e2e tier.
"""

from __future__ import annotations

SMALL = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
