"""The jars that Spark does not bring itself: resolved once, checked, then only read.

    jars.lock -> Spark's own Ivy -> sha256 -> <cache>/<sha256>/<name>.jar

A file is in the cache under its checked name or not at all: it is fetched into a folder of this process, compared with
the committed sha256 and renamed into place. Two processes that fetch at once do the work twice and agree.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError

from tailrace.core.errors import Halt, NotReady
from tailrace.spark import jvm, maven

Report = Callable[[str], None]
"""Where progress is told, one line at a time."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of the lock: a Maven coordinate and what its bytes must hash to."""

    format: str
    coordinate: str
    sha256: str

    @property
    def file_name(self) -> str:
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"


def say(line: str) -> None:
    """Report to standard error."""
    print(line, file=sys.stderr, flush=True)


def locked(package: str = "tailrace.spark") -> tuple[Jar, ...]:
    """Return the jars of the committed lock of `package`; that of Spark itself unless told otherwise."""
    lines = files(package).joinpath("jars.lock").read_text("utf-8").splitlines()
    return tuple(Jar(*line.split()) for line in lines if line and not line.startswith("#"))


def cache_root() -> Path:
    """Return the folder that holds the jars; `TAILRACE_JARS` overrides it."""
    return Path(os.environ.get("TAILRACE_JARS") or Path.home() / ".cache" / "tailrace" / "jars").absolute()


def ensure(jars: Iterable[Jar], report: Report = say) -> list[Path]:
    """Return where each jar lies, fetching those that are missing; nothing is resolved when all are there."""
    wanted = list(jars)
    root = cache_root()
    missing = [jar for jar in wanted if not _place(root, jar).exists()]
    if missing:
        try:
            _fetch(missing, root, report)
        except OSError as error:
            raise not_writable(error) from error
    return [checked(_place(root, jar), jar) for jar in wanted]


def not_writable(error: OSError) -> NotReady:
    """Return what to tell an operator whose cache cannot take another jar."""
    return NotReady(
        "jars-not-writable",
        f'jar cache "{cache_root()}" cannot be written: {error.strerror}',
        "Make room or grant access there, or name another folder in the variable TAILRACE_JARS.",
    )


def checked(path: Path, jar: Jar) -> Path:
    """Return `path` if it holds exactly the locked bytes of `jar`."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != jar.sha256:
        raise Halt(
            "jar-mismatch",
            f'jar "{jar.coordinate}" has sha256 {found}, locked is {jar.sha256}',
            f'Delete the folder "{_place(cache_root(), jar).parent}" if it is there, and run again. If the error stays,'
            " the Maven repository gives other bytes than those Tailrace was tested with: do not use them.",
        )
    return path


def _place(root: Path, jar: Jar) -> Path:
    return root / jar.sha256[:16] / jar.file_name


def _fetch(jars: list[Jar], root: Path, report: Report) -> None:
    root.mkdir(parents=True, exist_ok=True)
    # Ivy is talkative; what it says is of use only when it fails, and then it must outlive the folder.
    with (
        (root / "ivy.log").open("w") as log,
        tempfile.TemporaryDirectory(prefix=".fetch-", dir=root) as folder,
    ):
        gateway = jvm.start([], [f"-Dspark.jars.ivy={folder}", *maven.proxy_options()], maven.mirror_env(), output=log)
        try:
            for number, jar in enumerate(jars, 1):
                report(f"fetching jar {number} of {len(jars)}: {jar.coordinate}")
                fetched = checked(_resolve(gateway, jar, Path(log.name), Path(folder) / "alone"), jar)
                _place(root, jar).parent.mkdir(exist_ok=True)
                fetched.replace(_place(root, jar))
        finally:
            jvm.stop(gateway)


def _resolve(gateway: JavaGateway, jar: Jar, log: Path, alone: Path) -> Path:
    resolve = gateway.jvm.org.apache.spark.util.DependencyUtils.resolveMavenDependencies
    address = gateway.jvm.java.net.URI(f"ivy://{jar.coordinate}?transitive=false")
    try:
        try:
            found = resolve(address)
        except Py4JError:
            # Maven's folder in the home may have the description of a jar and not the jar: Ivy then looks nowhere else.
            for name in ("user.home", "spark.jars.ivy"):
                gateway.jvm.java.lang.System.setProperty(name, str(alone))
            found = resolve(address)
    except Py4JError as error:
        raise NotReady(
            "jar-unreachable",
            f'jar "{jar.coordinate}" could not be fetched',
            f'See "{log}". Where Maven Central cannot be reached, name a mirror in the Maven settings'
            " (~/.m2/settings.xml) or in the variable DEFAULT_ARTIFACT_REPOSITORY.",
        ) from error
    return Path(found.apply(0))
