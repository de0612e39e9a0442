"""Short ways to read a source in a test: a database of its own, and pages opened into events."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.rows import dict_row

from tailrace.core.checkpoint import Checkpoint, Tailing
from tailrace.core.page import Page
from tailrace.demo.postgres import EmbeddedPostgres
from tailrace.sources.postgres import Options, PostgresSource


@dataclass
class Database:
    """A database of its own on the session's server, with a slot and publication of its own."""

    server: EmbeddedPostgres
    name: str
    sql: psycopg.Connection[tuple[Any, ...]]
    opened: list[PostgresSource] = field(default_factory=list)

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.sql.execute(statement)

    def connect(self, **settings: Any) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.server.dsn(self.name), **{"autocommit": True, **settings})

    def options(self, **changed: Any) -> Options:
        return Options(
            **{
                "host": "127.0.0.1",
                "port": self.server.port,
                "database": self.name,
                "username": "postgres",
                "password": self.server.password,
                "slot_name": f"slot_{self.name}",
                "publication_name": f"pub_{self.name}",
                **changed,
            }
        )

    def source(
        self, *, epoch: int = 1, batch_rows: int = 16_384, heartbeat: float = 10.0, **changed: Any
    ) -> PostgresSource:
        source = PostgresSource(
            self.options(**changed),
            pipeline_id=self.name,
            topic_prefix="cdc",
            epoch=epoch,
            batch_rows=batch_rows,
            heartbeat_seconds=heartbeat,
        )
        self.opened.append(source)
        return source

    def slot(self) -> dict[str, Any]:
        cursor = self.sql.cursor(row_factory=dict_row)
        found = cursor.execute(
            "SELECT *, confirmed_flush_lsn::text AS confirmed FROM pg_replication_slots WHERE slot_name = %s",
            [f"slot_{self.name}"],
        ).fetchone()
        return found or {}

    def read(
        self, source: PostgresSource, since: Checkpoint | None = None, *, acknowledge: bool = True, noted: bool = False
    ) -> list[Page[Any]]:
        """Read all that is there now; `noted` keeps the page that only notes that a snapshot begins."""
        pages = []
        for page in source.pages(since, source.head()):
            if noted or page.rows.num_rows or isinstance(page.checkpoint, Tailing):
                pages.append(page)
            if acknowledge:
                source.acknowledge(page.checkpoint)
        return pages


def events(pages: list[Page[Any]]) -> list[dict[str, Any]]:
    """Return the rows of `pages` in order, opened: table, key, and what the message says."""
    found = []
    for page in pages:
        for row in page.rows.to_pylist():
            key = None if row["key"] is None else json.loads(row["key"])
            found.append({"table": row["topic"].removeprefix("cdc."), "key": key, **json.loads(row["value"])})
    return found


def brief(pages: list[Page[Any]]) -> list[tuple[str, str, Any]]:
    """Return operation, table and key of each event."""
    return [(event["op"], event["table"], event["key"] and tuple(event["key"].values())) for event in events(pages)]
