"""Jars of classes that we have as source: compiled once, by the compiler that Spark brings, and kept in the cache.

    source -> Janino -> <cache>/<seal>/<name>.jar

A jar is there whole or not at all. Two processes that make it at once do the work twice and agree. Where the cache
cannot be written, as in a container that brings one along, each process has a jar of its own.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from tailrace.spark.jars import cache_root, not_writable


def jar(name: str, seal: str, classes: Callable[[], Mapping[str, bytes]]) -> Path:
    """Return the jar called `name` that `seal`, a digest of all it is made from, stands for; make it of `classes`."""
    place = cache_root() / seal[:16] / f"{name}.jar"
    if not place.exists():
        made = classes()
        try:
            _make(made, place)
        except OSError as error:
            place = _of_this_process(error) / place.name
            _make(made, place)
    return place


def _of_this_process(error: OSError) -> Path:
    try:
        folder = tempfile.mkdtemp(prefix="tailrace-")
    except OSError:
        raise not_writable(error) from error
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _make(classes: Mapping[str, bytes], place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=".", suffix=".jar", dir=place.parent)
    with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as packed:
        for name, code in sorted(classes.items()):
            packed.writestr(zipfile.ZipInfo(f"{name.replace('.', '/')}.class"), code)
    Path(draft).replace(place)
