"""What every target in a SQL database must do beyond the contract: one transaction, one owner, nothing of others'.

Inherit this beside `TargetContract`, and say how statements of somebody else are run.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pytest

import tailrace
from tailrace.apply.target import Batch, Mark
from tailrace.core import failpoint
from tailrace.core.change import Change, Op
from tailrace.core.errors import Halt, Misconfigured, Retryable
from tailrace.core.table import Column, Evolution, Table, fit
from tailrace.spark.frame import frame
from tailrace.targets._sql.target import SqlTarget
from tests.contracts.target import ITEMS, LOG, TargetContract, at, batch, drop, put, truncate

ODD = '{"a": 1.10, "a":  2}'
"""A document that a database would write otherwise if it took it apart."""
JSON_ITEMS = Table(
    ITEMS.name, (Column("id", "bigint"), Column("name", "string", json=True), Column("size", "int")), ("id",)
)


class SqlContract(TargetContract):
    """What a database must do; `sql` runs a statement as any other client would."""

    adopts = True
    """A table that was made beforehand can be taken over."""
    bounds_text = True
    """A column with a length takes no longer text."""

    documents = ""
    """A query for the documents of `items` that a JSON type keeps as they were written; empty if there is none."""

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    def address(self, table: str) -> str:
        """Return the name of `table` for `apply_changes`."""
        raise NotImplementedError

    @pytest.fixture
    def armed(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
        """Return how a failpoint is armed for this test alone."""
        monkeypatch.setattr(failpoint, "_armed", {})
        return lambda name: failpoint.arm({"TAILRACE_TEST_MODE": "1", "TAILRACE_FAILPOINTS": f"{name}=raise"})

    def filled(self) -> SqlTarget:
        target = self.opened()
        target.apply(batch(self.spark, [put(1, 1), put(1, 2)], 1))
        assert isinstance(target, SqlTarget)
        return target

    def positions(self, target: SqlTarget) -> dict[int, tuple[str, bool]]:
        return {row["id"]: (row["_cdc_position"], row["_cdc_alive"]) for row in target.known(ITEMS.name).collect()}

    @pytest.mark.parametrize("name", ["C19", "C22"])
    def test_a_batch_that_breaks_off_before_its_commit_leaves_nothing(
        self, name: str, armed: Callable[[str], None]
    ) -> None:
        target = self.filled()
        armed(name)
        with pytest.raises(Retryable):
            target.apply(batch(self.spark, [drop(5, 1), put(6, 3)], 2))
        for opened in (target, self.open()):
            assert opened.mark(ITEMS.name) == Mark(LOG, 1, at(1))
            assert self.positions(opened) == {1: (at(1), True), 2: (at(1), True)}
        target.apply(batch(self.spark, [drop(5, 1), put(6, 3)], 2))
        assert self.positions(target) == {1: (at(5), False), 2: (at(1), True), 3: (at(6), True)}

    @pytest.mark.parametrize("name", ["C23", "C25"])
    def test_a_commit_whose_answer_was_lost_is_recognised(self, name: str, armed: Callable[[str], None]) -> None:
        target = self.filled()
        armed(name)
        lost = batch(self.spark, [drop(5, 1), put(6, 3)], 2)
        with pytest.raises(Retryable):
            target.apply(lost)
        for opened in (target, self.open()):
            assert opened.mark(ITEMS.name) == Mark(LOG, 2, at(6))
            assert opened.apply(lost).inserted == 0
        assert [row["id"] for row in self.rows(target)] == [2, 3]

    def test_a_commit_that_landed_before_the_error_is_done(self, monkeypatch: pytest.MonkeyPatch) -> None:
        target = self.filled()
        database = target._database
        connect = database.connect

        @contextmanager
        def unlucky(*, write: bool) -> Any:
            with connect(write=write) as session:
                commit = session.commit

                def landed_then_lost() -> None:
                    commit()
                    raise database.errors[0]("the answer was lost")

                session.commit = landed_then_lost if write else commit  # type: ignore[method-assign]
                yield session

        monkeypatch.setattr(database, "connect", unlucky)
        assert target.apply(batch(self.spark, [put(6, 3)], 2)).inserted == 1
        assert target.mark(ITEMS.name) == Mark(LOG, 2, at(6))

    def test_an_owner_that_was_replaced_can_commit_no_more(self) -> None:
        old = self.filled()
        new = self.open()
        new.mark(ITEMS.name)
        new.apply(batch(self.spark, [put(2, 2, "new")], 2))
        with pytest.raises(Halt) as halted:
            old.apply(batch(self.spark, [put(3, 3)], 3))
        assert halted.value.code == "owner-replaced"
        new.apply(batch(self.spark, [put(4, 4)], 4))
        assert [(row["id"], row["name"]) for row in self.rows(new)] == [(1, "x"), (2, "new"), (4, "x")]

    def test_a_batch_for_a_mark_that_is_gone_is_refused(self) -> None:
        target = self.filled()
        made = batch(self.spark, [put(2, 2)], 2)
        with pytest.raises(Retryable):
            target.apply(Batch(ITEMS, made.rows, made.mark, after=Mark(LOG, 0)))
        assert target.mark(ITEMS.name) == Mark(LOG, 1, at(1))

    def test_a_table_of_somebody_else_is_left_alone(self) -> None:
        self.opened(Table("public.lines", ITEMS.columns, ITEMS.keys))
        self.sql("CREATE TABLE items (id bigint, other int)")
        target = self.open()
        for ask in (target.have, target.mark):
            with pytest.raises(Halt) as halted:
                ask(ITEMS.name)
            assert halted.value.code == "foreign-table"
        assert self.sql("SELECT * FROM items") == []

    def test_an_empty_table_with_a_key_is_taken_over_as_it_is(self) -> None:
        self.opened(Table("public.lines", ITEMS.columns, ITEMS.keys))
        self.sql("CREATE TABLE items (id bigint PRIMARY KEY, name text, size bigint DEFAULT 7)")
        target = self.open()
        if not self.adopts:
            with pytest.raises(Halt):
                target.have(ITEMS.name)
            return
        have = target.have(ITEMS.name)
        assert have is not None
        assert have.keys == ("id",)
        assert target.mark(ITEMS.name) is None
        assert target.known(ITEMS.name).count() == 0
        shape = self.reshape(target, ITEMS)
        target.apply(batch(self.spark, [put(1, 1), put(1, 2, None, None), drop(1, 3)], 1, shape))
        assert self.rows(target) == [{"id": 1, "name": "x", "size": 1}, {"id": 2, "name": None, "size": None}]
        assert self.open().mark(ITEMS.name) == Mark(LOG, 1, at(1))

    def test_text_of_a_bounded_length_is_taken_over_and_nothing_is_cut_to_fit(self) -> None:
        if not self.adopts:
            return
        self.opened(Table("public.lines", ITEMS.columns, ITEMS.keys))
        self.sql("CREATE TABLE items (id bigint PRIMARY KEY, name varchar(3), size bigint)")
        target = self.open()
        shape = self.reshape(target, ITEMS)
        target.apply(batch(self.spark, [put(1, 1, "abc")], 1, shape))
        long = batch(self.spark, [put(2, 2, "abcd"), put(2, 3, "y")], 2, shape)
        if self.bounds_text:
            with pytest.raises(Halt) as halted:
                target.apply(long)
            assert halted.value.code == "value-refused"
            assert "abcd" not in halted.value.render()
        else:
            target.apply(long)
        there = [(1, "abc")] if self.bounds_text else [(1, "abc"), (2, "abcd"), (3, "y")]
        assert [(row["id"], row["name"]) for row in self.rows(target)] == there

    def test_a_document_is_json_where_there_is_such_a_type_and_stays_as_it_was_written(self) -> None:
        target = self.opened(JSON_ITEMS)
        target.apply(batch(self.spark, [put(1, 1, ODD), put(1, 2, "null"), put(1, 3, None)], 1))
        kept = Change(ITEMS.name, Op.UPDATE, at(2), (1,), {"id": 1, "name": None, "size": 2}, frozenset({"name"}))
        target.apply(batch(self.spark, [kept, put(2, 2, "[1.0]")], 2))
        assert [(row["name"], row["size"]) for row in self.rows(target)] == [(ODD, 2), ("[1.0]", 1), (None, 1)]
        if self.documents:
            assert sorted(self.sql(self.documents), key=str) == sorted([(ODD,), ("[1.0]",), (None,)], key=str)
            with pytest.raises(Halt) as halted:
                target.apply(batch(self.spark, [put(3, 4, "not json")], 3))
            assert halted.value.code == "value-refused"
        have = target.have(ITEMS.name)
        assert have is not None
        assert have.column("name") == Column("name", "string", json=bool(self.documents))

    def test_a_document_that_becomes_any_text_is_text_from_then_on(self) -> None:
        target = self.opened(JSON_ITEMS)
        target.apply(batch(self.spark, [put(1, 1, ODD)], 1))
        self.reshape(target, ITEMS)
        target.apply(batch(self.spark, [put(2, 2, "not json")], 2))
        assert [row["name"] for row in self.rows(self.open())] == [ODD, "not json"]

    def test_documents_go_on_as_text_in_a_table_that_has_text(self) -> None:
        target = self.opened()
        target.apply(batch(self.spark, [put(1, 1, "not json")], 1))
        added = Table(ITEMS.name, (*JSON_ITEMS.columns, Column("more", "string", default="{}", json=True)), ("id",))
        self.reshape(target, added)
        image = {"id": 2, "name": ODD, "size": 1, "more": ODD}
        target.apply(batch(self.spark, [Change(ITEMS.name, Op.CREATE, at(2), (2,), image)], 2, added))
        assert [(row["name"], row["more"]) for row in self.rows(target)] == [("not json", "{}"), (ODD, ODD)]

    def test_a_table_with_rows_is_not_taken_over(self) -> None:
        self.opened(Table("public.lines", ITEMS.columns, ITEMS.keys))
        self.sql("CREATE TABLE items (id bigint PRIMARY KEY, name text, size bigint)")
        self.sql("INSERT INTO items VALUES (1, 'mine', 1)")
        with pytest.raises(Halt) as halted:
            self.open().have(ITEMS.name)
        assert halted.value.code == "foreign-table"
        assert self.sql("SELECT * FROM items") == [(1, "mine", 1)]

    def test_a_table_that_was_dropped_is_built_again(self) -> None:
        target = self.filled()
        target.apply(batch(self.spark, [drop(9, 7)], 2))
        self.sql("DROP TABLE items")
        again = self.open()
        assert again.have(ITEMS.name) is None
        assert again.mark(ITEMS.name) is None
        self.reshape(again, ITEMS)
        again.apply(batch(self.spark, [put(3, 7)], 1))
        assert self.positions(again) == {7: (at(3), True)}

    def test_a_table_that_somebody_made_in_the_place_of_ours_is_filled_anew(self) -> None:
        target = self.filled()
        target.apply(batch(self.spark, [drop(9, 7)], 2))
        self.sql("DROP TABLE items")
        self.sql("CREATE TABLE items (id bigint PRIMARY KEY, name text, size bigint)")
        again = self.open()
        if not self.adopts:
            with pytest.raises(Halt) as halted:
                again.mark(ITEMS.name)
            assert halted.value.code == "foreign-table"
            return
        assert again.mark(ITEMS.name) is None
        shape = self.reshape(again, ITEMS)
        again.apply(batch(self.spark, [put(3, 7)], 1, shape))
        assert self.positions(again) == {7: (at(3), True)}

    def test_tombstones_are_forgotten_after_their_days(self) -> None:
        target = self.filled()
        target.apply(batch(self.spark, [drop(5, 1)], 2))
        target.collect_tombstones()
        assert self.positions(target) == {1: (at(5), False), 2: (at(1), True)}
        target._table(ITEMS.name).collect_tombstones(datetime.date(9999, 1, 1))
        assert self.positions(target) == {2: (at(1), True)}

    def test_another_mode_is_refused(self) -> None:
        self.filled()
        with pytest.raises(Halt) as halted:
            self.open(mode="append").apply(batch(self.spark, [put(5, 5)], 5))
        assert halted.value.code == "mode-changed"

    def test_a_truncate_marks_rows_that_are_to_stay(self) -> None:
        shape = Table(ITEMS.name, (*ITEMS.columns, Column("gone", "boolean"), Column("at", "timestamp")), ("id",))
        for offset, flag in enumerate(["gone", "at"]):
            self.sql("DROP TABLE items") if offset else None
            target = self.opened(shape)
            images = [{"id": n, "name": "x", "size": 1, "gone": False, "at": None} for n in (1, 2, 3)]
            changes = [Change(ITEMS.name, Op.CREATE, at(n * 3), (n,), image) for n, image in enumerate(images, start=1)]
            target.apply(batch(self.spark, changes, 1, shape))
            again = Change(ITEMS.name, Op.UPDATE, at(7), (2,), {**images[1], "name": None}, frozenset({"name"}))
            made = batch(self.spark, [truncate(6), again], 2, shape)
            done = target.apply(Batch(shape, made.rows, made.mark, made.truncate, made.partial, soft=flag))
            assert (done.inserted, done.updated, done.deleted) == (0, 2, 0)
            found = [(row["id"], row["name"], bool(row[flag])) for row in self.rows(target)]
            assert found == [(1, "x", True), (2, "x", False), (3, "x", False)]

    def test_a_late_row_finds_the_tombstone_of_its_key(self) -> None:
        target = self.filled()
        target.apply(batch(self.spark, [drop(5, 1)], 2))
        target.apply(batch(self.spark, [put(4, 1), put(5, 2)], 3))
        assert self.positions(target) == {1: (at(5), False), 2: (at(5), True)}

    def test_a_delete_among_the_first_rows_leaves_a_tombstone(self) -> None:
        target = self.opened()
        assert isinstance(target, SqlTarget)
        done = target.apply(batch(self.spark, [put(1, 1), drop(9, 7), put(3, 2)], 1))
        assert (done.inserted, done.updated, done.deleted) == (2, 0, 0)
        target.apply(batch(self.spark, [put(6, 7), put(7, 1)], 2))
        assert self.positions(target) == {1: (at(7), True), 2: (at(3), True), 7: (at(9), False)}

    def test_apply_changes_writes_here_and_reads_back(self) -> None:
        place = self.address("Changes of mine")
        schema = "id bigint, name string, seq bigint, op string"

        def feed(*rows: tuple[Any, ...], **options: Any) -> tailrace.ApplyResult:
            given = {"apply_as_deletes": "op = 'd'", "except_column_list": ["seq", "op"], **options}
            source = frame(self.spark, rows, schema)
            # A text within a sequence ends in a mark, and not every database has room for every character.
            return tailrace.apply_changes(source, place, keys=["id"], sequence_by="struct('a' || seq, seq)", **given)

        with pytest.raises(Halt) as halted:
            tailrace.read(place)
        assert halted.value.code == "table-missing"
        first = feed((1, "a", 1, "u"), (2, "b", 1, "u"), batch_id=1)
        assert (first.read, first.applied, first.rows_inserted) == (2, 2, 2)
        assert feed((9, "never", 9, "u"), batch_id=1).read == 0
        second = feed((1, "late", 0, "u"), (2, None, 2, "d"), (3, "c", 1, "u"), batch_id=2)
        assert (second.applied, second.superseded, second.rows_inserted, second.rows_deleted) == (2, 1, 1, 1)
        assert sorted(tuple(row) for row in tailrace.read(place).collect()) == [(1, "a"), (3, "c")]

    @pytest.mark.parametrize(("wide", "zone"), [("timestamp", "Z"), ("timestamp_ntz", "")])
    def test_a_day_inside_another_value_becomes_its_first_moment(self, wide: str, zone: str) -> None:
        place = self.address(f"days of {wide}")

        def put(key: int, kind: str, day: datetime.date) -> None:
            schema = f"id int, one struct<day:{kind}>, more array<{kind}>, seq int"
            source = frame(self.spark, [(key, (day,), [day, None], key)], schema)
            tailrace.apply_changes(source, place, keys=["id"], sequence_by="seq", except_column_list=["seq"])

        put(1, "date", datetime.date(2024, 2, 29))
        put(2, wide, datetime.datetime(2024, 3, 1, 5, 0, 0, 6, datetime.UTC if zone else None))
        for key, text in ((1, "2024-02-29 00:00:00"), (2, "2024-03-01 05:00:00.000006")):
            time = f"{wide} '{text}{zone}'"
            found = tailrace.read(place).where(f"one.day = {time} AND more <=> array({time}, NULL)")
            assert [row["id"] for row in found.collect()] == [key]

    def test_read_returns_what_a_pipeline_keeps_and_apply_changes_leaves_it_alone(self) -> None:
        self.filled()
        place = self.address("items")
        assert sorted(tuple(row) for row in tailrace.read(place).collect()) == [(1, "x", 1), (2, "x", 1)]
        with pytest.raises(Halt) as halted:
            tailrace.apply_changes(frame(self.spark, [(1, 9)], "id bigint, seq int"), place, ["id"], "seq")
        assert halted.value.code == "foreign-table"

    def test_a_target_without_a_table_is_refused(self) -> None:
        bare = self.address("x").rpartition("#")[0]
        with pytest.raises(Misconfigured) as refused:
            tailrace.read(bare)
        assert refused.value.code == "unknown-target"

    def test_a_wider_key_still_finds_its_rows(self) -> None:
        def table(kind: str) -> Table:
            return Table("public.w", (Column("id", kind), Column("n", "int")), ("id",))

        target = self.opened(table("int"))

        def change(place: int, key: Any, n: int) -> Change:
            return Change("public.w", Op.UPDATE, at(place), (key,), {"id": key, "n": n})

        target.apply(batch(self.spark, [change(1, 1, 1), Change("public.w", Op.DELETE, at(1), (2,))], 1, table("int")))
        wide = table("decimal(12,2)")
        target.evolve("public.w", fit(target.have("public.w"), wide, Evolution.ALTER))
        done = target.apply(batch(self.spark, [change(2, Decimal("1.00"), 2), change(2, Decimal("2.00"), 2)], 2, wide))
        assert (done.inserted, done.updated) == (1, 1)
        assert sorted((row["id"], row["n"]) for row in self.read(target, wide)) == [(1, 2), (2, 2)]
        assert target.known("public.w").count() == 2
