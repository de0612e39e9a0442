"""A class archive (AppCDS) for the JVM under Spark: what it would load and verify at each start, made once.

The archive is an image of one class path under one Java. Its name holds both, so one that no longer fits is not found,
and a session then starts a few seconds slower but otherwise alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from tailrace.spark import jvm
from tailrace.spark.jars import cache_root


def options(jars: Sequence[Path]) -> list[str]:
    """Return the Java options that use the archive for `jars`; none if it was not made."""
    made = path(jars)
    return [f"-XX:SharedArchiveFile={made}", "-Xshare:auto"] if made.exists() else []


def path(jars: Sequence[Path]) -> Path:
    """Return where the archive for `jars` under the present Java is kept."""
    seal = hashlib.sha256(jvm.java().version.encode())
    for entry in jvm.class_path(jars):
        stat = entry.stat()
        seal.update(f"{entry}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return cache_root() / "archives" / f"{seal.hexdigest()[:16]}.jsa"
