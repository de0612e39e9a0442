"""Where the files of a feed lie: a folder of this machine, or a prefix of a bucket.

Spark reads files of this machine. Of a bucket it reads copies, which are made for one slice and removed with it; a copy
has the very content that was examined, or it is not made.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, Self

from tailrace.core.errors import NotReady, Retryable
from tailrace.core.feed import Entry, State

_PIECE = 1 << 20
_AT_ONCE = 8
"""So many objects are asked for beside each other: one answer takes long, and little work."""


class Found(NamedTuple):
    """A file, and what it is at the moment."""

    name: str
    state: State


class Changed(Exception):
    """A file is not what it was."""


class Place(Protocol):
    """What reading a feed needs of where it lies; names are paths below it."""

    def __str__(self) -> str:
        """Return what the feed is called."""
        ...

    def check(self) -> None:
        """Raise `NotReady` if it is not there."""
        ...

    def files(self) -> Iterator[Found]:
        """Yield all files but hidden ones, in any order; links are not followed."""
        ...

    def states(self, names: Sequence[str]) -> dict[str, State]:
        """Return what files are now; one that is gone, or is a link, is left out."""
        ...

    def open(self, name: str, state: State) -> BinaryIO:
        """Open a file to be read from any place in it; an OSError or `Changed` if it is not there as it was."""
        ...

    def lend(self, entries: Sequence[Entry]) -> Lent:
        """Return files of this machine with the content of `entries`; `Changed` if one is not what it was."""
        ...


class Lent:
    """Files that Spark can read, by the names of entries."""

    def __init__(self, paths: Mapping[str, Path], copies: Path | None = None) -> None:
        self.paths = paths
        self.copies = copies

    def release(self) -> None:
        """Remove what are copies."""
        if self.copies is not None:
            shutil.rmtree(self.copies, ignore_errors=True)


class Folder:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        """Return the path."""
        return str(self.path)

    def check(self) -> None:
        """Raise if there is no such folder."""
        if not self.path.is_dir():
            raise NotReady("feed-missing", f'there is no directory "{self.path}"', "Make it, or mend source.path.")

    def files(self, below: str = "") -> Iterator[Found]:
        """Walk through the folder and those below it."""
        try:
            with os.scandir(self.path / below) as entries:
                for entry in entries:
                    if entry.name.startswith((".", "_")) or entry.is_symlink():
                        continue
                    name = f"{below}{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        yield from self.files(f"{name}/")
                    elif (state := _regular(entry.path)) is not None:
                        yield Found(name, state)
        except FileNotFoundError:
            if not below:
                self.check()
        except OSError as error:
            raise Retryable(
                "feed-unreadable", f'directory "{self.path / below}" cannot be listed: {error.strerror}'
            ) from error

    def states(self, names: Sequence[str]) -> dict[str, State]:
        """Look at each; a folder on the way to it must not be a link either."""
        found = {}
        for name in names:
            parts = name.split("/")
            ways = (self.path.joinpath(*parts[:n]) for n in range(1, len(parts)))
            if not any(way.is_symlink() for way in ways) and (state := _regular(self.path / name)) is not None:
                found[name] = state
        return found

    def open(self, name: str, state: State) -> BinaryIO:
        """Open the file itself, never what a link leads to."""
        return os.fdopen(os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW), "rb")

    def lend(self, entries: Sequence[Entry]) -> Lent:
        """Lend the files themselves."""
        return Lent({entry.name: self.path / entry.name for entry in entries})


def _regular(path: Path | str) -> State | None:
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return State(found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


class Bucket:
    """A prefix of an S3 bucket."""

    def __init__(self, url: str, settings: Mapping[str, Any], copies: Path) -> None:
        try:
            import obstore
            from obstore.store import S3Store
        except ModuleNotFoundError as error:
            raise NotReady(
                "missing-extra",
                f'reading files from S3 needs the Python package "{error.name}", which is not installed',
                "Run: pip install 'tailrace[s3]'",
            ) from error
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        self._url = url.rstrip("/")
        self._copies = copies
        self._api = obstore
        self._store = S3Store(bucket, prefix=prefix.strip("/") or None, **settings)

    def __str__(self) -> str:
        """Return the address."""
        return self._url

    def check(self) -> None:
        """Raise if the bucket is not there; an empty prefix is no error, and cannot be told from a wrong one."""
        with self._told():
            next(iter(self._api.list(self._store, chunk_size=1)), None)

    def files(self) -> Iterator[Found]:
        """List by pages."""
        with self._told():
            for page in self._api.list(self._store):
                for found in page:
                    name = str(found["path"])
                    if not any(part.startswith((".", "_")) or not part for part in name.split("/")):
                        yield Found(name, _stored(found))

    def states(self, names: Sequence[str]) -> dict[str, State]:
        """Ask for each."""

        def state(name: str) -> tuple[str, State] | None:
            with self._told():
                try:
                    return name, _stored(self._api.head(self._store, name))
                except FileNotFoundError:
                    return None

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return dict(one for one in pool.map(state, names) if one is not None)

    def open(self, name: str, state: State) -> BinaryIO:
        """Open an object, if it is still the one that was seen."""
        if self.states([name]).get(name) != state:
            raise Changed(name)
        with self._told():
            reader: Any = self._api.open_reader(self._store, name, buffer_size=_PIECE)
        return _Reading(reader, self._told)  # type: ignore[return-value]

    def lend(self, entries: Sequence[Entry]) -> Lent:
        """Copy the objects, each under the condition that it has the content that was examined."""
        folder = self._copies / uuid.uuid4().hex
        folder.mkdir(parents=True)
        lent = Lent({e.name: folder / f"{e.number}{_ending(e.name)}" for e in entries}, folder)
        try:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(lambda entry: self._copy(entry, lent.paths[entry.name]), entries))
        except BaseException:
            lent.release()
            raise
        return lent

    def _copy(self, entry: Entry, path: Path) -> None:
        digest = hashlib.sha256()
        with self._told():
            try:
                answer: Any = self._api.get(self._store, entry.name)
            except FileNotFoundError as error:
                raise Changed(entry.name) from error
            with path.open("wb") as file:
                for piece in answer.stream(min_chunk_size=_PIECE):
                    digest.update(piece)
                    file.write(piece)
        if digest.hexdigest() != entry.content.sha256:
            raise Changed(entry.name)

    @contextmanager
    def _told(self) -> Iterator[None]:
        from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError

        never = (NotFoundError, FileNotFoundError, PermissionDeniedError, UnauthenticatedError, PermissionError)
        try:
            yield
        except (BaseError, OSError) as error:
            # A bucket that is not there has no error of its own when it is listed.
            if isinstance(error, never) or "NoSuchBucket" in str(error):
                raise NotReady(
                    "feed-missing",
                    f'"{self._url}" cannot be read',
                    "Check source.path, that the bucket exists, and that the key may list and get objects in it.",
                ) from error
            raise Retryable(
                "feed-unreadable",
                f'reading "{self._url}" failed: {getattr(error, "strerror", "") or type(error).__name__}',
            ) from error


class _Reading:
    """An object as a file, of whose library's bytes plain ones are made."""

    closed = False

    def __init__(self, reader: Any, told: Callable[[], AbstractContextManager[None]]) -> None:
        self._reader = reader
        self._told = told

    def read(self, size: int = -1) -> bytes:
        with self._told():
            return bytes(self._reader.read() if size < 0 else self._reader.read(size))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return int(self._reader.seek(offset, whence))

    def tell(self) -> int:
        return int(self._reader.tell())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _stored(found: Mapping[str, Any]) -> State:
    modified: datetime = found["last_modified"]
    since = modified - datetime.fromtimestamp(0, UTC)
    microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return State(int(found["size"]), microseconds * 1000, str(found.get("e_tag") or ""))


def _ending(name: str) -> str:
    """Return what tells Spark how a file is packed; the rest of a name may hold anything."""
    return next((ending for ending in (".gz", ".zst") if name.endswith(ending)), "")


def open_place(path: str, settings: Mapping[str, Any], copies: Path) -> Place:
    """Return the place `s3://bucket/prefix`, or a folder; nothing is asked of it yet."""
    return Bucket(path, settings, copies) if path.startswith("s3://") else Folder(Path(path).absolute())
