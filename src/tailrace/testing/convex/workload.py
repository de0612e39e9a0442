"""An application that keeps writing: random transactions over a few tables of a few components, by seed."""

from __future__ import annotations

import random

from tailrace.testing.convex.deployment import Deployment, Transaction
from tailrace.testing.convex.values import Document, Value

TABLES = (("", "users"), ("", "messages"), ("billing", "users"), ("billing/ledger", "lines"))


class Workload:
    """Writes to `deployment`; the same seed writes the same."""

    def __init__(self, deployment: Deployment, seed: int = 0) -> None:
        self._deployment = deployment
        self._chance = random.Random(f"workload {seed}")

    def fill(self, documents: int, per_transaction: int = 50) -> None:
        """Add about so many documents, some at a time."""
        for start in range(0, documents, per_transaction):
            with self._deployment.transaction() as made:
                for _ in range(min(per_transaction, documents - start)):
                    component, table = self._chance.choice(TABLES)
                    made.insert(table, self.document(), component)

    def write(self, transactions: int = 1) -> None:
        """Commit transactions of one to four writes; now and then one that nobody exports."""
        for _ in range(transactions):
            if self._chance.random() < 0.15:
                self._deployment.write_system(self._chance.randint(1, 6))
                continue
            with self._deployment.transaction() as made:
                for _ in range(self._chance.randint(1, 4)):
                    self._one(made)

    def document(self) -> Document:
        """Return a new document; fields are left out, null, and of several types."""
        made = {name: self._value(name) for name in ("name", "count", "score", "blob", "flag", "tags", "mixed")}
        return {name: value for name, value in made.items() if self._chance.random() < 0.8}

    def _one(self, made: Transaction) -> None:
        component, table = self._chance.choice(TABLES)
        key = self._any(table, component)
        kind = self._chance.random()
        if key is None or kind < 0.35:
            key = made.insert(table, self.document(), component)
            if self._chance.random() < 0.1:
                made.delete(table, key, component)
            return
        try:
            if kind < 0.6:
                made.patch(table, key, self.document(), component)
            elif kind < 0.8:
                made.replace(table, key, self.document(), component)
            else:
                made.delete(table, key, component)
        except KeyError:
            # Deleted earlier in this very transaction.
            return

    def _any(self, table: str, component: str) -> str | None:
        """Return the id of some document that there is; `None` if a few tries find none."""
        found = self._deployment.table(table, component)
        for _ in range(8 if found and found.keys else 0):
            key = self._chance.choice(found.keys if found else [])
            if found and found.revisions[key][-1][1] is not None:
                return key
        return None

    def _value(self, name: str) -> Value:
        chance = self._chance
        if chance.random() < 0.05:
            return None
        match name:
            case "name":
                return chance.choice(["ann", "bo", 'c "d" \\ e', "naïve ☃", ""])
            case "count":
                return chance.choice([0, 1, -1, 1 << 53, (1 << 63) - 1, -(1 << 63), chance.randrange(1 << 40)])
            case "score":
                return chance.choice(
                    [0.0, -0.0, 1.5, 1e300, float("nan"), float("inf"), float("-inf"), chance.random()]
                )
            case "blob":
                return chance.randbytes(chance.randrange(5))
            case "flag":
                return chance.random() < 0.5
            case "tags":
                inner: Value = {"n": chance.randrange(1 << 62), "a.b": "x", "z": [b"\x00", None, -0.0]}
                return [inner][: chance.randrange(2)]
            case _:
                mixed: list[Value] = [1, 1.0, "1", True, b"1", [1]]
                return chance.choice(mixed)
