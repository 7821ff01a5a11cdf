"""Messages of Chakra execution traces: nodes with dependencies and attributes, one file per rank.

A file has the metadata of the trace and then its nodes, each preceded by its length. Source: mlcommons/chakra,
schema/protobuf/et_def.proto (numbers of fields), which ASTRA-sim's feeder reads.
"""

import gzip
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import field

from simpar.chakra.wire import (
    Value,
    WireError,
    chunk,
    encode_present,
    fields,
    integer,
    join_messages,
    pack_integers,
    split,
    text,
    to_signed,
    unpack_integers,
)
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.files import GZIP

INVALID, METADATA, MEMORY_LOAD, MEMORY_STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = range(8)
"""Types of nodes."""
COLLECTIVES = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
    "reduce_scatter_block", "barrier",
)  # fmt: skip
"""Operations by their number (CollectiveCommType)."""
VERSION = "0.0.4"
"""Version of the schema, as stated in the metadata."""

_INT32, _INT64, _BOOL, _STRING = 7, 9, 27, 29
_INTEGERS = (7, 9, 11, 13)
"""Fields of attributes with whole numbers as varints: int32, int64, uint32, uint64."""
_WIDTHS: dict[str, int] = {
    "comm_type": _INT64, "comm_size": _INT64, "comm_src": _INT32, "comm_dst": _INT32, "comm_tag": _INT32,
}  # fmt: skip
"""Fields of the attributes that the feeder reads as other than 64-bit numbers; all others have 64 bits."""
Attribute = int | bool | str


@dataclass(frozen=True)
class TraceNode:
    """One operation of one rank; times in us, attributes by name.

    ``after`` are ids of nodes of the same file that must have finished (``data_deps`` and ``ctrl_deps`` of the file).
    """

    id: int
    name: str
    kind: int
    after: tuple[int, ...] = ()
    start_us: int = 0
    duration_us: int = 0
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The message."""
        parts = [
            integer(1, self.id),
            text(2, self.name),
            integer(3, self.kind),
            pack_integers(5, self.after),
            integer(6, self.start_us),
            integer(7, self.duration_us),
        ]
        parts += [chunk(10, _attribute(name, value)) for name, value in self.attributes.items()]
        return b"".join(parts)

    def number(self, name: str, default: int = 0) -> int:
        """An attribute that is a whole number. Raises WireError where it is a text."""
        value = self.attributes.get(name, default)
        if isinstance(value, str):
            raise WireError(f"attribute {name} = {value!r}: allowed: a whole number")
        return int(value)


@dataclass(frozen=True)
class ChakraTrace:
    """The nodes of one rank."""

    nodes: tuple[TraceNode, ...]

    def encode(self) -> bytes:
        """The file."""
        return join_messages([text(1, VERSION), *(node.encode() for node in self.nodes)])


def decode(data: bytes, source: str) -> ChakraTrace:
    """The trace in the bytes of a file, gzipped or not. Raises UserError for bytes that are no trace."""
    try:
        if data.startswith(GZIP):
            data = gzip.decompress(data)
        first, *rest = split(data)
        for _ in fields(first):  # checks the metadata, which are a message like any other
            pass
        return ChakraTrace(tuple(_node(each) for each in rest))
    except (WireError, UnicodeDecodeError, ValueError, EOFError, OSError, zlib.error) as error:
        raise UserError(f"{source}: is not an execution trace of Chakra ({error}); allowed: *.et, gzipped or not") \
            from None  # fmt: skip


def _attribute(name: str, value: Attribute) -> bytes:
    if isinstance(value, bool):
        said = encode_present(_BOOL, int(value))
    elif isinstance(value, str):
        said = chunk(_STRING, value.encode())
    else:
        said = encode_present(_WIDTHS.get(name, _INT64), value)
    return text(1, name) + said


def _read_attribute(data: bytes) -> tuple[str, Attribute | None]:
    """(Name, value) of an attribute; value None for kinds that are not needed (floats, lists)."""
    name = ""
    value: Attribute | None = None
    for number, result in fields(data):
        if number == 1:
            name = _text(result)
        elif number in _INTEGERS and isinstance(result, int):
            value = to_signed(result) if number in (_INT32, _INT64) else result
        elif number == _BOOL:
            value = bool(result)
        elif number == _STRING:
            value = _text(result)
    return name, value


def _text(value: Value) -> str:
    if isinstance(value, int):
        raise WireError("a number stands where a text must")
    return value.decode()


def _whole(value: Value) -> int:
    if not isinstance(value, int):
        raise WireError("a text stands where a number must")
    return value


def _node(data: bytes) -> TraceNode:
    numbers = {1: 0, 3: 0, 6: 0, 7: 0}
    name, after = "", list[int]()
    attributes: dict[str, Attribute] = {}
    for number, value in fields(data):
        if number in numbers:
            numbers[number] = _whole(value)
        elif number == 2:
            name = _text(value)
        elif number in (4, 5):
            after += unpack_integers(value)
        elif number == 10 and not isinstance(value, int):
            key, said = _read_attribute(value)
            if said is not None:
                attributes[key] = said
    return TraceNode(numbers[1], name, numbers[3], tuple(dict.fromkeys(after)), numbers[6], numbers[7], attributes)


def trace_files(traces: Iterable[ChakraTrace], prefix: str) -> dict[str, bytes]:
    """The files of all ranks in order, by name."""
    return {f"{prefix}.{rank}.et": trace.encode() for rank, trace in enumerate(traces)}
