"""Slices that are read ahead are the ones that would have been read in their turn."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tailrace.core.errors import Retryable
from tailrace.log.slice import Contents, Slice
from tailrace.runtime.ahead import Ahead


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
