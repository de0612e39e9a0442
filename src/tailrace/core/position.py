"""A place in a source's own order, as text whose plain comparison is that order.

    0001.2.00000000016b3748
    └┬─┘ │ └──────┬───────┘
     │   │        place in the source (Postgres: the LSN of the change; longer if it was committed late, see ADR 33)
     │   phase: 0 the table starts anew, 1 a row of the snapshot, 2 a change after it
     epoch: 1 for the first snapshot of a pipeline, one more for each that replaced it

Fixed width and lower-case hexadecimal, so Python, Spark and every SQL target compare it alike and no
value passes through a float. The phase stands before the place because a transaction that was open
while the snapshot was taken may have written below the snapshot's own place; its changes come after
the snapshot all the same. See ADR 3.
"""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """The parts of one epoch, in their order."""

    RESET = 0
    SNAPSHOT = 1
    CHANGE = 2


def position(epoch: int, phase: Phase, place: int) -> str:
    """Return the text of a position; comparing two texts compares (epoch, phase, place)."""
    return f"{epoch:04x}.{phase:d}.{place:016x}"


LOWEST = ""
"""Below every position."""
