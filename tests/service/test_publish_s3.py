"""Publishing to a real S3 server: the same as to a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dev.services.s3 import S3
from tailrace.core.errors import NotReady, Retryable
from tailrace.runtime.publish import LATEST, MANIFESTS, VERSIONS, publish
from tailrace.targets._objects import Objects, open_objects
from tests.unit.test_publish import TABLES, Breaking, followed, stage, whole


def place(s3: S3, url: str) -> Objects:
    return open_objects(
        url, endpoint=s3.endpoint, region=s3.region, access_key_id=s3.access_key, secret_access_key=s3.secret_key
    )


def test_publishes_follow_each_other_and_stay_under_their_prefix(s3: S3, tmp_path: Path) -> None:
    s3.create_bucket("published")
    other, objects = place(s3, "s3://published"), place(s3, "s3://published/some/prefix/")
    other.put("staging/versions/00000001-aaaaaaaa/_root/users.parquet", b"not ours")
    for version in (1, 2, 3):
        publish("shop", stage(tmp_path, version), objects, keep=2)
        assert followed(objects) == whole(version)
    assert len(objects.keys(VERSIONS)) == 1 + 2 * (len(TABLES) - 1)
    assert (len(objects.keys(MANIFESTS)), publish("shop", stage(tmp_path, 3), objects, keep=2).removed) == (4, 0)
    assert other.get("staging/versions/00000001-aaaaaaaa/_root/users.parquet") is not None
    before = objects.get(LATEST)
    assert before is not None
    for entry in json.loads(before[0])["tables"].values():
        for key in (entry["versioned_key"], entry["current_key"]):
            assert key.startswith("some/prefix/staging/")
            assert other.get(key) is not None
    assert not objects.swap(LATEST, b"{}", None)
    assert not objects.swap(LATEST, b"{}", '"0123456789abcdef0123456789abcdef"')
    assert not place(s3, "s3://published/nothing").swap(LATEST, b"{}", before[1])
    assert objects.get(LATEST) == before


@pytest.mark.parametrize("at", [1, 4, 5, 6])
def test_a_lost_answer_is_mended(s3: S3, tmp_path: Path, at: int) -> None:
    s3.create_bucket("published")
    objects = place(s3, f"s3://published/lost{at}")
    publish("shop", stage(tmp_path, 1), objects, keep=2)
    with pytest.raises(Retryable):
        publish("shop", stage(tmp_path, 2), Breaking(objects, at, done=True), keep=2)
    publish("shop", stage(tmp_path, 2), objects, keep=2)
    assert followed(objects) == whole(2)


def test_a_bucket_that_is_not_there_is_told(s3: S3, tmp_path: Path) -> None:
    with pytest.raises(NotReady) as found:
        publish("shop", stage(tmp_path, 1), place(s3, "s3://nowhere"), keep=2)
    assert found.value.code == "store-refused"
