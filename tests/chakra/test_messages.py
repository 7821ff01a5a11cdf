"""The file format: bytes by hand, back and forth, and bytes that are none."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar.chakra.messages import COLLECTIVE, COMPUTE, ChakraTrace, TraceNode, decode
from simpar.chakra.wire import WireError, fields, read_varint, to_signed, varint
from simpar.errors import UserError

INTEGERS = st.integers(-(2**63), 2**63 - 1)
NODES = st.builds(
    TraceNode,
    id=st.integers(0, 2**64 - 1),
    name=st.text(max_size=8),
    kind=st.integers(0, 7),
    after=st.lists(st.integers(0, 2**64 - 1), max_size=4, unique=True).map(tuple),
    start_us=st.integers(0, 2**63),
    duration_us=st.integers(0, 2**63),
    attributes=st.dictionaries(
        st.text(max_size=6), st.one_of(st.booleans(), INTEGERS, st.text(max_size=6)), max_size=4
    ),
)


@settings(max_examples=30)
@given(st.lists(NODES, max_size=2), st.booleans())
def test_what_is_written_is_read(nodes, zipped):
    """All fields of nodes, the kinds of their attributes among them, also through gzip."""
    trace = ChakraTrace(tuple(nodes))
    data = trace.encode()
    back = decode(gzip.compress(data) if zipped else data, "file")
    assert back == trace
    assert [[type(value) for value in node.attributes.values()] for node in back.nodes] == [
        [type(value) for value in node.attributes.values()] for node in nodes
    ]


@given(INTEGERS)
def test_numbers_come_back(value):
    """Groups of seven bits, negative ones in two's complement."""
    data = varint(value)
    assert read_varint(data, 0) == (value % 2**64, len(data))
    assert to_signed(value % 2**64) == value


def test_bytes_of_a_node():
    """By hand from the definition: key = field << 3 | wire type; a false flag is said, a 0 elsewhere is not."""
    node = TraceNode(3, "a", COLLECTIVE, (1, 2), 0, 300, {"is_cpu_op": False, "comm_type": 0})
    flag = b"\x0a\x09is_cpu_op" + b"\xd8\x01\x00"
    kind = b"\x0a\x09comm_type" + b"\x48\x00"
    expected = (
        b"\x08\x03" + b"\x12\x01a" + b"\x18\x07" + b"\x2a\x02\x01\x02" + b"\x38\xac\x02"
        + b"\x52" + bytes([len(flag)]) + flag + b"\x52" + bytes([len(kind)]) + kind
    )  # fmt: skip
    assert node.encode() == expected
    assert ChakraTrace((node,)).encode() == b"\x07\x0a\x050.0.4" + bytes([len(expected)]) + expected


def test_dependencies_in_other_writings_are_read():
    """Unpacked ones and control dependencies; lists and floats among attributes are passed over."""
    node = b"\x08\x09\x18\x04" + b"\x28\x01\x28\x02" + b"\x22\x01\x05" + b"\x52\x08\x0a\x01x\x2d\x00\x00\x80\x3f"
    data = b"\x00" + bytes([len(node)]) + node
    (found,) = decode(data, "file").nodes
    assert (found.id, found.kind, found.after, found.attributes) == (9, COMPUTE, (1, 2, 5), {})


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b"\x05\x0a",
        b"\x1f\x8b\x08\x00broken",
        gzip.compress(b"x" * 1000, mtime=0)[:40],
        b"\xff" * 20,
        b"\x00\x02\x10\x01",
        b"\x00\x03\x12\x01\xff",
        b"\x00\x01\x0b",
    ],
)
def test_other_bytes_are_refused_in_a_line(data):
    """Text, cut ends, broken compression, numbers without end, values of the wrong kind."""
    with pytest.raises(UserError, match=r"trace.0.et: is not an execution trace of Chakra \(.*allowed") as error:
        decode(data, "trace.0.et")
    assert "\n" not in str(error.value)


def test_fields_that_end_early_are_no_message():
    """A length beyond the end is told."""
    with pytest.raises(WireError, match="ends inside a field"):
        list(fields(b"\x0a\x05ab"))


def test_an_attribute_of_the_wrong_kind_is_told():
    """A text where a number is asked for."""
    with pytest.raises(WireError, match="comm_size = 'big': allowed: a whole number"):
        TraceNode(0, "", COMPUTE, attributes={"comm_size": "big"}).number("comm_size")


def test_the_protobuf_library_reads_the_same():
    """Where it is installed, with the definition of the messages rebuilt here."""
    pool = pytest.importorskip("google.protobuf.descriptor_pool")
    from google.protobuf import descriptor_pb2, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    attribute = file.message_type.add(name="Attribute")
    kinds = {"name": (1, 9), "int32_val": (7, 5), "int64_val": (9, 3), "bool_val": (27, 8), "string_val": (29, 9)}
    for name, (number, kind) in kinds.items():
        attribute.field.add(name=name, number=number, type=kind, label=1)
    node = file.message_type.add(name="Node")
    for name, (number, kind, label) in {
        "id": (1, 4, 1), "name": (2, 9, 1), "type": (3, 5, 1), "data_deps": (5, 4, 3), "duration_micros": (7, 4, 1),
    }.items():  # fmt: skip
        node.field.add(name=name, number=number, type=kind, label=label)
    node.field.add(name="attr", number=10, type=11, label=3, type_name=".t.Attribute")
    made = pool.DescriptorPool()
    made.Add(file)
    read = message_factory.GetMessageClass(made.FindMessageTypeByName("t.Node"))()
    said = {"is_cpu_op": False, "comm_size": 2**40, "comm_src": 3, "pg_name": "12"}
    read.ParseFromString(TraceNode(7, "n", COLLECTIVE, (1, 300), 5, 2**33, said).encode())
    assert (read.id, read.name, read.type, list(read.data_deps)) == (7, "n", COLLECTIVE, [1, 300])
    assert read.duration_micros == 2**33
    assert [(each.name, each.int64_val, each.int32_val, each.string_val) for each in read.attr] == [
        ("is_cpu_op", 0, 0, ""), ("comm_size", 2**40, 0, ""), ("comm_src", 0, 3, ""), ("pg_name", 0, 0, "12"),
    ]  # fmt: skip
