"""The wire format of protocol buffers, as much as execution traces use: integers, texts and messages in messages.

Own code, because five small messages need 100 lines of it and no generated classes, and because the bytes of the same
step must be the same with every version of a library. Source: protobuf.dev, "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types: how long the value behind a key is."""
_FIXED = {FIXED64: 8, FIXED32: 4}
_MOST_BYTES_OF_A_VARINT = 10
_BITS = 64

Value = int | bytes


class WireError(ValueError):
    """Bytes that are no messages: cut off, too long, or of a wire type that there is not."""


def varint(value: int) -> bytes:
    """A whole number in groups of seven bits, lowest first; negative ones as 64 bits of two's complement."""
    value &= (1 << _BITS) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a position, and the position behind it. Raises WireError."""
    value = 0
    for count in range(_MOST_BYTES_OF_A_VARINT):
        if at >= len(data):
            raise WireError("ends inside a number")
        byte = data[at]
        value |= (byte & 0x7F) << 7 * count
        at += 1
        if byte < 0x80:
            return value & (1 << _BITS) - 1, at
    raise WireError("a number is longer than 64 bits")


def signed(value: int) -> int:
    """64 bits of two's complement as a number."""
    return value - (1 << _BITS) if value >> _BITS - 1 else value


def integer(field: int, value: int) -> bytes:
    """A field that holds a whole number, a flag or a name of an enumeration; nothing where it is 0, as in proto3."""
    return said_integer(field, value) if value else b""


def said_integer(field: int, value: int) -> bytes:
    """A field with a whole number that is said even where it is 0: one of several."""
    return varint(field << 3 | VARINT) + varint(value)


def chunk(field: int, value: bytes) -> bytes:
    """A field that holds a text or a message, of however many bytes."""
    return varint(field << 3 | BYTES) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    """A text; nothing where it is empty."""
    return chunk(field, value.encode()) if value else b""


def packed(field: int, values: Iterable[int]) -> bytes:
    """Whole numbers one behind the other in one field; nothing where there are none."""
    joined = b"".join(map(varint, values))
    return chunk(field, joined) if joined else b""


def unpacked(value: Value) -> list[int]:
    """The numbers of a field that may hold one or many in one chunk. Raises WireError."""
    if isinstance(value, int):
        return [value]
    found, at = list[int](), 0
    while at < len(value):
        number, at = read_varint(value, at)
        found.append(number)
    return found


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Fields of a message in the order in which they stand: number and value. Raises WireError.

    Of fixed-width values, which no field that is read has, the bytes are handed on.
    """
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        kind = key & 7
        if kind == VARINT:
            value, at = read_varint(data, at)
            yield key >> 3, value
            continue
        if kind == BYTES:
            length, at = read_varint(data, at)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise WireError(f"wire type {kind}, which there is not")
        if at + length > len(data):
            raise WireError("ends inside a field")
        yield key >> 3, data[at : at + length]
        at += length


def delimited(messages: Iterable[bytes]) -> bytes:
    """Messages one behind the other, each with its length before it."""
    return b"".join(varint(len(each)) + each for each in messages)


def split(data: bytes) -> Iterator[bytes]:
    """The messages of a file that :func:`delimited` could have written. Raises WireError."""
    at = 0
    while at < len(data):
        length, at = read_varint(data, at)
        if at + length > len(data):
            raise WireError(f"ends inside a message of {length} bytes")
        yield data[at : at + length]
        at += length
