"""Collapse merges what nothing outside can touch, and privatise removes flows that never meet another."""

import numpy as np
import pytest

from simpar.engine import reference
from simpar.program.builder import ProgramBuilder
from simpar.program.collapse import collapse, privatise
from simpar.program.program import Timing, verify
from simpar.units import GB, KB


def blocks(num_blocks=3, layers=4, *, hook=False, wide=False):
    """Blocks of layers that alternate between compute and communication, a message between blocks.

    With `hook` another stream waits for each layer of the last block; with `wide` two ops of a layer overlap.
    """
    build = ProgramBuilder()
    gpu = build.add_class("gpu")
    compute, comm, send, other = (
        build.add_stream(name, gpu) for name in ("compute", "comm", "send", "other")
    )
    link = build.add_link("nic", GB)
    route = build.add_route(link)
    message = None
    for block in range(num_blocks):
        end = None
        for _ in range(layers):
            ops = build.add_ops(4, fixed_ns=[3, 5, 7 + block, 11])
            build.depend(
                ops[1:] if not wide else ops[[1, 2, 3, 3]], ops[:-1] if not wide else ops[[0, 0, 1, 2]]
            )
            if wide:
                build.place([compute, compute, comm, compute], ops)
            else:
                build.place([compute, compute, compute, comm], ops)
            if end is not None:
                build.depend(ops[0], end)
            elif message is not None:
                build.depend(ops[0], message)
            end = ops[3]
            if hook and block == num_blocks - 1:
                waiting = build.add_ops(1, fixed_ns=2)
                build.depend(waiting, ops[3])
                build.place(other, waiting)
        message = build.add_ops(1, fixed_ns=1, work_bytes=KB, route=route)
        build.depend(message, end)
        build.place(send, message)
    return verify(build.build())


def assert_exact(program):
    """Collapse, run, expand: every time as without; return the collapsed program."""
    small, expansion = collapse(program)
    flat, timing = reference.run(program), reference.run(verify(small))
    expanded = expansion.timing(timing)
    assert np.array_equal(expanded.start_ns, flat.start_ns)
    assert np.array_equal(expanded.finish_ns, flat.finish_ns)
    return small


def test_a_block_becomes_one_op():
    """Serial layers on two streams collapse to one op a block, between the messages."""
    assert len(assert_exact(blocks())) == 6


def test_overlapping_ops_of_a_block_collapse_too():
    """Two ops between the same two neighbours are one, as long as the longer."""
    assert len(assert_exact(blocks(wide=True))) == 6


def test_a_hook_cuts_the_block():
    """Where another stream waits for each layer, a layer is the largest piece left."""
    small = assert_exact(blocks(hook=True))
    assert len(small) == 2 + 4 + 3 + 4  # two whole blocks, one in layers, three messages, four hooks


def test_classes_stay_apart():
    """Ops of two classes never merge, even in a chain."""
    build = ProgramBuilder()
    classes = [build.add_class(name) for name in "ab"]
    ops = build.add_ops(4, class_id=[0, 0, 1, 1], fixed_ns=[1, 2, 3, 4])
    build.depend(ops[1:], ops[:-1])
    build.place([build.add_stream("s", c) for c in classes], ops[[0, 2]])
    small = assert_exact(verify(build.build()))
    assert small.ops.fixed_ns.tolist() == [3, 7]
    assert small.ops.class_id.tolist() == [0, 1]


def test_ops_without_relations_stay_as_they_are():
    """Two ops that merely exist are not one op."""
    build = ProgramBuilder()
    build.add_class("gpu")
    build.add_ops(3, fixed_ns=5)
    assert len(assert_exact(verify(build.build()))) == 3


def test_an_empty_program_collapses_to_itself():
    """Nothing in, nothing out."""
    small, expansion = collapse(ProgramBuilder().build())
    assert len(small) == 0
    nothing = np.zeros(0, dtype=np.int64)
    assert len(expansion.timing(Timing(nothing, nothing)).start_ns) == 0


def test_the_collapsed_program_has_no_memory_table():
    """Memory is read from the original and the expanded timing, where inner times are known."""
    build = ProgramBuilder()
    gpu = build.add_class("gpu")
    ops = build.add_ops(2, fixed_ns=5)
    build.depend(ops[1], ops[0])
    build.memory(ops, [1, -1], class_id=gpu, at_finish=True, category="transient")
    small, _ = collapse(build.build())
    assert len(small) == 1
    assert len(small.memory) == 0


def two_streams_on_a_link():
    """Stream 0 has link 0 to itself, streams 1 and 2 share link 1, and op 4 crosses both."""
    build = ProgramBuilder()
    gpu = build.add_class("gpu")
    streams = [build.add_stream(f"s{i}", gpu) for i in range(3)]
    for name in ("own", "shared"):
        build.add_link(name, GB)
    own, shared, both = build.add_route(0), build.add_route(1), build.add_route([0, 1])
    ops = build.add_ops(5, fixed_ns=10, work_bytes=KB, route=[own, own, shared, shared, both])
    build.place([streams[i] for i in (0, 0, 1, 2, 0)], ops)
    return verify(build.build())


def test_only_flows_with_private_routes_become_durations():
    """A link is private when one stream carries all its flows; every link of the route has to be."""
    program = privatise(two_streams_on_a_link())
    assert program.ops.work_bytes.tolist() == [0, 0, KB, KB, KB]
    assert program.ops.fixed_ns.tolist() == [1010, 1010, 10, 10, 10]
    assert np.array_equal(reference.run(program).finish_ns, reference.run(two_streams_on_a_link()).finish_ns)


def test_flows_on_links_that_will_change_stay_flows():
    """A change of capacity has to find the flow."""
    program = privatise(two_streams_on_a_link(), changing_links=[0])
    assert (program.ops.work_bytes == KB).all()


@pytest.mark.parametrize("num_flows", [1, 2])
def test_a_flow_on_no_stream_is_private_only_if_alone(num_flows):
    """Nothing orders two flows without a stream."""
    build = ProgramBuilder()
    build.add_class("gpu")
    route = build.add_route(build.add_link("nic", GB))
    build.add_ops(num_flows, work_bytes=KB, route=route)
    assert (privatise(build.build()).ops.work_bytes == 0).all() == (num_flows == 1)
