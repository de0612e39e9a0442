"""A server that misbehaves on purpose: which calls fail, and how. All of it follows from a seed.

Fault(503)                                 the next call, whatever it is
Fault("reset", "document_deltas", call=3)  the third call of that kind
Fault("truncated", probability=0.5)        every second call, by chance, for ever
"""

from __future__ import annotations

import random
import re
import threading
from collections import Counter
from dataclasses import dataclass

RESET, HALF, INVALID, SLOW, LARGE = "reset", "truncated", "invalid", "slow", "large"
"""No answer; half an answer; an answer that is no JSON; a late answer; an answer without end."""


@dataclass(frozen=True)
class Fault:
    """One way to fail: an HTTP status, one of the words of this module, or the code of a refusal."""

    kind: int | str
    endpoint: str = ""
    """The last part of the address, or any."""
    call: int = 1
    """The how-manieth call of that endpoint fails, counted from when the fault was added."""
    probability: float | None = None
    """Instead of `call`: how likely each call is to fail."""
    retry_after: int | None = None


def fault(text: str) -> Fault:
    """Return what `KIND[@ENDPOINT][:CALL]` says; a ValueError if it says none."""
    found = _FAULT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not KIND[@ENDPOINT][:CALL]")
    kind = found["kind"]
    status = int(kind) if kind.isdecimal() else None
    if status is not None and not 400 <= status <= 599:
        raise ValueError(f"{kind} is no status of a failure")
    return Fault(kind if status is None else status, found["endpoint"] or "", int(found["call"] or 1))


_FAULT = re.compile(r"(?P<kind>[A-Za-z]+|[0-9]{3})(?:@(?P<endpoint>[a-z_]+))?(?::(?P<call>[1-9][0-9]{0,8}))?")


class Faults:
    """The faults that an emulator has ready."""

    def __init__(self, seed: int = 0) -> None:
        self._chance = random.Random(f"faults {seed}")
        self._lock = threading.Lock()
        self._ready: list[tuple[Fault, Counter[str]]] = []
        self.struck = 0

    def add(self, *faults: Fault) -> None:
        """Have these ready from the next call on."""
        with self._lock:
            self._ready += [(fault, Counter()) for fault in faults]

    def clear(self) -> None:
        """Behave."""
        with self._lock:
            self._ready.clear()

    def strike(self, endpoint: str) -> Fault | None:
        """Return the fault that this call of `endpoint` meets; one that names a call strikes once."""
        with self._lock:
            for item in list(self._ready):
                fault, calls = item
                if fault.endpoint not in ("", endpoint):
                    continue
                calls[fault.endpoint] += 1
                if fault.probability is not None:
                    struck = self._chance.random() < fault.probability
                else:
                    struck = calls[fault.endpoint] == fault.call
                    if struck:
                        self._ready.remove(item)
                if struck:
                    self.struck += 1
                    return fault
            return None
