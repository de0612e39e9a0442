"""Iceberg tables that are registered in servers: in PostgreSQL, and in a REST catalog; and files of tables in S3."""

from __future__ import annotations

import datetime
from pathlib import Path

import psycopg
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from dev.services.catalog import Catalog
from dev.services.s3 import S3
from tailrace.apply.target import Mark
from tailrace.apply.versions import Upkeep
from tailrace.core.errors import Retryable
from tailrace.core.table import Evolution, fit
from tailrace.demo.postgres import EmbeddedPostgres
from tailrace.targets.iceberg import IcebergTarget, Options, open_target
from tests.contracts.target import ITEMS, LOG, TABLES, at, batch, drop, put


def test_a_catalog_in_postgres_gets_its_password_and_shows_it_nowhere(
    spark: SparkSession, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE tables")
        admin.execute("CREATE ROLE librarian LOGIN PASSWORD 'canary-7'")
        admin.execute("ALTER DATABASE tables OWNER TO librarian")
        server = admin.info
        options = Options(
            catalog_uri=f"postgresql://{server.host}:{server.port}/tables",
            catalog_username="librarian",
            catalog_password="canary-7",
            warehouse=str(tmp_path),
        )

    def lake() -> IcebergTarget:
        return open_target("lake", options, spark=lambda: spark, pipeline_id="shop", tables=TABLES, mode="scd1")

    target = lake()
    target.evolve(ITEMS.name, fit(None, ITEMS, Evolution.ALTER))
    target.apply(batch(spark, [put(1, 1), put(1, 2)], 1))
    target.apply(batch(spark, [drop(2, 1)], 2))
    again = lake()
    assert again.mark(ITEMS.name) == Mark(LOG, 2, at(2))
    assert [row["id"] for row in again.current(ITEMS.name).collect()] == [2]
    table = target._table(ITEMS.name)
    for session in (spark, table._session, table._reader):
        assert "canary-7" not in str(session.conf.getAll)
    with psycopg.connect(postgres.dsn("tables")) as reader:
        found = reader.execute(
            "SELECT catalog_name, table_namespace, table_name FROM iceberg_tables ORDER BY 3"
        ).fetchall()
    assert found == [("default", "default", "_tailrace_tombstones_items"), ("default", "default", "items")]


def test_a_rest_catalog_takes_batches_of_one_writer_and_takes_them_back(spark: SparkSession, catalog: Catalog) -> None:
    options = Options(catalog="rest", catalog_uri=catalog.uri, warehouse="lake", catalog_password="canary-8")

    def lake() -> IcebergTarget:
        return open_target("lake", options, spark=lambda: spark, pipeline_id="shop", tables=TABLES, mode="scd1")

    target = lake()
    target.evolve(ITEMS.name, fit(None, ITEMS, Evolution.ALTER))
    target.apply(batch(spark, [put(1, 1), put(1, 2)], 1))
    other = lake()
    assert other.mark(ITEMS.name) == Mark(LOG, 1, at(1))
    target.apply(batch(spark, [drop(2, 1), put(2, 3)], 2))
    with pytest.raises(Retryable) as late:
        other.apply(batch(spark, [drop(2, 1), put(2, 4)], 3))
    assert late.value.code == "write-conflict"
    first = next(version for version in lake().versions(ITEMS.name, 9) if version.mark == Mark(LOG, 1, at(1)))
    lake().take_back(ITEMS.name, first.id)
    again = lake()
    assert again.mark(ITEMS.name) == Mark(LOG, 1, at(1))
    again.apply(batch(spark, [drop(2, 1), put(2, 3)], 2))
    assert sum(again.compact(ITEMS.name, Upkeep(2, 100)).values()) > 0
    again.expire(ITEMS.name, datetime.datetime.now(datetime.UTC))
    assert lake().mark(ITEMS.name) == Mark(LOG, 2, at(2))
    assert {row["id"] for row in lake().current(ITEMS.name).collect()} == {2, 3}
    table = target._table(ITEMS.name)
    for session in (spark, table._session, table._reader):
        assert "canary-8" not in str(session.conf.getAll)


def test_tables_in_a_bucket_are_kept_current_and_read_by_others(spark: SparkSession, s3: S3, tmp_path: Path) -> None:
    s3.create_bucket("iceberg")
    options = Options(
        catalog_uri=f"sqlite:///{tmp_path}/catalog.db",
        warehouse="s3://iceberg/lake",
        s3_endpoint=s3.endpoint,
        s3_region=s3.region,
        s3_access_key_id=s3.access_key,
        s3_secret_access_key="canary-9",
    )

    def lake() -> IcebergTarget:
        return open_target("lake", options, spark=lambda: spark, pipeline_id="shop", tables=TABLES, mode="scd1")

    target = lake()
    target.evolve(ITEMS.name, fit(None, ITEMS, Evolution.ALTER))
    target.apply(batch(spark, [put(1, 1), put(1, 2)], 1))
    target.apply(batch(spark, [drop(2, 1), put(2, 3)], 2))
    assert lake().mark(ITEMS.name) == Mark(LOG, 2, at(2))
    login = {"s3.endpoint": s3.endpoint, "s3.access-key-id": s3.access_key, "s3.secret-access-key": "canary-9"}
    found = SqlCatalog(
        "default", uri=options.catalog_uri, warehouse=options.warehouse, **login, **{"s3.region": s3.region}
    )
    rows = found.load_table("default.items").scan().to_arrow().to_pylist()
    found.engine.dispose()
    assert sorted(row["id"] for row in rows) == [2, 3]
    table = target._table(ITEMS.name)
    for session in (spark, table._session, table._reader):
        assert "canary-9" not in str(session.conf.getAll)
