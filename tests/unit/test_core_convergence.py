"""Convergence: whatever happens to a history on its way, the table it folds to is the source's own.

The oracle applies a history to a dictionary in the order in which the source committed it. It knows
nothing of positions, so it cannot share a mistake with `fold`. A failure names the seed that replays it:
`converge(seed)`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tailrace.core.change import Change, Folded, Key, Op, fold
from tailrace.core.position import Phase, position

Rows = dict[Key, dict[str, object]]
HISTORIES = 20_000


@dataclass
class Database:
    """The source: rows, and the changes that made them, in the order of their commits."""

    chance: random.Random
    rows: Rows = field(default_factory=dict)
    log: list[Change] = field(default_factory=list)
    place: int = 2**53

    def _tell(self, op: Op, key: Key = (), after: dict[str, object] | None = None, *left_out: str) -> None:
        where = position(1, Phase.CHANGE, self.place)
        self.log.append(Change("t", op, where, key, after, frozenset(left_out)))

    def snapshot(self) -> None:
        for number in range(self.chance.randrange(4)):
            self.rows[number,] = self._image()
            where = position(1, Phase.SNAPSHOT, 2**60)
            self.log.append(Change("t", Op.READ, where, (number,), dict(self.rows[number,])))

    def transact(self) -> None:
        for _ in range(self.chance.randrange(1, 5)):
            self.place += self.chance.choice([1, 8, 2**20])
            self._change((self.chance.randrange(4),))

    def _change(self, key: Key) -> None:
        kind = self.chance.random()
        if kind < 0.04:
            self.rows.clear()
            self._tell(Op.TRUNCATE)
        elif key not in self.rows:
            self.rows[key] = self._image()
            self._tell(Op.CREATE, key, dict(self.rows[key]))
        elif kind < 0.3:
            del self.rows[key]
            self._tell(Op.DELETE, key)
        elif kind < 0.45:
            self._change_key(key, (self.chance.randrange(4),))
        elif kind < 0.65:
            self.rows[key]["value"] = self.chance.choice("ab")
            self._tell(Op.UPDATE, key, {"value": self.rows[key]["value"]}, "long")
        else:
            self.rows[key] = self._image()
            self._tell(Op.UPDATE, key, dict(self.rows[key]))

    def _change_key(self, old: Key, new: Key) -> None:
        """Tell it as a delete of the old key and a create of the new, at one place."""
        if new not in self.rows:
            self.rows[new] = self.rows.pop(old)
            self._tell(Op.DELETE, old)
            self._tell(Op.CREATE, new, dict(self.rows[new]))

    def _image(self) -> dict[str, object]:
        return {"value": self.chance.choice(["a", "b", None]), "long": self.chance.choice("xy")}


def history(chance: random.Random) -> Database:
    database = Database(chance)
    database.snapshot()
    for _ in range(chance.randrange(1, 9)):
        database.transact()
    return database


def shuffled_across_keys(chance: random.Random, changes: list[Change]) -> list[Change]:
    """Interleave the keys anew; the order of each key stays, as in one partition of a topic."""
    queues: dict[Key, list[Change]] = {}
    for change in changes:
        queues.setdefault(change.key, []).append(change)
    order = [key for key, queue in queues.items() for _ in queue]
    chance.shuffle(order)
    return [queues[key].pop(0) for key in order]


def delivered(chance: random.Random, changes: list[Change]) -> list[list[Change]]:
    """Cut `changes` into batches; after any of them a crash may deliver some of what came before again."""
    batches: list[list[Change]] = []
    start = 0
    while start < len(changes):
        end = start + chance.choice([1, 2, 5, len(changes)])
        batches.append(changes[start:end])
        start = min(end, len(changes))
        if chance.random() < 0.2:
            start = chance.randrange(start + 1)
            if sum(map(len, batches)) > 4 * len(changes):
                break
    return [*batches, changes[start:]]


def contents(folded: Folded) -> Rows:
    return {key: row for key, (_, row) in folded.rows.items()}


def converge(seed: int) -> None:
    """Send one history through trouble, and compare."""
    chance = random.Random(seed)
    database = history(chance)
    changes = shuffled_across_keys(chance, database.log) if chance.random() < 0.5 else database.log
    table = Folded()
    for batch in delivered(chance, changes):
        table = fold(batch, into=table)
    assert contents(table) == database.rows, f"converge({seed})"
    assert fold(changes, into=table) == table, f"converge({seed})"


def converge_in_any_order(seed: int) -> None:
    """The same for whole images, which may come in any order at all."""
    chance = random.Random(seed)
    database = history(chance)
    whole = [change for change in database.log if not change.unchanged]
    reference = fold(whole)
    mixed = [*whole, *chance.choices(whole or [Change("t", Op.TRUNCATE, "")], k=3)]
    chance.shuffle(mixed)
    folded = fold(mixed)
    assert (folded.rows, folded.floor) == (reference.rows, reference.floor), f"converge_in_any_order({seed})"


def test_every_history_converges_under_cuts_crashes_and_redeliveries() -> None:
    first = random.randrange(1 << 32)
    for seed in range(first, first + HISTORIES):
        converge(seed)


def test_every_history_of_whole_images_converges_in_any_order() -> None:
    first = random.randrange(1 << 32)
    for seed in range(first, first + HISTORIES // 4):
        converge_in_any_order(seed)
