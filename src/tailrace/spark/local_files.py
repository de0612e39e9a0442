"""Hadoop's local file system as `LocalFiles.java` has it, compiled once for Spark's version.

It is used where the JVM is ours and the master is this machine. A cluster has its own files and its own class path.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path

import pyspark

from tailrace.spark import compiled, jvm

SETTINGS = {
    "spark.hadoop.fs.file.impl": "tailrace.LocalFiles",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "tailrace.LocalFiles$Context",
}
"""What has Hadoop use it."""


def jar() -> Path:
    """Return the jar, making it if it is not there."""
    source = files("tailrace.spark").joinpath("LocalFiles.java").read_text("utf-8")
    seal = hashlib.sha256(f"{pyspark.__version__}\n{source}".encode()).hexdigest()
    return compiled.jar("tailrace-local-files", seal, lambda: _compiled(source))


def _compiled(source: str) -> dict[str, bytes]:
    gateway = jvm.start([])
    try:
        compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(source)
        return {str(name): bytes(code) for name, code in compiler.getBytecodes().items()}
    finally:
        jvm.stop(gateway)
