"""Slices that are read ahead are the ones that would have been read in their turn."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from tailrace.core.errors import Halt, Retryable
from tailrace.log.slice import Contents, Slice
from tailrace.runtime.ahead import Ahead
from tailrace.runtime.drain import Drain, Pace, drain
from tailrace.runtime.report import Silent


class Piece(Slice):
    """A slice that says when it was let go."""

    let_go: list[int]

    def release(self) -> None:
        self.let_go.append(self.after)


def pieces(let_go: list[int], last: Callable[[], int]) -> Callable[[int], Slice | None]:
    def read(after: int) -> Slice | None:
        if after >= last():
            return None
        piece = Piece(after, after + 1, Contents({}, {}), lambda _: pytest.fail("nothing is read"))
        object.__setattr__(piece, "let_go", let_go)
        return piece

    return read


def test_a_slice_is_read_while_the_one_before_it_is_in_hand() -> None:
    begun, go_on = threading.Event(), threading.Event()
    read = pieces([], lambda: 9)

    def slowly(after: int) -> Slice | None:
        if after == 1:
            begun.set()
            go_on.wait(10)
        return read(after)

    with Ahead(slowly) as ahead:
        first = ahead.after(0)
        assert first
        ahead.begin(first.upto)
        assert begun.wait(10)
        go_on.set()
        second = ahead.after(first.upto)
        assert second
        assert (second.after, second.upto) == (1, 2)


def test_what_failed_ahead_is_told_in_its_turn_and_read_again_after_it() -> None:
    failing, read = [True], pieces([], lambda: 9)

    def failing_once(after: int) -> Slice | None:
        if after == 1 and failing:
            failing.clear()
            raise Retryable("kafka-unreachable", "not now")
        return read(after)

    with Ahead(failing_once) as ahead:
        ahead.after(0)
        ahead.begin(1)
        with pytest.raises(Retryable):
            ahead.after(1)
        again = ahead.after(1)
        assert again
        assert again.after == 1


def test_what_was_not_there_ahead_may_be_there_now() -> None:
    last = [1]
    with Ahead(pieces([], lambda: last[0])) as ahead:
        ahead.after(0)
        ahead.begin(1)
        ahead._coming and ahead._coming.result()
        last[0] = 2
        found = ahead.after(1)
        assert found
        assert found.after == 1


def test_what_was_read_ahead_and_is_not_wanted_is_let_go() -> None:
    let_go: list[int] = []
    with Ahead(pieces(let_go, lambda: 9)) as ahead:
        ahead.after(0)
        ahead.begin(1)
        ahead._coming and ahead._coming.result()
    assert let_go == [1]


class Log:
    """Slices of one offset each, of a log that says which were asked for; the last is never there."""

    reads_ahead = True

    def __init__(self, last: int) -> None:
        self.asked: list[int] = []
        self.let_go: list[int] = []
        self.both = threading.Event()
        self._read = pieces(self.let_go, lambda: last)

    def slice(self, after: int, *_: object) -> Slice | None:
        self.asked.append(after)
        if len(self.asked) > 1:
            self.both.set()
        return self._read(after)


class Stages(Silent):
    """Remembers which stages were told of."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def stage(self, target: str, name: str, seconds: float) -> None:
        self.told.append(name)


class Work:
    """As much of a drain as the loop asks for."""

    def __init__(self, log: Log, apply: Callable[[Slice], list[object]]) -> None:
        self.log, self.apply = log, apply
        self.pace, self.fold = Pace(1, 0.0), SimpleNamespace(settle=lambda _: None)
        self.target, self.report = "lake", Stages()
        self.at, self.maintain, self.make_tables = (lambda: 0), (lambda: None), (lambda: None)

    def next_slice(self, after: int, upto: int | None) -> Slice | None:
        return self.log.slice(after, 1, upto)


def looped(work: Work, **limits: int) -> list[int]:
    steps = drain(cast("Drain", work), threading.Event(), lambda step: step(), **limits)
    return [piece.after for piece, _ in steps]


def test_reading_is_a_stage_of_every_slice_and_of_nothing_else() -> None:
    work = Work(Log(last=3), lambda _: [])
    assert looped(work, upto=9) == [0, 1, 2]
    assert work.report.told == ["read"] * 3


def test_a_drain_has_the_next_slice_read_while_it_applies_one() -> None:
    log = Log(last=3)
    assert looped(Work(log, lambda _: [log.both.wait(10)]), upto=9) == [0, 1, 2]
    assert log.both.is_set()
    assert sorted(log.let_go) == [0, 1, 2]


def test_a_drain_that_ends_after_a_few_slices_reads_no_more() -> None:
    log = Log(last=9)
    assert looped(Work(log, lambda _: []), upto=9, max_slices=2) == [0, 1]
    assert log.asked == [0, 1]


def test_a_drain_that_halts_lets_the_slice_in_waiting_go() -> None:
    log = Log(last=9)

    def halt(_: Slice) -> list[object]:
        log.both.wait(10)
        raise Halt("sql-failed", "no more", "none")

    with pytest.raises(Halt):
        looped(Work(log, halt), upto=9)
    assert sorted(log.let_go) == [0, 1]
