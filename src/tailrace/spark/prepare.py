"""What `make install` does for Spark, so that no later start has to: fetch the jars, train the class archive.

Run again, it finds both and does nothing.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from tailrace.core.errors import TailraceError
from tailrace.spark import archive, jvm, local_files
from tailrace.spark.jars import Report, ensure, locked, say
from tailrace.spark.start import session


def train(jars: list[Path], report: Report) -> None:
    """Make the class archive for `jars` from a session that does what a drain does, unless it is there."""
    place = archive.path(jvm.class_path(jars))
    if not place.exists():
        report("preparing Spark for faster starts, once: about a minute")
        archive.make(place, _rehearse)


def _rehearse(draft: Path, folder: Path) -> None:
    spark = session(
        **{
            "spark.master": "local[2]",
            "spark.driver.extraJavaOptions": shlex.join(archive.training(draft)),
        }
    )
    log, table = f"{folder}/log", f"{folder}/table"
    spark.range(8).selectExpr("id", "to_json(struct(id, 'x' AS name)) AS value").write.parquet(log)
    changes = spark.read.parquet(log).selectExpr("from_json(value, 'id LONG, name STRING') AS row").select("row.*")
    changes.write.format("delta").save(table)
    changes.selectExpr("id + 4 AS id", "name").createTempView("newest")
    spark.sql(
        f"MERGE INTO delta.`{table}` t USING newest s ON t.id = s.id WHEN MATCHED AND s.id = 5 THEN DELETE"
        " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    spark.read.format("delta").load(table).orderBy("id").collect()
    gateway = spark.sparkContext._gateway
    spark.stop()
    # The JVM writes the archive on its way out.
    jvm.stop(gateway, seconds=300)


def main() -> int:
    """Prepare this machine; return the exit code."""
    try:
        train([local_files.jar(), *ensure(locked())], say)
    except TailraceError as error:
        say(error.render())
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
