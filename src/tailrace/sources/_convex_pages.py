"""The pages of Convex's two endpoints, each checked against what the server promises.

A page that breaks a promise halts: a wrong guess about order or completeness would lose changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tailrace.core.errors import Halt, TailraceError
from tailrace.core.failpoint import failpoint
from tailrace.sources._convex_client import RESYNC, Client
from tailrace.sources._convex_rows import Rows, Shapes, broken, rows_of
from tailrace.sources._convex_selection import Selection

_ROW, _ANSWER = 4096, 64
"""A document of more characters counts as several rows, and an answer, also one without any, as some."""


@dataclass(frozen=True, slots=True)
class SnapshotPage:
    """Some documents of one table, as they were at `at`; `cursor` led here, `following` leads on."""

    at: int
    cursor: str | None
    following: str | None
    rows: Rows


@dataclass(frozen=True, slots=True)
class DeltaPage:
    """Every change up to `at` that comes after the timestamp asked for."""

    at: int
    more: bool
    rows: Rows


def walk(
    client: Client,
    selection: Selection,
    shapes: Shapes,
    closing: Callable[[], bool],
    snapshot: int | None = None,
    cursor: str | None = None,
) -> Iterator[SnapshotPage]:
    """Yield the pages of a snapshot to its end, or until `closing`; without `snapshot`, of the newest one."""
    while not closing():
        arguments = {"snapshot": snapshot, "cursor": cursor, "selection": selection.wire}
        answer = _page(client.post("list_snapshot", arguments))
        failpoint("C02")
        at, more = integer(answer, "snapshot"), _flag(answer, "hasMore")
        # Where a page that is the last leads to does not matter.
        following = _cursor(answer) if more else None
        if following is not None:
            client.ask("list_snapshot", {"snapshot": at, "cursor": following, "selection": selection.wire})
        found = _rows(answer, selection, shapes, delta=False)
        if (snapshot is not None and at != snapshot) or max(found.stamps, default=0) > at:
            raise broken("a page is of another snapshot")
        if more and (following is None or following == cursor):
            raise broken("a page says that more follows, and not where")
        yield SnapshotPage(at, cursor, following, found)
        if following is None:
            return
        snapshot, cursor = at, following


def gathered(answers: Iterator[SnapshotPage], most: int) -> Iterator[list[SnapshotPage]]:
    """Yield the answers of a snapshot some at a time, about `most` rows; those before an error come before it.

    To make each of them durable takes longer than to read it.
    """
    some: list[SnapshotPage] = []
    size = 0
    try:
        for one in answers:
            some.append(one)
            size += weight(one.rows)
            if size >= most:
                yield some
                some, size = [], 0
    except TailraceError:
        if some:
            yield some
        raise
    if some:
        yield some


def stretch(
    client: Client,
    selection: Selection,
    shapes: Shapes,
    after: int,
    goal: int | None,
    most: int,
    closing: Callable[[], bool],
) -> tuple[DeltaPage, TailraceError | None]:
    """Return answers after the timestamp `after` as one page: about `most` rows, unless they end or `goal` is reached.

    Answers are small, and to make each of them durable takes longer than to read it. With what came before an error
    comes the error: it is to be raised once the page is kept.
    """
    found, size = DeltaPage(after, True, Rows()), 0
    while found.more and size < most and (goal is None or found.at < goal) and not closing():
        try:
            one = deltas(client, selection, shapes, found.at, ahead=goal)
        except TailraceError as error:
            return found, error
        size += weight(one.rows)
        found.rows.extend(one.rows)
        found = DeltaPage(one.at, one.more, found.rows)
    return found, None


def weight(rows: Rows) -> int:
    """Return as how many rows an answer counts."""
    return max(len(rows), sum(map(len, rows.texts)) // _ROW, _ANSWER)


def deltas(client: Client, selection: Selection, shapes: Shapes, after: int, ahead: int | None = 0) -> DeltaPage:
    """Return the next changes after the timestamp `after`, and have those that follow sent, up to `ahead`."""
    answer = _page(client.post("document_deltas", {"cursor": after, "selection": selection.wire}))
    failpoint("C02")
    at, more = integer(answer, "cursor"), _flag(answer, "hasMore")
    if at < after or (at == after and more):
        raise Halt(
            "deployment-changed",
            f"the deployment stands at {at}, before the position {after} that was read from it",
            f"It is another deployment under this address, or was set back. {RESYNC}",
        )
    if more and (ahead is None or at < ahead):
        client.ask("document_deltas", {"cursor": at, "selection": selection.wire})
    found = _rows(answer, selection, shapes, delta=True)
    stamps = found.stamps
    if stamps != sorted(stamps) or (stamps and not after < stamps[0] <= stamps[-1] <= at):
        raise broken("changes are not in the order of their timestamps")
    return DeltaPage(at, more, found)


def integer(answer: object, name: str) -> int:
    """Return a timestamp of an answer."""
    value = answer.get(name) if isinstance(answer, Mapping) else None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise broken(f'a page has no "{name}"')
    return value


def _page(answer: object) -> Mapping[str, object]:
    if not isinstance(answer, Mapping):
        raise broken("a page is no object")
    return answer


def _rows(answer: Mapping[str, object], selection: Selection, shapes: Shapes, *, delta: bool) -> Rows:
    values = answer.get("values")
    if not isinstance(values, list):
        raise broken("a page has no values")
    return rows_of(values, selection, shapes, delta=delta)


def _flag(answer: Mapping[str, object], name: str) -> bool:
    value = answer.get(name)
    if not isinstance(value, bool):
        raise broken(f'a page has no "{name}"')
    return value


def _cursor(answer: Mapping[str, object]) -> str | None:
    value = answer.get("cursor")
    if value is not None and not isinstance(value, str):
        raise broken('a page has no "cursor"')
    return value
