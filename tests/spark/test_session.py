"""The session as users get it: what it can do, what it says, and what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tailrace.spark import jars, jvm, session


def test_a_second_call_returns_the_same_session_and_takes_what_can_change(spark: SparkSession) -> None:
    again = session(**{"spark.sql.shuffle.partitions": "3", "spark.driver.memory": "9g"})
    try:
        assert again is spark
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")


def test_delta_writes_merges_and_reads(spark: SparkSession, tmp_path: Path) -> None:
    table = f"{tmp_path}/table"
    spark.range(3).write.format("delta").save(table)
    spark.sql(
        f"MERGE INTO delta.`{table}` t USING (SELECT id FROM range(2, 5)) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
    )
    assert [row.id for row in spark.read.format("delta").load(table).orderBy("id").collect()] == [0, 1, 2, 3, 4]


def test_iceberg_has_a_catalog_of_its_own_beside_delta(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.catalog.elsewhere", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.elsewhere.type", "hadoop")
    spark.conf.set("spark.sql.catalog.elsewhere.warehouse", str(tmp_path))
    spark.sql("CREATE TABLE elsewhere.db.t USING iceberg AS SELECT id FROM range(2)")
    spark.sql(
        "MERGE INTO elsewhere.db.t t USING (SELECT id FROM range(1, 3)) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
    )
    assert spark.table("elsewhere.db.t").count() == 3


def test_times_are_utc_and_arithmetic_is_strict(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"


def test_the_jvm_gets_every_option_that_spark_asks_for(spark: SparkSession) -> None:
    asked = spark._jvm.org.apache.spark.launcher.JavaModuleOptions.defaultModuleOptionArray()  # type: ignore[union-attr]
    given = {*jvm.MODULE_OPTIONS, "--add-modules=jdk.incubator.vector"}
    assert {option for option in asked if not option.startswith("-Dderby")} == given


def test_python_code_runs_in_this_interpreter(spark: SparkSession) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert found == [sys.executable]


def test_a_process_prints_only_its_own_output_starts_no_program_and_leaves_nothing(tmp_path: Path) -> None:
    temporary, work, programs = tmp_path / "tmp", tmp_path / "work", tmp_path / "bin"
    for folder in (temporary, work, programs):
        folder.mkdir()
    # Hadoop would look for "chmod" and "readlink" on the path.
    (programs / "java").symlink_to(Path(jvm.java().path).resolve())
    program = (
        "from tailrace.spark import session\n"
        "spark = session(**{'spark.driver.extraJavaOptions': '-XX:TieredStopAtLevel=1'})\n"
        "spark.sql('CREATE TABLE t USING delta AS SELECT 1 AS id')\n"
        "print(spark.table('t').count() + spark.sparkContext.parallelize([1]).count())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=work,
        env={name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
        | {"TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(sys.path), "PATH": str(programs)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("2\n", "", 0)
    assert list(temporary.iterdir()) == []
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("mode", [0o640, 0o1777])
def test_files_get_the_permission_that_hadoop_asks_for(spark: SparkSession, tmp_path: Path, mode: int) -> None:
    hadoop = spark.sparkContext._jvm.org.apache.hadoop  # type: ignore[union-attr]
    files = hadoop.fs.FileSystem.getLocal(spark.sparkContext._jsc.hadoopConfiguration())
    (tmp_path / "folder").mkdir()
    files.setPermission(hadoop.fs.Path(f"{tmp_path}/folder"), hadoop.fs.permission.FsPermission(f"{mode:o}"))
    assert files.getRaw().getClass().getName() == "tailrace.LocalFiles$Raw"
    assert (tmp_path / "folder").stat().st_mode & 0o7777 == mode


def test_a_jar_is_fetched_though_maven_has_only_its_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = next(jar for jar in jars.locked() if "commons-pool2" in jar.coordinate)
    group, artifact, version = jar.coordinate.split(":")
    there = tmp_path / "home" / ".m2" / "repository" / Path(*group.split(".")) / artifact / version
    there.mkdir(parents=True)
    (there / f"{artifact}-{version}.pom").write_text(
        f"<project><modelVersion>4.0.0</modelVersion><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version></project>"
    )
    monkeypatch.setenv("TAILRACE_JARS", str(tmp_path / "jars"))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Duser.home={tmp_path / 'home'}")
    (path,) = jars.ensure([jar], report=lambda _: None)
    assert path.name == jar.file_name


def test_a_name_in_the_jvm_is_looked_up_once(spark: SparkSession) -> None:
    view = spark.sparkContext._jvm
    assert view.org.apache.spark.sql.functions is view.org.apache.spark.sql.functions
    assert view.functions.col is view.functions.col
    assert view.functions.col("a").toString() == "a"
    # A field is asked for each time.
    assert view.java.lang.Integer.MAX_VALUE == 2**31 - 1
    assert "MAX_VALUE" not in vars(view.java.lang.Integer)
