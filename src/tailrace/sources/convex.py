"""Convex, read through its streaming export: a consistent snapshot, then every change after it.

    None ──▶ Snapshotting (the server keeps the snapshot; a reader goes on at its cursor) ──▶ Tailing

All tables share one snapshot and one cursor. Rows of the snapshot have timestamps up to its own, and deltas begin
after it, so the hand-over leaves no gap and no overlap. The cursor of an answer is what is kept, never the
timestamp of its last row: a page may be empty and still move on. A position is total per document, because a
document has at most one revision per timestamp.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from tailrace.core import convex
from tailrace.core.checkpoint import Checkpoint, Place, Scope, Snapshotting, Tailing
from tailrace.core.errors import Halt, Misconfigured, Retryable
from tailrace.core.page import Page
from tailrace.core.table import Table
from tailrace.sources import _convex_inventory as inventory
from tailrace.sources import _convex_pages as pages
from tailrace.sources._convex_client import PATIENT, RESYNC, Bounds, Client, NotThere, deployment_of
from tailrace.sources._convex_inventory import Pair
from tailrace.sources._convex_renewal import changes_upto, others, read_anew
from tailrace.sources._convex_rows import Rows, Shapes, landed, resets
from tailrace.sources._convex_selection import Selection

ENVELOPE = "convex"
"""What the rows of this source look like, and what opens them."""

_NOTHING = {"_other": "excl"}

Fields = dict[str, str]
Tables = dict[str, str | Fields]


def _own_name() -> str:
    try:
        return f"tailrace-{version('tailrace')}"
    except PackageNotFoundError:
        return "tailrace-0.0.0"


class Options(BaseModel):
    """The `source:` section of a pipeline file, for `source_type: convex`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True)

    deployment_url: str
    """The root address of the deployment: `https://<name>.convex.cloud`, or that of a self-hosted server."""
    deploy_key: SecretStr = Field(min_length=1)
    """A deploy key of the deployment; it needs the permission `deployment:data:view` and no other."""
    selection: dict[str, str | Tables] | None = None
    """What to read, in Convex's own form: components, their tables, their fields, each level with `_other`, each name
    with `incl` or `excl`. Everything if unset."""
    client_name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*-[0-9][A-Za-z0-9_.+-]*$")] | None = None
    """How we call ourselves in the header `Convex-Client`: a name, a dash and a version; our own if unset."""

    @field_validator("deployment_url")
    @classmethod
    def _is_root(cls, url: str) -> str:
        try:
            return deployment_of(url)
        except Misconfigured as error:
            raise ValueError("is not the root address of a deployment, without a path, a query or a user") from error

    @field_validator("deploy_key")
    @classmethod
    def _is_key(cls, key: SecretStr) -> SecretStr:
        text = key.get_secret_value().strip()
        if not text or not (text.isascii() and text.isprintable()):
            raise ValueError(
                "is not a deploy key: it is empty, or has a line break or another character that no key has"
            )
        return SecretStr(text)

    @field_validator("selection")
    @classmethod
    def _is_selection(cls, wire: dict[str, str | Tables] | None) -> dict[str, str | Tables] | None:
        Selection(wire)
        return wire


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the source looks for news when it has caught up, and for tables that were replaced."""

    poll_seconds: float = 2.0
    inventory_seconds: float = 600.0
    page_rows: int = 8192
    """About how many rows are made durable at a time, while there are more."""


def connect(options: Options, bounds: Bounds | None = None) -> tuple[Client, Selection]:
    """Return what it takes to ask the deployment that `options` name; nothing is connected yet."""
    key, name = options.deploy_key.get_secret_value(), options.client_name or _own_name()
    return Client(options.deployment_url, key, name, bounds), Selection(options.selection)


def open_source(options: Options, *, pipeline_id: str, topic_prefix: str, epoch: int) -> ConvexSource:  # noqa: ARG001
    """Return the source that `options` describe; nothing is connected yet. Its rows have tables, not topics."""
    return ConvexSource(options, pipeline_id=pipeline_id, epoch=epoch)


class ConvexSource:
    """The documents of one deployment; any number of readers may read at a time."""

    def __init__(
        self,
        options: Options,
        *,
        pipeline_id: str,
        epoch: int,
        pace: Pace | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.name = pipeline_id
        self._client, self._selection = connect(options, bounds or PATIENT)
        self._origin = f"convex {self._client.deployment}"
        self._epoch = epoch
        self._pace = pace or Pace()
        self._closing = threading.Event()
        self._looked_at = 0.0
        self._known: list[Pair] = []
        self._anew: list[Pair] = []
        self._shapes: Shapes | None = None

    def know(self, tables: Sequence[str]) -> None:
        """Let these tables, which were read before, start anew with the next snapshot too, even if they are gone."""
        self._known = [_pair(name) for name in tables]

    def renew(self, tables: Sequence[str]) -> None:
        """Read these tables anew before going on, also if they are gone; the others go on as they are."""
        self._anew = [_pair(name) for name in sorted(set(tables))]

    # -- what a pipeline asks for

    def check(self) -> None:
        """Raise the first thing that would keep this source from being read; change nothing."""
        self._client.get("test_streaming_export_connection")
        # What was read before may be gone since, which a run says; a selection that never had a table is a mistake.
        if not self._known and not self.tables() and inventory.tables(self._client, Selection()):
            raise Misconfigured(
                "nothing-selected",
                f"no table of the deployment {self._client.deployment} is selected",
                'Mend selection of the source: names are case-sensitive, and the application itself is component "".',
            )

    def tables(self) -> dict[str, tuple[str, ...]]:
        """Return the selected tables that there are now; every document has its `_id`."""
        return {convex.table_name(*pair): (convex.ID,) for pair in inventory.tables(self._client, self._selection)}

    def shapes(self) -> dict[str, Table]:
        """Return the selected tables that there are now, as documents seen so far make them."""
        known = self._inferred()
        return {name: known.of(name)[0] for name in self.tables()}

    def plan(self) -> list[str]:
        """Return nothing: reading Convex creates nothing there."""
        return []

    def undeploy(self) -> list[str]:
        """Remove nothing: reading Convex created nothing there."""
        return []

    def lag(self, checkpoint: Checkpoint | None) -> dict[str, object]:
        """Return how far `checkpoint` is behind, in the server's own time."""
        head = int(self.head())
        at = int(checkpoint.at if isinstance(checkpoint, Tailing) else checkpoint.snapshot) if checkpoint else None
        return {
            "head": str(head),
            "at": None if at is None else str(at),
            "lag_seconds": None if at is None else round(max(0, head - at) / 1e9, 3),
            "age_seconds": None if at is None else round(max(0.0, time.time() - at / 1e9), 3),
        }

    # -- what a pump asks for

    def pages(self, since: Checkpoint | None, until: Place | None = None) -> Iterator[Page[pa.Table]]:
        """Yield what is new since `since`, up to `until` or until closed; each page follows the one before."""
        if since is not None:
            self._refuse_other(since)
        walk = _Walk(self._learned(), dict(since.scope.tables) if since and since.scope else {})
        if not isinstance(since, Tailing):
            for page in self._snapshot(since, walk):
                yield page
                since = page.checkpoint
        if isinstance(since, Tailing) and self._anew:
            for page in self._renew(since, walk):
                yield page
                since = page.checkpoint
        if isinstance(since, Tailing):
            yield from self._deltas(since, walk, None if until is None else int(until))

    def acknowledge(self, checkpoint: Checkpoint) -> None:
        """Do nothing: the server forgets by time, whoever has read."""

    def head(self) -> Place:
        """Return the newest timestamp, by a snapshot of nothing."""
        page = self._client.post("list_snapshot", {"snapshot": None, "cursor": None, "selection": _NOTHING})
        return str(pages.integer(page, "snapshot"))

    def close(self) -> None:
        """Make `pages` end after the page in hand; may be called from another thread or a signal handler."""
        self._closing.set()
        self._client.close()

    # -- the two phases

    def _snapshot(self, since: Snapshotting | None, walk: _Walk) -> Iterator[Page[pa.Table]]:
        before: Checkpoint | None = since
        first = self._begin(walk) if since is None else None
        begun = (int(since.snapshot), since.cursor) if since else (None, None)
        answers = pages.walk(self._client, self._selection, walk.shapes, self._closing.is_set, *begun)
        for some in pages.gathered(answers, self._pace.page_rows):
            found = Rows()
            for one in some:
                found.extend(one.rows)
                walk.seen = inventory.identified(walk.seen, one.cursor, one.following, one.rows)
            rows, schemas = landed(found, walk.shapes, snapshot=True)
            if first is not None:
                rows, first = pa.concat_tables([first, rows]), None
            scope, at, following = self._scope(walk), str(some[-1].at), some[-1].following
            after: Checkpoint = (
                Tailing(self._origin, at, scope)
                if following is None
                else Snapshotting(self._origin, at, following, scope)
            )
            yield Page(rows, before, after, schemas)
            before = after

    def _begin(self, walk: _Walk) -> pa.Table:
        """Note the tables that there are; in a later life each of them starts anew."""
        known = inventory.tables(self._client, self._selection)
        walk.seen = {convex.table_name(*pair): "" for pair in known}
        return resets(sorted({*known, *self._known}) if self._epoch > 1 else [])

    def _deltas(self, since: Tailing, walk: _Walk, goal: int | None) -> Iterator[Page[pa.Table]]:
        cursor, more, looked = int(since.at), True, False
        while not self._closing.is_set() and more and (goal is None or cursor < goal):
            found, failed = pages.stretch(
                self._client, self._selection, walk.shapes, cursor, goal, self._pace.page_rows, self._closing.is_set
            )
            rows, schemas = landed(found.rows, walk.shapes, snapshot=False)
            walk.seen = inventory.without(walk.seen, found.rows)
            if not found.more or (goal is not None and found.at >= goal):
                try:
                    self._look_at_tables(walk, found.at)
                    looked = True
                except Retryable as error:
                    # What was read is good, and is kept first.
                    failed = error
            after = Tailing(self._origin, str(found.at), self._scope(walk))
            if after != since:
                yield Page(rows, since, after, schemas)
            if failed is not None:
                raise failed
            since, cursor, more = after, found.at, found.more
            # Read to its end after the goal was seen, the log has given all that lies before the goal.
            if not more and goal is None:
                self._closing.wait(self._pace.poll_seconds)
                more = True
        if not looked and not self._closing.is_set():
            self._look_at_tables(walk, cursor)

    def _renew(self, since: Tailing, walk: _Walk) -> Iterator[Page[pa.Table]]:
        """Read the tables that were asked for anew, after every change of the others up to then.

        They are one page: a reader sees the old tables or the new ones, and a crash before it leaves the old.
        """
        closing = self._closing.is_set
        renewal = read_anew(self._client, self._selection, self._anew, walk.shapes, closing)
        if renewal is None:
            return
        rows, schemas = [renewal.rows], dict(renewal.schemas)
        for found in changes_upto(self._client, self._selection, walk.shapes, int(since.at), renewal.at, closing):
            changed, named = landed(found.rows, walk.shapes, snapshot=False)
            walk.seen = inventory.without(walk.seen, found.rows)
            if found.at == renewal.at:
                rows, schemas = [others(changed, self._anew, renewal.at), renewal.rows], {**schemas, **named}
                break
            after = Tailing(self._origin, str(found.at), self._scope(walk))
            yield Page(changed, since, after, named)
            since = after
        if closing():
            return
        for pair in self._anew:
            walk.seen.pop(convex.table_name(*pair), None)
        walk.seen |= renewal.seen
        yield Page(pa.concat_tables(rows), since, Tailing(self._origin, str(renewal.at), self._scope(walk)), schemas)
        self._anew = []

    # -- parts

    def _scope(self, walk: _Walk) -> Scope:
        return Scope(self._selection.digest(), tuple(sorted(walk.seen.items())))

    def _learned(self) -> Shapes:
        """Return what is known of the tables: it only grows, also over attempts that failed."""
        if self._shapes is None:
            self._shapes = self._inferred()
        return self._shapes

    def _inferred(self) -> Shapes:
        """Begin with what the server has inferred from its data; without that, types are learned from rows."""
        try:
            found = inventory.schemas(self._client, self._selection)
        except NotThere:
            # Not every reader asks for schemas, so not every server that looks like Convex tells them.
            return Shapes()
        except Halt as error:
            if error.code == "convex-request":
                return Shapes()
            raise
        return Shapes({convex.table_name(*pair): fields for pair, (_, fields) in found.items()})

    def _look_at_tables(self, walk: _Walk, at: int) -> None:
        """Raise if a table that was seen is gone or replaced; now and then, because it takes some calls."""
        if self._looked_at and time.monotonic() - self._looked_at < self._pace.inventory_seconds:
            return
        walk.seen = inventory.look(self._client, self._selection, walk.seen, at)
        self._looked_at = time.monotonic()

    def _refuse_other(self, since: Checkpoint) -> None:
        if since.origin != self._origin:
            raise Halt(
                "deployment-changed",
                f'the position belongs to "{since.origin}" and the deployment is "{self._origin}"',
                f"Set deployment_url back to the deployment that was read. To read another one: {RESYNC}",
            )
        if since.scope is None or since.scope.selection != self._selection.digest():
            raise Halt(
                "selection-changed",
                "the selection of the source changed since its snapshot",
                f"Rows of what was added would be missing, and rows of what was removed would stay. {RESYNC}",
            )


@dataclass
class _Walk:
    """What one reading of the source has learned."""

    shapes: Shapes
    seen: dict[str, str]
    """The tables that the snapshot or an inventory had, each with its identity.

    A table that only deltas speak of may be one that an import has not put in place yet."""


def _pair(name: str) -> Pair:
    component, _, table = name.rpartition(".")
    return component, table
