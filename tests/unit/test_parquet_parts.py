"""The parts of the Parquet target that need no Spark: a batch into a bucket, and one manifest after the other."""

from __future__ import annotations

import datetime
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailrace.apply.target import Mark
from tailrace.core.change import Change, Op, fold
from tailrace.core.errors import Halt, NotReady, Retryable
from tailrace.core.table import Column, Table
from tailrace.targets.parquet.manifest import File, Manifest, Manifests, from_bytes
from tailrace.targets.parquet.merge import Rules, kept, merge
from tailrace.targets.parquet.store import Store
from tailrace.targets.parquet.table import FULL, _in, _parts, _split
from tailrace.targets.parquet.target import Options

ROWS = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("_cdc_position", pa.string()),
        ("_cdc_hash", pa.int32()),
    ]
)
GRAVES = pa.schema(
    [("id", pa.int64()), ("_cdc_position", pa.string()), ("_cdc_hash", pa.int32()), ("_cdc_day", pa.string())]
)
TABLE = Table("t", (Column("id", "bigint"), Column("name", "string"), Column("tags", "array<string>")), ("id",))


def batch(changes: list[Change]) -> pa.Table:
    """Return the newest change of each key as the engine hands it over; `tags` may be left out."""
    newest = {change.key: change for change in sorted(changes, key=lambda change: change.position)}
    rows = [
        {
            "id": c.key[0], "_cdc_position": c.position, "_cdc_hash": 0, "_cdc_op": "d" if c.op is Op.DELETE else "u",
            kept(0): "tags" in c.unchanged, **(c.after or {}),
        }
        for c in newest.values()
    ]  # fmt: skip
    fields = [*list(ROWS), pa.field("_cdc_op", pa.string()), pa.field(kept(0), pa.bool_())]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


def test_any_batches_give_the_table_that_folding_gives() -> None:
    for _ in range(150):
        seed = random.randrange(1 << 32)
        dice = random.Random(seed)
        rows, graves, history, alive = ROWS.empty_table(), GRAVES.empty_table(), list[Change](), set[int]()
        place = 0
        for _ in range(dice.randrange(1, 6)):
            news, floor = list[Change](), ""
            for _ in range(dice.randrange(8)):
                place += 1
                at, key, roll = f"{place:04d}", dice.randrange(5), dice.random()
                if roll < 0.1:
                    news, floor, alive = [], at, set()
                    history.append(Change("t", Op.TRUNCATE, at))
                    continue
                if roll < 0.35:
                    news.append(Change("t", Op.DELETE, at, (key,)))
                    alive.discard(key)
                else:
                    image = {"id": key, "name": f"v{place}", "tags": [str(place), None]}
                    unchanged = (
                        frozenset({"tags"})
                        if key in alive and not any(c.key == (key,) for c in news) and roll > 0.8
                        else frozenset[str]()
                    )
                    news.append(
                        Change("t", Op.UPDATE, at, (key,), {**image, "tags": None} if unchanged else image, unchanged)
                    )
                    alive.add(key)
                history.append(news[-1])
            done = merge(rows, graves, batch(news), Rules(("id",), "2024-01-01", floor, partial=("tags",)))
            assert done.done.inserted - done.done.deleted == done.rows.num_rows - rows.num_rows, f"seed {seed}"
            rows, graves = done.rows, done.graves
        wanted = fold(history)
        found = {(row["id"],): (row["_cdc_position"], {n: row[n] for n in TABLE.names()}) for row in rows.to_pylist()}
        assert found == wanted.rows, f"seed {seed}"
        # What lies below a truncate need not be remembered: the mark's floor keeps it away.
        floor = max((change.position for change in history if change.op is Op.TRUNCATE), default="")
        remembered = {key: at for key, at in wanted.tombstones.items() if at > floor and key not in wanted.rows}
        assert {(g["id"],): g["_cdc_position"] for g in graves.to_pylist()} == remembered, f"seed {seed}"


def test_what_is_older_than_a_row_or_its_tombstone_changes_nothing() -> None:
    rules = Rules(("id",), "2024-01-01", partial=("tags",))
    first = batch([_put("5", 1, "new"), Change("t", Op.DELETE, "5", (2,)), _put("5", 3, "new")])
    one = merge(ROWS.empty_table(), GRAVES.empty_table(), first, rules)
    late = batch([_put("4", 1, "old"), _put("4", 2, "old"), Change("t", Op.DELETE, "3", (3,)), _put("5", 2, "tie")])
    two = merge(one.rows, one.graves, late, rules)
    assert sorted(two.rows["name"].to_pylist()) == ["new", "new"]
    assert two.graves["id"].to_pylist() == [2]
    assert (two.done.inserted, two.done.updated, two.done.deleted) == (0, 0, 0)
    tie = merge(one.rows, one.graves, batch([_put("5", 1, "tie")]), Rules(("id",), "", partial=("tags",), ties=True))
    assert sorted(tie.rows["name"].to_pylist()) == ["new", "tie"]


def test_a_soft_truncate_marks_the_rows_that_no_change_speaks_of() -> None:
    rows = pa.schema([*ROWS, ("gone", pa.timestamp("us", "UTC"))])
    before = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    now = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    stored = [
        {"id": 1, "name": "a", "_cdc_position": "1"},
        {"id": 2, "name": "b", "_cdc_position": "1"},
        {"id": 3, "name": "c", "_cdc_position": "9"},
        {"id": 4, "name": "d", "_cdc_position": "2", "gone": before},
    ]
    rules = Rules(("id",), "", "5", "gone", pa.scalar(now, pa.timestamp("us", "UTC")), partial=("tags",))
    table = pa.Table.from_pylist(stored, schema=rows)
    done = merge(table, GRAVES.empty_table(), batch([_put("6", 2, "again")]), rules)
    found = {row["id"]: (row["name"], row["_cdc_position"], row["gone"]) for row in done.rows.to_pylist()}
    assert found == {1: ("a", "5", now), 2: ("again", "6", None), 3: ("c", "9", None), 4: ("d", "5", before)}
    assert (done.done.inserted, done.done.updated, done.done.deleted) == (0, 3, 0)


def test_a_full_bucket_is_split_and_every_row_is_in_one_part() -> None:
    count = FULL + 1
    rows = pa.table(
        [range(count), ["x"] * count, [["a"]] * count, ["1"] * count, [n * 16 + 5 for n in range(count)]], schema=ROWS
    )
    merged = merge(
        rows, GRAVES.empty_table(), batch([Change("t", Op.DELETE, "2", (n,)) for n in (0,)]), Rules(("id",), "")
    )
    bucket = (16, 5)
    assert _parts(merged, bucket) == [bucket]
    whole = merge(rows, GRAVES.empty_table(), batch([]), Rules(("id",), ""))
    parts = _parts(whole, bucket)
    assert parts == [(64, 5), (64, 21), (64, 37), (64, 53)]
    split = [table for file, table in _split(whole, parts) if not file.grave]
    assert sorted(n for table in split for n in table["id"].to_pylist()) == list(range(count))
    assert all(
        _in(t["_cdc_hash"], *part).to_pylist() == [True] * t.num_rows for t, part in zip(split, parts, strict=True)
    )


def _put(position: str, key: int, name: str) -> Change:
    return Change("t", Op.UPDATE, position, (key,), {"id": key, "name": name, "tags": None})


def manifest(number: int, **more: Any) -> Manifest:
    return Manifest(number, "shop/lake/t", "scd1", TABLE, {"scd": "scd1"}, Mark("log", number, "1"), **more)


def test_the_newest_manifest_is_the_table_and_a_number_is_given_once(tmp_path: Path) -> None:
    manifests = Manifests(Store(str(tmp_path), {}), "t")
    assert manifests.newest() is None
    files = (File("t/data/a.parquet", 3, 16, 2), File("t/data/b.parquet", 1, 16, 2, grave=True))
    for number in (1, 9, 10):
        manifests.add(manifest(number, files=files, buckets=((16, 2),)))
    newest = manifests.newest()
    assert newest is not None
    assert (newest.number, newest.files, newest.buckets, newest.mark) == (10, files, ((16, 2),), Mark("log", 10, "1"))
    with pytest.raises(Retryable) as refused:
        manifests.add(manifest(10))
    assert refused.value.code == "write-conflict"
    manifests.add(newest)


def test_a_number_that_retention_has_freed_is_not_given_again(tmp_path: Path) -> None:
    asleep, awake = (Manifests(Store(str(tmp_path), {}), "t") for _ in range(2))
    for number in (1, 2, 3, 4, 5):
        awake.add(manifest(number))
    awake.remove([manifest(number) for number in (1, 2, 3, 4)])
    with pytest.raises(Retryable):
        asleep.add(manifest(3))
    assert [found.number for found in awake.every()] == [5]


def test_a_manifest_whose_answer_was_lost_is_recognised(tmp_path: Path) -> None:
    class Unlucky(Store):
        landed = True

        def put_new(self, name: str, content: bytes) -> bool:
            if self.landed:
                super().put_new(name, content)
            raise Retryable("target-unavailable", "the answer was lost")

    store = Unlucky(str(tmp_path), {})
    Manifests(store, "t").add(manifest(1))
    store.landed = False
    with pytest.raises(Retryable):
        Manifests(store, "t").add(manifest(2))
    with pytest.raises(Retryable):
        Manifests(store, "t").add(manifest(1))


def test_a_manifest_in_which_any_byte_was_changed_is_refused() -> None:
    raw = manifest(3).to_bytes()
    assert from_bytes(raw, "m").number == 3
    damaged = 0
    for place in range(len(raw)):
        other = raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
        try:
            assert from_bytes(other, "m") == from_bytes(raw, "m")
        except Halt:
            damaged += 1
    assert damaged > len(raw) * 0.8


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"path": "s3://lake/shop", "s3_access_key_id": "x"}, "belong together"),
        ({"path": "s3://lake/shop", "s3_secret_access_key": "x"}, "belong together"),
        ({"path": "./lake", "s3_endpoint": "http://localhost:7070"}, "no meaning"),
    ],
)
def test_half_a_login_to_a_store_is_told_and_not_looked_for_elsewhere(keys: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Options.model_validate(keys)


def test_a_place_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises((NotReady, Retryable)):
        Store(str(tmp_path / "file" / "below"), {}).put("a", b"")
