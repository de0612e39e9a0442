"""Have Spark's own pipelines judge the AUTO CDC flows of a bundle: `make flows`.

It takes a Spark that has AUTO CDC, which is newer than ours, so it runs in an environment of its own. The bronze tables
are made there by the statements of the bundle, as Parquet, since there is no Delta for that Spark. A flow that is broken
on purpose must be refused, or the judge is none.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tailrace.config.load import load_pipeline, load_platform
from tailrace.databricks.bundle import written
from tailrace.runtime.build import open_pipeline
from tailrace.testing.convex import Deployment, Emulator, Workload

MAKE_TABLES = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
spark = SparkSession.builder.enableHiveSupport().getOrCreate()
spark.sql("CREATE DATABASE bronze")
spark.sql("USE bronze")
for statement in Path(sys.argv[1]).read_text().split(";"):
    if statement.strip():
        spark.sql(statement)
print(spark.catalog.listTables())
"""


def bundle(folder: Path) -> dict[str, str]:
    """Return the bundle of a deployment with several components and every kind of value."""
    deployment = Deployment(seed=1)
    Workload(deployment, 1).fill(100)
    deployment.insert("odd", {"a b": 1, "x.y": True, "it's": "text"})
    with Emulator(deployment) as server:
        source = f"{{source_type: convex, deployment_url: '{server.url}', deploy_key: '{server.behaviour.key}'}}"
        sink = "{sink_id: landing, sink_type: bronze, bronze: {catalog: lake.raw, silver_names: {users: people}}}"
        (folder / "pipeline.yaml").write_text(f"pipeline_id: shop\nsource: {source}\nsinks: [{sink}]\n")
        (folder / "platform.yaml").write_text(f"control: {{root: '{folder}/control'}}\n")
        pipeline, platform = load_pipeline(folder / "pipeline.yaml"), load_platform(folder / "platform.yaml")
        with open_pipeline(pipeline.config, platform.config) as opened:
            return written(opened.landing())


def judged(folder: Path, environment: Path, flows: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Dry-run a pipeline of `flows`, by file name."""
    place = Path(tempfile.mkdtemp(dir=folder))
    (place / "silver").mkdir()
    for name, text in flows.items():
        (place / "silver" / name).write_text(text.replace("${bronze}", "bronze"))
    (place / "spark-pipeline.yml").write_text(
        f"name: silver\nstorage: file://{place}/storage\ndatabase: default\nlibraries:\n  - glob: {{include: silver/**}}\n"
    )
    return run(folder, environment / "bin" / "spark-pipelines", "dry-run", "--spec", place / "spark-pipeline.yml")


def run(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    conf = folder / "conf"
    conf.mkdir(exist_ok=True)
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": folder / "warehouse",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    (conf / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    python = Path(str(words[0])).parent / "python"
    environment = {"PATH": f"{python.parent}:/usr/bin:/bin", "SPARK_CONF_DIR": str(conf), "PYSPARK_PYTHON": str(python)}
    return subprocess.run(
        list(map(str, words)), cwd=folder, env=environment, text=True, capture_output=True, check=False
    )


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--environment", type=Path, required=True)
    environment = words.parse_args().environment.absolute()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = bundle(folder)
        tables = re.sub(r"^USE .*;$", "", files["src/ddl/bronze.sql"], flags=re.MULTILINE)
        tables = re.sub(r"USING delta TBLPROPERTIES \(.*?\n\)", "USING parquet", tables, flags=re.DOTALL)
        (folder / "bronze.sql").write_text(tables)
        (folder / "make.py").write_text(MAKE_TABLES)
        made = run(folder, environment / "bin" / "python", folder / "make.py", folder / "bronze.sql")
        if made.returncode:
            sys.exit(made.stdout + made.stderr)
        flows = {Path(path).name: text for path, text in files.items() if path.startswith("src/silver/")}
        good = judged(folder, environment, flows)
        if good.returncode:
            sys.exit(good.stdout + good.stderr)
        broken = {**flows, "people.sql": flows["people.sql"].replace("KEYS (`_id`)", "KEYS (`nobody`)")}
        bad = judged(folder, environment, broken)
        if not bad.returncode:
            sys.exit("a flow with a key that there is not was taken: the dry run judges nothing")
        print(f"{len(flows)} flows are sound: {', '.join(sorted(flows))}; one that was broken on purpose was refused")
        print(next((line for line in (bad.stdout + bad.stderr).splitlines() if "nobody" in line), "")[:300])


if __name__ == "__main__":
    main()
