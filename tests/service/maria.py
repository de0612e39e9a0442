"""A database of its own on the session's MariaDB, and short ways to read it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql

from dev.services.mariadb import MariaDb
from tailrace.core.checkpoint import Checkpoint
from tailrace.core.page import Page
from tailrace.sources.mysql import MySqlSource, Options


@dataclass
class Maria:
    """A database called `name`, and the folder in which its readers remember."""

    server: MariaDb
    name: str
    sql: pymysql.Connection
    folder: Path

    def run(self, *statements: str) -> None:
        with self.sql.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with self.sql.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def settings(self) -> dict[str, Any]:
        return {
            "host": self.server.host, "port": self.server.port, "database": self.name,
            "username": self.server.replication_user, "password": self.server.replication_password,
        }  # fmt: skip

    def source(self, *, epoch: int = 1, batch_rows: int = 16_384, **changed: Any) -> MySqlSource:
        source = MySqlSource(
            Options(**{**self.settings(), **changed}),
            pipeline_id=self.name,
            topic_prefix="cdc",
            epoch=epoch,
            batch_rows=batch_rows,
            heartbeat_seconds=0.4,
        )
        source.remember_in(self.folder)
        return source

    def read(self, since: Checkpoint | None = None, **changed: Any) -> list[Page[Any]]:
        """Read all that is there now."""
        source = self.source(**changed)
        return list(source.pages(since, source.head()))
