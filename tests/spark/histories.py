"""Random histories, packed: many small ones side by side in one table, each with a few keys and values.

Every history's keys carry its number, so one Spark job folds thousands of them; a truncate hits all of
them at once. Small sets of keys and values make collisions, equal runs and re-creations common.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tailrace.core.change import Change, Op
from tailrace.core.position import Phase, position
from tailrace.core.table import Column, Table

TABLE = Table(
    "public.packed",
    (
        Column("history", "int", nullable=False),
        Column("key", "int", nullable=False),
        Column("value", "string"),
        Column("bio", "string"),
    ),
    ("history", "key"),
)


def packed(seed: int, histories: int, events: int) -> list[Change]:
    """Return `events` changes of each of `histories` histories, in one order of positions."""
    chance = random.Random(seed)
    alive: dict[tuple[int, int], bool] = {}
    changes: list[Change] = []
    lsn = 100
    snapshot = [(h, k) for h in range(histories) for k in range(4) if chance.random() < 0.4]
    for at in snapshot:
        changes.append(_row(Op.READ, position(1, Phase.SNAPSHOT, 50), at, chance))
        alive[at] = True
    total = histories * events
    truncates = {chance.randrange(total) for _ in range(chance.randrange(3))}
    for n in range(total):
        lsn += chance.choice([1, 1, 8])
        at = (chance.randrange(histories), chance.randrange(4))
        if n in truncates:
            changes.append(Change(TABLE.name, Op.TRUNCATE, position(1, Phase.CHANGE, lsn)))
            alive.clear()
            lsn += 1
        if at not in alive:
            changes.append(_row(Op.CREATE, position(1, Phase.CHANGE, lsn), at, chance))
            alive[at] = True
            continue
        kind = chance.random()
        if kind < 0.25:
            changes.append(Change(TABLE.name, Op.DELETE, position(1, Phase.CHANGE, lsn), at))
            del alive[at]
        elif kind < 0.4:
            new = (at[0], chance.randrange(4))
            if new not in alive:
                # A changed key: a delete of the old and a create of the new, at one place.
                changes.append(Change(TABLE.name, Op.DELETE, position(1, Phase.CHANGE, lsn), at))
                changes.append(_moved(position(1, Phase.CHANGE, lsn), at, new, chance))
                del alive[at]
                alive[new] = True
        elif kind < 0.6:
            after = {"value": chance.choice("ab")}
            changes.append(Change(TABLE.name, Op.UPDATE, position(1, Phase.CHANGE, lsn), at, after, frozenset({"bio"})))
        else:
            changes.append(_row(Op.UPDATE, position(1, Phase.CHANGE, lsn), at, chance))
    return changes


def _row(op: Op, place: str, at: tuple[int, int], chance: random.Random) -> Change:
    return Change(TABLE.name, op, place, at, {"value": chance.choice(["a", "b", None]), "bio": chance.choice("xyz")})


def _moved(place: str, at: tuple[int, int], new: tuple[int, int], chance: random.Random) -> Change:
    whole = _row(Op.CREATE, place, new, chance)
    if chance.random() < 0.5:
        return replace(whole, old_key=at)
    return replace(whole, after={"value": chance.choice("ab")}, unchanged=frozenset({"bio"}), old_key=at)
