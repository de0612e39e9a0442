"""Publishing: whoever follows `latest` sees one publish whole, wherever another one fails."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from tailrace.apply.target import Mark
from tailrace.core.errors import Halt, Misconfigured, Retryable
from tailrace.core.table import told_apart
from tailrace.runtime.publish import COPIED, LATEST, MANIFESTS, VERSIONS, Published, Staged, publish
from tailrace.targets._objects import Folder, Objects, open_objects
from tailrace.targets.staging import StagingTarget, key_of

TABLES = ("users", "notes", "in/ner.lines", "still")


def mark_in(file: BinaryIO) -> Mark:
    file.seek(0)
    return Mark("log", 0, file.read(4).decode())


def stage(folder: Path, version: int, tables: Sequence[str] = TABLES) -> list[Staged]:
    """Write the files of one version, all but `still`, which stays as it first was."""
    for table in tables:
        path = folder / key_of(table)
        path.parent.mkdir(parents=True, exist_ok=True)
        if table != "still" or not path.exists():
            path.write_bytes(f"{version:04d} {table}".encode() * 50)
    return [Staged(table, key_of(table), folder / key_of(table), mark_in) for table in tables]


def followed(objects: Objects) -> dict[str, str]:
    """Return what a reader of `latest` finds: the version of each table; everything it is told of is there."""
    found = objects.get(LATEST)
    tables = json.loads(found[0])["tables"] if found else {}
    seen = {}
    for table, entry in tables.items():
        there = objects.get(entry["versioned_key"].removeprefix(objects.base))
        assert there is not None, table
        assert (hashlib.sha256(there[0]).hexdigest(), len(there[0])) == (entry["sha256"], entry["bytes"])
        seen[table] = there[0][:4].decode()
    return seen


class Breaking:
    """A store whose n-th change fails, done or not; after every change a reader looks."""

    def __init__(self, objects: Objects, at: int = 0, *, done: bool = False) -> None:
        self.base = objects.base
        self._objects = objects
        self._at = at
        self._done = done
        self.changes = 0
        self.views: list[dict[str, str]] = []

    def get(self, key: str) -> tuple[bytes, str] | None:
        return self._objects.get(key)

    def keys(self, prefix: str) -> list[str]:
        return self._objects.keys(prefix)

    def __getattr__(self, name: str) -> Any:
        def change(*arguments: Any) -> Any:
            self.changes += 1
            if self.changes != self._at or self._done:
                answer = getattr(self._objects, name)(*arguments)
            self.views.append(followed(self._objects))
            if self.changes == self._at:
                raise Retryable("store-unavailable", "the answer was lost")
            return answer

        return change


def whole(version: int) -> dict[str, str]:
    return {table: "0001" if table == "still" else f"{version:04d}" for table in TABLES}


def of_log(staged: Sequence[Staged], log: str) -> list[Staged]:
    return [replace(one, mark=lambda file: replace(mark_in(file), log=log)) for one in staged]


def test_a_file_that_is_made_again_is_left_and_one_of_another_history_is_told(tmp_path: Path) -> None:
    """Without its control root a pipeline begins at the first life, below all that it has published."""
    objects = Folder(tmp_path / "published")
    publish("shop", of_log(stage(tmp_path, 2), "one"), objects, keep=2)
    behind = stage(tmp_path, 1)
    assert publish("shop", of_log(behind, "one"), objects, keep=2).written == []
    with pytest.raises(Halt) as found:
        publish("shop", of_log(behind, "other"), objects, keep=2)
    assert found.value.code == "foreign-target"
    assert set(followed(objects).values()) == {"0002"}
    assert LATEST in found.value.hint
    objects.remove([LATEST])
    publish("shop", of_log(behind, "other"), objects, keep=2)
    assert set(followed(objects).values()) == {"0001", "0002"}
    assert objects.get(f"staging/current/{key_of('users')}") == objects.get(
        f"{VERSIONS}{json.loads(objects.get(LATEST)[0])['publish_id']}/{key_of('users')}"  # type: ignore[index]
    )


@pytest.mark.parametrize("text", ["", "[]", "1", '{"version": 1}', '{"version": 1, "publish_id": "x", "tables": {}}'])
def test_a_manifest_that_is_none_halts_and_is_left(tmp_path: Path, text: str) -> None:
    objects = Folder(tmp_path / "published")
    objects.put(LATEST, text.encode())
    with pytest.raises(Halt) as found:
        publish("shop", stage(tmp_path, 1), objects, keep=2)
    assert found.value.code == "corrupt-manifest"
    assert objects.get(LATEST) == (text.encode(), hashlib.sha256(text.encode()).hexdigest())


@pytest.mark.parametrize(
    "changed",
    [
        {"current_key": "staging/current/../../../outside"}, {"versioned_key": "../outside"}, {"versioned_key": None},
        {"current_key": f"{VERSIONS}00000001-00000000/x"}, {"sha256": 1}, {"position": None}, {"previous": "../x"},
    ],
)  # fmt: skip
def test_a_manifest_that_was_tampered_with_leads_nowhere(tmp_path: Path, changed: dict[str, Any]) -> None:
    objects = Folder(tmp_path / "place" / "published")
    publish("shop", stage(tmp_path / "staged", 1), objects, keep=2)
    manifest = json.loads(objects.get(LATEST)[0])  # type: ignore[index]
    (manifest if "previous" in changed else manifest["tables"]["notes"]).update(changed)
    objects.put(LATEST, json.dumps(manifest).encode())
    objects.remove([COPIED])
    with pytest.raises(Halt) as found:
        publish("shop", stage(tmp_path / "staged", 1), objects, keep=2)
    assert found.value.code == "corrupt-manifest"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["place", "staged"]
    assert [path.name for path in (tmp_path / "place").iterdir()] == ["published"]


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_broken_list_of_the_copies_has_them_made_again(tmp_path: Path, text: str) -> None:
    objects = Folder(tmp_path / "published")
    publish("shop", stage(tmp_path, 1), objects, keep=2)
    good = objects.get(COPIED)
    objects.put(COPIED, text.encode())
    publish("shop", stage(tmp_path, 1), objects, keep=2)
    assert objects.get(COPIED) == good


@pytest.mark.parametrize("done", [False, True])
def test_a_failure_between_any_two_steps_is_never_seen_and_is_mended(tmp_path: Path, done: bool) -> None:
    at = 0
    while True:
        at += 1
        objects = Folder(tmp_path / f"published{at}")
        staging = tmp_path / f"staging{at}"
        for version in (1, 2):
            publish("shop", stage(staging, version), objects, keep=2)
        breaking = Breaking(objects, at, done=done)
        try:
            publish("shop", stage(staging, 3), breaking, keep=2)
            break
        except Retryable:
            pass
        assert all(view in (whole(2), whole(3)) for view in breaking.views), at
        assert followed(objects) in (whole(2), whole(3))
        again = publish("shop", stage(staging, 3), objects, keep=2)
        assert followed(objects) == whole(3), at
        current = {table: objects.get(f"staging/current/{key_of(table)}") for table in TABLES}
        assert {table: found and found[0][:4].decode() for table, found in current.items()} == whole(3)
        assert len(objects.keys(MANIFESTS)) == 2 + len({LATEST, COPIED}), at
        assert len(objects.keys(VERSIONS)) == 1 + 2 * (len(TABLES) - 1), at
        assert publish("shop", stage(staging, 3), objects, keep=2).to_json() == {
            "publish_id": again.publish_id, "status": "unchanged", "tables": 4, "written": [], "removed": 0,
        }  # fmt: skip
    # Three versions, the manifest, the switch, the note of the copies removed, three copies, their note, two removals.
    assert breaking.changes == at - 1 == 12


def test_only_what_changed_is_written_and_the_newest_publishes_stay(tmp_path: Path) -> None:
    objects = Folder(tmp_path / "published")
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "staging.txt").write_text("not ours")
    done: list[Published] = [publish("shop", stage(tmp_path, n), objects, keep=3) for n in range(1, 7)]
    assert done[0].written == list(TABLES)
    assert done[5].written == ["users", "notes", "in/ner.lines"]
    manifest = json.loads(objects.get(LATEST)[0])  # type: ignore[index]
    assert manifest["tables"]["still"]["versioned_key"] == f"{VERSIONS}{done[0].publish_id}/_root/still.parquet"
    assert manifest["tables"]["in/ner.lines"]["current_key"] == "staging/current/in/ner/lines.parquet"
    assert {key.rpartition("/")[2] for key in objects.keys(MANIFESTS)} == {
        "latest.json", "current.json", *(f"{one.publish_id}.json" for one in done[3:]),
    }  # fmt: skip
    assert {key.split("/")[2] for key in objects.keys(VERSIONS)} == {one.publish_id for one in (done[0], *done[3:])}
    assert (tmp_path / "published" / "staging.txt").read_text() == "not ours"


def test_of_two_publishers_one_begins_again(tmp_path: Path) -> None:
    objects = Folder(tmp_path / "published")
    publish("shop", stage(tmp_path / "a", 1), objects, keep=2)

    class Slow(Folder):
        def swap(self, key: str, data: bytes, seen: str | None) -> bool:
            publish("shop", stage(tmp_path / "b", 2), objects, keep=2)
            return super().swap(key, data, seen)

    with pytest.raises(Retryable) as found:
        publish("shop", stage(tmp_path / "a", 3), Slow(tmp_path / "published"), keep=2)
    assert found.value.code == "publish-conflict"
    assert followed(objects)["users"] == "0002"
    publish("shop", stage(tmp_path / "a", 3), objects, keep=2)
    assert (followed(objects)["users"], len(objects.keys(VERSIONS))) == ("0003", 7)


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("keep", [1, 9])
def test_a_publisher_that_was_overtaken_leaves_the_newer_copies(tmp_path: Path, at: int, keep: int) -> None:
    objects = Folder(tmp_path / "published")
    publish("shop", stage(tmp_path / "a", 1), objects, keep=keep)

    class Slow(Folder):
        copies = 0

        def copy(self, old: str, new: str) -> None:
            self.copies += 1
            if self.copies == at:
                publish("shop", stage(tmp_path / "b", 3), objects, keep=keep)
            super().copy(old, new)

    publish("shop", stage(tmp_path / "a", 2), Slow(tmp_path / "published"), keep=keep)
    for table in ("users", "notes", "in/ner.lines"):
        found = objects.get(f"staging/current/{key_of(table)}")
        assert found is not None
        assert found[0][:4].decode() == followed(objects)[table] == "0003"


def test_a_manifest_names_objects_as_the_store_does_and_older_ones_are_understood(tmp_path: Path) -> None:
    """Also where the name of the place begins as our keys do."""
    for base in ("", "deep/er/", "staging/"):
        objects = Folder(tmp_path / base / "p")
        old = publish("shop", stage(tmp_path, 1), objects, keep=2)
        objects.base = base
        tables = publish("shop", stage(tmp_path, 2), objects, keep=2) and json.loads(objects.get(LATEST)[0])["tables"]  # type: ignore[index]
        assert tables["still"]["versioned_key"] == f"{base}{VERSIONS}{old.publish_id}/_root/still.parquet"
        assert tables["users"]["current_key"] == f"{base}staging/current/_root/users.parquet"
        for version in (3, 4):
            publish("shop", stage(tmp_path, version), objects, keep=2)
        assert objects.get(tables["still"]["versioned_key"].removeprefix(base)) is not None
        assert len(objects.keys(VERSIONS)) == 1 + 2 * 3
        for path in tmp_path.rglob("*.parquet"):
            path.unlink()


def test_a_table_that_is_being_made_again_is_not_published_backwards(tmp_path: Path) -> None:
    objects = Folder(tmp_path / "published")
    publish("shop", stage(tmp_path, 5), objects, keep=2)
    assert publish("shop", stage(tmp_path, 4), objects, keep=2).written == []
    (tmp_path / key_of("users")).unlink()
    assert publish("shop", stage(tmp_path, 6, ("notes",)), objects, keep=2).written == ["notes"]
    assert followed(objects) == {"users": "0005", "notes": "0006", "in/ner.lines": "0005", "still": "0005"}


def test_what_is_not_ours_is_refused(tmp_path: Path) -> None:
    objects = Folder(tmp_path / "published")
    publish("shop", stage(tmp_path, 1), objects, keep=2)
    with pytest.raises(Halt, match='published by pipeline "shop"'):
        publish("other", stage(tmp_path, 2), objects, keep=2)
    objects.put(LATEST, b"{}")
    with pytest.raises(Halt, match="not a manifest"):
        publish("shop", stage(tmp_path, 2), objects, keep=2)
    with pytest.raises(Misconfigured):
        open_objects(None)


def test_no_two_tables_have_one_file(tmp_path: Path) -> None:
    names = ["users", "Users", "_root.users", "_Root.users", "a.users", "A.users", "a/users.x", "a/b.users", "a.b"]
    assert len({key_of(name) for name in names}) == len(names)
    # Where the file system does not tell case apart.
    target = StagingTarget("files", tmp_path, told_apart(names))
    assert len({target.key(name).lower() for name in names}) == len(names)
    assert (key_of("users"), key_of("a/b.users")) == ("_root/users.parquet", "a/b/users.parquet")
