"""The shop in a database: its roles, its tables, and its transactions executed."""

from __future__ import annotations

import secrets

import psycopg
from psycopg import sql

from tailrace.demo.postgres import EmbeddedPostgres
from tailrace.demo.shop import SCHEMA, TABLES, Shop, Transaction


def create_roles(server: EmbeddedPostgres, cdc_password: str) -> str:
    """Create the shop's own role and the one that reads its changes; return the password of the first."""
    password = secrets.token_urlsafe(24)
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        for statement in (
            sql.SQL("CREATE ROLE shop LOGIN PASSWORD {}").format(password),
            sql.SQL("CREATE DATABASE shop OWNER shop"),
            sql.SQL("CREATE ROLE cdc LOGIN REPLICATION PASSWORD {}").format(cdc_password),
            # Reads the tables, and may publish them, which PostgreSQL allows to a table's owner only.
            sql.SQL("GRANT shop TO cdc"),
        ):
            connection.execute(statement)
    return password


def fill(dsn: str, shop: Shop) -> int:
    """Create the shop's tables with their first rows; return how many rows."""
    count = 0
    with psycopg.connect(dsn) as connection:
        connection.execute(SCHEMA)
        for table, rows in shop.first_rows():
            command = sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(table))
            with connection.cursor() as cursor, cursor.copy(command) as copy:
                for row in rows:
                    copy.write_row(row)
            count += len(rows)
    return count


def execute(connection: psycopg.Connection, transaction: Transaction) -> None:
    """Execute `transaction` as one."""
    with connection.transaction(force_rollback=transaction.rolled_back):
        for statement in transaction.statements:
            connection.execute(statement.sql.encode(), statement.values)


def counts(connection: psycopg.Connection) -> dict[str, int]:
    """Return how many rows each table has."""
    each = sql.SQL(", ").join(
        sql.SQL("(SELECT count(*) FROM {})").format(sql.Identifier(*table.split("."))) for table in TABLES
    )
    with connection.transaction():
        row = connection.execute(sql.SQL("SELECT {}").format(each)).fetchone()
    return dict(zip(TABLES, row or (), strict=True))
