"""What lies in the directory of a feed: which files are data, which of them are whole, and in which order they come.

A name that says a file is not data is left alone, and so is a link: it may lead anywhere. A file is whole once it
has not changed for a while, or at once when a sidecar or a manifest says so.

    orders-1.csv                data
    orders-1.csv.done           says that orders-1.csv is whole
    0001.manifest.json          {"sequence": 1, "files": [{"name": "orders-1.csv", "sha256": "..."}]}
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from tailrace.core.errors import Halt, NotReady, Retryable
from tailrace.core.feed import Seen, manifest_order, modified_order, name_order

Order = Literal["name", "modified", "manifest"]
_MANIFEST, _DONE = ".manifest.json", ".done"
_MANIFEST_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Manifest:
    """A numbered list of files."""

    name: str
    sequence: int
    files: tuple[tuple[str, str], ...]
    """Names below the feed, each with its hash if the manifest tells it."""


@dataclass
class Directory:
    """The directory of a feed; it remembers what it saw, to know what has not changed since."""

    path: Path
    pattern: str = "*"
    order: Order = "name"
    stable_seconds: float = 0.0
    _first_seen: dict[str, tuple[int, int, float]] = field(default_factory=dict)

    def ready(self) -> list[Seen]:
        """Return the files that are whole, in the order of the feed."""
        found = list(self._files())
        manifests = self._manifests(name for name, _, _ in found if name.endswith(_MANIFEST))
        if self.order == "manifest":
            return list(self._listed(manifests))
        vouched = {name for manifest in manifests for name, _ in manifest.files}
        hashes = {name: digest for manifest in manifests for name, digest in manifest.files}
        ready = []
        for name, size, modified in found:
            if self._is_data(name) and (name in vouched or self._is_whole(name, size, modified)):
                order = name_order(name) if self.order == "name" else modified_order(modified, name)
                ready.append(Seen(name, size, modified, order, hashes.get(name, "")))
        return sorted(ready, key=lambda seen: seen.order)

    def _listed(self, manifests: list[Manifest]) -> Iterator[Seen]:
        expected = manifests[0].sequence if manifests else 0
        for manifest in manifests:
            if manifest.sequence != expected:
                raise Halt(
                    "sequence-gap",
                    f'manifest number {expected} is missing: the next one, "{manifest.name}", has {manifest.sequence}',
                    "Rows would be missing if it went on. Put the manifest and its files there; it then goes on.",
                )
            expected += 1
            for index, (name, digest) in enumerate(manifest.files):
                state = _state(self.path / name)
                if state is None:
                    raise Retryable(
                        "file-gone",
                        f'manifest "{manifest.name}" lists "{name}", which is not there',
                        "Put the file there; it then goes on.",
                    )
                order = manifest_order(manifest.sequence, index)
                yield Seen(name, state.st_size, state.st_mtime_ns, order, digest)

    def _manifests(self, names: Iterable[str]) -> list[Manifest]:
        read = (_manifest(self.path / name, name) for name in names)
        found = sorted(read, key=lambda manifest: manifest.sequence)
        for one, other in pairwise(found):
            if one.sequence == other.sequence:
                raise Halt(
                    "bad-manifest",
                    f'manifests "{one.name}" and "{other.name}" both have number {one.sequence}',
                    "Which comes first cannot be known. Give one of them a number of its own.",
                )
        return found

    def _files(self, below: str = "") -> Iterator[tuple[str, int, int]]:
        try:
            with os.scandir(self.path / below) as entries:
                for entry in entries:
                    if entry.name.startswith((".", "_")) or entry.is_symlink():
                        continue
                    name = f"{below}{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        yield from self._files(f"{name}/")
                    elif entry.is_file(follow_symlinks=False) and (state := _state(self.path / name)) is not None:
                        yield name, state.st_size, state.st_mtime_ns
        except FileNotFoundError as error:
            if below:
                return
            raise NotReady(
                "feed-missing", f'there is no directory "{self.path}"', "Make it, or mend source.path."
            ) from error
        except OSError as error:
            raise Retryable(
                "feed-unreadable", f'directory "{self.path / below}" cannot be listed: {error.strerror}'
            ) from error

    def _is_data(self, name: str) -> bool:
        bare = name.rpartition("/")[2]
        if bare.endswith((_MANIFEST, _DONE, ".tmp")):
            return False
        return fnmatchcase(name if "/" in self.pattern else bare, self.pattern)

    def _is_whole(self, name: str, size: int, modified: int) -> bool:
        if time.time() - modified / 1e9 >= self.stable_seconds or _state(self.path / f"{name}{_DONE}") is not None:
            self._first_seen.pop(name, None)
            return True
        # A clock that is ahead of ours must not hold a file back for ever.
        *before, since = self._first_seen.get(name, (-1, -1, 0.0))
        if before != [size, modified]:
            since = time.monotonic()
            self._first_seen[name] = (size, modified, since)
        return time.monotonic() - since >= self.stable_seconds


def _state(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _manifest(path: Path, name: str) -> Manifest:
    try:
        with path.open("rb") as file:
            stored: Any = json.loads(file.read(_MANIFEST_BYTES))
        files = tuple((_below(entry["name"], name), str(entry.get("sha256", ""))) for entry in stored["files"])
        return Manifest(name, int(stored["sequence"]), files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        # It may be half written, so it is looked at again before anybody has to act.
        raise Retryable(
            "bad-manifest",
            f'"{name}" is not a manifest',
            'It should be like {"sequence": 1, "files": [{"name": "a.csv", "sha256": "..."}]}.',
        ) from error


def _below(name: object, manifest: str) -> str:
    """Return the path of a file below the feed; a manifest may not lead out of the feed."""
    text = str(name)
    parts = text.split("/")
    if (
        not text
        or text.startswith("/")
        or any(part in ("", ".", "..") or part.startswith((".", "_")) for part in parts)
    ):
        raise Halt(
            "bad-manifest", f'manifest "{manifest}" lists "{text}", which is no file of the feed', "Mend the manifest."
        )
    return text


def again(seen: Seen, version: int, order: Order) -> Seen:
    """Return a file that was there before with other content: it comes after what it was."""
    if order == "name":
        return replace(seen, order=name_order(seen.name, version))
    return replace(seen, order=modified_order(seen.modified_ns, seen.name, version)) if order == "modified" else seen
