"""The Spark session: quiet, on the loopback, in UTC, with exactly the jars it needs.

There is one per process. It leaves nothing behind: no warehouse or metastore in the working folder, and its temporary
files go with it.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tailrace.spark import archive, jvm, local_files
from tailrace.spark.jars import ensure, locked

ICEBERG_CATALOG = "local"
"""The catalog of Iceberg tables that are named without one."""


def session(*, jars: str = "auto", also: Sequence[str] = (), **conf: str) -> SparkSession:
    """Return the session of this process with the jars, extensions and catalogs that the targets need.

    `conf` holds Spark settings by their own names and wins over the defaults here. `jars="provided"` adds no jars, for
    a cluster that has them; `also` names packages whose locked jars are added to ours. When a session runs already it
    is returned, with those of `conf` set that can still change. One whose JVM went away runs no more.
    """
    losses()
    settings = conf if SparkContext._active_spark_context else _with_jvm(_defaults(conf) | conf, jars, also)
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


_lost: list[int] = []
_losing = threading.Lock()


def losses(patience: float = 0.0) -> int:
    """Return how often the JVM of this process was found to have ended by itself; `session` then starts another one.

    Whatever was made in a session of it (frames, tables that are open, other sessions) is gone with it. An end shows in
    connections a little before it shows in the process: for that it is waited `patience` seconds.
    """
    with _losing:
        gateway: Any = SparkContext._gateway
        process = getattr(gateway, "proc", None)
        with suppress(subprocess.TimeoutExpired):
            if process is not None and process.wait(patience) is not None:
                _let_go(gateway)
                _lost.append(process.returncode)
        return len(_lost)


def _let_go(gateway: Any) -> None:
    context: Any = SparkContext._active_spark_context
    if context is not None:
        # Nobody is there to be told that it ends.
        context._jsc = None
        context.stop()
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    # Objects that are collected later are reported to nobody.
    gateway._gateway_client.is_connected = False
    SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _defaults(conf: Mapping[str, str]) -> dict[str, str]:
    cores = str(os.cpu_count() or 1)
    master = conf.get("spark.master", "local[*]")
    loopback = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    return (loopback if master.startswith("local") else {}) | {
        "spark.app.name": "tailrace",
        "spark.master": master,
        "spark.driver.memory": "2g",
        # Rows leave for a database through the driver; how many at a time is for slice.max_rows to say.
        "spark.driver.maxResultSize": "0",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # With it, PySpark tells the JVM of the Python line behind every expression: half of all that the two say.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": cores,
        # A batch into Delta uses about as many programs as Spark keeps (100), and the next one needs them again.
        "spark.sql.codegen.cache.maxEntries": "1000",
        # Delta's VACUUM lists one small table in as many tasks as this says, and the default is 10,000.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": cores,
        "spark.databricks.delta.snapshotPartitions": cores,
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": _passing_folder(),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        f"spark.sql.catalog.{ICEBERG_CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{ICEBERG_CATALOG}.type": "hadoop",
        f"spark.sql.catalog.{ICEBERG_CATALOG}.warehouse": str(Path(".tailrace", "iceberg").absolute()),
    }


def _passing_folder() -> str:
    """Name a folder that is gone when this process ends; it is made only if somebody writes there."""
    folder = Path(tempfile.gettempdir(), f"tailrace-warehouse-{uuid.uuid4().hex}")
    # What is registered first runs last: the JVM, started later, has ended by then.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(folder)


def _with_jvm(settings: dict[str, str], jars: str, also: Sequence[str]) -> dict[str, str]:
    """Start the JVM where that is ours to do; return the settings with which PySpark does the rest."""
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return settings
    jvm.java()
    ours, more = (
        (ensure(locked()), ensure(jar for name in also for jar in locked(name))) if jars == "auto" else ([], [])
    )
    if settings["spark.master"].startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not _is_plain(settings):
        named = [jar for jar in settings.get("spark.jars", "").split(",") if jar]
        return settings | {"spark.jars": ",".join([*named, *map(str, ours + more)])}
    options = shlex.split(settings.get("spark.driver.extraJavaOptions", ""))
    first = [local_files.jar(), *ours]
    # An archive also serves a class path that goes on behind its own.
    archived = archive.options(jvm.class_path(first))
    gateway = jvm.start([*first, *more], [f"-Xmx{settings['spark.driver.memory']}", *archived, *options])
    SparkContext._ensure_initialized(gateway=gateway)
    # Registered after the JVM's own end, so it runs before that.
    atexit.register(_hush)
    return local_files.SETTINGS | settings


def _hush() -> None:
    """Let PySpark's server for accumulators take the end of the JVM for what it is, and not print it as an error."""
    context = SparkContext._active_spark_context
    if context is not None:
        context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]


def _is_plain(settings: Mapping[str, str]) -> bool:
    """Say whether nothing is asked for that only `spark-submit` can give: a cluster, other jars, a settings folder."""
    special = ("spark.jars", "spark.driver.extraClassPath", "spark.driver.extraLibraryPath", "spark.plugins")
    return (
        settings["spark.master"].startswith("local")
        and "SPARK_CONF_DIR" not in os.environ
        and not any(key.startswith(special) for key in settings)
    )
