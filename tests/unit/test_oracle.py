"""The oracle against the vectors of the contract, and against itself: how events arrive must not matter."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.oracle import Event, Key, Row, Scd1, Scd2, Soft
from tests.packed import History, batchings, packed

Vector = dict[str, Any]

VECTORS: list[Vector] = json.loads((Path(__file__).parents[1] / "vectors" / "autocdc.json").read_text())
BEYOND = ("expected_error", "level", "batch_schemas")
WITHIN = [vector for vector in VECTORS if not any(field in vector for field in BEYOND)]
HISTORIES = 600


class Interpreter:
    """Reads the rows of a vector as events, and the oracle's rows as the rows a vector expects."""

    def __init__(self, vector: Vector) -> None:
        self.options = vector["options"]
        columns = list(vector["schema"])
        self.keys = [next(name for name in columns if name.lower() == key.lower()) for key in vector["keys"]]
        chosen = self.options.get("column_list", columns)
        left_out = [*self.keys, *self.options.get("except_column_list", [])]
        self.columns = [name for name in chosen if name not in left_out]
        struct = re.fullmatch(r"struct\((.*)\)", vector["sequence_by"])
        self.struct = struct[1].split(", ") if struct else None
        self.sequence = vector["sequence_by"]
        self.table = Scd1() if vector["scd_type"] == 1 else Scd2(self._tracked())

    def _tracked(self) -> list[str]:
        untracked = self.options.get("track_history_except_column_list", [])
        return self.options.get("track_history_column_list", [name for name in self.columns if name not in untracked])

    def event(self, row: Row) -> Event:
        key = tuple(row[name] for name in self.keys)
        sequence = tuple(row[name] for name in self.struct) if self.struct else row[self.sequence]
        return Event(key, sequence, {name: row[name] for name in self.columns}, delete=self._deletes(row))

    def _deletes(self, row: Row) -> bool:
        if "apply_as_deletes" not in self.options:
            return False
        column, _, word = self.options["apply_as_deletes"].partition(" = ")
        return row[column] == word.strip("'") if word else row[column] is True

    def rows(self) -> list[Row]:
        if isinstance(self.table, Scd1):
            return [self._row(key, values) for key, values in self.table.rows().items()]
        return [
            self._row(key, values) | {"__START_AT": self._bound(start), "__END_AT": self._bound(end)}
            for key, values, start, end in self.table.rows()
        ]

    def _row(self, key: Key, values: Row) -> Row:
        return dict(zip(self.keys, key, strict=True)) | values

    def _bound(self, sequence: Any) -> Any:
        return dict(zip(self.struct, sequence, strict=True)) if self.struct and sequence is not None else sequence


def unordered(rows: list[Row]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


@pytest.mark.parametrize("vector", WITHIN, ids=lambda vector: vector["name"])
def test_the_oracle_agrees_with_the_vector(vector: Vector) -> None:
    reading = Interpreter(vector)
    for number, batch in enumerate(vector["batches"]):
        assert reading.table.apply([reading.event(row) for row in batch]) == 0
        after = vector.get("expected_after", {}).get(str(number))
        assert after is None or unordered(reading.rows()) == unordered(after), f"after batch {number}"
    allowed = vector.get("expected_one_of", [vector["expected"]])
    assert unordered(reading.rows()) in [unordered(rows) for rows in allowed]


def by_history(table: Scd1 | Scd2) -> dict[int, list[str]]:
    records = table.rows().items() if isinstance(table, Scd1) else table.rows()
    told: dict[int, list[str]] = {}
    for record in records:
        told.setdefault(record[0][0], []).append(repr(record))
    return {history: sorted(lines) for history, lines in told.items()}


def assert_converges(histories: list[History], seed: int, make: Any, *, late: bool = True) -> None:
    told = []
    for batches in batchings(histories, seed, late=late):
        table = make()
        for batch in batches:
            table.apply(batch)
        told.append(by_history(table))
    for number, history in enumerate(histories):
        ways = [one.get(number, []) for one in told]
        assert ways[0] == ways[1] == ways[2], f"seed {seed}, history {number}: {history}"


@pytest.fixture
def seed() -> int:
    return random.randrange(1 << 32)


@pytest.mark.parametrize("truncates", [False, True])
def test_scd1_without_ties_is_the_same_however_it_arrives(seed: int, truncates: bool) -> None:
    assert_converges(packed(seed, HISTORIES, scd_type=1, truncates=truncates), seed, Scd1)


def test_scd1_without_ties_keeps_the_newest_event_of_each_key(seed: int) -> None:
    events = [event for history in packed(seed, HISTORIES, scd_type=1) for event in history]
    newest = {event.key: event for event in sorted(events, key=lambda event: event.sequence)}
    table = Scd1()
    table.apply(events)
    kept = {key: event.values for key, event in newest.items() if not event.delete}
    assert (table.rows() == kept) is True, f"seed {seed}"


@pytest.mark.parametrize("tracked", [None, ["a"], []])
@pytest.mark.parametrize("ignore_nulls", [False, True])
def test_scd2_is_the_same_however_it_arrives(seed: int, tracked: list[str] | None, ignore_nulls: bool) -> None:
    histories = packed(seed, HISTORIES, scd_type=2)
    assert_converges(histories, seed, lambda: Scd2(tracked, ignore_nulls=ignore_nulls))


def test_scd2_with_truncates_is_the_same_however_it_arrives(seed: int) -> None:
    assert_converges(packed(seed, HISTORIES, scd_type=2, truncates=True), seed, Scd2)


@pytest.mark.parametrize("make", [Scd1, Scd2])
@pytest.mark.parametrize("ignore_nulls", [False, True])
def test_partial_images_in_order_are_the_same_however_they_are_cut(seed: int, make: Any, ignore_nulls: bool) -> None:
    histories = packed(seed, HISTORIES, scd_type=1 if make is Scd1 else 2, partial=True)
    assert_converges(histories, seed, lambda: make(ignore_nulls=ignore_nulls), late=False)


def put(sequence: int, a: str | None, b: int | None, *unchanged: str) -> Event:
    return Event((1,), sequence, {"a": a, "b": b}, unchanged=frozenset(unchanged))


def delete(sequence: int) -> Event:
    return Event((1,), sequence, {"a": None, "b": None}, delete=True)


def truncate(sequence: int) -> Event:
    return Event((), sequence, {}, truncate=True)


def scd1(*batches: list[Event], ignore_nulls: bool = False) -> tuple[Row | None, list[int]]:
    """The one row after `batches`, and how many events each of them had rejected."""
    table = Scd1(ignore_nulls=ignore_nulls)
    rejected = [table.apply(batch) for batch in batches]
    return table.rows().get((1,)), rejected


def scd2(*batches: list[Event], ignore_nulls: bool = False) -> tuple[list[tuple[Any, ...]], list[int]]:
    table = Scd2(ignore_nulls=ignore_nulls)
    rejected = [table.apply(batch) for batch in batches]
    return [(*values.values(), start, end) for _, values, start, end in table.rows()], rejected


def test_a_delete_wins_a_tie_inside_a_batch_and_loses_it_across_batches() -> None:
    assert scd1([put(1, "x", 0), delete(1)]) == (None, [0])
    assert scd1([put(1, "x", 0)], [delete(1)]) == ({"a": "x", "b": 0}, [0, 0])
    assert scd1([delete(1)], [put(1, "x", 0)]) == ({"a": "x", "b": 0}, [0, 0])


def test_the_greatest_row_wins_a_tie_inside_a_batch_and_null_is_smallest() -> None:
    assert scd1([put(1, "x", 0), put(1, "x", None), put(1, None, 1)]) == ({"a": "x", "b": 0}, [0])


def test_a_truncate_drops_what_is_at_or_below_it_whenever_that_comes() -> None:
    assert scd1([put(3, "x", 0)], [truncate(3)]) == (None, [0, 0])
    assert scd1([truncate(3), put(3, "x", 0)], [put(2, "x", 0, "b")]) == (None, [0, 0])
    assert scd1([truncate(3)], [truncate(1)], [put(2, "x", 0)]) == (None, [0, 0, 0])
    assert scd1([truncate(3)], [put(4, "x", 0)]) == ({"a": "x", "b": 0}, [0, 0])


def test_a_partial_image_takes_the_rest_from_the_row_before_it() -> None:
    assert scd1([put(1, "x", 0)], [put(3, "y", None, "b"), put(2, "y", 1)]) == ({"a": "y", "b": 1}, [0, 0])
    assert scd1([put(2, "x", 0)], [put(1, "x", 1), put(3, "y", None, "b")]) == ({"a": "y", "b": 0}, [0, 0])


def test_a_partial_image_without_a_row_is_rejected_and_does_not_count() -> None:
    assert scd1([put(1, "x", 0), delete(2), put(3, "y", None, "b")]) == (None, [1])
    assert scd1([put(1, "x", 0)], [truncate(2), put(3, "y", None, "b")]) == (None, [0, 1])
    assert scd1([put(1, "y", None, "b"), put(2, "x", 0)]) == ({"a": "x", "b": 0}, [1])


def test_a_column_left_out_is_smaller_than_null_in_a_tie() -> None:
    tied = [put(2, "x", None, "b"), put(2, "x", None)]
    assert scd1([put(1, "x", 0)], tied) == ({"a": "x", "b": None}, [0, 0])
    assert scd1([put(1, "x", 0), put(1, "y", None, "b")]) == ({"a": "x", "b": 0}, [0])


def test_a_complete_row_wins_a_tie_with_a_greater_partial_one() -> None:
    tied = [put(2, "z", None, "b"), put(2, "b", 5)]
    assert scd1([put(1, "x", 0)], tied) == ({"a": "b", "b": 5}, [0, 0])
    assert scd1(tied) == ({"a": "b", "b": 5}, [0])
    assert scd2(*([event] for event in [put(1, "x", 0), *tied])) == ([("x", 0, 1, 2), ("b", 5, 2, None)], [0, 0, 0])


def test_a_soft_delete_or_truncate_marks_the_row_and_what_is_older_does_nothing() -> None:
    def soft(*batches: list[Event]) -> Row:
        table = Soft()
        for batch in batches:
            assert table.apply(batch) == 0
        return table.rows()[(1,)]

    assert soft([put(1, "x", 0), delete(3)], [put(2, "y", 1)]) == {"a": "x", "b": 0, "marked": True}
    assert soft([put(1, "x", 0), delete(3)], [put(3, "y", 1)]) == {"a": "y", "b": 1, "marked": False}
    assert soft([delete(1), put(2, "y", None, "b")]) == {"a": "y", "b": None, "marked": False}
    for batches in ([[put(1, "x", 0), truncate(2)]], [[truncate(2)], [put(1, "x", 0)]]):
        assert soft(*batches) == {"a": "x", "b": 0, "marked": True}


def test_a_truncate_ends_every_record_that_stands_whenever_it_comes() -> None:
    records = [("x", 0, 1, 2), ("y", 1, 3, None)]
    assert scd2([put(1, "x", 0), put(3, "y", 1)], [truncate(2)]) == (records, [0, 0])
    assert scd2([truncate(2)], [put(1, "x", 0), put(3, "y", 1)]) == (records, [0, 0])


def test_a_null_that_is_ignored_takes_the_value_of_the_row_as_it_stands() -> None:
    batch = [put(2, "y", None), put(3, None, 1)]
    assert scd1([put(1, "x", 0)], batch, ignore_nulls=True) == ({"a": "y", "b": 1}, [0, 0])
    assert scd1([put(1, "x", None)], ignore_nulls=True) == ({"a": "x", "b": None}, [0])
    assert scd1([put(1, "x", 0), delete(2), put(3, "y", None)], ignore_nulls=True) == ({"a": "y", "b": None}, [0])


def test_a_late_event_reaches_the_partial_images_after_it() -> None:
    records = [("x", 0, 1, 2), ("x", 1, 2, 3), ("y", 1, 3, None)]
    assert scd2([put(1, "x", 0), put(3, "y", None, "b")], [put(2, "x", 1)]) == (records, [0, 0])


def test_a_partial_image_in_a_life_without_a_complete_event_is_forgotten() -> None:
    early = put(3, "y", None, "b")
    assert scd2([put(1, "x", 0), delete(2), early], [put(2, "x", 1)]) == ([("x", 0, 1, 2)], [1, 0])
    assert scd2([early], [put(1, "x", 0)]) == ([("x", 0, 1, None)], [1, 0])
    assert scd2([early], [put(1, "x", 0), early]) == ([("x", 0, 1, 3), ("y", 0, 3, None)], [1, 0])


def test_an_accepted_partial_image_cut_off_by_a_late_delete_is_out_of_sight_until_a_complete_event_comes() -> None:
    first, cut = [put(1, "x", 0), put(4, "y", None, "b")], [delete(2)]
    assert scd2(first, cut) == ([("x", 0, 1, 2)], [0, 0])
    assert scd2(first, cut, [put(3, "x", 1)])[0] == [("x", 0, 1, 2), ("x", 1, 3, 4), ("y", 1, 4, None)]


def test_an_ignored_null_reaches_back_within_its_life_only() -> None:
    batch = [put(1, "x", 0), put(2, None, 1), delete(3), put(4, None, 1)]
    assert scd2(batch, ignore_nulls=True) == ([("x", 0, 1, 2), ("x", 1, 2, 3), (None, 1, 4, None)], [0])
