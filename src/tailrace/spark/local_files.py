"""Hadoop's local file system as `LocalFiles.java` has it: compiled once, by the compiler that Spark brings, into a jar.

    LocalFiles.java -> Janino -> <cache>/<sha256 of the source and of Spark's version>/tailrace-local-files.jar

It is used where the JVM is ours and the master is this machine. A cluster has its own files and its own class path.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from importlib.resources import files
from pathlib import Path

import pyspark

from tailrace.spark import jvm
from tailrace.spark.jars import cache_root, not_writable

SETTINGS = {
    "spark.hadoop.fs.file.impl": "tailrace.LocalFiles",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "tailrace.LocalFiles$Context",
}
"""What has Hadoop use it."""


def jar() -> Path:
    """Return the jar, making it if it is not there; it is there whole or not at all."""
    source = files("tailrace.spark").joinpath("LocalFiles.java").read_text("utf-8")
    seal = hashlib.sha256(f"{pyspark.__version__}\n{source}".encode()).hexdigest()
    place = cache_root() / seal[:16] / "tailrace-local-files.jar"
    if not place.exists():
        try:
            _make(source, place)
        except OSError as error:
            raise not_writable(error) from error
    return place


def _make(source: str, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    compiled = _compiled(source)
    handle, draft = tempfile.mkstemp(prefix=".", suffix=".jar", dir=place.parent)
    with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as packed:
        for name, code in sorted(compiled.items()):
            packed.writestr(zipfile.ZipInfo(f"{name.replace('.', '/')}.class"), code)
    Path(draft).replace(place)


def _compiled(source: str) -> dict[str, bytes]:
    gateway = jvm.start([])
    try:
        compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(source)
        return {str(name): bytes(code) for name, code in compiler.getBytecodes().items()}
    finally:
        jvm.stop(gateway)
