"""Small JSON documents that survive a crash: written whole or not at all, and checked when read.

Each file holds its format version and a checksum of its content. A file that is torn, edited or newer
than this program is an error with advice, never an empty start: starting from nothing would read a
source again, or skip what lies between.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.core.errors import Halt, Retryable, Unreachable
from tailrace.core.failpoint import failpoint

VERSION = 1

Document = dict[str, object]


def save(path: Path, content: Document, torn: str = "C10") -> None:
    """Replace the document at `path` by `content`, durably; `torn` is the failpoint before it is visible."""
    whole = _encode({"version": VERSION, "sha256": _digest(VERSION, content), "content": content})
    with writing(f'state file "{path}"'):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(path, whole, torn)
        sync_folder(path.parent)


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Turn a failure to write `what` into one that is tried again: space may be there next time."""
    try:
        yield
    except OSError as error:
        said = f"{what} could not be written: {error.strerror or error}"
        hint = "Free some space on its disk, or set control.root to another one."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Unreachable("disk-full", said, hint) from error
        raise Retryable("state-write", said, hint) from error


def replace_whole(path: Path, content: bytes, torn: str = "") -> None:
    """Put a file with `content` in the place of the one at `path`; nothing half written is left behind."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        write_durably(temporary, content)
        if torn:
            failpoint(torn)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def load(path: Path) -> Document | None:
    """Return the document at `path`; `None` if there is none."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        stored = json.loads(raw)
        version, digest, content = stored["version"], stored["sha256"], stored["content"]
    except (ValueError, KeyError, TypeError) as error:
        raise _corrupt(path, "is not complete") from error
    # The whole text is compared too, so that no byte of it can change unnoticed.
    if digest != _digest(version, content) or _encode(stored) != raw or not isinstance(content, dict):
        raise _corrupt(path, "does not match its checksum")
    if version > VERSION:
        raise Halt(
            "state-too-new",
            f'state file "{path}" has format {version}, and this release reads up to {VERSION}',
            "A newer release wrote it. Run that release or a later one.",
        )
    return content


def write_durably(path: Path, content: bytes) -> None:
    """Write a file whose content survives a crash; its name does only after `sync_folder`."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make the names in `path` durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _encode(document: Document) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def _digest(version: int, content: Document) -> str:
    return hashlib.sha256(_encode({"version": version, "content": content})).hexdigest()


def _corrupt(path: Path, what: str) -> Halt:
    return Halt(
        "corrupt-state",
        f'state file "{path}" {what}',
        "Restore it from a backup. If there is none, run cdc undeploy and then cdc run, which takes a new snapshot.",
    )
