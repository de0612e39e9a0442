"""The Parquet target on an object store: the same table, the same refusals, and files that anyone can read."""

from __future__ import annotations

import io
import json

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import S3Store
from pyspark.sql import SparkSession

from dev.services.s3 import S3
from tailrace.apply.target import Mark, Target
from tailrace.core.errors import NotReady, Retryable
from tailrace.core.table import Evolution, fit
from tailrace.targets.parquet import Options, open_target
from tests.contracts.target import ITEMS, LOG, TABLES, at, batch, drop, put


def opened(spark: SparkSession, s3: S3, bucket: str) -> Target:
    options = Options(
        path=f"s3://{bucket}/some/prefix",
        s3_endpoint=s3.endpoint,
        s3_region=s3.region,
        s3_access_key_id=s3.access_key,
        s3_secret_access_key=s3.secret_key,
    )
    return open_target("lake", options, spark=lambda: spark, pipeline_id="shop", tables=TABLES, mode="scd1")


def test_a_table_in_a_bucket_is_kept_current_by_one_writer_at_a_time(spark: SparkSession, s3: S3) -> None:
    s3.create_bucket("lake")
    one, two = opened(spark, s3, "lake"), opened(spark, s3, "lake")
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
