"""Manifests of a feed: numbered lists of files, read once each, whose numbers have no gap.

A gap is a gap also when the manifests before it were taken away meanwhile: the last number that was followed is
remembered.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from tailrace.core.errors import Halt, Retryable
from tailrace.core.feed import State
from tailrace.log._place import Changed, Found, Place

ENDING = ".manifest.json"
_MOST_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Manifest:
    """A numbered list of files."""

    name: str
    sequence: int
    files: tuple[tuple[str, str], ...]
    """Names below the feed, each with its hash if the manifest tells it."""


class Manifests:
    """The manifests of one feed; one that has not changed is not read again."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._read: dict[str, tuple[State, Manifest]] = {}
        self._done: set[str] = set()

    def read(self, listing: Sequence[Found], followed: int | None) -> list[Manifest]:
        """Return the manifests of `listing` that are not done, by number; halt if a number is missing.

        `followed` is the last one that was followed, `None` if none was; -1, if numbers mean nothing.
        """
        self._read = {name: self._one(name, state) for name, state in listing}
        self._done &= self._read.keys()
        found = sorted((manifest for _, manifest in self._read.values()), key=lambda manifest: manifest.sequence)
        if followed == -1:
            return found
        for one, other in pairwise(found):
            if one.sequence == other.sequence:
                raise Halt(
                    "bad-manifest",
                    f'manifests "{one.name}" and "{other.name}" both have number {one.sequence}',
                    "Which comes first cannot be known. Give one of them a number of its own.",
                )
        _refuse_gaps(found, followed)
        return [manifest for manifest in found if manifest.name not in self._done]

    def done(self) -> int | None:
        """Take note that all that was read is followed, and need not be kept; return the greatest number."""
        for name, (state, manifest) in self._read.items():
            self._read[name] = (state, replace(manifest, files=()))
            self._done.add(name)
        return max((manifest.sequence for _, manifest in self._read.values()), default=None)

    def _one(self, name: str, state: State) -> tuple[State, Manifest]:
        before = self._read.get(name)
        if before is not None and before[0] == state:
            return before
        self._done.discard(name)
        return state, self._parse(name, state)

    def _parse(self, name: str, state: State) -> Manifest:
        try:
            with self._place.open(name, state) as file:
                stored: Any = json.loads(file.read(_MOST_BYTES))
            files = tuple((_below(entry["name"], name), str(entry.get("sha256", ""))) for entry in stored["files"])
            return Manifest(name, _number(stored["sequence"]), files)
        except (Changed, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            # It may be half written, so it is looked at again before anybody has to act.
            raise Retryable(
                "bad-manifest",
                f'"{name}" is not a manifest',
                'It should be like {"sequence": 1, "files": [{"name": "a.csv", "sha256": "..."}]}.',
            ) from error


def _refuse_gaps(found: Sequence[Manifest], followed: int | None) -> None:
    """Halt at the first number that is missing; what lies before the last one that was followed may be gone."""
    ahead = [manifest for manifest in found if followed is None or manifest.sequence > followed]
    expected = followed + 1 if followed is not None else ahead[0].sequence if ahead else 0
    for manifest in ahead:
        if manifest.sequence != expected:
            raise Halt(
                "sequence-gap",
                f'manifest number {expected} is missing: the next one, "{manifest.name}", has {manifest.sequence}',
                "Rows would be missing if it went on. Put the manifest and its files there; it then goes on.",
            )
        expected += 1


def _number(sequence: Any) -> int:
    if type(sequence) is not int or sequence < 0:
        raise ValueError(sequence)
    return int(sequence)


def _below(name: object, manifest: str) -> str:
    """Return the path of a file below the feed; a manifest may not lead out of the feed."""
    text = str(name)
    parts = text.split("/")
    if (
        not text
        or text.startswith("/")
        or any(part in ("", ".", "..") or part.startswith((".", "_")) for part in parts)
    ):
        raise Halt(
            "bad-manifest", f'manifest "{manifest}" lists "{text}", which is no file of the feed', "Mend the manifest."
        )
    return text
