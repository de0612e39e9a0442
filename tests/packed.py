"""Many small random histories side by side in one table, and several ways for them to arrive.

One run of an engine then tries thousands of cases: an event's key is (history, k), so histories never meet. Sequences
and values come from small sets, so ties, equal runs, gaps and late events are common. All follows from the seed.
"""

from __future__ import annotations

import random
from itertools import product

from tests.oracle import Event

COLUMNS = {"a": ["x", "y", None], "b": [0, 1, None]}
SEQUENCES = range(1, 9)

History = list[Event]
Batch = list[Event]


def packed(
    seed: int,
    histories: int,
    *,
    scd_type: int,
    partial: bool = False,
    ties: bool | None = None,
    truncates: bool = False,
) -> list[History]:
    """Make `histories` of 4 to 9 events over one to three keys, a quarter of them deletes.

    With `partial` a third of the upserts leave columns out. `ties` lets events share a sequence, by default for scd2 only, where the outcome does not depend on the batches. `truncates` adds a history of
    its own, which hits the low sequences of all others.
    """
    chance = random.Random(f"packed {seed}")
    may_tie = scd_type == 2 if ties is None else ties
    made = [_history(chance, number, partial=partial, ties=may_tie) for number in range(histories)]
    if truncates:
        made.append([Event((histories, 0), chance.randrange(1, 4), {}, truncate=True) for _ in range(2)])
    return made


def _history(chance: random.Random, number: int, *, partial: bool, ties: bool) -> History:
    places = list(product(range(chance.randint(1, 3)), SEQUENCES))
    length = chance.randint(4, 9)
    taken = chance.choices(places, k=length) if ties else chance.sample(places, min(length, len(places)))
    return [_event(chance, (number, k), sequence, partial=partial) for k, sequence in taken]


def _event(chance: random.Random, key: tuple[int, int], sequence: int, *, partial: bool) -> Event:
    if chance.random() < 0.25:
        return Event(key, sequence, dict.fromkeys(COLUMNS), delete=True)
    left_out = chance.choice([{"a"}, {"b"}, {"a", "b"}]) if partial and chance.random() < 0.33 else set()
    values = {name: None if name in left_out else chance.choice(values) for name, values in COLUMNS.items()}
    return Event(key, sequence, values, unchanged=frozenset(left_out))


def batchings(histories: list[History], seed: int, count: int = 3, *, late: bool = True) -> list[list[Batch]]:
    """Give `count` ways to deliver the same events.

    All in one batch; in order of sequence over four; the rest over five in any order, a fifth of what came so far
    delivered again with each, and one whole batch replayed at the end. Without `late` each history keeps its order on
    its first way through, as partial images need it.
    """
    chance = random.Random(f"batchings {seed}")
    ways = [_dealt(chance, histories, 1), _dealt(chance, histories, 4)]
    while len(ways) < count:
        ways.append(_with_repeats(chance, _dealt(chance, histories, 5, late=late)))
    return ways[:count]


def _dealt(chance: random.Random, histories: list[History], number: int, *, late: bool = False) -> list[Batch]:
    batches: list[Batch] = [[] for _ in range(number)]
    for history in histories:
        order = chance.sample(history, len(history)) if late else sorted(history, key=lambda event: event.sequence)
        for event, batch in zip(order, sorted(chance.choices(range(number), k=len(order))), strict=True):
            batches[batch].append(event)
    for batch in batches:
        chance.shuffle(batch)
    return batches


def _with_repeats(chance: random.Random, batches: list[Batch]) -> list[Batch]:
    seen: list[Event] = []
    repeated = []
    for batch in batches:
        seen += batch
        repeated.append([*batch, *chance.sample(seen, len(seen) // 5)])
    return [*repeated, chance.choice(repeated)]
