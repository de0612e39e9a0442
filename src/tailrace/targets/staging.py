"""Current documents of a Convex deployment, one Parquet file a table, each replaced whole.

    <path>/_root/users.parquet                 a table of the application
    <path>/billing/ledger/lines.parquet        one of a component

A file is written under another name, made durable and renamed: a reader sees the old table or the new one. What it
includes, the mark, stands in its own footer, so rows and mark cannot disagree. `cdc convex publish` carries the files
to where others read them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tailrace.apply.target import Mark, mark_from_json
from tailrace.core.errors import Halt, Misconfigured, Retryable
from tailrace.core.failpoint import failpoint
from tailrace.core.table import Table, file_name, table_from_json
from tailrace.targets._place import folds_case as folds

SOURCES = ("convex",)
OWN_NAMES = True
"""Tables are told apart by their folders, so they need no other names."""

ROOT = "_root"
"""The folder of the application's own tables."""

_SPARK = b"org.apache.spark.sql.parquet.row.metadata"
_OURS = "tailrace"


class Options(BaseModel):
    """The keys under `staging` of a sink."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    path: str = Field(min_length=1)
    """The folder of the files, on a disk that every Spark executor sees."""
    publish_to: str | None = None
    """Where `cdc convex publish` puts them: `s3://bucket/prefix` or a folder."""
    keep_versions: int = Field(default=10, ge=1)
    """How many published versions stay readable."""
    endpoint: str | None = None
    """The address of an S3 server that is not Amazon's."""
    region: str | None = None
    """The region of the bucket; what the environment of the process says, if unset."""
    access_key_id: str | None = None
    """The key of S3; without one, what the environment of the process has."""
    secret_access_key: SecretStr | None = None
    """The secret of `access_key_id`."""

    def store(self) -> dict[str, str | None]:
        """Return the settings of the object store; the names are those of its library."""
        secret = self.secret_access_key.get_secret_value() if self.secret_access_key else None
        return {
            "endpoint": self.endpoint,
            "region": self.region,
            "access_key_id": self.access_key_id,
            "secret_access_key": secret,
        }

    @field_validator("path")
    @classmethod
    def _is_folder(cls, path: str) -> str:
        if "://" in path:
            raise ValueError("should be a folder. Set publish_to to an object store, and path to a folder.")
        return path

    @field_validator("publish_to")
    @classmethod
    def _is_place(cls, place: str | None) -> str | None:
        if place is not None and "://" in place and not place.startswith("s3://"):
            raise ValueError("should be s3://bucket/prefix or a folder.")
        if place is not None and place.startswith("s3://") and not place.removeprefix("s3://").strip("/"):
            raise ValueError("should name a bucket: s3://bucket/prefix.")
        return place


def folds_case(options: Options) -> bool:
    """Say whether files whose names differ only in case are one file there, or where they are published."""
    return any(folds(place) for place in (options.path, options.publish_to) if place)


def open_target(
    name: str,
    options: Options,
    *,
    spark: Callable[[], SparkSession],  # noqa: ARG001
    pipeline_id: str,  # noqa: ARG001
    tables: Mapping[str, str],
    mode: str,
) -> StagingTarget:
    """Return the target that `options` describe; nothing is written yet."""
    if mode != "scd1":
        raise Misconfigured(
            "wrong-value",
            f'target "{name}" has mode {mode}, and staging holds current rows',
            "Set mode to scd1; the change log itself has every change.",
        )
    return StagingTarget(name, Path(options.path).absolute(), tables)


def key_of(table: str) -> str:
    """Return the file of a table within the folder: `<component or _root>/<table>.parquet`."""
    component, _, name = table.rpartition(".")
    folders = [file_name(part) for part in component.split("/")] if component else [ROOT]
    if component.lower() == ROOT:
        folders = ["%5f" + component[1:]]
    return "/".join((*folders, f"{file_name(name)}.parquet"))


@dataclass(frozen=True, slots=True)
class _Footer:
    mark: Mark
    shape: Table
    rows: int


class StagingTarget:
    """The files of one folder; tables may be replaced side by side."""

    def __init__(self, name: str, folder: Path, tables: Mapping[str, str]) -> None:
        self.name = name
        self.folder = folder
        self._names = dict(tables)

    def key(self, table: str) -> str:
        """Return the file of `table` within the folder."""
        return key_of(self._names[table])

    def mark(self, table: str) -> Mark | None:
        """Return what `table` includes; `None` if it was never written."""
        footer = self._footer(table)
        return footer.mark if footer else None

    def have(self, table: str) -> Table | None:
        """Return the shape of `table`; `None` if it does not exist."""
        footer = self._footer(table)
        return footer.shape if footer else None

    def stored(self, spark: SparkSession, table: str) -> tuple[DataFrame, Table, int] | None:
        """Return the rows of `table`, their shape and how many they are; `None` if it was never written."""
        footer = self._footer(table)
        if footer is None:
            return None
        # The name of a folder may hold what would be a pattern.
        rows = spark.read.option("__globPaths__", "false").parquet(str(self._path(table)))
        return rows, footer.shape, footer.rows

    def prepare(self, table: str, rows: DataFrame, shape: Table, mark: Mark) -> StagedFile:
        """Write `rows` and `mark` into one file, under a name that nobody reads."""
        about = {_OURS: json.dumps({"mark": mark.to_json(), "shape": shape.to_json()})}
        first, *others = rows.columns
        marked = rows.select(F.col(first).alias(first, metadata=about), *(F.col(_quoted(name)) for name in others))
        folder = self.folder / ".writing" / self.key(table)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            marked.coalesce(1).write.option("compression", "zstd").parquet(str(folder))
        except Py4JJavaError as error:
            said = str(error.java_exception).partition("\n")[0][:500]
            raise Retryable(
                "staging-write", f'table "{table}" could not be written: {said}', f'Check the disk of "{self.folder}".'
            ) from error
        (part,) = folder.glob("part-*.parquet")
        return StagedFile(part, self._path(table))

    def mark_in(self, file: BinaryIO) -> Mark:
        """Return what the table that is read from `file` includes."""
        return self._read(file, getattr(file, "name", "")).mark

    def _path(self, table: str) -> Path:
        return self.folder / self.key(table)

    def _footer(self, table: str) -> _Footer | None:
        try:
            with self._path(table).open("rb") as file:
                return self._read(file, self._path(table))
        except FileNotFoundError:
            return None

    def _read(self, file: BinaryIO, path: object) -> _Footer:
        try:
            found = pq.read_metadata(file)
            schema: dict[str, Any] = json.loads((found.metadata or {})[_SPARK])
            about = json.loads(schema["fields"][0]["metadata"][_OURS])
            return _Footer(mark_from_json(about["mark"]), table_from_json(about["shape"]), found.num_rows)
        except (OSError, KeyError, ValueError, TypeError, IndexError, pa.ArrowException) as error:
            raise Halt(
                "foreign-target",
                f'the file "{path}" of target "{self.name}" is not one of ours: {type(error).__name__}',
                "Remove it, and the next run makes it again from the change log; or set path to another folder.",
            ) from error


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A table that is written, and that nobody sees yet."""

    written: Path
    place: Path

    def commit(self) -> None:
        """Put it in the place of the one that is there, in one step; a crash before it leaves the old one."""
        failpoint("C22")
        try:
            self.place.parent.mkdir(parents=True, exist_ok=True)
            _sync(self.written)
            self.written.replace(self.place)
            _sync(self.place.parent)
        except OSError as error:
            raise Retryable(
                "staging-write",
                f'the file "{self.place}" could not be put in place: {error.strerror or error}',
                "Check the disk and the rights of the folder.",
            ) from error
        failpoint("C23")
        shutil.rmtree(self.written.parent, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
