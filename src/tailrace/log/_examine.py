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
from typing import BinaryIO, Protocol

import pyarrow as pa
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
    def hexdigest(self) -> str: ...


class _Unreadable(Exception):
    """Why a file cannot be read, as `code: words`."""


def examine(file: BinaryIO, name: str, kind: str, encoding: str, max_row_bytes: int) -> Examined:
    """Look at every byte of `file`, whose name says how it is packed; an OSError if it cannot be read."""
    digest = hashlib.sha256()
    if kind == "parquet":
        return _parquet(file, _rest(file, digest))
    if ending := next((ending for ending in _REFUSED if name.endswith(ending)), ""):
        problem = f"malformed: what ends with {ending} is not read; pack it as .gz or .zst"
        return Examined(_rest(file, digest), 1, problem=problem)
    found = _Text(kind, encoding, max_row_bytes)
    packed = next((ending for ending in _UNPACK if name.endswith(ending)), "")
    problem = ""
    try:
        for piece in _plain(file, digest, packed):
            found.feed(piece)
        found.end()
    except _Unreadable as error:
        problem = str(error)
    sha256 = _rest(file, digest)
    whole = kind == "csv" and (found.quoted_break or found.wide or bool(packed))
    header, trouble = found.header() if kind == "csv" and not problem else ("", problem)
    return Examined(sha256, max(found.lines, 1), header, whole, found.damaged, trouble, found.size)


def _rest(file: BinaryIO, digest: Digest) -> str:
    """Hash what is left of a file; return the hash of all of it."""
    for piece in iter(lambda: file.read(_PIECE), b""):
        digest.update(piece)
    return digest.hexdigest()


def _plain(file: BinaryIO, digest: Digest, packed: str) -> Iterator[bytes]:
    source = _Counted(file, digest)
    made = 0
    for plain in _UNPACK[packed](source) if packed else iter(lambda: source.read(_PIECE), b""):
        made += len(plain)
        if packed and made > max(_LARGE, _BOMB * source.count):
            raise _Unreadable(f"too-large: the file grows by more than {_BOMB} times when it is unpacked")
        yield plain
    if packed and not source.count:
        raise _Unreadable("malformed: the packed file ends too early")


class _Counted:
    """A file whose bytes are hashed and counted as they are read."""

    closed = False

    def __init__(self, file: BinaryIO, digest: Digest) -> None:
        self.count = 0
        self._file = file
        self._digest = digest

    def read(self, size: int = _PIECE) -> bytes:
        piece = self._file.read(size)
        self._digest.update(piece)
        self.count += len(piece)
        return piece

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Leave the file to whoever opened it."""
        self.closed = True


def _gzip(source: _Counted) -> Iterator[bytes]:
    """Unpack what gzip wrote, in pieces; several packed files one after the other are one."""
    inside, begun = zlib.decompressobj(wbits=31), False
    while piece := source.read(_PIECE):
        while piece:
            begun = True
            try:
                plain = inside.decompress(piece, _PIECE)
            except zlib.error as error:
                raise _Unreadable("malformed: the file is not what gzip writes") from error
            piece = inside.unconsumed_tail
            if inside.eof:
                piece, inside, begun = inside.unused_data, zlib.decompressobj(wbits=31), False
            yield plain
    if begun:
        raise _Unreadable("malformed: the packed file ends too early")


def _zstd(source: _Counted) -> Iterator[bytes]:
    """Unpack what zstd wrote, in pieces; several frames one after the other are one file."""
    read = pa.CompressedInputStream(pa.PythonFile(source, "r"), "zstd")
    while True:
        try:
            plain = read.read(_PIECE)
        except OSError as error:
            if error.errno is not None:
                raise
            early = "Truncated" in str(error)
            why = "the packed file ends too early" if early else "the file is not what zstd writes"
            raise _Unreadable(f"malformed: {why}") from error
        if not plain:
            return
        yield plain


_UNPACK = {".gz": _gzip, ".zst": _zstd}
"""How a file is packed, by the ending of its name."""
_REFUSED = (".bz2", ".deflate", ".lz4", ".snappy")
"""Spark would unpack these behind our back: what was counted and looked at here would be something else."""


class _Text:
    """Counts lines, and notes what a reader must know."""

    def __init__(self, kind: str, encoding: str, max_row_bytes: int) -> None:
        self.lines = 0
        self.size = 0
        self.quoted_break = False
        self.damaged = False
        self._csv = kind == "csv"
        self._encoding = encoding if self._csv else "utf-8"
        self.wide = self._encoding.startswith("utf-16")
        """Its characters are no bytes: Spark must not cut it, and it is counted as what it says."""
        self._decoder = codecs.getincrementaldecoder(self._encoding)(errors="strict")
        self._marked = False
        self._most = max_row_bytes
        self._line = 0
        self._in_quotes = False
        self._last = b""
        self._head = b""

    def feed(self, piece: bytes) -> None:
        if not piece:
            return
        self.size += len(piece)
        if self.wide:
            piece = self._narrowed(piece)
        if len(self._head) < _MOST_HEADER:
            self._head += piece[: _MOST_HEADER - len(self._head)]
        if not self.damaged and not self.wide:
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

    def _narrowed(self, piece: bytes) -> bytes:
        marks = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        # Without a mark, Python and Java take its bytes in different orders.
        if self._encoding == "utf-16" and not self._marked and not piece.startswith(marks):
            raise _Unreadable("malformed: a file in utf-16 begins with a byte order mark; see utf-16le and utf-16be")
        self._marked = True
        try:
            return self._decoder.decode(piece).encode()
        except UnicodeDecodeError as error:
            raise _Unreadable(f"malformed: the file is not {self._encoding}") from error

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
            except UnicodeDecodeError as error:
                if self.wide:
                    raise _Unreadable(f"malformed: the file is not {self._encoding}") from error
                self.damaged = True
        if self._in_quotes:
            raise _Unreadable("malformed: a quoted value does not end")

    def header(self) -> tuple[str, str]:
        """Return the names of the columns as JSON, or why there are none."""
        encoding = "utf-8-sig" if self.wide or self._encoding == "utf-8" else self._encoding
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


def _parquet(file: BinaryIO, digest: str) -> Examined:
    try:
        with pq.ParquetFile(file) as read:
            schema = str(read.schema_arrow.remove_metadata())
            return Examined(digest, max(read.metadata.num_rows, 1), schema)
    except (ArrowException, ValueError, OSError) as error:
        said = " ".join(str(error).split())[:200]
        return Examined(digest, 1, problem=f"malformed: not a Parquet file: {said}")
