"""The schemas that the rows of a landed log were written with, on disk, by fingerprint.

A schema never changes under its fingerprint, so writing one again is harmless. It is durable before any row
names it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from tailrace.core.table import Table, table_from_json


class SchemaFolder:
    """One file per schema, in a folder beside the pages."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def place(self, fingerprint: str) -> Path:
        """Return where the schema is."""
        return self._folder / f"{fingerprint}.json"

    def put(self, schemas: Mapping[str, Table]) -> None:
        """Make `schemas` durable."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for fingerprint, table in schemas.items():
            if not self.place(fingerprint).exists():
                _replace(self.place(fingerprint), json.dumps(table.to_json()))

    def get(self, fingerprint: str) -> Table:
        """Return a schema; an OSError, ValueError, KeyError or TypeError if it cannot be read."""
        return table_from_json(json.loads(self.place(fingerprint).read_text()))


class SchemaFile:
    """All schemas in one file: `_schemas.json`, among the pages, where Spark does not take it for one."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "_schemas.json"

    def place(self, fingerprint: str) -> Path:
        """Return where the schema is."""
        return self._path

    def put(self, schemas: Mapping[str, Table]) -> None:
        """Make `schemas` durable."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        have = self._read() if self._path.exists() else {}
        if not schemas.keys() <= have.keys():
            new = {fingerprint: table.to_json() for fingerprint, table in schemas.items()}
            _replace(self._path, json.dumps({**have, **new}, indent=1, sort_keys=True))

    def get(self, fingerprint: str) -> Table:
        """Return a schema; an OSError, ValueError, KeyError or TypeError if it cannot be read."""
        found = self._read()[fingerprint]
        if not isinstance(found, dict):
            raise ValueError("not a table")
        return table_from_json(found)

    def _read(self) -> dict[str, object]:
        found = json.loads(self._path.read_text())
        if not isinstance(found, dict):
            raise ValueError("no schemas")
        return found


class EmptyTables:
    """The tables that a snapshot found without rows, by topic, in one file: no row names their schema."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "empty.json"
        self._known: dict[str, Table] | None = None

    def put(self, tables: Mapping[str, Table]) -> None:
        """Make `tables` durable, in place of what was there: a snapshot that is taken again finds them anew."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _replace(self.path, json.dumps({topic: table.to_json() for topic, table in tables.items()}))
        self._known = dict(tables)

    def get(self) -> Mapping[str, Table]:
        """Return the tables; an OSError, ValueError, KeyError or TypeError if they cannot be read."""
        if self._known is None:
            if not self.path.exists():
                return {}
            found = json.loads(self.path.read_text())
            if not isinstance(found, dict):
                raise ValueError("no tables")
            self._known = {topic: table_from_json(table) for topic, table in found.items()}
        return self._known


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def sync(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
