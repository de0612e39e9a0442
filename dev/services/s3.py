"""An S3 server in memory. The objects live as long as the process: a server that is started again is empty."""

from __future__ import annotations

from pathlib import Path

from dev.services import http, process


class S3:
    """A server on loopback that takes any credentials; those it names are as good as others."""

    name = "s3"
    region = "us-east-1"
    access_key = "test"
    secret_key = "test-secret"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (self._port,) = process.ports(folder, 1)
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self._process = process.Process(self.name, folder / "s3.log")

    @property
    def addresses(self) -> dict[str, str]:
        return {
            "endpoint": self.endpoint, "region": self.region, "access_key": self.access_key,
            "secret_key": self.secret_key,
        }  # fmt: skip

    @property
    def group(self) -> int | None:
        return self._process.group

    def start(self) -> None:
        command = process.python("dev.services.serve_s3", str(self._port))
        self._process.start(command, lambda: http.send("GET", self.endpoint, timeout=5), process.PYTHON_ENV)

    def stop(self) -> None:
        self._process.stop()

    def kill(self) -> None:
        """End the server as a crash would."""
        self._process.kill()

    def create_bucket(self, bucket: str) -> None:
        http.send("PUT", f"{self.endpoint}/{bucket}")
