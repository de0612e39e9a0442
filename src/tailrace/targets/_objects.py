"""A place for objects: a folder, or a prefix of an S3 bucket. Nothing outside of it is read, written or removed.

An object is there whole or not at all. `swap` puts one in the place of the very one that was read, or does nothing: of
two writers who have read the same, one succeeds.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from tailrace.core.errors import Misconfigured, NotReady, Retryable


class Objects(Protocol):
    """What publishing needs of a store; keys are relative to the place."""

    base: str
    """What stands before a key where the store itself is asked for it."""

    def get(self, key: str) -> tuple[bytes, str] | None:
        """Return an object, and what identifies this content of it; `None` if there is none."""
        ...

    def put(self, key: str, data: bytes | BinaryIO) -> None:
        """Write an object, in the place of one that may be there."""
        ...

    def swap(self, key: str, data: bytes, seen: str | None) -> bool:
        """Write an object if the one that is there is still `seen`, or if there is still none; say whether it was."""
        ...

    def copy(self, old: str, new: str) -> None:
        """Write the object `new` with the content of `old`."""
        ...

    def keys(self, prefix: str) -> list[str]:
        """Return the keys under `prefix`, which ends with a slash."""
        ...

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects; one that is not there is no error."""
        ...


class Folder:
    """Objects as files of a folder."""

    base = ""

    def __init__(self, root: Path) -> None:
        self._root = root

    def get(self, key: str) -> tuple[bytes, str] | None:
        """Return an object and the digest of its content."""
        with self._translated(), self._reading(key) as file:
            if file is None:
                return None
            data = file.read()
            return data, hashlib.sha256(data).hexdigest()

    def put(self, key: str, data: bytes | BinaryIO) -> None:
        """Write beside, make durable, rename."""
        with self._translated():
            place = self._place(key)
            place.parent.mkdir(parents=True, exist_ok=True)
            written = place.with_name(f".{place.name}.{uuid.uuid4().hex[:8]}")
            try:
                with written.open("wb") as file:
                    if isinstance(data, bytes):
                        file.write(data)
                    else:
                        shutil.copyfileobj(data, file)
                    file.flush()
                    os.fsync(file.fileno())
                written.replace(place)
            finally:
                written.unlink(missing_ok=True)

    def swap(self, key: str, data: bytes, seen: str | None) -> bool:
        """Compare and write under a lock that ends with the process."""
        with self._translated():
            lock = self._place(f"{key}.lock")
            lock.parent.mkdir(parents=True, exist_ok=True)
            with lock.open("a") as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                there = self.get(key)
                if (there and there[1]) != seen:
                    return False
                self.put(key, data)
                return True

    def copy(self, old: str, new: str) -> None:
        """Copy a file, whole or not at all."""
        with self._translated(), self._place(old).open("rb") as file:
            self.put(new, file)

    def keys(self, prefix: str) -> list[str]:
        """Return what lies below a folder; temporary names and locks are none of it."""
        with self._translated():
            found = [path for path in self._place(prefix).rglob("*") if path.is_file()]
            hidden = [path for path in found if path.name.startswith(".") or path.name.endswith(".lock")]
            return sorted(path.relative_to(self._root).as_posix() for path in found if path not in hidden)

    def remove(self, keys: Sequence[str]) -> None:
        """Remove files, and the folders that are empty then."""
        with self._translated():
            for key in keys:
                place = self._place(key)
                place.unlink(missing_ok=True)
                for folder in place.relative_to(self._root).parents:
                    here = self._root / folder
                    if here == self._root or any(here.iterdir()):
                        break
                    here.rmdir()

    def _place(self, key: str) -> Path:
        return self._root.joinpath(*key.split("/"))

    @contextmanager
    def _reading(self, key: str) -> Iterator[BinaryIO | None]:
        try:
            file = self._place(key).open("rb")
        except FileNotFoundError:
            yield None
            return
        with file:
            yield file

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Retryable(
                "store-unavailable",
                f'the folder "{self._root}" could not be used: {error.strerror or error}',
                "Check the disk and the rights of publish_to.",
            ) from error


class Bucket:
    """Objects under a prefix of an S3 bucket."""

    def __init__(self, url: str, **settings: str | None) -> None:
        try:
            import obstore
            from obstore.store import S3Store
        except ModuleNotFoundError as error:
            raise NotReady(
                "missing-extra",
                f'publishing to S3 needs the Python package "{error.name}", which is not installed',
                "Run: pip install 'tailrace[s3]'",
            ) from error
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        given = {name: value for name, value in settings.items() if value is not None}
        http = {"allow_http": True} if str(given.get("endpoint", "")).startswith("http://") else {}
        prefix = prefix.strip("/")
        self.base = f"{prefix}/" if prefix else ""
        self._url = url
        self._api = obstore
        self._store = S3Store(bucket, prefix=prefix or None, client_options=http, **given)  # type: ignore[arg-type]

    def get(self, key: str) -> tuple[bytes, str] | None:
        """Return an object and its entity tag."""
        from obstore.exceptions import NotFoundError

        with self._translated():
            try:
                found = self._api.get(self._store, key)
                return found.bytes().to_bytes(), found.meta["e_tag"] or ""
            except (NotFoundError, FileNotFoundError):
                return None

    def put(self, key: str, data: bytes | BinaryIO) -> None:
        """Write an object; a large one in parts, which become visible together."""
        with self._translated():
            self._api.put(self._store, key, data)

    def swap(self, key: str, data: bytes, seen: str | None) -> bool:
        """Write on a condition that the server checks."""
        from obstore.exceptions import AlreadyExistsError, NotFoundError, PreconditionError

        with self._translated():
            try:
                self._api.put(self._store, key, data, mode="create" if seen is None else {"e_tag": seen})
            except (AlreadyExistsError, PreconditionError):
                return False
            except (NotFoundError, FileNotFoundError):
                if seen is None:
                    raise
                return False
            return True

    def copy(self, old: str, new: str) -> None:
        """Have the server copy."""
        with self._translated():
            self._api.copy(self._store, old, new)

    def keys(self, prefix: str) -> list[str]:
        """List by pages."""
        with self._translated():
            return sorted(entry["path"] for page in self._api.list(self._store, prefix) for entry in page)

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects, many in one call."""
        if keys:
            with self._translated():
                self._api.delete(self._store, list(keys))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError

        refused = (PermissionDeniedError, UnauthenticatedError, PermissionError, NotFoundError, FileNotFoundError)
        try:
            yield
        except refused as error:
            raise NotReady(
                "store-refused",
                f'"{self._url}" cannot be written: {type(error).__name__}',
                "Check that the bucket exists and that the key may get, put, list and delete objects in it.",
            ) from error
        except (BaseError, OSError) as error:
            raise Retryable(
                "store-unavailable",
                f'"{self._url}" did not answer as it should: {type(error).__name__}',
                "It is tried again, as retry says. Check the endpoint and the region.",
            ) from error


def open_objects(place: str | None, **settings: str | None) -> Objects:
    """Return the place `s3://bucket/prefix`, or a folder; nothing is asked of it yet."""
    if place is None:
        raise Misconfigured("missing-setting", "there is nowhere to publish to", "Set publish_to of the staging sink.")
    return Bucket(place, **settings) if place.startswith("s3://") else Folder(Path(place).absolute())
