"""Class archives (AppCDS) for our JVMs: what one would load and verify at each start, made once.

An archive is an image of one class path under one Java. Its name holds both, so one that no longer fits is not found,
and a JVM then starts a few seconds slower but otherwise alike. It is written whole and renamed into place.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tailrace.spark import jvm
from tailrace.spark.jars import cache_root

KEEP = 3
"""How many archives of one kind stay in the cache, one per environment; each is up to some 200 MB."""


def options(class_path: Sequence[Path], kind: str = "") -> list[str]:
    """Return the Java options that use the archive for `class_path`; none if it was not made."""
    made = path(class_path, kind)
    return [f"-XX:SharedArchiveFile={made}", "-Xshare:auto"] if made.exists() else []


def training(draft: Path) -> list[str]:
    """Return the Java options with which a JVM writes an archive of what it has loaded, on its way out."""
    return [f"-XX:ArchiveClassesAtExit={draft}", "-XX:TieredStopAtLevel=1"]


def path(class_path: Sequence[Path], kind: str = "") -> Path:
    """Return where the archive for `class_path` under the present Java is kept."""
    seal = hashlib.sha256(jvm.java().version.encode())
    for entry in class_path:
        stat = entry.stat()
        seal.update(f"{entry}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return cache_root() / "archives" / kind / f"{seal.hexdigest()[:16]}.jsa"


def make(place: Path, rehearse: Callable[[Path, Path], None]) -> None:
    """Make the archive at `place`: `rehearse` has a JVM write it to a draft, and is given a folder to work in."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".train-", dir=place.parent) as folder:
        draft = Path(folder) / place.name
        rehearse(draft, Path(folder))
        draft.replace(place)
    for old in sorted(place.parent.glob("*.jsa"), key=lambda file: file.stat().st_mtime)[:-KEEP]:
        old.unlink(missing_ok=True)
