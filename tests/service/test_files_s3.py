"""A feed in a bucket: the same promises as of a directory, and what only a bucket can do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import S3Store
from pyspark.sql import SparkSession

from dev.services.s3 import S3
from tailrace.control.audit import Audit
from tailrace.core.errors import Halt, NotReady, ResyncRequired
from tailrace.log._intake import Feed as Given
from tailrace.log._listing import Directory
from tailrace.log._place import Bucket
from tests.feeds import Feed

HEADER = b"id,name,seq,op\n"


def login(s3: S3) -> dict[str, Any]:
    return {
        "s3_endpoint": s3.endpoint, "s3_region": s3.region, "s3_access_key_id": s3.access_key,
        "s3_secret_access_key": s3.secret_key,
    }  # fmt: skip


def opened(s3: S3, bucket: str) -> S3Store:
    return S3Store(
        bucket, endpoint=s3.endpoint, region=s3.region, access_key_id=s3.access_key, secret_access_key=s3.secret_key,
        prefix="some/prefix", client_options={"allow_http": True},
    )  # fmt: skip


def test_files_of_a_bucket_are_taken_once_and_halt_when_they_change(
    s3: S3, spark: SparkSession, tmp_path: Path
) -> None:
    s3.create_bucket("inbox")
    store = opened(s3, "inbox")
    feed = Feed(tmp_path, spark, {"path": "s3://inbox/some/prefix", **login(s3)})
    assert feed.run() == {}
    packed = pa.compress(HEADER + b"2,zstd,1,I\n", "zstd", asbytes=True)
    objects = {
        "1.csv": HEADER + b"1,ann,1,I\n2,bob,0,I\n", "sub/odd name %20#.csv.zst": packed, "3.csv.tmp": b"half",
        "_logs/4.csv": b"no", "5.csv": b"", "1.csv.done": b"",
    }  # fmt: skip
    for name, content in objects.items():
        obstore.put(store, name, content)
    assert feed.run()["applied"] == 3
    assert feed.rows() == [(1, "ann"), (2, "zstd")]
    assert feed.states() == {"1.csv": "committed", "5.csv": "failed", "sub/odd name %20#.csv.zst": "committed"}
    assert list((feed.folder / "state/feed/files/copies").glob("*")) == []
    assert feed.run() == {}
    # Within the second that a bucket tells the time by, and of the same size: the tag of the content tells.
    obstore.put(store, "1.csv", HEADER + b"1,eve,1,I\n2,bob,0,I\n")
    with pytest.raises(Halt, match="was taken with the hash"):
        feed.run()
    feed.source["on_change"] = "apply"
    assert feed.run()["applied"] == 1
    assert feed.rows() == [(1, "eve"), (2, "zstd")]
    obstore.put(store, "6.csv", HEADER + b"6,six,1,I\n")
    worker = feed.worker()
    head = worker.log.head()  # type: ignore[attr-defined]
    obstore.delete(store, "6.csv")
    with pytest.raises(ResyncRequired, match=r'file "6\.csv" is gone'):
        worker.next_slice(worker.at(), head)


def test_manifests_and_footers_are_read_where_they_lie(s3: S3, tmp_path: Path) -> None:
    s3.create_bucket("parts")
    store = opened(s3, "parts")
    pq.write_table(pa.table({"id": list(range(1000))}), tmp_path / "a.parquet")
    obstore.put(store, "a.parquet", (tmp_path / "a.parquet").read_bytes())
    obstore.put(store, "1.manifest.json", b'{"sequence": 1, "files": [{"name": "a.parquet"}]}')
    settings = {
        "endpoint": s3.endpoint, "region": s3.region, "access_key_id": s3.access_key,
        "secret_access_key": s3.secret_key, "client_options": {"allow_http": True},
    }  # fmt: skip
    place = Bucket("s3://parts/some/prefix/", settings, tmp_path / "copies")
    (seen,) = Directory(place, order="manifest").ready(Audit(tmp_path / "audit.db"))
    found = Given(Directory(place), "parquet").examine(seen.name, seen.state)
    assert found is not None
    assert (found.rows, found.header, found.problem) == (1000, "id: int64", "")


def test_a_bucket_that_is_not_there_is_told_without_the_key(s3: S3, spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path, spark, {"path": "s3://nowhere/x", **login(s3)})
    with pytest.raises(NotReady, match="s3://nowhere/x") as failed:
        feed.run()
    assert s3.secret_key not in failed.value.render()
