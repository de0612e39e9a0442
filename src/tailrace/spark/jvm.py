"""The JVM that Spark runs in, started by us rather than by `spark-submit`.

`spark-submit` starts a first JVM only to print the command line of the second, and lets the second write to our
standard output. Here the command line is known, so one JVM starts, with its output on standard error.

The JVM lives as long as the pipe to its standard input: however this process ends, the JVM sees the pipe close and
ends as well, deleting its temporary files.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

import pyspark
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark.java_gateway import launch_gateway

from tailrace.core.errors import NotReady
from tailrace.spark.classes import remember_names

OLDEST_JAVA = 17
_OPTIONS_FROM_OUTSIDE = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
SPARK_HOME = Path(pyspark.__file__).parent
START_SECONDS = 120.0

_OPENED = (
    "java.lang java.lang.invoke java.lang.reflect java.io java.net java.nio java.util java.util.concurrent"
    " java.util.concurrent.atomic jdk.internal.ref sun.nio.ch sun.nio.cs sun.security.action sun.util.calendar"
)
MODULE_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED.split()),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--enable-native-access=ALL-UNNAMED",
)
"""What Spark asks of a JVM, less the incubator module (linear algebra only), which warns on every start."""

QUIET_OPTIONS = (
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
    "-XX:-UsePerfData",
    f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
)

SPEED_OPTIONS = (
    # Spark compiles new classes for every query. On few cores the optimising compiler took up to half of the
    # machine for code that ran a few seconds, so only what stays hot is handed to it. The figures are in
    # docs/explanation/speed.md.
    "-XX:Tier4InvocationThreshold=20000",
    "-XX:Tier4MinInvocationThreshold=5000",
    "-XX:Tier4CompileThreshold=40000",
    "-XX:Tier4BackEdgeThreshold=150000",
    # A step with many columns is one method of more than 8,000 bytes, which Java by default never compiles.
    "-XX:-DontCompileHugeMethods",
)
ROBUST_OPTIONS = (
    # A message may be nested a thousand levels deep before it is refused, and Spark goes down into it step by step. A
    # task that has no more stack, or no more memory, ends the JVM.
    "-Xss16m",
    # A few bytes of Avro may claim to be followed by 2 GB, and room is made for all of it before it is read on. What
    # fits into a message of Kafka is shorter than this.
    *(f"-Dorg.apache.avro.limits.{kind}.maxLength={128 * 1024 * 1024}" for kind in ("bytes", "string")),
    f"-Dorg.apache.avro.limits.collectionItems.maxLength={16 * 1024 * 1024}",
)
_COLLECTOR = "-XX:+UseParallelGC"
"""Batches want throughput, not short pauses. Two collectors are refused by Java, so one that is asked for wins."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that is new enough; `version` is all it says of itself."""

    path: str
    version: str


def java() -> Java:
    """Return the Java of `JAVA_HOME`, else of the path; refuse one that is missing or too old."""
    return _java(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))


@cache
def _java(home: str, path: str) -> Java:
    found = shutil.which("java", path=str(Path(home) / "bin") if home else path)
    said = _version(found) if found else ""
    number = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is None or number is None:
        where = f'under JAVA_HOME "{home}"' if home else "on the path"
        raise NotReady("java-missing", f"no java {where}", f"Install Java {OLDEST_JAVA} or newer, or set JAVA_HOME.")
    if int(number[1]) < OLDEST_JAVA:
        raise NotReady(
            "java-too-old",
            f'java "{found}" is version {number[1]}, needed is {OLDEST_JAVA} or newer',
            f"Install Java {OLDEST_JAVA} or newer, or set JAVA_HOME to it.",
        )
    return Java(found, said)


def _version(path: str) -> str:
    # With options in the environment Java says so, and they change what it says of itself.
    bare = {name: value for name, value in os.environ.items() if name not in _OPTIONS_FROM_OUTSIDE}
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60, check=True, env=bare)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stderr


def class_path(jars: Sequence[Path]) -> list[Path]:
    """Return Spark's own jars and then `jars`, always in the same order, which a class archive depends on."""
    return [*sorted((SPARK_HOME / "jars").glob("*.jar")), *jars]


def start(
    jars: Sequence[Path],
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    output: int | IO[str] = 2,
) -> JavaGateway:
    """Start a JVM with Spark and `jars` on its class path and return the way into it."""
    chosen = any(option.startswith("-XX:+Use") and option.endswith("GC") for option in options)
    command = [
        java().path,
        "-cp",
        os.pathsep.join(map(str, class_path(jars))),
        *MODULE_OPTIONS,
        *QUIET_OPTIONS,
        *SPEED_OPTIONS,
        *ROBUST_OPTIONS,
        *(() if chosen else (_COLLECTOR,)),
        *options,
        "org.apache.spark.api.python.PythonGatewayServer",
    ]
    with tempfile.TemporaryDirectory(prefix="tailrace-") as folder:
        address = Path(folder) / "address"
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={
                **os.environ,
                **(env or {}),
                "SPARK_HOME": str(SPARK_HOME),
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(address),
            },
            # Ctrl-C at a terminal is for us to handle: in a session of its own the JVM does not get it.
            start_new_session=True,
        )
        port, secret = _address(process, address)
    gateway = _connect(port, secret)
    gateway.proc = process
    atexit.register(stop, gateway)
    return gateway


def stop(gateway: JavaGateway, seconds: float = 10.0) -> None:
    """Let go of the JVM and wait until it has cleaned up after itself; kill it if it does not end."""
    # Closed on our side first: objects collected later would else be reported to a JVM that is gone.
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    _end(gateway.proc, seconds)


def _end(process: subprocess.Popen[bytes], seconds: float) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _address(process: subprocess.Popen[bytes], address: Path) -> tuple[int, str]:
    give_up_at = time.monotonic() + START_SECONDS
    while not address.exists():
        if process.poll() is not None or time.monotonic() > give_up_at:
            _end(process, seconds=0)
            raise NotReady(
                "spark-start-failed",
                f"the JVM for Spark did not start, exit code {process.returncode}",
                "The lines above come from Java. Check the driver memory and the Java options that were given.",
            )
        time.sleep(0.02)
    content = address.read_bytes()
    # A port of four bytes, then the secret after its length.
    return int.from_bytes(content[:4], "big"), content[8:].decode()


def _connect(port: int, secret: str) -> JavaGateway:
    # PySpark takes the address of a running JVM from the environment only.
    os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    try:
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
    remember_names(gateway)
    return gateway
