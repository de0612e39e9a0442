"""The meaning of a current table: the newest change of each key, whatever the order they come in."""

from __future__ import annotations

import itertools

from tailrace.core.change import Change, Op, fold
from tailrace.core.position import Phase, position

NOTHING: frozenset[str] = frozenset()


def at(place: int) -> str:
    return position(1, Phase.CHANGE, place)


def put(place: int, key: int = 1, unchanged: frozenset[str] = NOTHING, **after: object) -> Change:
    return Change("t", Op.UPDATE, at(place), (key,), after, unchanged)


def drop(place: int, key: int = 1) -> Change:
    return Change("t", Op.DELETE, at(place), (key,))


def truncate(place: int) -> Change:
    return Change("t", Op.TRUNCATE, at(place))


def test_any_order_of_the_same_changes_gives_the_same_table() -> None:
    changes = [put(1, v="a"), put(2, key=2, v="b"), truncate(3), put(4, v="c"), drop(5), put(6, key=3, v="d")]
    tables = [fold(order).rows for order in itertools.permutations(changes)]
    assert all(table == {(3,): (at(6), {"v": "d"})} for table in tables)


def test_a_change_that_comes_again_changes_nothing() -> None:
    changes = [put(1, v="a"), drop(2), put(3, v="b")]
    assert fold([*changes, *changes, changes[0]]) == fold(changes)


def test_folding_in_parts_is_folding_at_once() -> None:
    changes = [put(1, v="a"), put(2, key=2, v="b"), truncate(3), put(4, v="c"), drop(5)]
    for cut in range(len(changes) + 1):
        assert fold(changes[cut:], into=fold(changes[:cut])) == fold(changes)


def test_a_deleted_row_is_not_brought_back_by_an_older_change() -> None:
    assert fold([drop(2), put(1, v="a")]).rows == {}


def test_a_deleted_row_may_be_created_again() -> None:
    assert fold([put(1, v="a"), drop(2), put(3, v="b")]).rows == {(1,): (at(3), {"v": "b"})}


def test_a_truncate_removes_what_is_older_even_if_that_comes_later() -> None:
    folded = fold([put(5, v="kept"), truncate(3), put(2, key=2, v="late"), put(3, key=3, v="same place")])
    assert folded.rows == {(1,): (at(5), {"v": "kept"})}


def test_a_row_at_the_place_of_a_truncate_is_gone_in_either_order() -> None:
    assert fold([put(3), truncate(3)]).rows == fold([truncate(3), put(3)]).rows == {}


def test_an_older_truncate_takes_nothing_back() -> None:
    folded = fold([truncate(5), truncate(3), put(4, v="a")])
    assert (folded.floor, folded.rows) == (at(5), {})


def test_a_column_that_a_change_leaves_out_keeps_its_value() -> None:
    folded = fold([put(1, a=1, b=2), put(2, a=3, unchanged=frozenset({"b"}))])
    assert folded.rows[(1,)] == (at(2), {"a": 3, "b": 2})


def test_a_column_that_is_left_out_does_not_come_back_from_a_deleted_row() -> None:
    folded = fold([put(1, a=1, b=2), drop(2), put(3, a=3, unchanged=frozenset({"b"}))])
    assert folded.rows[(1,)] == (at(3), {"a": 3})


def test_a_snapshot_row_never_wins_over_a_change() -> None:
    read = Change("t", Op.READ, position(1, Phase.SNAPSHOT, 2**60), (1,), {"v": "old"})
    assert fold([put(1, v="new"), read]).rows == {(1,): (at(1), {"v": "new"})}


def test_what_is_known_of_a_key_is_its_newest_position_alive_deleted_or_truncated() -> None:
    folded = fold([put(4), drop(3, key=2), truncate(2)])
    assert [folded.seen((key,)) for key in (1, 2, 3)] == [at(4), at(3), at(2)]
