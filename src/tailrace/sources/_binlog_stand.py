"""How far a reader of a binlog has got, as numbers and as the text of a place.

    binlog.000007:1234                 every transaction that ends there or before has been read
    binlog.000007:1234#5@0-1-34        and five records of the schema history are from before; GTID 0-1-34 ends there
    binlog.000007:1234#5@0-1-34+4:2    and of the transaction that begins there, all up to row 2 of its event 4

A transaction lies in the binlog in one piece, so its events and their rows have the same numbers each time. The GTID
tells one binlog from another that has the same names and places.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PLACE = re.compile(r"(.+\.\d+):(\d+)(?:#(\d+))?(?:@([0-9,-]*))?(?:\+(\d+):(\d+))?")


@dataclass(frozen=True, slots=True)
class Stand:
    """Whole transactions up to `pos` of `file`, then, if `event` is not 0, rows of the next up to `row` of it."""

    file: str
    pos: int
    history: int = 0
    gtids: str = ""
    event: int = 0
    row: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """By what places of one server compare."""
        return file_number(self.file), self.pos

    def place(self) -> str:
        """Return the text that `stand_at` reads."""
        known = f"#{self.history}@{self.gtids}" if self.history else ""
        return f"{self.file}:{self.pos}{known}" + (f"+{self.event}:{self.row}" if self.event else "")


def stand_at(place: str) -> Stand:
    """Return what `place` says; anything but a place is a ValueError."""
    found = _PLACE.fullmatch(place)
    if found is None:
        raise ValueError(f"not a place in a binlog: {place!r}")
    file, pos, history, gtids, event, row = found.groups()
    return Stand(file, int(pos), int(history or 0), gtids or "", int(event or 0), int(row or 0))


def file_number(file: str) -> int:
    """Return the number at the end of a binlog's name."""
    return int(file.rpartition(".")[2])


def gtids_of(text: str) -> dict[str, str]:
    """Return the GTIDs of `0-1-34,5-1-2` by their domain."""
    return {gtid.partition("-")[0]: gtid for gtid in text.split(",") if gtid}
