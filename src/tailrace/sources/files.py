"""Files of changes that somebody else puts into a directory or a bucket: a change log already, with nothing to pump.

This module has the settings only; `log.files` reads.
"""

from __future__ import annotations

import codecs
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tailrace.config.model import Secret
from tailrace.core.table import RESERVED

_TYPE = re.compile(r"string|binary|boolean|tinyint|smallint|int|bigint|float|double|date|timestamp|timestamp_ntz")
_DECIMAL = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")
_ENCODINGS = {
    "utf-8": "utf-8",
    "iso8859-1": "iso-8859-1",
    "ascii": "us-ascii",
    "utf-16": "utf-16",
    "utf-16-le": "utf-16le",
    "utf-16-be": "utf-16be",
}
"""Python's names of encodings, and those that Spark reads them by."""


class FileColumn(BaseModel):
    """One column: where a file has it, and what it is in the table."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """Its name in the table."""
    source: Annotated[str, Field(min_length=1)] | None = None
    """Its name in the files; the same if unset."""
    type: str = "string"
    """Its type, as Spark SQL calls it: `bigint`, `decimal(10,2)`, `timestamp`."""
    required: bool = False
    """A row without a value for it is rejected, unless it is a delete."""

    @field_validator("type")
    @classmethod
    def _is_a_type(cls, kind: str) -> str:
        kind = kind.lower().replace(" ", "")
        decimal = _DECIMAL.fullmatch(kind)
        if not _TYPE.fullmatch(kind) and not (
            decimal and 1 <= int(decimal[1]) <= 38 and int(decimal[2]) <= int(decimal[1])
        ):
            raise ValueError("is not a type that a value of a file can have")
        return kind

    @property
    def at(self) -> str:
        """Its name in the files."""
        return self.source or self.name


class Options(BaseModel):
    """The `source:` section, for `source_type: files`; what the rows mean stands in `cdc:`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    path: Annotated[str, Field(min_length=1)]
    """The directory that the files are put into, or `s3://<bucket>/<prefix>`. Those in folders below are read too."""
    format: Literal["csv", "ndjson", "parquet"]
    """How the files are written: CSV with a header, one JSON object per line, or Parquet. CSV and JSON may be
    compressed: `.gz`, `.zst`."""
    file_pattern: str = "*"
    """Which files are read: a pattern with `*`, `?` and `[...]` for the name of a file, or, with a `/`, for its path
    below the directory. Hidden names (`.x`, `_x`), `*.tmp`, `*.done` and `*.manifest.json` never are."""
    encoding: Literal["utf-8", "iso-8859-1", "us-ascii", "utf-16", "utf-16le", "utf-16be"] = "utf-8"
    """The encoding of CSV files, by any of its names: `latin-1` is `iso-8859-1`. A file in `utf-16` begins with a byte
    order mark."""
    order: Literal["name", "modified", "manifest"] = "name"
    """The order of the files: by their names, by when they were modified, or as numbered manifests list them."""
    stable_seconds: Annotated[float, Field(ge=0)] = 5.0
    """A file counts once it has not changed for so long, or at once if there is a `<name>.done` beside it or a manifest
    lists it."""
    table: Annotated[str, Field(pattern=r"^[^\s.][^\s]*$", max_length=200)]
    """The table whose rows these are."""
    columns: tuple[FileColumn, ...] = ()
    """The columns of the table; all that the files have if empty, which are text in CSV."""
    max_reject_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    """If more than this part of the rows of a file is bad, nothing of the file is applied."""
    on_change: Literal["halt", "apply"] = "halt"
    """What to do when a file that was taken has other content now: halt, or take it as a file that comes after."""

    s3_endpoint: str | None = None
    """The address of the object store, if it is not AWS."""
    s3_access_key_id: Secret | None = None
    """The access key; if unset, whatever AWS clients find in the environment."""
    s3_secret_access_key: Secret | None = None
    """The secret of the access key."""
    s3_region: str = "us-east-1"
    """The region of the bucket."""

    @field_validator("encoding", mode="before")
    @classmethod
    def _by_its_name(cls, encoding: object) -> object:
        try:
            return _ENCODINGS.get(codecs.lookup(str(encoding)).name, encoding)
        except LookupError:
            return encoding

    @field_validator("path")
    @classmethod
    def _is_known(cls, path: str) -> str:
        if "://" in path and not re.fullmatch(r"s3://[^/\s]+(/.*)?", path):
            raise ValueError("should be a directory of this machine, or s3://<bucket>/<prefix>")
        return path

    @field_validator("columns")
    @classmethod
    def _are_different(cls, columns: tuple[FileColumn, ...]) -> tuple[FileColumn, ...]:
        if len({column.name.lower() for column in columns}) < len(columns):
            raise ValueError("should name each column once")
        if any(column.name.lower().startswith(RESERVED) for column in columns):
            raise ValueError(f"should not name a column {RESERVED}...: such names are ours")
        return columns

    @model_validator(mode="after")
    def _has_an_encoding(self) -> Options:
        if self.format != "csv" and self.encoding != "utf-8":
            raise ValueError(f"encoding is for CSV; {self.format} is always utf-8, so leave it out")
        return self

    @model_validator(mode="after")
    def _has_whole_key(self) -> Options:
        if (self.s3_access_key_id is None) is not (self.s3_secret_access_key is None):
            raise ValueError("s3_access_key_id and s3_secret_access_key belong together")
        return self

    def store(self) -> dict[str, Any]:
        """Return what an object store is opened with."""
        settings: dict[str, Any] = {"region": self.s3_region}
        if self.s3_endpoint:
            allow = {"allow_http": self.s3_endpoint.startswith("http:")}
            settings |= {"endpoint": self.s3_endpoint, "client_options": allow}
        if self.s3_access_key_id and self.s3_secret_access_key:
            settings["access_key_id"] = self.s3_access_key_id.get_secret_value()
            settings["secret_access_key"] = self.s3_secret_access_key.get_secret_value()
        return settings

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables of the source."""
        return (self.table,)
