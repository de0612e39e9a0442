"""What a table is: one numbered document, written once, that lists its files and says what their rows include.

The manifest with the greatest number is the table. The next one is created only if nobody else has, so of two writers
that saw the same table one fails. If the answer was lost, the object that is there says whose it is.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tailrace.apply.target import Mark, mark_from_json
from tailrace.core.errors import Halt, Retryable
from tailrace.core.table import Table, table_from_json
from tailrace.targets.parquet.store import Store

FORMAT = 1


@dataclass(frozen=True, slots=True)
class File:
    """A data file: rows whose hash leaves `rest` when divided by `of`. A `grave` file remembers deleted rows."""

    path: str
    rows: int
    of: int = 1
    rest: int = 0
    grave: bool = False


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of a table."""

    number: int
    owner: str
    mode: str
    table: Table
    notes: dict[str, str]
    mark: Mark | None = None
    files: tuple[File, ...] = ()
    buckets: tuple[tuple[int, int], ...] = ()
    """The divisor and rest of each; every hash belongs to one."""
    written_at: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def rows(self) -> list[File]:
        """Return the files that a reader reads."""
        return [file for file in self.files if not file.grave]

    def to_bytes(self) -> bytes:
        """Return the document; `from_bytes` is its inverse."""
        content = {
            "id": self.id,
            "number": self.number,
            "owner": self.owner,
            "mode": self.mode,
            "table": self.table.to_json(),
            "notes": self.notes,
            "mark": self.mark.to_json() if self.mark else None,
            "written_at": self.written_at or datetime.now(UTC).isoformat(),
            "files": [f"{file.path}" for file in self.rows()],
            "buckets": [list(bucket) for bucket in self.buckets],
            "parts": [[f.path, f.rows, f.of, f.rest, f.grave] for f in self.files],
        }
        return json.dumps({"format": FORMAT, "sha256": _digest(content), "content": content}, indent=1).encode()


def from_bytes(raw: bytes, name: str) -> Manifest:
    """Return the manifest that `to_bytes` made; Halt if it is damaged or of a newer release."""
    try:
        stored: dict[str, Any] = json.loads(raw)
        number, content = stored["format"], stored["content"]
        whole = stored["sha256"] == _digest(content)
    except (ValueError, KeyError, TypeError):
        number, whole, content = FORMAT, False, {}
    if number > FORMAT:
        raise Halt(
            "state-too-new",
            f'manifest "{name}" has format {number}, and this release reads up to {FORMAT}',
            "A newer release wrote it. Run that release or a later one.",
        )
    if not whole:
        hint = "Restore it from a backup. If there is none, write the table to a new place."
        raise Halt("corrupt-state", f'manifest "{name}" does not match its checksum', hint)
    return Manifest(
        content["number"],
        content["owner"],
        content["mode"],
        table_from_json(content["table"]),
        content["notes"],
        mark_from_json(content["mark"]) if content["mark"] else None,
        tuple(File(*part) for part in content["parts"]),
        tuple((of, rest) for of, rest in content["buckets"]),
        content["written_at"],
        content["id"],
    )


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class Manifests:
    """The versions of one table, in a folder of their own."""

    def __init__(self, store: Store, table: str) -> None:
        self._store = store
        self._folder = f"{table}/manifests"
        self._last: Manifest | None = None

    def newest(self) -> Manifest | None:
        """Return the table as it is; `None` if there is none. What was seen already is not listed again."""
        names = self._store.names(self._folder, after=self._name(self._last) if self._last else "")
        if names:
            self._last = self._load(names[-1])
        elif self._last and self._store.get(self._name(self._last)) is None:
            # The table was removed.
            self._last = None
        return self._last

    def every(self) -> list[Manifest]:
        """Return all versions that are kept, oldest first."""
        return [self._load(name) for name in self._store.names(self._folder)]

    def add(self, manifest: Manifest) -> None:
        """Make `manifest` the table, or be refused because another one has its number."""
        name, raw = self._name(manifest), manifest.to_bytes()
        try:
            made = self._store.put_new(name, raw)
        except Retryable:
            # It may be there all the same.
            if not self._is_there(name, manifest):
                raise
            return
        late = made and bool(self._store.names(self._folder, after=name))
        if late:
            # Its number was free because retention has removed the version that had it.
            self._store.delete([name])
        if late or (not made and not self._is_there(name, manifest)):
            raise Retryable(
                "write-conflict",
                f'another writer committed version {manifest.number} of "{self._folder}" in the meantime',
                "Nothing was written. Apply the batch again, one call at a time.",
            )

    def remove(self, manifests: list[Manifest]) -> None:
        """Forget old versions."""
        self._store.delete([self._name(manifest) for manifest in manifests])

    def _name(self, manifest: Manifest) -> str:
        return f"{self._folder}/{manifest.number:020d}.json"

    def _is_there(self, name: str, manifest: Manifest) -> bool:
        found = self._store.get(name)
        return found is not None and from_bytes(found, name).id == manifest.id

    def _load(self, name: str) -> Manifest:
        raw = self._store.get(name)
        if raw is None:
            raise Retryable("write-conflict", f'version "{name}" was removed while it was read')
        return from_bytes(raw, name)
