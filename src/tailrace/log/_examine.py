"""One pass over the bytes of a file, before Spark reads it: its hash, and what would go wrong.

It takes no more memory than a piece of the file. What is found here is never an error of the run: a file that
cannot be read says why, and the others go on.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

import pyarrow.parquet as pq
from pyarrow import ArrowException

from tailrace.core.feed import Examined

_PIECE = 1 << 20
_MOST_HEADER = 1 << 20
_BOMB = 200
"""A file that grows by more than this when it is unpacked, and is large then, is no data."""
_LARGE = 64 << 20


class Digest(Protocol):
    """A hash that is fed piece by piece."""

    def update(self, data: bytes, /) -> None: ...


class _Unreadable(Exception):
    """Why a file cannot be read, as `code: words`."""


def examine(path: Path, kind: str, encoding: str, max_row_bytes: int) -> Examined:
    """Look at every byte of the file at `path`; an OSError if it cannot be opened or read."""
    digest = hashlib.sha256()
    if kind == "parquet":
        with path.open("rb") as file:
            for piece in iter(lambda: file.read(_PIECE), b""):
                digest.update(piece)
        return _parquet(path, digest.hexdigest())
    found = _Text(kind, encoding, max_row_bytes)
    problem = ""
    with path.open("rb") as file:
        try:
            for piece in _plain(file, digest, packed=path.name.endswith(".gz")):
                found.feed(piece)
            found.end()
        except _Unreadable as error:
            problem = str(error)
        for piece in iter(lambda: file.read(_PIECE), b""):
            digest.update(piece)
    whole = kind == "csv" and (found.quoted_break or path.name.endswith(".gz"))
    header, trouble = found.header() if kind == "csv" and not problem else ("", problem)
    return Examined(digest.hexdigest(), max(found.lines, 1), header, whole, found.damaged, trouble)


def _plain(file: BinaryIO, digest: Digest, *, packed: bool) -> Iterator[bytes]:
    read = made = 0
    unpack = _Unpack() if packed else None
    while piece := file.read(_PIECE):
        digest.update(piece)
        read += len(piece)
        for plain in unpack.feed(piece) if unpack else (piece,):
            made += len(plain)
            if packed and made > max(_LARGE, _BOMB * read):
                raise _Unreadable(f"too-large: the file grows by more than {_BOMB} times when it is unpacked")
            yield plain
    if unpack and (unpack.open or not read):
        raise _Unreadable("malformed: the packed file ends too early")


class _Unpack:
    """Unpacks what gzip wrote, in pieces; several packed files one after the other are one."""

    def __init__(self) -> None:
        self.open = False
        self._inside = zlib.decompressobj(wbits=31)

    def feed(self, piece: bytes) -> Iterator[bytes]:
        while piece:
            self.open = True
            try:
                plain = self._inside.decompress(piece, _PIECE)
            except zlib.error as error:
                raise _Unreadable("malformed: the file is not what gzip writes") from error
            piece = self._inside.unconsumed_tail
            if self._inside.eof:
                piece, self._inside, self.open = self._inside.unused_data, zlib.decompressobj(wbits=31), False
            yield plain


class _Text:
    """Counts lines, and notes what a reader must know."""

    def __init__(self, kind: str, encoding: str, max_row_bytes: int) -> None:
        self.lines = 0
        self.quoted_break = False
        self.damaged = False
        self._csv = kind == "csv"
        self._encoding = encoding if self._csv else "utf-8"
        self._decoder = codecs.getincrementaldecoder(self._encoding)(errors="strict")
        self._most = max_row_bytes
        self._line = 0
        self._in_quotes = False
        self._last = b""
        self._head = b""

    def feed(self, piece: bytes) -> None:
        if not piece:
            return
        if len(self._head) < _MOST_HEADER:
            self._head += piece[: _MOST_HEADER - len(self._head)]
        if not self.damaged:
            try:
                self._decoder.decode(piece)
            except UnicodeDecodeError:
                self.damaged = True
        self.lines += piece.count(b"\n") + piece.count(b"\r") - piece.count(b"\r\n")
        self._last = piece[-1:]
        lines = piece.split(b"\n")
        longest = (
            max(self._line + len(lines[0]), *(len(line) for line in lines[1:]))
            if len(lines) > 1
            else self._line + len(piece)
        )
        self._line = len(lines[-1]) if len(lines) > 1 else longest
        if longest > self._most:
            raise _Unreadable(f"too-large: a line has more than {self._most} bytes")
        if self._csv:
            self._look_into_quotes(piece)

    def _look_into_quotes(self, piece: bytes) -> None:
        parts = piece.split(b'"')
        if not self.quoted_break:
            inside = parts[1::2] if not self._in_quotes else parts[::2]
            self.quoted_break = any(b"\n" in part or b"\r" in part for part in inside)
        self._in_quotes ^= (len(parts) - 1) % 2 == 1

    def end(self) -> None:
        if self._last and self._last not in b"\r\n":
            self.lines += 1
        if not self.damaged:
            try:
                self._decoder.decode(b"", final=True)
            except UnicodeDecodeError:
                self.damaged = True
        if self._in_quotes:
            raise _Unreadable("malformed: a quoted value does not end")

    def header(self) -> tuple[str, str]:
        """Return the names of the columns as JSON, or why there are none."""
        encoding = "utf-8-sig" if self._encoding == "utf-8" else self._encoding
        text = self._head.decode(encoding, errors="replace")
        try:
            names = next((row for row in csv.reader(text.splitlines(keepends=True), strict=True) if row), [])
        except csv.Error as error:
            return "", f"malformed: the header cannot be read: {error}"
        names = [name.strip() for name in names]
        if not names:
            return "", "malformed: the file is empty, without even a header"
        if len({name.lower() for name in names}) < len(names) or "" in names:
            return "", "malformed: the header names a column twice, or one not at all"
        return json.dumps(names), ""


def _parquet(path: Path, digest: str) -> Examined:
    try:
        with pq.ParquetFile(path) as file:
            schema = str(file.schema_arrow.remove_metadata())
            return Examined(digest, max(file.metadata.num_rows, 1), schema)
    except (ArrowException, ValueError, OSError) as error:
        said = " ".join(str(error).split())[:200]
        return Examined(digest, 1, problem=f"malformed: not a Parquet file: {said}")
