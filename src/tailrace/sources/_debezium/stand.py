"""How far a PostgreSQL reader has got, as numbers and as the text of a place.

    0/16B3748                    every transaction that committed up to there has been read
    0/16B3748+771:0/16B3800:2    and of the next one, number 771, all up to the second event at 0/16B3800

Transactions arrive in the order of their commits, events of one in the order of their own positions; several
events may share a position (a bulk insert, a changed key), so the last one's are counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LSN = r"[0-9A-F]{1,8}/[0-9A-F]{1,8}"
_PLACE = re.compile(rf"({_LSN})(?:\+(\d+):({_LSN}):(\d+))?")


@dataclass(frozen=True, slots=True)
class Stand:
    """Whole transactions up to `commit`, then, if `xid` is not 0, its events up to number `count` at `lsn`."""

    commit: int
    xid: int = 0
    lsn: int = 0
    count: int = 0

    def place(self) -> str:
        """Return the text that `stand_at` reads."""
        whole = lsn_text(self.commit)
        return f"{whole}+{self.xid}:{lsn_text(self.lsn)}:{self.count}" if self.xid else whole


def stand_at(place: str) -> Stand:
    """Return what `place` says; anything but a place is a ValueError."""
    found = _PLACE.fullmatch(place)
    if found is None:
        raise ValueError(f"not a place in PostgreSQL's log: {place!r}")
    commit, xid, lsn, count = found.groups()
    return Stand(lsn_number(commit), int(xid), lsn_number(lsn), int(count)) if xid else Stand(lsn_number(commit))


def lsn_number(text: str) -> int:
    """Return the number that PostgreSQL writes as two hexadecimal halves."""
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)


def lsn_text(number: int) -> str:
    """Return `number` as PostgreSQL writes it."""
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"
