"""Publishing staged tables: new versions beside the old, then one switch that readers follow.

    staging/versions/<publish id>/_root/users.parquet   never changed once they are there
    staging/manifests/<publish id>.json                 which version each table has in this publish
    staging/manifests/latest.json                       the newest of them: the only switch
    staging/current/_root/users.parquet                 copies, for readers who want a fixed name

Whoever follows `latest.json` to the versions sees all of a publish or nothing of it. It is replaced on the condition
that it is still the one that was read, so of two publishers one begins again. Only tables that changed are written. A
crash at any point leaves objects that nobody is told of; the next publish removes them and puts `current` right.

A manifest names objects by their full keys, as a reader asks the store for them. Earlier ones named them below
`publish_to`, and are still understood.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from tailrace.apply.target import Mark
from tailrace.core.errors import Halt, Retryable, TailraceError
from tailrace.core.failpoint import failpoint
from tailrace.targets._objects import Objects

VERSIONS, MANIFESTS, CURRENT = "staging/versions/", "staging/manifests/", "staging/current/"
LATEST = f"{MANIFESTS}latest.json"
COPIED = f"{MANIFESTS}current.json"
"""Which contents the copies under `current` have."""

_VERSION = 1
_ID = re.compile(r"[0-9]{8,}-[0-9a-f]{8}")

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Staged:
    """A file of staging: its table, its key below every root, where it is, and how it says what it includes."""

    table: str
    key: str
    path: Path
    mark: Callable[[BinaryIO], Mark]


@dataclass
class Published:
    """What a publish did; `to_json` is what the command prints."""

    publish_id: str
    tables: int
    written: list[str] = field(default_factory=list)
    removed: int = 0

    def to_json(self) -> dict[str, object]:
        """Return the form that `cdc convex publish --json` prints."""
        return {
            "publish_id": self.publish_id,
            "status": "published" if self.written else "unchanged",
            "tables": self.tables,
            "written": self.written,
            "removed": self.removed,
        }


def publish(pipeline_id: str, staged: Sequence[Staged], objects: Objects, keep: int) -> Published:
    """Publish what changed of `staged`, and keep the newest `keep` publishes; doing it again does nothing."""
    base, seen = _latest(objects, pipeline_id)
    sequence = int(base.get("sequence", 0)) + 1
    publish_id = f"{sequence:08d}-{uuid.uuid4().hex[:8]}"
    tables: dict[str, Any] = dict(base.get("tables", {}))
    written = []
    for one in (one for one in staged if one.path.exists()):
        if entry := _upload(one, tables.get(one.table), publish_id, objects):
            tables[one.table] = entry
            written.append(one.table)
    tables = {name: _in_full(tables[name], objects) for name in sorted(tables)}
    manifest = base
    if written:
        manifest = {
            "version": _VERSION,
            "pipeline_id": pipeline_id,
            "publish_id": publish_id,
            "sequence": sequence,
            "previous": base.get("publish_id"),
            "published_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "tables": tables,
        }
        _switch(objects, manifest, seen)
    if manifest:
        _copy_current(objects, manifest)
    removed = _expire(objects, manifest, keep) if manifest else 0
    return Published(manifest.get("publish_id", ""), len(tables), written, removed)


def _latest(objects: Objects, pipeline_id: str) -> tuple[Manifest, str | None]:
    found = objects.get(LATEST)
    if found is None:
        return {}, None
    manifest = _parsed(found[0], LATEST, objects)
    if manifest["pipeline_id"] != pipeline_id:
        raise Halt(
            "foreign-target",
            f'"{LATEST}" was published by pipeline "{manifest["pipeline_id"]}"',
            "Give each pipeline a publish_to of its own.",
        )
    return manifest, found[1]


def _parsed(data: bytes, key: str, objects: Objects) -> Manifest:
    try:
        manifest: Manifest = json.loads(data)
        known = manifest["version"] == _VERSION and manifest.keys() >= {"pipeline_id", "previous"}
        ids = [manifest["publish_id"], *filter(None, [manifest["previous"]])]
        if (
            known
            and all(map(_ID.fullmatch, ids))
            and int(manifest["sequence"])
            and all(_is_entry(entry, objects) for entry in manifest["tables"].values())
        ):
            return manifest
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise Halt(
        "corrupt-manifest",
        f'"{key}" is not a manifest of this release',
        "Restore it from a manifest beside it, or publish to another place.",
    )


def _is_entry(entry: Mapping[str, Any], objects: Objects) -> bool:
    """Say whether an entry names objects where ours lie: whoever can write a manifest may not lead us elsewhere."""
    current, versioned = (_below(entry[name], objects) for name in ("current_key", "versioned_key"))
    inside = current.startswith(CURRENT) and versioned.startswith(VERSIONS)
    told = isinstance(entry["sha256"], str) and isinstance(entry["position"], str)
    return inside and told and ".." not in [*current.split("/"), *versioned.split("/")]


def _upload(one: Staged, have: Mapping[str, Any] | None, publish_id: str, objects: Objects) -> Manifest | None:
    """Write a version of a table unless the newest one has it already; return its entry.

    The file is held open: a run that replaces it meanwhile does not change what is read here. A file that is behind
    what is published from the same log is being made again, and is left for the next time.
    """
    with one.path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
        mark = one.mark(file)
        if have and have["sha256"] == digest:
            return None
        if have and have["position"] > mark.high:
            _refuse_other_log(one.table, have, mark)
            return None
        file.seek(0)
        versioned = f"{VERSIONS}{publish_id}/{one.key}"
        objects.put(versioned, file)
    failpoint("C43")
    return {
        "current_key": f"{CURRENT}{one.key}",
        "versioned_key": versioned,
        "sha256": digest,
        "bytes": size,
        "position": mark.high,
        "offset": int(mark.offset),
        "log": mark.log,
    }


def _refuse_other_log(table: str, have: Mapping[str, Any], mark: Mark) -> None:
    """Halt if a file that looks older than what is published has another history: it would never be published."""
    if have.get("log", mark.log) != mark.log:
        raise Halt(
            "foreign-target",
            f'table "{table}" was published from another change log, at a position that is not below that of the file',
            "Restore control.root of the pipeline that published it, or publish to another place. To have every table "
            f'published anew from the files, remove "{LATEST}" there.',
        )


def _in_full(entry: Mapping[str, Any], objects: Objects) -> Manifest:
    keys = ("current_key", "versioned_key")
    return {**entry, **{name: f"{objects.base}{_below(entry[name], objects)}" for name in keys}}


def _below(key: str, objects: Objects) -> str:
    """Return a key of a manifest as one below `publish_to`, where all of ours begin alike."""
    return key.removeprefix(objects.base) if key.startswith(f"{objects.base}staging/") else key


def _switch(objects: Objects, manifest: Manifest, seen: str | None) -> None:
    data = json.dumps(manifest, indent=1).encode()
    objects.put(f"{MANIFESTS}{manifest['publish_id']}.json", data)
    failpoint("C44")
    if not objects.swap(LATEST, data, seen):
        # An answer that was lost and asked for again looks like somebody else's: the content tells.
        there = objects.get(LATEST)
        if there is None or _parsed(there[0], LATEST, objects)["publish_id"] != manifest["publish_id"]:
            raise Retryable("publish-conflict", "another publisher was faster", "It is tried again, as retry says.")
    failpoint("C45")


def _copy_current(objects: Objects, manifest: Manifest) -> None:
    """Bring the copies up to the versions; those that a crash, or a slower publisher, left behind too.

    Whoever was overtaken meanwhile has put older ones in the place of newer ones, or finds that the older versions are
    gone; either way it goes on with the newer ones.
    """
    failed: TailraceError | None = None
    while True:
        try:
            _copy(objects, manifest["tables"])
        except TailraceError as error:
            failed = error
        newest, _ = _latest(objects, manifest["pipeline_id"])
        if not newest or newest["publish_id"] == manifest["publish_id"]:
            break
        manifest, failed = newest, None
    if failed is not None:
        raise failed


def _copy(objects: Objects, tables: Mapping[str, Any]) -> None:
    """Make the copies that are not there; what they are is not said meanwhile."""
    wanted = {name: entry["sha256"] for name, entry in tables.items()}
    found = objects.get(COPIED)
    have = _said(found[0]) if found else {}
    if have == wanted:
        return
    if found:
        objects.remove([COPIED])
    for name, digest in wanted.items():
        if have.get(name) != digest:
            objects.copy(*(_below(tables[name][key], objects) for key in ("versioned_key", "current_key")))
    failpoint("C46")
    objects.put(COPIED, json.dumps(wanted, indent=1).encode())


def _said(data: bytes) -> Mapping[str, object]:
    """Return which contents the copies have; if that cannot be read, none is known, and each is made again."""
    try:
        said = json.loads(data)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _expire(objects: Objects, latest: Manifest, keep: int) -> int:
    """Remove what no kept publish speaks of; return how many objects that were.

    A publish in the making has a higher number than `latest`. One with a lower number that is not kept can never
    become `latest` any more, because its condition no longer holds.
    """
    kept, manifest = [latest], latest
    while len(kept) < keep and manifest["previous"]:
        found = objects.get(key := f"{MANIFESTS}{manifest['previous']}.json")
        if found is None:
            break
        manifest = _parsed(found[0], key, objects)
        kept.append(manifest)
    ids = {one["publish_id"] for one in kept}
    named = {_below(entry["versioned_key"], objects) for one in kept for entry in one["tables"].values()}

    def over(publish_id: str) -> bool:
        number = publish_id.partition("-")[0]
        return number.isdecimal() and int(number) <= latest["sequence"]

    manifests = [
        key
        for key in objects.keys(MANIFESTS)
        if over(name := key.removeprefix(MANIFESTS).removesuffix(".json")) and name not in ids
    ]
    objects.remove(manifests)
    failpoint("C47")
    versions = [
        key for key in objects.keys(VERSIONS) if over(key.removeprefix(VERSIONS).partition("/")[0]) and key not in named
    ]
    objects.remove(versions)
    return len(manifests) + len(versions)
