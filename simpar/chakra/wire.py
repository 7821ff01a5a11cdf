"""The wire format of protocol buffers, as far as execution traces use it: integers, texts and nested messages.

It is written here because five small messages need only 100 lines and no generated classes, and because a step must
give the same bytes with every version of a library. Source: protobuf.dev, "Encoding".
"""

from collections.abc import Iterable, Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types, which give the length of the value behind a key."""
_FIXED = {FIXED64: 8, FIXED32: 4}
_MOST_BYTES_OF_A_VARINT = 10
_BITS = 64

Value = int | bytes


class WireError(ValueError):
    """Bytes that are no messages: cut off, too long, or of an unknown wire type."""


def varint(value: int) -> bytes:
    """A whole number in groups of seven bits, lowest first; negative ones as 64 bits of two's complement."""
    value &= (1 << _BITS) - 1
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


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


def to_signed(value: int) -> int:
    """64 bits of two's complement as a number."""
    return value - (1 << _BITS) if value >> _BITS - 1 else value


def integer(field: int, value: int) -> bytes:
    """A field with a whole number, a flag or an enumeration value; no bytes for 0, as in proto3."""
    return encode_present(field, value) if value else b""


def encode_present(field: int, value: int) -> bytes:
    """A field with a whole number that is written even where it is 0 (a oneof)."""
    return varint(field << 3 | VARINT) + varint(value)


def chunk(field: int, value: bytes) -> bytes:
    """A field with the bytes of a text or a message."""
    return varint(field << 3 | BYTES) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    """A field with a text; no bytes for an empty one."""
    return chunk(field, value.encode()) if value else b""


def pack_integers(field: int, values: Iterable[int]) -> bytes:
    """A field with several whole numbers; no bytes without any."""
    joined = b"".join(map(varint, values))
    return chunk(field, joined) if joined else b""


def unpack_integers(value: Value) -> list[int]:
    """The numbers of a field that has a single one or a chunk of many. Raises WireError."""
    if isinstance(value, int):
        return [value]
    result, at = list[int](), 0
    while at < len(value):
        number, at = read_varint(value, at)
        result.append(number)
    return result


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """(Number, value) of the fields of a message, in order. Raises WireError.

    Fixed-width values are returned as their bytes.
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


def join_messages(messages: Iterable[bytes]) -> bytes:
    """The bytes of several messages, each preceded by its length."""
    return b"".join(varint(len(each)) + each for each in messages)


def split(data: bytes) -> Iterator[bytes]:
    """The messages in the bytes of a file as written by :func:`join_messages`. Raises WireError."""
    at = 0
    while at < len(data):
        length, at = read_varint(data, at)
        if at + length > len(data):
            raise WireError(f"ends inside a message of {length} bytes")
        yield data[at : at + length]
        at += length
