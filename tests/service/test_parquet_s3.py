"""The Parquet target on an object store: the same table, the same refusals, and files that anyone can read."""

from __future__ import annotations

import io
import json
import uuid
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import S3Store
from pyspark.sql import SparkSession

from dev.services.s3 import S3
from tailrace.apply.target import Mark, Target
from tailrace.core.errors import NotReady, Retryable
from tailrace.core.table import Evolution, Table, fit
from tailrace.targets.parquet import Options, open_target
from tests.contracts.target import ITEMS, LOG, TABLES, CommitContract, Image, at, batch, drop, put


def opened(spark: SparkSession, s3: S3, place: str, **how: str) -> Target:
    options = Options(
        path=f"s3://{place}",
        s3_endpoint=s3.endpoint,
        s3_region=s3.region,
        s3_access_key_id=s3.access_key,
        s3_secret_access_key=s3.secret_key,
    )
    given: Any = {"name": "lake", "pipeline_id": "shop", "mode": "scd1", **how}
    return open_target(options=options, spark=lambda: spark, tables=TABLES, **given)


class TestParquetInABucket(CommitContract):
    @pytest.fixture(autouse=True)
    def _store(self, spark: SparkSession, s3: S3) -> None:
        self.spark, self.s3 = spark, s3
        s3.create_bucket("contract")
        self.place = f"contract/{uuid.uuid4()}/a folder"

    def open(self, *, pipeline: str = "shop", name: str = "lake", mode: str = "scd1") -> Target:
        return opened(self.spark, self.s3, self.place, name=name, pipeline_id=pipeline, mode=mode)

    def read(self, target: Target, table: Table) -> list[Image]:
        return self.visible(target.current(table.name))


def test_a_table_in_a_bucket_is_kept_current_by_one_writer_at_a_time(spark: SparkSession, s3: S3) -> None:
    s3.create_bucket("lake")
    one, two = opened(spark, s3, "lake/some/prefix"), opened(spark, s3, "lake/some/prefix")
    one.evolve(ITEMS.name, fit(None, ITEMS, Evolution.ALTER))
    assert two.mark(ITEMS.name) is None
    one.apply(batch(spark, [put(n, n) for n in range(1, 6)], 1))
    one.apply(batch(spark, [put(7, 2, "two"), drop(8, 3)], 2))
    with pytest.raises(Retryable) as refused:
        two.apply(batch(spark, [put(1, 1, "late")], 3))
    assert refused.value.code == "write-conflict"
    assert two.mark(ITEMS.name) == Mark(LOG, 2, at(8))
    assert sorted(row["id"] for row in two.current(ITEMS.name).collect()) == [1, 2, 4, 5]

    store = S3Store(
        "lake", endpoint=s3.endpoint, region=s3.region, access_key_id=s3.access_key, secret_access_key=s3.secret_key,
        prefix="some/prefix", client_options={"allow_http": True},
    )  # fmt: skip
    newest = max(found["path"] for page in obstore.list(store, "items/manifests") for found in page)
    listed = json.loads(bytes(obstore.get(store, newest).bytes()))["content"]["files"]
    tables = [pq.read_table(io.BytesIO(bytes(obstore.get(store, name).bytes()))) for name in listed]
    names = {row["id"]: row["name"] for row in pa.concat_tables(tables).to_pylist()}
    assert names == {1: "x", 2: "two", 4: "x", 5: "x"}


def test_a_bucket_that_is_not_there_is_told(spark: SparkSession, s3: S3) -> None:
    with pytest.raises((NotReady, Retryable)) as failed:
        opened(spark, s3, "nowhere").evolve(ITEMS.name, fit(None, ITEMS, Evolution.ALTER))
    assert s3.secret_key not in failed.value.render()
