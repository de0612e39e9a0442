"""Watching a registry: whether the subjects of some topics have new versions, and whether readers can follow them.

    latest version  ->  is it the accepted one?  ->  hold it against that, as the log does with each message's schema

This is an early warning. What may be applied is decided by the log, message by message: a look may come too late, and a
version that was there for a moment may never be seen. The versions that were accepted are remembered, so that a change
made between two runs is seen too, and one that was not accepted is seen again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.core.errors import TailraceError
from tailrace.core.subjects import Registered, SchemaChange, Version
from tailrace.core.table import Table, incompatible
from tailrace.envelopes import debezium_avro
from tailrace.log._cluster import Memory
from tailrace.log._registry import Registry

_KEY = "-key"


class Subjects:
    """The key and value subjects of `topics`; with `strict`, what readers cannot follow is not accepted."""

    def __init__(self, registry: Registry, topics: Sequence[str], memory: Memory, *, strict: bool) -> None:
        self._registry = registry
        self._names = [f"{topic}{part}" for topic in topics for part in (_KEY, "-value")]
        self._memory = memory
        self._strict = strict
        self._accepted: dict[str, Any] | None = None
        self._told: dict[str, Version] = {}

    def look(self) -> Registered:
        """Ask for every subject; a registry that does not answer is said to, and what was found until then too."""
        versions, changes = [], []
        try:
            for name in self._names:
                latest = self._registry.latest(name)
                if latest is None:
                    # It comes with the first message.
                    continue
                versions.append(latest)
                change = self._changed(latest)
                changes += [] if change is None else [change]
        except TailraceError as error:
            return Registered(tuple(versions), tuple(changes), error)
        return Registered(tuple(versions), tuple(changes))

    def _changed(self, latest: Version) -> SchemaChange | None:
        before = self._known().get(latest.subject)
        accepted = before is not None and (before["version"], before["id"]) == (latest.number, latest.schema_id)
        if accepted or self._told.get(latest.subject) == latest:
            return None
        schema = self._registry.schema(latest.schema_id)
        record = _record_of(schema)
        records = dict(before["records"]) if before else {}
        # One that was accepted before is no news to readers: a newer one was deleted.
        met = before is not None and latest.schema_id in before["met"]
        why = None if met else self._missing(latest, schema, records.get(record))
        if why is None or not self._strict:
            self._accept(latest, {**records, record: latest.schema_id})
        self._told[latest.subject] = latest
        return SchemaChange(latest.subject, before["version"], latest.number, latest.schema_id, why) if before else None

    def _missing(self, latest: Version, schema: Mapping[str, Any], before: int | None) -> str | None:
        """Say what readers of the schema that was accepted for the same record would miss."""
        if before is None:
            return None
        old, new = _described(latest.subject, self._registry.schema(before)), _described(latest.subject, schema)
        if old is None:
            return None
        return "it describes no row" if new is None else incompatible(old, new)

    def _known(self) -> dict[str, Any]:
        if self._accepted is None:
            self._accepted = self._memory.load() or {}
        return self._accepted

    def _accept(self, latest: Version, records: Mapping[str, int]) -> None:
        before = self._known().get(latest.subject, {"met": []})
        met = sorted({*before["met"], latest.schema_id})
        accepted = {"version": latest.number, "id": latest.schema_id, "records": dict(records), "met": met}
        self._accepted = {**self._known(), latest.subject: accepted}
        self._memory.save(self._accepted)


def _record_of(schema: Mapping[str, Any]) -> str:
    """Return whose schema it is: a topic of several tables has the schemas of all of them under one subject."""
    return f"{schema.get('namespace', '')}.{schema.get('name', '')}" if isinstance(schema, Mapping) else ""


def _described(subject: str, schema: Mapping[str, Any]) -> Table | None:
    describe = debezium_avro.key_table if subject.endswith(_KEY) else debezium_avro.row_table
    try:
        return describe(subject, schema)
    except (TailraceError, ValueError, LookupError, TypeError, AttributeError, StopIteration):
        # It is somebody else's schema, and anything may be wrong with it.
        return None
