"""What a feed has that is new: which files are data, which of them are whole, and in which order they come.

A name that says a file is not data is left alone. A file is whole once it has not changed for a while, or at once when
a sidecar or a manifest says so. What is known is dropped while the feed is listed, so a listing takes memory for
what is new only.

    orders-1.csv                data
    orders-1.csv.done           says that orders-1.csv is whole
    0001.manifest.json          {"sequence": 1, "files": [{"name": "orders-1.csv", "sha256": "..."}]}
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from typing import Literal, Protocol, TypeVar

from tailrace.core.errors import Halt, Retryable
from tailrace.core.feed import Seen, State, manifest_order, modified_order, name_order, next_version, version_of
from tailrace.log._manifests import ENDING, Manifest, Manifests
from tailrace.log._place import Found, Place

Order = Literal["name", "modified", "manifest"]
_DONE = ".done"
_AT_ONCE = 500


class Known(Protocol):
    """What was taken before."""

    def states(self, names: Sequence[str]) -> Mapping[str, State]:
        """Return what files were when they were taken last."""
        ...

    def placed(self, orders: Sequence[str]) -> Mapping[str, str]:
        """Return those of `orders` at which a file was taken, with its name."""
        ...

    def followed(self) -> int | None:
        """Return the number of the last manifest that was followed."""
        ...


@dataclass
class Directory:
    """A feed as it is listed; it remembers what it saw, to know what has not changed since."""

    place: Place
    pattern: str = "*"
    order: Order = "name"
    stable_seconds: float = 0.0
    warn: Callable[[str], None] = lambda _: None
    _warned: set[str] = field(default_factory=set)
    _first_seen: dict[str, tuple[State, float]] = field(default_factory=dict)
    _hashes: dict[str, str] = field(default_factory=dict)
    """Of files that manifests name and that were not taken yet, where manifests do not give the order."""
    _manifests: Manifests = field(init=False)

    def __post_init__(self) -> None:
        self._manifests = Manifests(self.place)

    def ready(self, known: Known) -> list[Seen]:
        """Return the files that are whole and were not taken as they are, in the order of the feed."""
        new, sidecars, listing = self._new(known)
        manifests = self._manifests.read(listing, known.followed() if self.order == "manifest" else -1)
        if self.order == "manifest":
            return self._listed(manifests, {found.name: found.state for found in new}, known)
        for manifest in manifests:
            self._hashes.update(manifest.files)
        self._manifests.done()
        data = [found for found in new if self._is_data(found.name)]
        ready = []
        for name, state in data:
            if name in self._hashes or f"{name}{_DONE}" in sidecars or self._is_stable(name, state):
                order = name_order(name) if self.order == "name" else modified_order(state.modified_ns, name)
                ready.append(Seen(name, state.size, state.modified_ns, order, self._hashes.get(name, ""), state.tag))
        waiting = {found.name for found in data} - {seen.name for seen in ready}
        self._first_seen = {name: seen for name, seen in self._first_seen.items() if name in waiting}
        return sorted(ready, key=lambda seen: seen.order)

    def followed(self) -> int | None:
        """Take note that all that `ready` returned was taken; return the number of the last manifest."""
        return self._manifests.done()

    def pass_over(self, name: str, why: str) -> None:
        """Say once that a file is not taken as it is."""
        if name not in self._warned:
            self._warned.add(name)
            self.warn(f"file {json.dumps(name)} is passed over: {why}")

    def _new(self, known: Known) -> tuple[list[Found], set[str], list[Found]]:
        """Return files that are new or changed, and the sidecars and manifests."""
        new: list[Found] = []
        sidecars: set[str] = set()
        manifests: list[Found] = []
        for some in _batches(self.place.files()):
            data = []
            for found in some:
                if not _is_text(found.name):
                    self.pass_over(found.name, "its name is not UTF-8")
                elif found.name.endswith(_DONE):
                    sidecars.add(found.name)
                elif found.name.endswith(ENDING):
                    manifests.append(found)
                else:
                    data.append(found)
            have = known.states([found.name for found in data])
            for found in data:
                if have.get(found.name) != found.state:
                    new.append(found)
                else:
                    self._hashes.pop(found.name, None)
        return new, sidecars, manifests

    def _listed(self, manifests: Iterable[Manifest], new: Mapping[str, State], known: Known) -> list[Seen]:
        """Return what manifests list that was not taken, and what was taken and has changed since."""
        found: list[Seen] = []
        listed: set[str] = set()
        for manifest in manifests:
            orders = [manifest_order(manifest.sequence, index) for index in range(len(manifest.files))]
            placed = known.placed(orders)
            _refuse_edited(manifest, orders, placed)
            fresh = [(*file, order) for file, order in zip(manifest.files, orders, strict=True) if order not in placed]
            states = self.place.states([name for name, _, _ in fresh])
            for name, digest, order in fresh:
                if name not in states:
                    raise Retryable(
                        "file-gone",
                        f'manifest "{manifest.name}" lists "{name}", which is not there',
                        "Put the file there; it then goes on.",
                    )
                size, modified, tag = states[name]
                found.append(Seen(name, size, modified, order, digest, tag, listed=True))
                listed.add(name)
        taken = known.states([name for name in new if name not in listed])
        changed = [Seen(name, *new[name][:2], "", tag=new[name].tag) for name in taken]
        return [*found, *changed]

    def _is_data(self, name: str) -> bool:
        bare = name.rpartition("/")[2]
        return not bare.endswith(".tmp") and fnmatchcase(name if "/" in self.pattern else bare, self.pattern)

    def _is_stable(self, name: str, state: State) -> bool:
        if time.time() - state.modified_ns / 1e9 >= self.stable_seconds:
            return True
        # A clock that is ahead of ours must not hold a file back for ever.
        before, since = self._first_seen.get(name, (None, 0.0))
        if before != state:
            since = time.monotonic()
            self._first_seen[name] = (state, since)
        return time.monotonic() - since >= self.stable_seconds


def again(seen: Seen, have: str, order: Order) -> str:
    """Return the place of a file that was there before, at `have`, with other content: it comes after what it was."""
    return (
        modified_order(seen.modified_ns, seen.name, version_of(have) + 1) if order == "modified" else next_version(have)
    )


def _refuse_edited(manifest: Manifest, orders: Sequence[str], placed: Mapping[str, str]) -> None:
    """Halt if another file was taken at the place of one that the manifest lists: it would be passed over."""
    for (name, _), order in zip(manifest.files, orders, strict=True):
        if placed.get(order, name) != name:
            raise Halt(
                "bad-manifest",
                f'manifest "{manifest.name}" lists "{name}" where it listed "{placed[order]}" when that was taken',
                "A manifest that was followed must not change. Put it back as it was, and list the file in a new one.",
            )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


Thing = TypeVar("Thing")


def _batches(things: Iterable[Thing]) -> Iterator[list[Thing]]:
    rest = iter(things)
    while some := list(islice(rest, _AT_ONCE)):
        yield some
