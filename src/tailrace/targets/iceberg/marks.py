"""The mark of an Iceberg table: what the summary of a snapshot says of it, and how it is found again.

A stamp is written into the summary of the snapshot that holds the rows, so it is there if and only if they are. A
snapshot of somebody else (a compaction, a column filled) has none; the stamp of the nearest ancestor that has one
stands. The latest stamp is also a property of the table, for when that ancestor was expired. See ADR 13.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from tailrace.apply.target import Mark, mark_from_json
from tailrace.core.errors import Halt
from tailrace.targets.iceberg.metadata import Metadata, Snapshot

STAMP = "tailrace.stamp"
LATEST = "tailrace.latest"
OWNER, KEYS, NOTES, TYPES, PENDING = (f"tailrace.{name}" for name in ("owner", "keys", "notes", "types", "pending"))
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Owner:
    """The one writer of a table: a source table in a target of a pipeline."""

    pipeline: str
    target: str
    table: str

    def text(self) -> str:
        """Return the form that a table keeps."""
        return json.dumps([self.pipeline, self.target, self.table])


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the rows of a snapshot include, and which snapshot of the table beside them counts."""

    mark: Mark
    beside: int | None = None

    def text(self) -> str:
        """Return the form that a summary keeps."""
        return json.dumps({"tailrace": _FORMAT, "mark": self.mark.to_json(), "beside": self.beside})


def read_stamp(found: Metadata, table: str, of: Snapshot | None = None) -> Stamp | None:
    """Return the stamp that the rows of `found`, now or `of` then, have; `None` if we never wrote any of them."""
    oldest = None
    for oldest in found.ancestors(of):
        if stamp := carried(oldest, table):
            return stamp
    if oldest is None or oldest.parent is None:
        # Every snapshot that led here was looked at, so nothing of ours is in the rows.
        return None
    return _kept(found, oldest, table)


def carried(snapshot: Snapshot, table: str) -> Stamp | None:
    """Return the stamp that `snapshot` itself has."""
    text = snapshot.summary.get(STAMP)
    return _parsed(text, table) if text else None


def marked(found: Metadata, of: Snapshot | None = None) -> list[Snapshot]:
    """Return what leads from `of`, or from what readers see, back to the stamp that its rows have."""
    led = []
    for snapshot in found.ancestors(of):
        led.append(snapshot)
        if STAMP in snapshot.summary:
            break
    return led


def latest(snapshot: Snapshot, stamp: str) -> dict[str, str]:
    """Return the property that keeps the stamp of `snapshot` for when that one is gone."""
    return {LATEST: json.dumps({"snapshot": snapshot.id, "sequence": snapshot.sequence, "stamp": stamp})}


def _kept(found: Metadata, oldest: Snapshot, table: str) -> Stamp:
    """Return the latest stamp, whose snapshot was expired; halt if the rows may not include it."""
    kept = json.loads(found.properties().get(LATEST, "null"))
    # A snapshot of ours that is still there, or younger than what led here, is not among what led here.
    if kept is None or found.snapshot(kept["snapshot"]) is not None or kept["sequence"] >= oldest.sequence:
        raise restored(table)
    return _parsed(kept["stamp"], table)


def _parsed(text: str, table: str) -> Stamp:
    stored = json.loads(text)
    if stored["tailrace"] > _FORMAT:
        raise Halt(
            "mark-too-new",
            f'the mark of table "{table}" has format {stored["tailrace"]}, newer than {_FORMAT}',
            "A newer Tailrace wrote it. Run that one.",
        )
    return Stamp(mark_from_json(stored["mark"]), stored["beside"])


def restored(table: str) -> Halt:
    """Return the halt for a table that was taken back to an earlier snapshot, in a way that cannot be followed."""
    return Halt(
        "table-restored",
        f'table "{table}" was taken back to an earlier snapshot',
        "If the target was running, start it again: it goes on from that snapshot. If it says this at its start, drop "
        "the table, so that it is built again.",
    )
