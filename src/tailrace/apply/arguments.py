"""The arguments of `apply_changes`, resolved against the columns of its source, and checked once.

Names are matched as Spark matches them, without regard to case. What a table was made with, its keys, its
kind of history, the type of its sequence and its tracked columns, stays as it is for its life.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.errors import AnalysisException
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, NullType, StructType

from tailrace.apply.engine import UNCHANGED, column
from tailrace.core.errors import Halt, Misconfigured
from tailrace.core.nested import element_of, holds_map
from tailrace.core.table import END, RESERVED, START, Column, Table
from tailrace.spark.kinds import holds_void, kind_of, numbered, twins

_THEIRS = "__spark_autocdc_"
"""Columns of Spark's own AUTO CDC start like this; a feed that has them was not made for a table of ours."""

Names = Sequence[str] | Sequence[Expression]
"""Columns of the source, by name or as what a `Column` names."""


@dataclass(frozen=True)
class Arguments:
    """What a call asks for, in terms of the source's own columns."""

    want: Table
    """The columns to store, in the order of the source; with a soft delete, its column too."""
    mode: str
    sequence: Expression
    sequence_type: DataType
    deletes: Expression
    truncates: Expression | None
    tracked: tuple[str, ...]
    listed: bool
    """The tracked columns are named one by one, and not all that there are."""
    ignored: tuple[str, ...]
    """Columns whose NULL means that the row keeps its value."""
    soft: str
    given: frozenset[str]
    """The columns that the source has."""
    untyped: frozenset[str]
    """Columns to store whose type holds nothing but NULL, itself or inside."""

    @property
    def partial(self) -> bool:
        """Say whether a change row may leave columns out."""
        return bool(self.ignored) or UNCHANGED in self.given

    def typed(self, have: Table | None) -> Arguments:
        """Give columns without a type the one that the table has; refuse those that it does not have."""
        stored = {one.name.lower(): one.type for one in (have.columns if have else ())}
        columns = []
        for one in self.want.columns:
            kind = stored.get(one.name.lower(), "")
            if one.name not in self.untyped:
                columns.append(one)
            elif kind and (one.type == "void" or (one.type == "array<void>" and element_of(kind))):
                columns.append(replace(one, type=kind))
            else:
                raise Halt(
                    "unsupported-type",
                    f'the column "{one.name}" of the source is of type {one.type}, which holds nothing but NULL',
                    "A table would have it for good. Cast the column to the type that it is to have, or leave it out.",
                )
        return replace(self, want=replace(self.want, columns=tuple(columns)))

    def required(self, named: Mapping[str, str], others: Sequence[str]) -> tuple[str, ...]:
        """Return the columns, as the table has them, that a row must not lack when its change leaves them out."""
        if UNCHANGED not in self.given:
            return ()
        free = (*self.want.keys, *self.ignored, self.soft)
        return (*(named[n] for n in self.want.names() if n in named and n not in free), *others)

    def value(self, name: str) -> Expression:
        """Return the value of the column `name` of the source; of a soft delete's own column, nothing yet."""
        given = column(name) if name in self.given else F.lit(None)
        return given if name in self.given - self.untyped else given.cast(self.want.column(name).type)

    def unchanged(self, named: Mapping[str, str], others: Sequence[str]) -> Expression:
        """Return the names, as the table has them, of columns that a change row leaves out; only it has `others`."""
        told = self._told()
        left_out = [
            F.when(F.array_contains(told, name.lower()) | _null(name, self.ignored), F.lit(named[name]))
            for name in self.want.names()
            if name in named and name not in self.want.keys and (UNCHANGED in self.given or name in self.ignored)
        ]
        left_out += [F.when(F.array_contains(told, name.lower()), F.lit(name)) for name in others]
        return F.array_compact(F.array(*left_out)).cast("array<string>")

    def unknown(self, have: Sequence[str]) -> Expression:
        """Say why a change row leaves out what neither the source nor the table, which may `have` more, has."""
        if UNCHANGED not in self.given:
            return F.lit(None).cast("string")
        known = {name.lower() for name in (*self.given, *self.want.names(), *have)}
        strange = F.get(F.filter(self._told(), lambda name: ~name.isin(*known)), 0)
        return F.concat(F.lit(f'unknown-column: {UNCHANGED} names "'), strange, F.lit('", which is not there'))

    def _told(self) -> Expression:
        told = column(UNCHANGED).cast("array<string>") if UNCHANGED in self.given else F.lit(None).cast("array<string>")
        names = F.transform(F.array_compact(told), F.lower)
        return F.coalesce(names, F.array().cast("array<string>"))

    def notes(self) -> tuple[tuple[str, str], ...]:
        """Return what is remembered with a new table, to refuse another kind of change later."""
        notes = {"scd": self.mode, "sequence": kind_of(self.sequence_type), "soft": self.soft.lower()}
        if self.mode == "scd2":
            notes["tracked"] = _folded(self.tracked)
        return tuple(notes.items())

    def without_new(self, have: Table) -> Arguments:
        """Return the call for a table that gets no new columns: those are not tracked unless they are listed."""
        known = {name.lower() for name in have.names()}
        return self if self.listed else replace(self, tracked=tuple(n for n in self.tracked if n.lower() in known))

    def refuse_drift(self, have: Table, notes: Mapping[str, str]) -> None:
        """Halt if the table was made for other keys, another kind of history, sequence or tracking."""
        found = {key.lower(): have.column(key).type for key in have.keys}
        wanted = {key.lower(): self.want.column(key).type for key in self.want.keys}
        now = dict(self.notes())
        _same("scd-type-changed", "mode", notes.get("scd"), now["scd"])
        _same("key-changed", "keys with their types", found, wanted)
        _same("sequence-type-changed", "type of sequence_by", notes.get("sequence"), now["sequence"])
        _same("soft-delete-changed", "soft_delete_column", notes.get("soft", ""), now["soft"])
        _same("tracking-changed", "tracked columns", notes.get("tracked"), now.get("tracked"))


def _same(code: str, what: str, old: object, new: object) -> None:
    if old != new:
        raise Halt(
            code,
            f"the {what} of the table: {old}, and of this call: {new}",
            "A table keeps what it was made with. Write to a new one, or give the arguments of the first call.",
        )


def resolve(
    source: DataFrame,
    *,
    keys: Names,
    sequence_by: str | Expression,
    deletes: str | Expression | None,
    truncates: str | Expression | None,
    columns: Names | None,
    except_columns: Names | None,
    scd_type: int | str,
    track: Names | None,
    track_except: Names | None,
    ignore_nulls: bool,
    ignore_nulls_of: Names | None,
    soft: str | None,
) -> Arguments:
    """Return the arguments, checked; refuse what cannot be meant."""
    _refuse_source(source)
    mode = {"1": "scd1", "2": "scd2"}.get(str(scd_type))
    if mode is None:
        raise _bad(f"stored_as_scd_type is {scd_type!r}", "Give 1 for current rows or 2 for history.")
    names = _Names(source, mode)
    chosen = names.chosen("column_list", columns, except_columns)
    found_keys = names.each("keys", keys)
    if not found_keys or len(set(found_keys)) < len(found_keys):
        raise _bad("keys is empty or names a column twice", "Name the columns that identify a row.")
    if lost := [key for key in found_keys if key not in chosen]:
        raise _bad(f'the key "{lost[0]}" is not among the columns to store', "A table needs its keys: store them.")
    types = {field.name: kind_of(field.dataType) for field in source.schema}
    if lost := [key for key in found_keys if holds_map(types[key])]:
        raise _bad(f'the key "{lost[0]}" is of type {types[lost[0]]}', "Maps have no order: use another key.")
    for name in chosen:
        for one, other in twins(source.schema[name].dataType):
            raise Halt(
                "case-collision",
                f'fields "{one}" and "{other}" inside column "{name}" of the source differ only in case, or in nothing',
                "Spark tables do not tell them apart. Rename one, or leave the column out.",
            )
    values = [name for name in chosen if name not in found_keys]
    if mode == "scd1" and (track is not None or track_except is not None):
        raise _bad("track_history lists belong to stored_as_scd_type=2", "Leave them out.")
    tracked = _listed(names, "track_history", track, track_except, values)
    if lost := [name for name in names.each("track_history", track or ()) if name not in chosen]:
        raise _bad(f'track_history_column_list names "{lost[0]}", which is not stored', "Store it, or leave it out.")
    ignored = names.each("ignore_null_updates_column_list", ignore_nulls_of or (values if ignore_nulls else ()))
    if lost := [name for name in ignored if name not in values]:
        raise _bad(f'ignore_null_updates_column_list names "{lost[0]}", which is a key or not stored', "Leave it out.")
    want = [Column(name, types[name]) for name in chosen]
    soft_column = _soft(soft, mode, want, found_keys)
    if soft_column and soft_column not in chosen:
        want.append(Column(soft_column, "timestamp"))
    sequence, sequence_type = _sequence(names, sequence_by, mode)
    return Arguments(
        Table("changes", tuple(want), tuple(found_keys)),
        mode,
        sequence,
        sequence_type,
        F.lit(False) if deletes is None else names.condition("apply_as_deletes", deletes),
        None if truncates is None else names.condition("apply_as_truncates", truncates),
        tuple(tracked),
        track is not None,
        tuple(ignored),
        soft_column,
        frozenset(source.columns),
        frozenset(name for name in chosen if holds_void(source.schema[name].dataType)),
    )


class _Names:
    """The columns of the source, found as Spark finds them."""

    def __init__(self, source: DataFrame, mode: str) -> None:
        self._source = source
        self._found: dict[str, str] = {}
        columns = source.columns
        for name in columns:
            other = self._found.setdefault(name.lower(), name)
            if other != name or columns.count(name) > 1:
                raise Halt(
                    "case-collision",
                    f'columns "{other}" and "{name}" of the source differ only in case, or are one name twice',
                    "Spark tables do not tell them apart. Rename or drop one.",
                )
            taken = name.lower().startswith((RESERVED, _THEIRS)) and name != UNCHANGED
            if taken or (mode == "scd2" and name.upper() in (START, END)):
                raise Halt(
                    "reserved-column",
                    f'the column "{name}" of the source has a reserved name',
                    f"Names that start with {RESERVED} are ours, with {_THEIRS} Spark's, and in a history {START} and "
                    f"{END} are taken. Rename it.",
                )
        self._user = [name for name in columns if name != UNCHANGED]

    def each(self, what: str, wanted: Sequence[str | Expression]) -> list[str]:
        """Return the columns called `wanted`; refuse one that is not there."""
        if not isinstance(wanted, list | tuple) or not all(isinstance(given, str | Expression) for given in wanted):
            raise _bad(f"{what} is {wanted!r}", "Give a list of names of columns.")
        found = []
        for given in wanted:
            name = given if isinstance(given, str) else self._read(what, given).names[0]
            bare = name[1:-1].replace("``", "`") if len(name) > 1 and name[0] == name[-1] == "`" else name
            if bare.lower() not in self._found:
                raise _bad(f'{what} names "{name}", which the source does not have', "Mend the name.")
            called = self._found[bare.lower()]
            # A field of a struct, or another column under this name, would be taken for the column of that name.
            if not isinstance(given, str) and not self._source.select(given).sameSemantics(
                self._source.select(column(called))
            ):
                raise _bad(f'{what} has an expression called "{name}"', "Give the names of columns.")
            found.append(called)
        return found

    def chosen(self, what: str, only: Names | None, but: Names | None) -> list[str]:
        """Return the columns that two lists choose, in the order of the source."""
        return _listed(self, what, only, but, self._user)

    def expression(self, what: str, given: str | Expression | None) -> tuple[Expression, DataType]:
        """Return a column by its name, else the expression that is written, and its type."""
        if isinstance(given, str) and given.lower() in self._found:
            found = column(self._found[given.lower()])
        elif isinstance(given, str):
            try:
                found = F.expr(given)
            except AnalysisException as error:
                raise _unread(what, error) from error
        elif isinstance(given, Expression):
            found = given
        else:
            raise _bad(f"{what} is {given!r}", "Give the name of a column, SQL text or a Column.")
        # An expression may stand alone and yet not beside the columns of a row: an aggregate, a generator, a star.
        self._read(what, F.struct("*"), found.isNull())
        return found, self._read(what, found)[0].dataType

    def condition(self, what: str, given: str | Expression) -> Expression:
        """Return an expression that is true or false."""
        found, kind = self.expression(what, given)
        if not isinstance(kind, BooleanType | NullType):
            raise _bad(f"{what} is of type {kind.simpleString()}", "Give an expression that is true or false.")
        return found

    def _read(self, what: str, *given: Expression) -> StructType:
        try:
            return self._source.select(*given).schema
        except AnalysisException as error:
            raise _unread(what, error) from error


def _listed(names: _Names, what: str, only: Names | None, but: Names | None, among: Sequence[str]) -> list[str]:
    if only is not None and but is not None:
        raise _bad(f"{what} and its except list are both given", "Give one of them.")
    if only is not None:
        wanted = set(names.each(what, only))
        return [name for name in among if name in wanted]
    left = set(names.each(f"except list of {what}", but or ()))
    return [name for name in among if name not in left]


def _refuse_source(source: DataFrame) -> None:
    if not isinstance(source, DataFrame):
        raise _bad(f"source is of type {type(source).__name__}", "Give a DataFrame of change rows.")
    if source.isStreaming:
        raise _bad("source is a stream", "Call apply_changes from foreachBatch, with the DataFrame of each batch.")
    told = [field.dataType.simpleString() for field in source.schema if field.name == UNCHANGED]
    if told and told[0] not in ("array<string>", "array<void>", "void"):
        raise _bad(f"the column {UNCHANGED} is of type {told[0]}", "It must be array<string>.")


def _sequence(names: _Names, given: str | Expression, mode: str) -> tuple[Expression, DataType]:
    sequence, kind = names.expression("sequence_by", given)
    # Two fields have one name in "struct(source.ts, ts)".
    if twin := next(twins(kind), None):
        if mode == "scd2":
            raise _bad(
                f'sequence_by has fields "{twin[0]}" and "{twin[1]}", which are called alike',
                f"{START} and {END} have these fields, so each needs a name of its own: use named_struct.",
            )
        kind = numbered(kind)
        sequence = sequence.cast(kind)
    return sequence, kind


def _soft(soft: str | None, mode: str, want: Sequence[Column], keys: Sequence[str]) -> str:
    if soft is not None and not isinstance(soft, str):
        raise _bad(f"soft_delete_column is {soft!r}", "Give the name of a column.")
    if not soft:
        return ""
    if mode == "scd2":
        raise _bad("soft_delete_column belongs to stored_as_scd_type=1", "A history keeps deleted rows as it is.")
    existing = next((c for c in want if c.name.lower() == soft.lower()), None)
    if existing is not None and existing.type not in ("boolean", "timestamp", "timestamp_ntz"):
        raise _bad(f'soft_delete_column "{soft}" is of type {existing.type}', "Use a boolean or a timestamp.")
    if existing is not None and existing.name in keys:
        raise _bad(f'soft_delete_column "{soft}" is a key', "A key never changes: use another column.")
    return existing.name if existing else soft


def _null(name: str, ignored: Sequence[str]) -> Expression:
    return column(name).isNull() if name in ignored else F.lit(False)


def _folded(names: Sequence[str]) -> str:
    return json.dumps(sorted(name.lower() for name in names))


def _unread(what: str, error: AnalysisException) -> Misconfigured:
    said = " ".join((error.getCondition() or type(error).__name__).split())
    return _bad(
        f"{what} cannot be understood: {said}", "Spark says more about it, below this error. Mend the expression."
    )


def _bad(message: str, hint: str) -> Misconfigured:
    return Misconfigured("bad-argument", message, hint)
