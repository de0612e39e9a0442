"""A schema registry: Apicurio, spoken to through the Confluent API. Its schemas are in a file and survive a restart."""

from __future__ import annotations

from pathlib import Path

from dev.services import http, packages, process
from dev.services.java import java


class Registry:
    """A registry on `folder`; `url` is the Confluent API, `native_url` Apicurio's own."""

    name = "registry"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (self._port,) = process.ports(folder, 1)
        self.url = f"http://127.0.0.1:{self._port}/apis/ccompat/v7"
        self.native_url = f"http://127.0.0.1:{self._port}/apis/registry/v2"
        self._process = process.Process(self.name, folder / "registry.log")

    @property
    def addresses(self) -> dict[str, str]:
        return {"url": self.url, "native_url": self.native_url}

    @property
    def group(self) -> int | None:
        return self._process.group

    def start(self) -> None:
        (jar,) = packages.ensure("registry").glob("*-runner.jar")
        options = ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self._port}", "-Dquarkus.log.level=WARN"]
        env = {"REGISTRY_DATASOURCE_URL": f"jdbc:h2:file:{self.folder / 'schemas'}"}
        command = [*java(384, *options), "-jar", str(jar)]
        self._process.start(command, lambda: http.call("GET", f"{self.url}/subjects", timeout=5), env)

    def stop(self) -> None:
        self._process.stop()

    def kill(self) -> None:
        """End the registry as a crash would."""
        self._process.kill()
