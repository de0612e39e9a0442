"""What a pipeline says of a target and of one table in it: which columns, by which key, in which mode."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.core.errors import Halt
from tailrace.core.table import Column, Evolution, Table


@dataclass(frozen=True, slots=True)
class Choice:
    """What the pipeline says of one table in one target."""

    table: str
    primary_key: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    track_history: tuple[str, ...] = ()

    def of(self, table: Table, rules: Rules, *, whole: bool = True) -> Table:
        """Return what is wanted of the source's `table`; halt if it cannot be kept by key.

        Unless its columns are known as a `whole`, one that is named and not there may come yet; a key may not.
        """
        append = rules.mode == "append"
        keys = () if append and not rules.keyed else self.primary_key or table.keys
        named = (*keys, *self.columns, *self.track_history) if whole else keys
        missing = [name for name in named if name not in table.names()]
        if missing:
            raise Halt(
                "unknown-column",
                f'table "{table.name}" has no column "{missing[0]}"',
                "Mend primary_key, columns and track_history of this table in the pipeline file.",
            )
        if not keys and not append:
            raise Halt(
                "no-key",
                f'table "{table.name}" has no primary key, so its rows cannot be told apart',
                "Give it a primary key, name one with primary_key under tables, or use mode: append.",
            )
        chosen = {*keys, *self.columns} if self.columns else set(table.names())
        columns = [c for c in table.columns if c.name in chosen]
        if rules.soft:
            columns.append(_flag(rules.soft, table))
        return Table(table.name, tuple(columns), tuple(keys))


@dataclass(frozen=True, slots=True)
class Rules:
    """How changes go into one target: what its configuration says."""

    mode: str
    evolution: Evolution
    max_event_bytes: int
    soft: str = ""
    """The column that marks deleted rows, which then stay; empty if they go."""
    keyed: bool = False
    """In mode append too, an event says the key of its row."""

    def notes(self, tracked: Sequence[str]) -> dict[str, str]:
        """Return what a table is made with and must keep: another kind of history cannot be told from it."""
        notes = {"scd": self.mode, "soft": self.soft}
        return {**notes, "tracked": json.dumps(sorted(tracked) or "all")} if self.mode == "scd2" else notes


def _flag(name: str, table: Table) -> Column:
    """Return the column that marks deleted rows."""
    if name.lower() in (other.lower() for other in table.names()):
        raise Halt(
            "soft-delete-taken",
            f'table "{table.name}" has a column "{name}" of its own, which is to mark deleted rows in the target',
            "Name another one with soft_delete_column for this target.",
        )
    return Column(name, "timestamp")
