"""One table as Parquet files: a batch rewrites the buckets that it touches, and then the manifest says so.

    read the touched buckets  ->  merge  ->  write them under new names  ->  create the next manifest  ->  done

Files without a manifest are nothing to a reader, and the manifest is created by one writer only. So a crash anywhere
leaves the table as it was or as it is to be. See ADR 15.
"""

from __future__ import annotations

import datetime
import itertools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JNetworkError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tailrace.apply.target import ANYONE, Applied, Batch, Mark
from tailrace.core.errors import Halt, Retryable
from tailrace.core.failpoint import failpoint
from tailrace.core.table import Column, Fit, Table
from tailrace.targets._columns import EVENT_COLUMNS
from tailrace.targets.parquet.manifest import File, Manifest, Manifests
from tailrace.targets.parquet.merge import DAY, HASH, POSITION, Merged, Rules, merge
from tailrace.targets.parquet.shape import HASHES, Shapes, conformed, from_file, incoming, outgoing, to_file
from tailrace.targets.parquet.store import Store

FIRST, FULL, SPLIT = 16, 20_000, 4
"""A table begins with so many buckets; one that gets so many rows is split in four when it is next written."""
MANY = 16
"""So many small files in a row of a table of events are written as one."""
_KEPT = datetime.timedelta(hours=1)
"""For so long a reader may read a version after the next one was made."""


class ParquetTable:
    """A table that one source table is kept current in; used by one thread at a time."""

    def __init__(
        self, spark: Callable[[], SparkSession], store: Store, folder: str, owner: str, mode: str, table: str
    ) -> None:
        self._spark = spark
        self._store = store
        self._folder = folder
        self._owner = owner
        self._mode = mode
        self._name = table
        self._manifests = Manifests(store, folder)
        self._told: tuple[Mark | None] | None = None
        self._shapes: Shapes | None = None

    # -- reading

    def mark(self) -> Mark | None:
        """Return what the rows include.

        A batch is made for the mark that was told last: if the table has another one by then, it is refused.
        """
        found = self.look()
        self._told = (found.mark if found else None,)
        return self._told[0]

    def look(self) -> Manifest | None:
        """Return the table as it is now."""
        found = self._manifests.newest()
        if found is not None and self._owner not in (ANYONE, found.owner):
            raise Halt(
                "foreign-table",
                f'the table "{self._folder}" belongs to pipeline, target and table {found.owner}',
                "Nothing was written to it. Give the target another place, or the table another name under tables.",
            )
        return found

    def known(self) -> DataFrame:
        """Return position and liveness of each key, deleted ones included: one row per key."""
        now = self._there(self.look())
        keys = [*now.table.keys, POSITION]
        alive, dead = self._rows(now).select(keys), self._graves(now).select(keys)
        if now.mode != "scd1":
            alive = alive.slice(0, 0)
        flags = pa.array([True] * alive.num_rows + [False] * dead.num_rows, pa.bool_())
        both = pa.concat_tables([alive, dead]).append_column("_cdc_alive", flags)
        return incoming(self._spark(), both)

    def current(self) -> DataFrame:
        """Return the rows as they are stored."""
        rows = self._rows(self._there(self.look()))
        return incoming(self._spark(), rows.drop_columns([HASH]) if HASH in rows.column_names else rows)

    # -- writing

    def evolve(self, change: Fit) -> None:
        """Create or alter the table; a step that was done already is not done again."""
        failpoint("C20")
        now = self.look()
        if now is None:
            table = Table(self._name, tuple(map(_as_text, change.table.columns)), change.table.keys)
            _refuse_nested_keys(table, self._mode)
            buckets = tuple((FIRST, rest) for rest in range(FIRST)) if self._mode == "scd1" else ()
            made = Manifest(1, self._owner, self._mode, table, dict(change.notes), buckets=buckets)
            self._manifests.add(made)
            failpoint("C21")
            return
        self._refuse_other_mode(now)
        new = [_as_text(column) for column in change.add if column.name not in now.table.names()]
        wider = {c.name: c for c in change.widen if now.table.column(c.name).type != c.type}
        if not new and not wider:
            return
        columns = [Column(c.name, wider[c.name].type) if c.name in wider else c for c in now.table.columns]
        table = Table(self._name, (*columns, *new), now.table.keys)
        files: Sequence[File] = now.files
        if wider or any(column.default is not None for column in new):
            files = self._rewritten(now, Shapes(table, self._mode), new)
        self._manifests.add(_next(now, table=table, files=tuple(files)))
        failpoint("C21")

    def apply(self, batch: Batch) -> Applied:
        """Write the rows and the mark as the next version, unless the table includes them already."""
        now = self._there(self.look())
        self._refuse_other_mode(now)
        if batch.after and now.mark and now.mark != batch.after:
            raise self._conflict()
        if now.mark and now.mark.includes(batch.mark):
            return Applied()
        if self._told and self._told != (now.mark,):
            raise self._conflict()
        failpoint("C19")
        try:
            made, done = self._append(now, batch) if now.mode == "append" else self._fold(now, batch)
        except (Py4JNetworkError, ConnectionError) as error:
            raise Retryable("spark-lost", f'Spark went away while writing table "{self._folder}"') from error
        failpoint("C22")
        self._manifests.add(_next(made, mark=batch.mark))
        self._told = (batch.mark,)
        failpoint("C23")
        failpoint("C25")
        return done

    def collect(self, before: datetime.date) -> None:
        """Forget deleted rows from days before `before`."""
        now = self.look()
        if now is None:
            return
        shapes, files, old = self._shape(now), list[File](), 0
        for file in now.files:
            graves = self._read(file, shapes.graves) if file.grave else None
            late = graves.filter(pc.greater_equal(graves[DAY], before.isoformat())) if graves is not None else None
            if graves is None or late is None or late.num_rows == graves.num_rows:
                files.append(file)
            else:
                old += 1
                files += self._write([(replace(file, rows=0), late)])
        if old:
            self._manifests.add(_next(now, files=tuple(files)))

    def remove_old(self, kept: datetime.timedelta = _KEPT) -> None:
        """Remove versions that a newer one replaced longer than `kept` ago, and files that no version left has."""
        if self.look() is None:
            return
        every = self._manifests.every()
        limit = datetime.datetime.now(datetime.UTC) - kept
        old = [
            one for one, after in itertools.pairwise(every) if datetime.datetime.fromisoformat(after.written_at) < limit
        ]
        # The oldest go first, so that a crash in between leaves no hole; files go after the versions that need them.
        self._manifests.remove(old)
        needed = {file.path for one in every if one not in old for file in one.files}
        self._store.delete([file for file in {f.path for one in old for f in one.files} if file not in needed])

    # -- the batch

    def _fold(self, now: Manifest, batch: Batch) -> tuple[Manifest, Applied]:
        shapes = self._shape(now)
        partial = tuple(sorted(name for name in batch.partial if name in batch.rows.columns))
        news = outgoing(batch.rows, now.table, partial)
        rules = Rules(
            now.table.keys, _today(), batch.truncate, batch.soft, self._mark_of_truncate(batch), partial, batch.ties
        )
        written, written_of, total = list[tuple[File, pa.Table]](), set[tuple[int, int]](), Applied()
        buckets = list[tuple[int, int]]()
        for bucket in now.buckets:
            mine = news.filter(_in(news[HASH], *bucket))
            if not mine.num_rows and not batch.truncate:
                buckets.append(bucket)
                continue
            stored = [file for file in now.files if (file.of, file.rest) == bucket]
            rows = self._read_all([f for f in stored if not f.grave], shapes.rows)
            graves = self._read_all([f for f in stored if f.grave], shapes.graves)
            merged = merge(rows, graves, mine, rules)
            total = _plus(total, merged.done)
            written_of.add(bucket)
            parts = _parts(merged, bucket)
            buckets += parts
            written += _split(merged, parts)
        files = [file for file in now.files if (file.of, file.rest) not in written_of]
        return replace(now, files=(*files, *self._write(written)), buckets=tuple(buckets)), total

    def _append(self, now: Manifest, batch: Batch) -> tuple[Manifest, Applied]:
        schema = self._shape(now).rows
        names = [name for name in schema.names if name in batch.rows.columns]
        types = {**EVENT_COLUMNS, **{c.name: c.type for c in now.table.columns}}
        found = batch.rows.select(
            *(F.col(f"`{n.replace('`', '``')}`").cast(types[n]).alias(n) for n in names)
        ).toArrow()
        news = conformed(found, schema)
        files, small = list(now.files), list[File]()
        while files and len(small) < MANY and files[-1].rows < FULL:
            small.insert(0, files.pop())
        if len(small) < MANY:
            files, small = list(now.files), []
        whole = pa.concat_tables([*(self._read(file, schema) for file in small), news])
        written = (*files, *self._write([(File("", 0), whole)]))
        return replace(now, files=written), Applied(inserted=news.num_rows)

    def _mark_of_truncate(self, batch: Batch) -> pa.Scalar | None:
        if not (batch.soft and batch.truncate):
            return None
        if batch.table.column(batch.soft).type == "boolean":
            return pa.scalar(True)
        return pa.scalar(datetime.datetime.now(datetime.UTC), pa.timestamp("us", "UTC"))

    def _rewritten(self, now: Manifest, shapes: Shapes, new: Sequence[Column]) -> list[File]:
        """Write every file anew in its new shape, rows that exist with the defaults of new columns."""
        given = {c.name: self._default(c, shapes) for c in new if c.default is not None}
        written = []
        for file in now.files:
            table = self._read(file, shapes.graves if file.grave else shapes.rows)
            for name, value in ({} if file.grave else given).items():
                place = table.schema.get_field_index(name)
                filled = pa.array([value] * table.num_rows, table.schema.field(place).type)
                table = table.set_column(place, table.schema.field(place), filled)
            written.append((file, table))
        return self._write(written)

    def _default(self, column: Column, shapes: Shapes) -> object:
        value = F.lit(column.default).cast(column.type).alias("v")
        return self._spark().range(1).select(value).toArrow()["v"].cast(shapes.rows.field(column.name).type)[0].as_py()

    # -- parts

    def _write(self, tables: Sequence[tuple[File, pa.Table]]) -> list[File]:
        """Write tables under names of their own; one without rows needs no file."""
        files = []
        for file, table in tables:
            if table.num_rows:
                path = f"{self._folder}/data/{uuid.uuid4().hex}.parquet"
                self._store.put(path, to_file(table))
                files.append(replace(file, path=path, rows=table.num_rows))
        return files

    def _read(self, file: File, schema: pa.Schema) -> pa.Table:
        raw = self._store.get(file.path)
        if raw is None:
            raise Retryable("write-conflict", f'file "{file.path}" was removed while it was needed')
        return from_file(raw, schema)

    def _read_all(self, files: Sequence[File], schema: pa.Schema) -> pa.Table:
        return pa.concat_tables([schema.empty_table(), *(self._read(file, schema) for file in files)])

    def _rows(self, now: Manifest) -> pa.Table:
        return self._read_all(now.rows(), self._shape(now).rows)

    def _graves(self, now: Manifest) -> pa.Table:
        return self._read_all([file for file in now.files if file.grave], self._shape(now).graves)

    def _shape(self, now: Manifest) -> Shapes:
        if self._shapes is None or self._shapes.table != now.table:
            self._shapes = Shapes(now.table, now.mode)
        return self._shapes

    def _there(self, now: Manifest | None) -> Manifest:
        if now is None:
            raise Halt(
                "table-missing",
                f'table "{self._name}" is not at "{self._store.path}"',
                "It was there or was to be created first. If it was removed, start the target again.",
            )
        return now

    def _conflict(self) -> Retryable:
        return Retryable(
            "write-conflict",
            f'another writer committed to table "{self._folder}" in the meantime',
            "Nothing was written. Apply the batch again, one call at a time.",
        )

    def _refuse_other_mode(self, now: Manifest) -> None:
        if now.mode != self._mode:
            raise Halt(
                "mode-changed",
                f'table "{self._folder}" was made in mode {now.mode} and is now to be kept in mode {self._mode}',
                "Set the mode back, or give the table another name under tables.",
            )


def _refuse_nested_keys(table: Table, mode: str) -> None:
    """Halt if rows are to be matched by a key that Arrow cannot match by."""
    for key in table.keys if mode == "scd1" else ():
        if "<" in (kind := table.column(key).type) or kind == "variant":
            raise Halt(
                "unsupported-type",
                f'the key "{key}" of table "{table.name}" is of type {kind}, and Parquet files have none such',
                "Use a key of plain values, or another kind of target.",
            )


def _as_text(column: Column) -> Column:
    """Return the column as it is kept: text is text here, whatever it holds."""
    return replace(column, json=False)


def _next(now: Manifest, **changed: Any) -> Manifest:
    return replace(now, number=now.number + 1, written_at="", id=uuid.uuid4().hex, **changed)


def _parts(merged: Merged, bucket: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the buckets that a bucket becomes: itself, unless it has grown full."""
    of, rest = bucket
    if merged.rows.num_rows <= FULL or of * SPLIT > HASHES:
        return [bucket]
    return [(of * SPLIT, rest + part * of) for part in range(SPLIT)]


def _split(merged: Merged, parts: Sequence[tuple[int, int]]) -> list[tuple[File, pa.Table]]:
    written = []
    for part in parts:
        rows = merged.rows if len(parts) == 1 else merged.rows.filter(_in(merged.rows[HASH], *part))
        graves = merged.graves if len(parts) == 1 else merged.graves.filter(_in(merged.graves[HASH], *part))
        written += [(File("", 0, *part), rows), (File("", 0, *part, grave=True), graves)]
    return written


def _in(hashes: pa.ChunkedArray, of: int, rest: int) -> pa.ChunkedArray:
    return pc.equal(pc.bit_wise_and(hashes, pa.scalar(of - 1, pa.int32())), pa.scalar(rest, pa.int32()))


def _plus(one: Applied, two: Applied) -> Applied:
    return Applied(one.inserted + two.inserted, one.updated + two.updated, one.deleted + two.deleted)


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()
