"""How the JVMs of the servers are started: small, and quick to come up rather than quick in the long run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Djava.net.preferIPv4Stack=true")


def java(megabytes: int, *options: str) -> list[str]:
    """Return the beginning of a command: the JVM, its heap limit and its options."""
    home = os.environ.get("JAVA_HOME")
    return [str(Path(home) / "bin" / "java") if home else "java", f"-Xmx{megabytes}m", *QUICK, *options]


def class_path(folder: Path) -> list[str]:
    return ["-cp", str(folder / "*")]


def properties(settings: Iterable[tuple[str, str]]) -> str:
    """Return a Java properties file; a backslash would be read as an escape, so it is doubled."""
    return "".join(f"{name}={value}\n".replace("\\", "\\\\") for name, value in settings)
