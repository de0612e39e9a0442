"""Which silver tables there are, and how each is folded from its bronze table: one AUTO CDC flow each.

The flow goes by key, sequence and delete; our own engine folds the same rows with the same words (`apply_changes`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tailrace.core import convex
from tailrace.core.errors import Misconfigured
from tailrace.core.table import target_names
from tailrace.runtime.landed import LandedTables


def quote(name: str) -> str:
    """Return `name` as an identifier of SQL on Databricks."""
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True, slots=True)
class Silver:
    """One silver table, and its flow."""

    source: str
    bronze: str
    name: str
    fields: tuple[str, ...]
    keys: tuple[str, ...] = (convex.ID,)
    sequence_by: str = "_sequence_num"
    deleted_when: str = "_is_deleted"

    @property
    def left_out(self) -> tuple[str, ...]:
        """What the flow needs and the table does not keep; no field of a document is called so."""
        return self.sequence_by, self.deleted_when

    def selected(self) -> list[str]:
        """Return the columns of the changes, as expressions over the bronze table."""
        return [
            f"{quote('_cdc_document_id')} AS {quote(convex.ID)}",
            *map(quote, self.fields),
            f"{quote('_cdc_creation_time')} AS {quote(convex.CREATED)}",
            f"{quote('_cdc_sequence_num')} AS {self.sequence_by}",
            f"{quote('_cdc_is_deleted')} AS {self.deleted_when}",
        ]

    def sql(self) -> str:
        """Return the statements of the table and its flow; `${bronze}` is set in the configuration of the pipeline."""
        changes, into = quote(f"{self.name}_changes"), quote(self.name)
        columns = ",\n  ".join(self.selected())
        return (
            f"CREATE TEMPORARY VIEW {changes} AS SELECT\n  {columns}\n"
            f"FROM STREAM ${{bronze}}.{quote(self.bronze)};\n\n"
            f"CREATE STREAMING TABLE {into};\n\n"
            f"CREATE FLOW {quote(f'{self.name}_flow')} AS AUTO CDC INTO {into}\n"
            f"FROM STREAM {changes}\n"
            f"KEYS ({', '.join(map(quote, self.keys))})\n"
            f"APPLY AS DELETE WHEN {self.deleted_when}\n"
            f"SEQUENCE BY {self.sequence_by}\n"
            f"COLUMNS * EXCEPT ({', '.join(self.left_out)})\n"
            "STORED AS SCD TYPE 1;\n"
        )


def silver_of(landed: LandedTables) -> list[Silver]:
    """Return the silver tables that the pipeline asks for, in the order of their names in the source.

    What they are called goes by the order in which they came, so that a new one changes no other's name.
    """
    options = landed.options
    chosen = [
        table
        for table in landed.shapes
        if _matches(table, options.silver_include or ("*",)) and not _matches(table, options.silver_exclude)
    ]
    for table in options.silver_names:
        if table not in landed.shapes:
            raise Misconfigured(
                "unknown-table",
                f'silver_names of target "{landed.sink_id}" has a table "{table}", which there is not',
                f"Tables are: {', '.join(sorted(landed.shapes))}.",
            )
    names = table_names(chosen, options.silver_names)
    return [Silver(table, landed.names[table], names[table], tuple(_fields(landed, table))) for table in sorted(chosen)]


def table_names(tables: Iterable[str], chosen: dict[str, str]) -> dict[str, str]:
    """Return a name that Unity Catalog takes for each table: its own, with its component where two would collide."""
    every = list(tables)
    plain = {table: name.replace("/", "_") for table, name in target_names(every, chosen).items()}
    return target_names(every, plain)


def _matches(table: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(table, pattern) for pattern in patterns)


def _fields(landed: LandedTables, table: str) -> Iterable[str]:
    for name in landed.shapes[table].names():
        if "${" in name:
            raise Misconfigured(
                "wrong-value",
                f'field "{name}" of table "{table}" has "${{" in it, which pipelines of Databricks replace',
                "Leave it out with selection of the source, or the table with silver_exclude.",
            )
        yield name
