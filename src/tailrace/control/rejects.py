"""Dead letters: events that can never be applied, kept where they can be read and replayed.

One JSON file per event, named after the event's place in the log, so that keeping it again replaces
it. An event is kept before the progress of its target passes it. Over the limit the pipeline halts: a
flood of rejects is a misunderstanding, not bad luck.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from tailrace.control.state import replace_whole, sync_folder, writing
from tailrace.core.errors import Halt
from tailrace.core.table import file_name


@dataclass(frozen=True, slots=True)
class Rejected:
    """An event as the log has it, and why it was rejected; `reason` is `code: words`."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    reason: str
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Kept:
    """A dead letter as something to replay: `name` is what the store calls it, `log` the change log it is from.

    Without `log` it does not say where it came from, and cannot be replayed: its event is placed where it lies itself.
    """

    name: str
    log: str | None
    event: Rejected


Letter = dict[str, object]
"""A dead letter: `key` and `value` as text, and the fields that begin with `dlq.`.

One that does not say where it came from has `at`, the place where it lies itself.
"""


class Aside(Protocol):
    """Where dead letters go."""

    limit: int

    def put(self, target: str, log: str, rejected: Iterable[Rejected]) -> None:
        """Keep `rejected` durably, or halt if dead letters are off or there are too many.

        Whoever has more than `limit` puts one more than that and no others: so many at once always halt, whatever was
        taken off the list before, because nobody has kept the rest.
        """
        ...

    def count(self, target: str) -> int:
        """Return how many events of `target` were rejected."""
        ...

    def letters(self, target: str) -> Iterator[Letter]:
        """Yield the dead letters of `target`, oldest first by their place in the log."""
        ...

    def kept(self, target: str) -> Iterator[Kept]:
        """Yield them as events; one that does not say where it came from has no log."""
        ...

    def forget(self, target: str, names: Collection[str] | None) -> None:
        """Take these dead letters off the list, or with `None` all; one that is not on it is no matter."""
        ...


class Rejects:
    """The dead letters of one pipeline, in a folder per target."""

    def __init__(self, folder: Path, *, enabled: bool, limit: int) -> None:
        self._folder = folder
        self._enabled = enabled
        self.limit = limit

    def put(self, target: str, log: str, rejected: Iterable[Rejected]) -> None:
        """Keep `rejected` durably, or halt if dead letters are off or there are too many."""
        folder, kept = self._folder / file_name(target), set[Path]()
        for event in rejected:
            if not self._enabled:
                raise refused(event)
            path = folder / f"{log}-{event.partition:04d}-{event.offset:016d}.json"
            with writing(f'dead letter "{path}"'):
                folder.mkdir(parents=True, exist_ok=True)
                replace_whole(path, json.dumps(_document(event, target)).encode())
            kept.add(path)
        if self._enabled and folder.is_dir():
            with writing(f'folder "{folder}"'):
                sync_folder(folder)
            if len(kept) > self.limit:
                raise overfull(target, self.limit, f'"{folder}"')
            if (count := self.count(target)) > self.limit:
                raise flooded(target, count, self.limit, f'"{folder}"')

    def count(self, target: str) -> int:
        """Return how many events of `target` were rejected."""
        folder = self._folder / file_name(target)
        return sum(1 for path in folder.glob("*.json")) if folder.is_dir() else 0

    def letters(self, target: str) -> Iterator[Letter]:
        """Yield the dead letters of `target`, by log, partition and offset."""
        folder = self._folder / file_name(target)
        for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
            yield json.loads(path.read_text())

    def kept(self, target: str) -> Iterator[Kept]:
        """Yield the dead letters of `target` as events."""
        folder = self._folder / file_name(target)
        for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
            found = json.loads(path.read_text())
            log, partition, offset = path.stem.rsplit("-", 2)
            key, value = as_bytes(found["key"]), as_bytes(found["value"])
            topic, why = found["dlq.source_topic"], found["dlq.error_message"]
            yield Kept(path.name, log, Rejected(topic, int(partition), int(offset), key, value, why))

    def forget(self, target: str, names: Collection[str] | None) -> None:
        """Remove these dead letters, or with `None` all; one that is not there is no matter."""
        folder = self._folder / file_name(target)
        if folder.is_dir():
            for path in folder.glob("*.json"):
                if names is None or path.name in names:
                    path.unlink()
            sync_folder(folder)


def letter_id(target: str, kept: Kept) -> str:
    """Return the id under which commands show a dead letter."""
    return f"{target}/{kept.event.topic}/{kept.event.partition}/{kept.event.offset}"


def refused(event: Rejected) -> Halt:
    """Return the error of an event that cannot be applied where none may be put aside."""
    return Halt(
        "event-rejected",
        f'an event of "{event.topic}" at offset {event.offset} cannot be applied: {event.reason}',
        "Mend the source row, or set dlq.enabled to true to keep such events aside and go on.",
    )


def flooded(target: str, count: int, limit: int, where: str) -> Halt:
    """Return the error of more dead letters than may be."""
    return Halt(
        "too-many-rejects",
        f'target "{target}" has {count} dead letters, and limits.max_rejects is {limit}',
        f"Look at {where} for the reason. Mend it, or raise limits.max_rejects.",
    )


def overfull(target: str, limit: int, where: str) -> Halt:
    """Return the error of more dead letters in one slice than may be, of which only some were kept."""
    return Halt(
        "too-many-rejects",
        f'target "{target}" cannot apply more than {limit} events of one slice, and limits.max_rejects is {limit}',
        f"Look at {where} for the reason. Mend it, or raise limits.max_rejects. To purge them is of no use: those "
        "beyond the limit are not kept yet, so the slice is not passed.",
    )


def _document(event: Rejected, target: str) -> dict[str, object]:
    return {
        "key": as_text(event.key),
        "value": as_text(event.value),
        "dlq.source_topic": event.topic,
        "dlq.source_partition": event.partition,
        "dlq.source_offset": event.offset,
        "dlq.error_type": event.reason.partition(":")[0],
        "dlq.error_message": event.reason,
        "dlq.timestamp": datetime.now(UTC).isoformat(),
        "dlq.sink_id": target,
    }


def as_text(value: bytes | None) -> str | None:
    """Return bytes as text, in base64 where they are none; `as_bytes` is its inverse."""
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = _BASE64
    return text if not text.startswith(_BASE64) else _BASE64 + base64.b64encode(value).decode()


def as_bytes(text: str | None) -> bytes | None:
    """Return the bytes that `as_text` made text of."""
    if text is None:
        return None
    return base64.b64decode(text[len(_BASE64) :]) if text.startswith(_BASE64) else text.encode()


_BASE64 = "base64:"
