"""What every target must do, as tests: a target passes if a class that opens it inherits these.

A history is a list of events `(key, op, position, image)`. The engine's part, newest per key and nothing
older than what the target knows, is done here in plain Python, so a failure here is the target's own.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tailrace.apply.target import Batch, Mark, Target
from tailrace.core.change import Change, Op, fold
from tailrace.core.errors import Halt, Misconfigured, Retryable, TailraceError
from tailrace.core.table import RESERVED, Column, Evolution, Table, fit
from tailrace.spark.frame import frame

Image = dict[str, Any]
Event = tuple[Any, ...]

ITEMS = Table("public.items", (Column("id", "bigint"), Column("name", "string"), Column("size", "int")), ("id",))
LOG = "log-1"
TABLES = {
    name: name.split(".", 1)[1]
    for name in ("public.items", "public.w", "public.odd names.t`x", "public.lines", "public.all")
}
"""The tables that the tests write, each with the name that it has in the target."""


def at(place: int) -> str:
    """Return a position; greater places come later."""
    return f"0001.2.{place:016x}"


def put(place: int, key: int, name: str | None = "x", size: int | None = 1) -> Change:
    """Return an upsert of an item."""
    return Change(ITEMS.name, Op.UPDATE, at(place), (key,), {"id": key, "name": name, "size": size})


def drop(place: int, key: int) -> Change:
    """Return the delete of an item."""
    return Change(ITEMS.name, Op.DELETE, at(place), (key,))


def truncate(place: int) -> Change:
    """Return a truncate of all items."""
    return Change(ITEMS.name, Op.TRUNCATE, at(place))


def _micros(moment: object) -> int:
    """Return microseconds since 1970, which are the same in every time zone."""
    assert isinstance(moment, datetime.datetime)
    return (moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1)


def rows_of(spark: SparkSession, table: Table, changes: Iterable[Change]) -> DataFrame:
    """Return the rows of a batch: the newest change per key."""
    newest = {change.key: change for change in sorted(changes, key=lambda change: change.position)}
    rows = []
    for change in newest.values():
        image = change.after or dict(zip(table.keys, change.key, strict=True))
        op = "d" if change.op is Op.DELETE else "u"
        rows.append(
            (*(image.get(name) for name in table.names()), change.position, op, sorted(change.unchanged), 1),
        )
    columns = ", ".join(f"`{column.name.replace('`', '``')}` {column.type}" for column in table.columns)
    reserved = "_cdc_position string, _cdc_op string, _cdc_unchanged array<string>, _cdc_events bigint"
    return frame(spark, rows, f"{columns}, {reserved}").coalesce(1).localCheckpoint()


def batch(spark: SparkSession, changes: Sequence[Change], offset: int, table: Table = ITEMS, log: str = LOG) -> Batch:
    """Return the batch that the engine makes of `changes`, all of them new to the target."""
    floor = max((change.position for change in changes if change.op is Op.TRUNCATE), default="")
    alive = [change for change in changes if change.op is not Op.TRUNCATE and change.position > floor]
    high = max((change.position for change in changes), default="")
    partial = frozenset(name for change in alive for name in change.unchanged)
    mark = Mark(log, offset, high, floor)
    return Batch(table, rows_of(spark, table, alive), mark, floor, partial)


def events(spark: SparkSession, first: int, last: int) -> Batch:
    """Return a batch of events of items, for mode append: one at each offset."""
    columns = "_cdc_table string, _cdc_op string, _cdc_position string, _cdc_changed_at timestamp, _cdc_ingested_at timestamp, "
    columns += "_cdc_topic string, _cdc_partition int, _cdc_offset bigint, id bigint, name string, size int"
    now = datetime.datetime(2024, 1, 1)
    rows = [(ITEMS.name, "u", at(n), now, now, "t", 0, n, 1, f"v{n}", n) for n in range(first, last + 1)]
    return Batch(ITEMS, frame(spark, rows, columns).localCheckpoint(), Mark(LOG, last, at(last)))


class CommitContract:
    """What a commit must do wherever it goes: inherit this for a second place, and say how it is opened and read."""

    spark: SparkSession
    holds_zero = True
    """Text may hold the character 0."""
    holds_nan = True
    """A double may be no number."""

    def open(self, *, pipeline: str = "shop", name: str = "lake", mode: str = "scd1") -> Target:
        """Return a target over the store of this test; opening again is a restart."""
        raise NotImplementedError

    def read(self, target: Target, table: Table) -> list[Image]:
        """Return what a plain reader of `table` sees, in any order."""
        raise NotImplementedError

    def visible(self, rows: DataFrame) -> list[Image]:
        """Return `rows` without columns of ours, unless they tell of events."""
        append = "_cdc_offset" in rows.columns
        names = [name for name in rows.columns if append or not name.startswith(RESERVED)]
        return [{name: row[name] for name in names} for row in rows.collect()]

    def rows(self, target: Target, table: Table = ITEMS) -> list[Image]:
        """Return what a plain reader sees, sorted by key."""
        return sorted(self.read(target, table), key=lambda row: tuple(str(row[key]) for key in table.keys))

    def opened(self, table: Table = ITEMS, **names: str) -> Target:
        """Return a target that has `table`."""
        target = self.open(**names)
        self.reshape(target, table)
        return target

    def reshape(self, target: Target, table: Table, policy: Evolution = Evolution.ALTER) -> Table:
        """Bring the target's table to the shape of `table`, and return the shape of its batches."""
        change = fit(target.have(table.name), table, policy)
        target.evolve(table.name, change)
        return change.table

    def send(self, target: Target, changes: Sequence[Change], offset: int, table: Table = ITEMS) -> None:
        """Apply `changes` as the engine does: drop what the target knows better, then hand over the rest."""
        known = {tuple(row[key] for key in table.keys): row for row in target.known(table.name).collect()}
        mark = target.mark(table.name)
        floor = max([mark.floor if mark else "", *(c.position for c in changes if c.op is Op.TRUNCATE)])
        news = [
            change
            for change in changes
            if change.op is Op.TRUNCATE
            or change.position > max(floor, known[change.key]["_cdc_position"] if change.key in known else "")
        ]
        made = batch(self.spark, news, offset, table)
        target.apply(Batch(table, made.rows, Mark(LOG, offset, made.mark.high, floor), made.truncate, made.partial))

    def test_the_mark_survives_a_restart(self) -> None:
        target = self.opened()
        target.apply(batch(self.spark, [put(1, 1)], 1))
        target.apply(batch(self.spark, [truncate(2), put(3, 1)], 3))
        assert target.mark(ITEMS.name) == Mark(LOG, 3, at(3), at(2))
        assert self.open().mark(ITEMS.name) == Mark(LOG, 3, at(3), at(2))

    def test_a_batch_at_or_below_the_mark_changes_nothing(self) -> None:
        target = self.opened()
        target.apply(batch(self.spark, [put(5, 1, "new")], 5))
        for opened in (target, self.open()):
            for offset in (4, 5):
                assert opened.apply(batch(self.spark, [put(9, 1, "again"), put(8, 2)], offset)).inserted == 0
        assert self.rows(target) == [{"id": 1, "name": "new", "size": 1}]
        assert self.open().mark(ITEMS.name) == Mark(LOG, 5, at(5), "")

    def test_a_replay_is_applied_once_and_leaves_the_offset_where_it_is(self) -> None:
        target = self.opened()
        target.apply(batch(self.spark, [put(10, 1), drop(9, 9)], 5))
        again = batch(self.spark, [put(7, 2, "late"), drop(8, 3)], 5)
        again = replace(again, mark=replace(again.mark, high=at(10), replays=6), replay=True)
        assert target.apply(again).inserted == 1
        target = self.open()
        assert target.mark(ITEMS.name) == Mark(LOG, 5, at(10), replays=6)
        assert target.apply(again).inserted == 0
        assert [row["name"] for row in self.rows(target)] == ["x", "late"]
        known = {1: True, 2: True, 3: False, 9: False}
        assert {row[0]: row["_cdc_alive"] for row in target.known(ITEMS.name).collect()} == known
        assert target.apply(batch(self.spark, [put(20, 4)], 6)).inserted == 1
        known[4] = True
        assert {row[0]: row["_cdc_alive"] for row in self.open().known(ITEMS.name).collect()} == known

    def test_a_batch_without_rows_still_moves_the_mark(self) -> None:
        target = self.opened()
        target.apply(batch(self.spark, [], 4))
        assert self.open().mark(ITEMS.name) == Mark(LOG, 4)
        target.apply(batch(self.spark, [put(1, 1)], 5))
        target.apply(batch(self.spark, [], 9))
        assert self.open().mark(ITEMS.name) == Mark(LOG, 9)
        assert len(self.rows(target)) == 1

    def test_a_deleted_row_is_not_brought_back_by_an_older_upsert(self) -> None:
        target = self.opened()
        self.send(target, [put(1, 1), put(2, 2)], 2)
        self.send(target, [drop(9, 1), drop(9, 7)], 3)
        again = self.open()
        self.send(again, [put(5, 1), put(6, 7), put(7, 2, "y")], 4)
        assert self.rows(again) == [{"id": 2, "name": "y", "size": 1}]
        self.send(again, [put(10, 1, "z")], 5)
        known = {row["id"]: (row["_cdc_position"], row["_cdc_alive"]) for row in again.known(ITEMS.name).collect()}
        assert known == {1: (at(10), True), 2: (at(7), True), 7: (at(9), False)}

    def test_names_from_outside_are_only_names(self) -> None:
        names = ["select", "a.b", "ä ö", "`", "a`b", "x,y;{}()=", "${spark.app.name}", "o'clock\\", "n" * 300]
        table = Table(
            "public.odd names.t`x", (Column("the key", "string"), *(Column(n, "string") for n in names)), ("the key",)
        )
        target = self.opened(table)
        for place, key in enumerate(["k'1", "${HOME}", "\\", "k'1"], start=1):
            image = {"the key": key, **{name: f"{name[:20]}'{place}" for name in names}}
            change = Change(table.name, Op.CREATE, at(place), (key,), image)
            half = Change(table.name, Op.UPDATE, at(place), (key,), {**image, "a.b": None}, frozenset({"a.b"}))
            target.apply(batch(self.spark, [half if place == 4 else change], place, table))
        found = {row["the key"]: row for row in self.rows(target, table)}
        assert found.keys() == {"k'1", "${HOME}", "\\"}
        assert found["k'1"]["a.b"] == "a.b'1"
        assert found["k'1"]["`"] == "`'4"
        assert target.have(table.name) == table
        target.apply(batch(self.spark, [Change(table.name, Op.DELETE, at(9), ("\\",))], 9, table))
        self.reshape(target, Table(table.name, (*table.columns, Column("späte Spalte", "int", default=1)), table.keys))
        assert {(row["the key"], row["späte Spalte"]) for row in self.read(target, table)} == {
            ("k'1", 1),
            ("${HOME}", 1),
        }

    @pytest.mark.parametrize("seed", [1, 2])
    def test_any_order_batching_and_replay_gives_the_folded_table(self, seed: int) -> None:
        dice = random.Random(seed)
        history: list[Change] = []
        for place in range(1, 41):
            key, roll = dice.randrange(6), dice.random()
            history.append(
                drop(place, key) if roll < 0.3 else truncate(place) if roll < 0.35 else put(place, key, f"v{place}")
            )
        wanted = fold(history)
        dice.shuffle(history)
        target = self.opened()
        offset = 0
        while offset < len(history):
            size = dice.randrange(6, 14)
            target = self.open() if dice.random() < 0.3 else target
            replayed = history[max(0, offset - dice.randrange(4)) : offset + size]
            self.send(target, replayed, min(offset + size, len(history)))
            offset += size
        assert self.rows(target) == sorted((row for _, row in wanted.rows.values()), key=lambda row: str(row["id"])), (
            seed
        )

    def test_two_pipelines_in_one_place_do_not_mix(self) -> None:
        target = self.opened()
        target.apply(batch(self.spark, [put(1, 1)], 1))
        with pytest.raises(Halt) as halted:
            self.open(pipeline="other").mark(ITEMS.name)
        assert halted.value.code == "foreign-table"
        with pytest.raises(Halt):
            self.open(name="second").evolve(ITEMS.name, fit(None, ITEMS, Evolution.ALTER))
        assert self.rows(target) == [{"id": 1, "name": "x", "size": 1}]

    def test_a_refused_change_leaves_no_trace(self) -> None:
        target = self.opened()
        target.apply(batch(self.spark, [put(1, 1)], 1))
        other = Table(ITEMS.name, (Column("id", "bigint"), Column("name", "int")), ITEMS.keys)
        with pytest.raises(Halt):
            self.reshape(target, other)
        with pytest.raises(Halt):
            self.reshape(target, Table(ITEMS.name, (*ITEMS.columns, Column("n", "int")), ("id",)), Evolution.FAIL)
        assert self.open().have(ITEMS.name) == ITEMS
        assert self.open().mark(ITEMS.name) == Mark(LOG, 1, at(1))
        assert self.rows(target) == [{"id": 1, "name": "x", "size": 1}]

    def test_append_keeps_every_event_once(self) -> None:
        target = self.open(mode="append")
        self.reshape(target, ITEMS)
        assert target.apply(events(self.spark, 1, 3)).inserted == 3
        target.apply(events(self.spark, 4, 5))
        assert self.open(mode="append").apply(events(self.spark, 4, 5)).inserted == 0
        found = sorted(self.read(target, ITEMS), key=lambda row: row["_cdc_offset"])
        assert [(row["_cdc_offset"], row["name"]) for row in found] == [(n, f"v{n}") for n in range(1, 6)]
        assert target.have(ITEMS.name) == ITEMS

    def test_of_two_writers_of_one_table_one_commits_each_range(self) -> None:
        slow, quick = self.open(mode="append"), self.open(mode="append")
        self.reshape(slow, ITEMS)
        assert [target.mark(ITEMS.name) for target in (slow, quick)] == [None, None]
        assert quick.apply(events(self.spark, 1, 3)).inserted == 3
        with pytest.raises(Retryable) as refused:
            # It was made for a table without any row.
            slow.apply(events(self.spark, 1, 5))
        assert refused.value.code == "write-conflict"
        assert slow.mark(ITEMS.name) == Mark(LOG, 3, at(3))
        assert slow.apply(events(self.spark, 4, 5)).inserted == 2
        with pytest.raises(TailraceError) as replaced:
            quick.apply(events(self.spark, 4, 6))
        assert replaced.value.code in ("write-conflict", "owner-replaced")
        assert sorted(row["_cdc_offset"] for row in self.read(slow, ITEMS)) == [1, 2, 3, 4, 5]

    @pytest.mark.parametrize("there", [True, False], ids=["an empty table", "no table"])
    def test_nothing_that_is_asked_after_the_mark_hides_a_commit_of_another_writer(self, there: bool) -> None:
        slow, quick = self.open(mode="append"), self.open(mode="append")
        if there:
            self.reshape(slow, ITEMS)
        assert slow.mark(ITEMS.name) is None
        self.reshape(quick, ITEMS)
        assert quick.mark(ITEMS.name) is None
        assert quick.apply(events(self.spark, 1, 3)).inserted == 3
        slow.notes(ITEMS.name)
        self.reshape(slow, Table(ITEMS.name, (*ITEMS.columns, Column("note", "string")), ITEMS.keys))
        with pytest.raises(Retryable) as refused:
            slow.apply(events(self.spark, 1, 5))
        assert refused.value.code == "write-conflict"
        assert slow.mark(ITEMS.name) == Mark(LOG, 3, at(3))
        assert sorted(row["_cdc_offset"] for row in self.read(slow, ITEMS)) == [1, 2, 3]


class TargetContract(CommitContract):
    """All that a target must do."""

    def test_current_rows_say_their_position(self) -> None:
        target = self.opened()
        self.send(target, [put(1, 1), put(2, 2)], 0)
        found = {row["id"]: row["_cdc_position"] for row in target.current(ITEMS.name).collect()}
        assert found == {1: at(1), 2: at(2)}

    def test_a_table_that_was_never_written_has_no_shape_and_no_mark(self) -> None:
        target = self.open()
        assert target.have(ITEMS.name) is None
        assert target.mark(ITEMS.name) is None

    def test_a_created_table_has_the_shape_it_was_given_and_no_rows(self) -> None:
        target = self.opened()
        assert target.have(ITEMS.name) == ITEMS
        assert target.mark(ITEMS.name) is None
        assert self.rows(target) == []

    def test_creating_twice_changes_nothing(self) -> None:
        target = self.opened()
        target.apply(batch(self.spark, [put(1, 1)], 1))
        target.evolve(ITEMS.name, fit(None, ITEMS, Evolution.ALTER))
        assert self.rows(target) == [{"id": 1, "name": "x", "size": 1}]

    def test_inserts_updates_and_deletes_are_counted_and_seen(self) -> None:
        target = self.opened()
        first = target.apply(batch(self.spark, [put(1, 1), put(2, 2), put(3, 3)], 3))
        second = target.apply(batch(self.spark, [put(4, 2, "y"), drop(5, 3), put(6, 4, None, None)], 6))
        assert (first.inserted, first.updated, first.deleted) == (3, 0, 0)
        assert (second.inserted, second.updated, second.deleted) == (1, 1, 1)
        assert self.rows(target) == [
            {"id": 1, "name": "x", "size": 1},
            {"id": 2, "name": "y", "size": 1},
            {"id": 4, "name": None, "size": None},
        ]

    def test_another_log_starts_its_own_count(self) -> None:
        target = self.opened()
        target.apply(batch(self.spark, [put(1, 1)], 100))
        again = self.open()
        assert again.mark(ITEMS.name) == Mark(LOG, 100, at(1))
        again.apply(batch(self.spark, [put(2, 1, "y")], 3, log="log-2"))
        assert self.open().mark(ITEMS.name) == Mark("log-2", 3, at(2))
        assert self.rows(again) == [{"id": 1, "name": "y", "size": 1}]

    def test_a_row_never_replaces_a_newer_one(self) -> None:
        target = self.opened()
        target.apply(batch(self.spark, [put(5, 1, "new"), put(5, 2, "new")], 1))
        target.apply(batch(self.spark, [put(4, 1, "old"), drop(3, 2)], 2))
        assert [row["name"] for row in self.rows(target)] == ["new", "new"]

    def test_a_truncate_deletes_what_is_older_and_nothing_newer(self) -> None:
        target = self.opened()
        target.apply(batch(self.spark, [put(1, 1), put(2, 2), put(8, 3)], 3))
        applied = target.apply(batch(self.spark, [truncate(5), put(6, 2, "y"), put(7, 4)], 5))
        assert applied.deleted == 1
        assert [(row["id"], row["name"]) for row in self.rows(target)] == [(2, "y"), (3, "x"), (4, "x")]

    def test_a_truncate_alone_empties_the_table(self) -> None:
        target = self.opened()
        target.apply(batch(self.spark, [put(1, 1), put(2, 2)], 2))
        target.apply(batch(self.spark, [truncate(3)], 3))
        assert self.rows(target) == []
        assert self.open().mark(ITEMS.name) == Mark(LOG, 3, at(3), at(3))

    def test_a_truncate_of_an_empty_table_sets_the_floor(self) -> None:
        target = self.opened()
        target.apply(batch(self.spark, [truncate(3)], 3))
        self.send(self.open(), [put(2, 1), put(4, 2)], 4)
        assert [row["id"] for row in self.rows(target)] == [2]

    def test_an_unchanged_column_keeps_the_value_of_the_row(self) -> None:
        target = self.opened()
        target.apply(batch(self.spark, [put(1, 1, "long", 1), put(1, 2, "long", 1)], 1))
        image = {"id": 1, "name": None, "size": 2}
        partial = Change(ITEMS.name, Op.UPDATE, at(2), (1,), image, frozenset({"name"}))
        target.apply(batch(self.spark, [partial, put(2, 2, None, 3)], 2))
        assert self.rows(target) == [{"id": 1, "name": "long", "size": 2}, {"id": 2, "name": None, "size": 3}]

    def test_an_unchanged_column_finds_nothing_to_keep_behind_a_truncate(self) -> None:
        target = self.opened()
        target.apply(batch(self.spark, [put(1, 1, "gone")], 1))
        image = {"id": 1, "name": None, "size": 2}
        partial = Change(ITEMS.name, Op.UPDATE, at(3), (1,), image, frozenset({"name"}))
        target.apply(batch(self.spark, [truncate(2), partial], 3))
        assert self.rows(target) == [{"id": 1, "name": None, "size": 2}]

    def test_a_new_column_gives_its_default_to_the_rows_that_exist(self) -> None:
        target = self.opened()
        target.apply(batch(self.spark, [put(1, 1)], 1))
        added = (
            Column("stock", "int", default=5),
            Column("note", "string"),
            Column("since", "date", default="2024-02-29"),
        )
        grown = Table(ITEMS.name, (*ITEMS.columns, *added), ITEMS.keys)
        self.reshape(target, grown)
        self.reshape(target, grown)
        image = {"id": 2, "name": "n", "size": 1, "stock": 7, "note": "new", "since": None}
        target.apply(batch(self.spark, [Change(ITEMS.name, Op.CREATE, at(2), (2,), image)], 2, grown))
        day = datetime.date(2024, 2, 29)
        assert self.rows(target) == [
            {"id": 1, "name": "x", "size": 1, "stock": 5, "note": None, "since": day},
            image,
        ]
        assert [column.name for column in target.have(ITEMS.name).columns] == list(grown.names())

    def test_a_column_that_the_batch_does_not_carry_keeps_its_value(self) -> None:
        target = self.opened()
        target.apply(batch(self.spark, [put(1, 1, "kept")], 1))
        narrow = Table(ITEMS.name, (ITEMS.columns[0], ITEMS.columns[2]), ITEMS.keys)
        changes = [
            Change(ITEMS.name, Op.UPDATE, at(2), (1,), {"id": 1, "size": 9}),
            Change(ITEMS.name, Op.CREATE, at(3), (2,), {"id": 2, "size": 8}),
        ]
        target.apply(batch(self.spark, changes, 3, narrow))
        assert self.rows(target) == [{"id": 1, "name": "kept", "size": 9}, {"id": 2, "name": None, "size": 8}]

    def test_types_widen_in_place_and_old_values_stay(self) -> None:
        narrow = Table(
            "public.w",
            (
                Column("id", "int"),
                Column("day", "date"),
                Column("n", "int"),
                Column("f", "float"),
                Column("d", "decimal(5,2)"),
                Column("on", "date"),
                Column("plain", "date"),
            ),
            ("id", "day"),
        )
        wide = Table(
            "public.w",
            (
                Column("id", "bigint"),
                Column("day", "timestamp"),
                Column("n", "bigint"),
                Column("f", "double"),
                Column("d", "decimal(12,4)"),
                Column("on", "timestamp"),
                Column("plain", "timestamp_ntz"),
            ),
            ("id", "day"),
        )
        target = self.opened(narrow)
        day, first = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC)
        old = {"id": 1, "day": day, "n": 7, "f": 0.5, "d": Decimal("1.25"), "on": day, "plain": day}
        gone = Change("public.w", Op.DELETE, at(1), (3, day))
        target.apply(batch(self.spark, [Change("public.w", Op.CREATE, at(1), (1, day), old), gone], 1, narrow))
        shape = self.reshape(target, wide)
        self.reshape(target, wide)
        assert target.mark("public.w") == Mark(LOG, 1, at(1))
        noon = datetime.datetime(1969, 7, 20, 12, 17, 40, 5, datetime.UTC)
        new = {"id": 2**40, "n": 2**40, "f": 0.1, "d": Decimal("12345678.1234"), "plain": noon.replace(tzinfo=None)}
        new |= {"day": noon, "on": noon}
        renewed = {**old, "day": first, "on": noon, "plain": noon.replace(tzinfo=None)}
        changes = [
            Change("public.w", Op.CREATE, at(2), (2**40, noon), new),
            Change("public.w", Op.DELETE, at(3), (2**41, noon)),
            Change("public.w", Op.UPDATE, at(4), (1, first), renewed, frozenset({"on"})),
        ]
        target.apply(batch(self.spark, changes, 2, shape))
        found = target.current("public.w").selectExpr(
            "id", "unix_micros(day) AS day", "n", "f", "d", "unix_micros(`on`) AS `on`", "plain"
        )
        expected = [{**renewed, "on": first, "d": Decimal("1.2500")}, new]
        assert sorted(self.visible(found), key=lambda row: row["id"]) == [
            {**row, "day": _micros(row["day"]), "on": _micros(row["on"])} for row in expected
        ]
        known = target.known("public.w").selectExpr("id", "unix_micros(day)").collect()
        here, there = _micros(first), _micros(noon)
        assert sorted(map(tuple, known)) == [(1, here), (3, here), (2**40, there), (2**41, there)]

    @pytest.mark.parametrize("ours", ["_tailrace", "_tailrace_tables", "_TAILRACE_tombstones_items"])
    def test_a_name_of_ours_is_refused(self, ours: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(TABLES, "public.ours", ours)
        with pytest.raises(Misconfigured) as refused:
            self.open()
        assert (refused.value.code, ours in str(refused.value)) == ("reserved-name", True)

    def test_a_composite_key_is_one_key(self) -> None:
        columns = (Column("order", "bigint"), Column("line", "string"), Column("n", "int"))
        table = Table("public.lines", columns, ("order", "line"))
        target = self.opened(table)

        def line(place: int, order: int, name: str, n: int) -> Change:
            return Change(table.name, Op.UPDATE, at(place), (order, name), {"order": order, "line": name, "n": n})

        target.apply(batch(self.spark, [line(1, 1, "a", 1), line(1, 1, "b", 1), line(1, 2, "a", 1)], 1, table))
        target.apply(batch(self.spark, [line(2, 1, "b", 2), Change(table.name, Op.DELETE, at(3), (2, "a"))], 2, table))
        assert [(row["order"], row["line"], row["n"]) for row in self.rows(target, table)] == [(1, "a", 1), (1, "b", 2)]

    def test_values_of_every_type_come_back_as_they_went_in(self) -> None:
        types = {
            "id": "bigint", "b": "boolean", "i1": "tinyint", "i2": "smallint", "f": "float", "d": "double", "nan": "double",
            "dec": "decimal(38,10)", "s": "string", "bin": "binary", "day": "date", "ts": "timestamp",
            "ntz": "timestamp_ntz", "arr": "array<string>", "nested": "struct<a:int,b:array<decimal(4,2)>,`unit price`:int,`x.y-``z`:string>",
        }  # fmt: skip
        table = Table("public.all", tuple(Column(name, kind) for name, kind in types.items()), ("id",))
        image: Image = {
            "id": -(2**63), "b": True, "i1": -128, "i2": 32767, "f": 0.5, "d": 1e308, "nan": float("nan") if self.holds_nan else -0.0,
            "dec": Decimal("1234567890123456789012345678.0123456789"),
            "s": "naïve \U0001f40d \x00 '" if self.holds_zero else "naïve \U0001f40d \t '", "bin": b"\x00\xff",
            "day": datetime.date(1, 1, 1), "ts": datetime.datetime(2024, 2, 29, 23, 59, 59, 999999),
            "ntz": datetime.datetime(1969, 7, 20, 20, 17, 40, 1), "arr": ["a", None, ""],
            "nested": (1, [Decimal("1.50"), None], 3, "q"),
        }  # fmt: skip
        nothing = dict.fromkeys(types)
        changes = [
            Change(table.name, Op.CREATE, at(1), (image["id"],), image),
            Change(table.name, Op.CREATE, at(1), (1,), {**nothing, "id": 1}),
        ]
        target = self.opened(table)
        target.apply(batch(self.spark, changes, 1, table))
        target.apply(
            batch(
                self.spark, changes[:1] and [Change(table.name, Op.CREATE, at(2), (2,), {**image, "id": 2})], 2, table
            )
        )
        found = {row["id"]: row for row in self.rows(target, table)}
        assert repr(_comparable(found[image["id"]])) == repr(_comparable(image))
        assert repr(_comparable(found[2])) == repr(_comparable({**image, "id": 2}))
        assert found[1] == {**nothing, "id": 1}


def _comparable(row: Image) -> Image:
    return {
        name: bytes(v) if isinstance(v, bytearray) else tuple(v) if isinstance(v, tuple) else v
        for name, v in row.items()
    }
