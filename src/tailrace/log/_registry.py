"""Writers' schemas by id, from a registry that speaks Confluent's API; each is asked for once and kept on disk.

An id means one schema of its registry for ever, so what is kept needs no second look. A registry that cannot be
asked, or does not know an id, is no reason to drop a message: it is tried again, and nothing is passed over. Which
version of a subject is the latest is asked each time.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from tailrace.core.errors import Misconfigured, NotReady, Unreachable
from tailrace.core.subjects import Version

_SECONDS = 10.0
_REFUSED = (401, 403)


class Registry:
    """One registry; user and password may stand in its address."""

    def __init__(self, address: str, folder: Path) -> None:
        parts = urlsplit(address)
        try:
            port = parts.port
        except ValueError:
            # What the library says of it may be a part of the password.
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise Misconfigured(
                "wrong-value",
                "kafka.schema_registry_url is no address of HTTP",
                "Write it as http://host:8081; in a user or password, escape what is special to an address.",
            )
        host = parts.hostname if port is None else f"{parts.hostname}:{port}"
        self.address = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
        # Another registry gives the same ids to other schemas.
        self._folder = folder / hashlib.sha256(self.address.encode()).hexdigest()[:16]
        self._known: dict[int, Mapping[str, Any]] = {}

    def schema(self, number: int) -> Mapping[str, Any]:
        """Return the schema with the id `number`."""
        if number not in self._known:
            self._known[number] = self._kept(number) or self._ask(number)
        return self._known[number]

    def _kept(self, number: int) -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = json.loads(self._path(number).read_text())
        except (OSError, ValueError):
            return None
        return found

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.json"

    def reach(self, seconds: float) -> None:
        """Raise what keeps the registry from being asked; it must answer within `seconds`."""
        self._get("subjects", "its subjects", seconds=seconds)

    def latest(self, subject: str) -> Version | None:
        """Return the latest version of `subject`; `None` if the registry knows no such subject."""
        what = f'subject "{subject}"'
        said = self._get(f"subjects/{quote(subject, safe='')}/versions/latest", what, missing=True)
        try:
            return None if said is None else Version(subject, int(said["version"]), int(said["id"]))
        except (ValueError, KeyError, TypeError) as error:
            raise self._silent(f"{what} could not be read: {error!r}") from error

    def _ask(self, number: int) -> Mapping[str, Any]:
        what = f"schema {number}"
        said = self._get(f"schemas/ids/{number}", what)
        try:
            schema: Mapping[str, Any] = json.loads(said["schema"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._silent(f"{what} could not be read: {error}") from error
        self._folder.mkdir(parents=True, exist_ok=True)
        # A drain and the monitor may ask for the same one at the same time.
        temporary = self._path(number).with_suffix(f".{threading.get_ident()}.tmp")
        temporary.write_text(json.dumps(schema))
        temporary.replace(self._path(number))
        return schema

    def _get(self, path: str, what: str, *, missing: bool = False, seconds: float = _SECONDS) -> Any:
        """Return the answer; `None` for what there is not, if it may be `missing`."""
        request = urllib.request.Request(f"{self.address}/{path}")  # noqa: S310  checked above
        if self._login:
            request.add_header("Authorization", "Basic " + base64.b64encode(self._login.encode()).decode())
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                if missing and error.code == 404:
                    return None
                if error.code in _REFUSED:
                    raise NotReady(
                        "registry-refused",
                        f"the schema registry at {self.address} refused to answer: status {error.code}",
                        "Put user and password into kafka.schema_registry_url: https://user:password@host.",
                    ) from error
                raise self._silent(f"{what} gave status {error.code}") from error
        except (OSError, ValueError) as error:
            raise self._silent(f"{what} could not be read: {error}") from error

    def _silent(self, why: str) -> Unreachable:
        return Unreachable(
            "registry-unreachable",
            f"the schema registry at {self.address} did not help: {why}",
            "Check kafka.schema_registry_url, and that the registry is up. No message was passed over.",
        )
