"""A REST catalog of Iceberg: the one that Iceberg is tested with, over SQLite. Its tables survive a restart."""

from __future__ import annotations

from pathlib import Path

from dev.services import http, packages, process
from dev.services.java import java

_MAIN = Path(__file__).with_name("RestCatalog.java")


class Catalog:
    """A catalog on `folder`, which holds its tables too."""

    name = "catalog"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (self._port,) = process.ports(folder, 1)
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process = process.Process(self.name, folder / "catalog.log")

    @property
    def addresses(self) -> dict[str, str]:
        return {"uri": self.uri}

    @property
    def group(self) -> int | None:
        return self._process.group

    def start(self) -> None:
        tables = self.folder / "tables"
        tables.mkdir(parents=True, exist_ok=True)
        jars = [str(packages.ensure("rest-catalog") / "*"), *map(str, sorted(_hadoop().glob("hadoop-client-*.jar")))]
        # Java compiles the one file by itself.
        command = [*java(256), "-cp", ":".join(jars), str(_MAIN), str(self._port), str(tables)]
        self._process.start(command, lambda: http.call("GET", f"{self.uri}/v1/config", timeout=5))

    def stop(self) -> None:
        self._process.stop()

    def kill(self) -> None:
        """End the catalog as a crash would."""
        self._process.kill()


def _hadoop() -> Path:
    """Return the folder with the jars of Hadoop that PySpark brings."""
    import pyspark

    return Path(pyspark.__file__).parent / "jars"
