"""Document ids as Convex writes them: a table's number, sixteen bytes and a checksum, in lower-case base 32."""

from __future__ import annotations

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def document_id(number: int, internal: bytes) -> str:
    """Return the id of the document `internal` in the table with that number."""
    raw = _varint(number) + internal
    return _base32(raw + _checksum(raw))


def _varint(number: int) -> bytes:
    made = bytearray()
    while number >= 0x80:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


def _checksum(raw: bytes) -> bytes:
    low = high = 0
    for byte in raw:
        low = (low + byte) % 255
        high = (high + low) % 255
    return bytes([low, high])


def _base32(raw: bytes) -> str:
    length = (len(raw) * 8 + 4) // 5
    bits = int.from_bytes(raw) << (length * 5 - len(raw) * 8)
    return "".join(_ALPHABET[bits >> (5 * at) & 31] for at in reversed(range(length)))
