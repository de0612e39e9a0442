"""The embedded PostgreSQL of the demo, as a service: logical replication on, on loopback, with a password."""

from __future__ import annotations

from pathlib import Path

import psycopg

from dev.services import process
from tailrace.demo.postgres import EmbeddedPostgres


class Postgres:
    """A server on `folder`; the user is its superuser."""

    name = "postgres"
    host = "127.0.0.1"
    database = "postgres"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server = EmbeddedPostgres(folder / "server")
        self.port, self.user = self._server.port, self._server.user
        self._process = process.Process(self.name, folder / "postgres.log")

    @property
    def password(self) -> str:
        return self._server.password

    @property
    def addresses(self) -> dict[str, str]:
        return {
            "host": self.host, "port": str(self.port), "database": self.database, "user": self.user,
            "password": self.password, "dsn": self.dsn(),
        }  # fmt: skip

    @property
    def group(self) -> int | None:
        return self._process.group

    def dsn(self, database: str = "postgres") -> str:
        return self._server.dsn(database)

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = process.python("dev.services.serve_postgres", str(self._server.data), str(self.port))
        self._process.start(command, self._answers, {**process.PYTHON_ENV, "TAILRACE_PG_PASSWORD": self.password})

    def stop(self) -> None:
        self._process.stop()

    def kill(self) -> None:
        """End the server as a crash would."""
        self._server.stop("immediate")
        self._process.stop()

    def _answers(self) -> None:
        psycopg.connect(self.dsn(), connect_timeout=5).close()
