"""Objects under one prefix, in a folder or in an object store: put, put if absent, get, list, delete.

What a library says about trouble is said here in our words, and nowhere else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import LocalStore, S3Store

from tailrace.core.errors import NotReady, Retryable, Unreachable
from tailrace.spark.causes import no_room


class Store:
    """The objects under `path`; names are relative to it."""

    def __init__(self, path: str, s3: Mapping[str, Any]) -> None:
        self.path = path
        self._s3 = dict(s3)
        self._opened: LocalStore | S3Store | None = None

    def get(self, name: str) -> bytes | None:
        """Return the object called `name`; `None` if there is none."""
        with self._told(f'reading "{name}"'):
            try:
                return bytes(obstore.get(self._store(), name).bytes())
            except NotFoundError:
                return None

    def put(self, name: str, content: bytes) -> None:
        """Write the object called `name`."""
        with self._told(f'writing "{name}"'):
            obstore.put(self._store(), name, content)

    def put_new(self, name: str, content: bytes) -> bool:
        """Write the object called `name` if there is none; say whether there was none."""
        with self._told(f'writing "{name}"'):
            try:
                obstore.put(self._store(), name, content, mode="create")
            except AlreadyExistsError:
                return False
            return True

    def names(self, prefix: str, after: str = "") -> list[str]:
        """Return the names that begin with `prefix` and a slash, sorted; those beyond `after` if that is given."""
        with self._told(f'listing "{prefix}"'):
            try:
                pages = obstore.list(self._store(), prefix, offset=after or None)
                return sorted(str(found["path"]) for page in pages for found in page)
            except NotFoundError:
                return []

    def delete(self, names: list[str]) -> None:
        """Remove objects; those that are gone already are."""
        with self._told("removing old files"), contextlib.suppress(NotFoundError):
            obstore.delete(self._store(), names)

    def _store(self) -> LocalStore | S3Store:
        if self._opened is None:
            if self.path.startswith("s3://"):
                bucket, _, prefix = self.path.removeprefix("s3://").partition("/")
                self._opened = S3Store(bucket, prefix=prefix or None, **self._s3)
            else:
                self._opened = LocalStore(Path(self.path).absolute(), mkdir=True)
        return self._opened

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except (PermissionDeniedError, UnauthenticatedError, InvalidPathError, ValueError) as error:
            raise NotReady(
                "target-not-ready",
                f'"{self.path}" cannot be used: {what} was refused',
                "Check path, the keys and what they may do: read, write, list and delete below it.",
            ) from error
        except (BaseError, OSError) as error:
            if no_room([("", str(error))]):
                said = f'there was no space left while {what} below "{self.path}"'
                hint = "Nothing was committed. Free some space; the batch is then applied again."
                raise Unreachable("disk-full", said, hint) from error
            # A bucket that is not there may never be; a store that does not answer is waited for.
            away = self.path.startswith("s3://") and not isinstance(error, NotFoundError)
            said = f'storage failed while {what} below "{self.path}"'
            hint = "See that the path is right, that it may be written to, and that the storage is up."
            raise (Unreachable if away else Retryable)("target-unavailable", said, hint) from error
