"""How far a log was read: one number or many, and the number that many have."""

from __future__ import annotations

import json
import random

import pytest

from tailrace.apply.target import Mark, mark_from_json
from tailrace.core import offsets
from tailrace.core.offsets import Offsets, covers, least, together


def some(dice: random.Random) -> Offsets:
    return Offsets({name: dice.randrange(-1, 5) for name in "abc" if dice.random() < 0.7})


def test_a_log_that_is_one_sequence_needs_only_a_number() -> None:
    assert (covers(4, 4), covers(3, 4)) == (True, False)
    assert (together(3, 5), together(5, 3), least([5, 3]), least([])) == (5, 5, 3, -1)
    assert offsets.from_json(offsets.to_json(7)) == 7


def test_nothing_read_is_the_number_before_the_first() -> None:
    assert int(Offsets({})) == -1
    assert int(Offsets({"a": -1})) == -1
    assert str(Offsets({})) == "-1"


def test_a_difference_is_a_number_of_events() -> None:
    assert Offsets({"a": 9, "b": 4}) - Offsets({"a": 4}) == 10


def test_equal_numbers_are_not_equal_places() -> None:
    one, other = Offsets({"a": 1, "b": 0}), Offsets({"a": 0, "b": 1})
    assert int(one) == int(other)
    assert one != other
    assert not covers(one, other)
    assert not covers(other, one)


@pytest.mark.parametrize("seed", range(200))
def test_together_includes_both_and_its_number_grows(seed: int) -> None:
    dice = random.Random(seed)
    have, upto = some(dice), some(dice)
    both = together(have, upto)
    assert covers(both, have)
    assert covers(both, upto)
    assert (int(both) > int(have)) == (not covers(have, upto))


@pytest.mark.parametrize("seed", range(200))
def test_least_is_included_by_all(seed: int) -> None:
    dice = random.Random(seed)
    places = [some(dice) for _ in range(3)]
    assert all(covers(place, least(places)) for place in places)


def test_a_number_whose_partitions_were_lost_includes_nothing_and_still_grows() -> None:
    upto = Offsets({"a": 3})
    assert not covers(100, upto)
    after = together(100, upto)
    assert after == upto
    assert int(after) == 101
    assert int(together(after, Offsets({"a": 4}))) == 102


def test_a_mark_survives_being_stored() -> None:
    for offset in (7, Offsets({"orders:0": 5, "orders:1": -1}), together(100, Offsets({"a": 3}))):
        mark = Mark("log", offset, "high", "floor", ("batch",))
        again = mark_from_json(json.loads(json.dumps(mark.to_json())))
        assert again == mark
        assert int(again.offset) == int(offset)


def test_a_mark_of_an_earlier_release_is_read() -> None:
    assert mark_from_json({"log": "x", "offset": 5, "high": "", "floor": ""}) == Mark("x", 5)


@pytest.mark.parametrize("stored", ["7", None, {"a": "1"}, [1]])
def test_anything_else_is_no_place(stored: object) -> None:
    with pytest.raises(ValueError, match="not a place"):
        offsets.from_json(stored)
