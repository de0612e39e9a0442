"""The rows of some files, read by Spark: each with its file, the stretch of the file it was read in, and a number.

Files that are written alike are read together. The number grows within a stretch, which one task reads from its
beginning to its end, so numbers and counts together say which row of its file a row is.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import groupby
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from tailrace.core.feed import Entry
from tailrace.core.table import Table
from tailrace.envelopes._values import quoted
from tailrace.envelopes.flat import Flat
from tailrace.log._inferred import inferred, widened
from tailrace.spark.classes import java_class
from tailrace.spark.kinds import kind_of

_CORRUPT = "_cdc_corrupt"
_ALIKE = tuple[str, bool, bool]
_PLAIN = re.compile(r"/[A-Za-z0-9._/=-]+")
_NOTHING = uuid.uuid4().hex
"""Stands for nothing between two commas; it differs from `""`, which is text, and from all that a file may say."""
_PATTERN = frozenset("{}[]*?\\")


class Rows:
    """Reads files of one feed."""

    def __init__(
        self, spark: SparkSession, paths: Mapping[str, Path], kind: str, encoding: str, max_row_bytes: int
    ) -> None:
        self._spark = spark
        self._paths = paths
        self._kind = kind
        self._encoding = encoding
        self._max_row_bytes = max_row_bytes

    def uris(self, names: Iterable[str]) -> dict[str, str]:
        """Return the name that Spark gives each file."""
        named = java_class(self._spark, "org.apache.spark.paths.SparkPath").fromPathString
        plain = str(named("file:/plain").urlEncoded()).removesuffix("plain")
        # Asking the JVM takes longer than reading a small file, and most names need no escaping.
        return {
            name: f"{plain}{path[1:]}" if _PLAIN.fullmatch(path) else str(named(f"file:{path}").urlEncoded())
            for name in names
            for path in [str(self._paths[name])]
        }

    def _alike(self, entries: Iterable[Entry]) -> list[tuple[_ALIKE, list[Entry]]]:
        """Return files by how they are written, in a fixed order; a file that is asked for twice is there once."""

        def kind(entry: Entry) -> tuple[_ALIKE, str]:
            # A path that looks like a pattern, though it is none, makes Spark read all others twice: it goes alone.
            path = str(self._paths[entry.name])
            alone = "" if _PATTERN.isdisjoint(path) else path
            return (entry.content.header, entry.content.whole, entry.content.damaged), alone

        groups = groupby(sorted(entries, key=kind), kind)
        return [(key, list({e.name: e for e in group}.values())) for (key, _), group in groups]

    def absent(self, entry: Entry, envelope: Flat) -> str:
        """Say which column a file lacks; of JSON it is not known before it is read."""
        if self._kind == "csv":
            return envelope.missing(json.loads(entry.content.header))
        return ""

    def kinds(self, entries: Sequence[Entry]) -> dict[str, str]:
        """Return the columns that files have, with their types, as far as the files tell them."""
        found: dict[str, str] = {}
        for (header, _, _), alike in sorted(self._alike(entries), key=lambda group: min(e.number for e in group[1])):
            if self._kind == "csv":
                found |= dict.fromkeys(json.loads(header), "string")
            elif self._kind == "ndjson":
                found |= inferred(self._lines(alike).select("value"))
            else:
                table = widened(None, found, "files", ())
                more = {f.name: kind_of(f.dataType) for f in self._parquet(alike).schema}
                found = {c.name: c.type for c in widened(table, more, "files", ()).columns}
        return found

    def is_blank(self, entries: Sequence[Entry]) -> bool:
        """Say whether files of JSON have no row at all; others say what their columns are without one."""
        return self._kind == "ndjson" and self._lines(entries).isEmpty()

    def opened(self, entries: Sequence[Entry], envelope: Flat, table: Table) -> DataFrame:
        """Return the rows of `entries`, opened; see `Flat` for the columns."""
        parts = []
        for (header, whole, damaged), alike in self._alike(entries):
            if self._kind == "csv":
                names = json.loads(header)
                parts.append(envelope.from_texts(self._texts(alike, names, whole=whole), names, table, damaged=damaged))
            elif self._kind == "ndjson":
                parts.append(envelope.from_lines(self._lines(alike), table, damaged=damaged))
            else:
                read = self._parquet(alike)
                kinds = {f.name: kind_of(f.dataType) for f in read.schema}
                raw = F.struct(*(F.col(quoted(name)) for name in kinds)).alias("raw")
                parts.append(envelope.from_values(read.select(*_where(), raw), kinds, table))
        return reduce(DataFrame.unionByName, parts)

    def _texts(self, entries: Sequence[Entry], names: Sequence[str], *, whole: bool) -> DataFrame:
        columns = [StructField(f"c{n}", StringType()) for n in range(len(names))]
        read = (
            self._reader()
            .schema(StructType([*columns, StructField(_CORRUPT, StringType())]))
            .options(
                header="true",
                encoding=self._encoding,
                escape='"',
                nullValue=_NOTHING,
                multiLine=str(whole).lower(),
                columnNameOfCorruptRecord=_CORRUPT,
                maxCharsPerColumn=str(self._longest(entries)),
                maxColumns=str(len(names) + 100),
            )
            .csv(self._files(entries))
        )
        raw = F.struct(*(F.col(f"c{n}").alias(name) for n, name in enumerate(names))).alias("raw")
        return read.select(*_where(), raw, F.col(_CORRUPT).alias("corrupt"))

    def _longest(self, entries: Sequence[Entry]) -> int:
        """Return how long a value may be: Spark sets so much memory aside for every file, however small it is."""
        sizes = [entry.content.plain or self._max_row_bytes for entry in entries]
        return min(self._max_row_bytes, max(sizes))

    def _lines(self, entries: Sequence[Entry]) -> DataFrame:
        read = self._reader().option("lineSep", "\n").text(self._files(entries))
        return read.where(F.trim(F.col("value"), F.lit(" \t\r")) != "").select(*_where(), "value")

    def _parquet(self, entries: Sequence[Entry]) -> DataFrame:
        return self._reader().parquet(*self._files(entries))

    def _reader(self) -> DataFrameReader:
        # A name may hold what would be a pattern.
        return self._spark.read.option("__globPaths__", "false")

    def _files(self, entries: Sequence[Entry]) -> list[str]:
        return [f"file:{self._paths[entry.name]}" for entry in entries]


def _where() -> list[Any]:
    return [
        F.col("_metadata.file_path").alias("file"),
        F.col("_metadata.file_block_start").alias("block"),
        F.monotonically_increasing_id().alias("id"),
    ]
