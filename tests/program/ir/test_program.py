"""The Program: its builder, its graph, and every rule that verify enforces."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar.errors import BeyondIntegers
from simpar.program.ir import flow
from simpar.program.ir.builder import ProgramBuilder
from simpar.program.ir.flow import slowest_rate, solo_duration_ns
from simpar.program.ir.program import (
    Csr,
    Label,
    ProgramError,
    check_countable,
    levels,
    longest_path_ns,
    predecessors,
    solo_durations_ns,
    stream_edges,
)
from simpar.units import GB, KB, MB, TB
from tests.rules import verify


def small():
    """Two streams; op 1 is a flow on the second; op 2 waits for it; op 3 sits on both streams."""
    build = ProgramBuilder()
    gpu = build.add_class("gpu", 4)
    compute, comm = build.add_stream("compute", gpu), build.add_stream("comm", gpu)
    route = build.add_route([build.add_link("port", 2 * GB), build.add_link("nic", GB)], [2.0, 0.5])
    label = build.label(Label("forward", "gemm", 7))
    ops = build.add_ops(
        4, fixed_ns=[5, 10, 20, 0], work_bytes=[0, KB, 0, 0], route=[-1, route, -1, -1], label=label, microbatch=1
    )
    build.place([compute, comm, compute], ops[:3])
    build.place([compute, comm], ops[3])
    build.depend(ops[2], ops[1])
    build.memory(ops[:2], [100, 50], class_id=gpu, at_finish=False, category="activations")
    return build.build()


def test_builder_makes_what_was_asked_for():
    """Columns broadcast, streams keep their order, links and classes keep their names."""
    program = verify(small())
    assert len(program) == 4
    assert program.streams.row(0).tolist() == [0, 2, 3]
    assert program.streams.row(1).tolist() == [1, 3]
    assert program.multiplicity.tolist() == [4]
    assert program.routes.link_names == ("port", "nic")
    assert program.memory.delta_bytes.tolist() == [100, 50]
    assert program.describe(1) == "op 1 gemm of gpu layer 7 microbatch 1"


def test_builder_refuses_unknown_columns():
    """A misspelt column of ops is not ignored."""
    with pytest.raises(TypeError, match="durations"):
        ProgramBuilder().add_ops(1, durations=3)


def test_predecessors_are_dependencies_then_stream_order():
    """Op 2 waits for op 1 by dependency and for op 0 by its stream; op 3 for the last of both streams."""
    pointer, before = predecessors(small())
    assert [before[pointer[op] : pointer[op + 1]].tolist() for op in range(4)] == [[], [], [1, 0], [2, 1]]


def test_empty_streams_have_no_edges():
    """An empty stream between others neither adds nor hides an edge."""
    build = ProgramBuilder()
    gpu = build.add_class("gpu")
    for name in "abcd":
        build.add_stream(name, gpu)
    ops = build.add_ops(4)
    build.place([1, 1, 3, 3], ops)
    before, after = stream_edges(build.build())
    assert list(zip(before, after, strict=True)) == [(0, 1), (2, 3)]


def test_levels_are_longest_paths():
    """With unit durations the start of an op is its level."""
    assert levels(small()).tolist() == [0, 0, 1, 2]
    assert longest_path_ns(small(), [5, 1, 1, 1]).tolist() == [0, 0, 5, 6]


def test_an_empty_program_is_a_program():
    """No ops, no streams, no links: nothing to complain about."""
    program = verify(ProgramBuilder().build())
    assert len(program) == 0
    assert solo_durations_ns(program).tolist() == []


def test_solo_duration_is_fixed_part_plus_work_over_the_slowest_link():
    """2 bytes a byte on 2 GB/s beat half a byte on 1 GB/s: 1 GB/s, 1 us for 1 kB, after 10 ns."""
    program = small()
    assert solo_durations_ns(program).tolist() == [5, 1010, 20, 0]
    rate = slowest_rate([2.0, 0.5], [2 * GB, GB])
    assert solo_duration_ns(10, KB, rate) == 1010
    assert solo_duration_ns(10, KB, rate, GB // 2) == 2010
    assert solo_duration_ns(10, 0, slowest_rate([], [])) == 10


def test_a_rate_cap_needs_no_route():
    """Work without links drains at the cap."""
    build = ProgramBuilder()
    build.add_class("gpu")
    build.add_ops(1, work_bytes=MB, rate_cap_bytes_per_s=GB)
    assert solo_durations_ns(verify(build.build())).tolist() == [MB]


def test_quantised_coefficients_multiply_exactly():
    """A class of n flows puts n times the rounded coefficient of one flow on a link."""
    third = flow.fixed_point(1 / 3)
    assert flow.fixed_point(flow.quantise(1 / 3) * 4096) == 4096 * third
    assert flow.fixed_point(1e-12) == 1


def test_rates_round_down_but_never_to_nothing():
    """A link of 1 byte/s is slow, not dead; a dead one is dead; without a cap there is no limit."""
    assert flow.to_rate([0, 1, 1999, 2000]).tolist() == [0, 1, 1, 2]
    assert flow.to_cap([0, 2000]).tolist() == [flow.NO_CAP, 2]


def test_amounts_beyond_int64_are_refused():
    """What would overflow inside an engine is an error before."""
    with pytest.raises(ValueError, match="work of"):
        flow.to_work(10 * TB)
    with pytest.raises(ValueError, match="rate of"):
        flow.to_rate(1000 * TB)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 2**40, 2**61, 2**62]),
            st.sampled_from([0, 1, MB, 4 * TB, 9 * TB]),
            st.sampled_from([-1, 0, 1]),
            st.sampled_from([0, 1, KB, GB]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_a_step_is_refused_where_its_ops_in_turn_exceed_64_bits(ops):
    """Whatever was worked out to see it: exactly where the sum of all durations does, up to rounding of floats."""
    build = ProgramBuilder()
    build.add_class("gpu")
    links = [build.add_link("port", 2 * GB), build.add_link("slow", 1)]
    routes = [build.add_route(links[:1], [2.0]), build.add_route(links, [0.5, 1.0])]
    for fixed_ns, work_bytes, route, cap in ops:
        build.add_ops(
            1,
            fixed_ns=fixed_ns,
            work_bytes=work_bytes,
            route=routes[route] if route >= 0 else -1,
            rate_cap_bytes_per_s=cap,
        )
    program = build.build()
    rates = [slowest_rate(*each) for each in (([2.0], [2 * GB]), ([0.5, 1.0], [2 * GB, 1]), ([], []))]
    wanted = sum(fixed + solo_duration_ns(0, work, rates[route], cap) for fixed, work, route, cap in ops)
    if wanted >= 2**63:
        with pytest.raises(BeyondIntegers, match="292 years"):
            check_countable(program)
    else:
        check_countable(program)


def with_ops(**columns):
    """The small program with other columns of ops."""
    program = small()
    return replace(program, ops=replace(program.ops, **{k: np.array(v) for k, v in columns.items()}))


def with_routes(**columns):
    """The small program with other columns of routes."""
    program = small()
    return replace(program, routes=replace(program.routes, **columns))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda: with_ops(fixed_ns=[1, 2]), "different lengths"),
        (lambda: with_ops(fixed_ns=[1, 2, -3, 4]), "op 2 gemm of gpu layer 7 microbatch 1 has a negative"),
        (lambda: with_ops(route=[-1, -1, -1, -1]), "neither a route nor a rate cap"),
        (lambda: with_ops(route=[-1, 9, -1, -1]), r"ops.route\[\[1\]\] = \[9\], allowed -1..0"),
        (lambda: with_ops(label=[0, 0, 1, 0]), "ops.label"),
        (lambda: replace(small(), dependencies=Csr(np.array([0, 2]), np.array([0]))), "dependencies: pointer"),
        (lambda: replace(small(), stream_names=("compute",)), "streams: pointer"),
        (lambda: replace(small(), stream_class=np.array([0])), "streams and classes differ"),
        (lambda: replace(small(), class_names=()), "classes and names differ"),
        (lambda: replace(small(), multiplicity=np.array([0])), "stands for no rank"),
        (lambda: replace(small(), streams=Csr.of([0, 0, 1], [1, 1, 2], 2)), "stream 0 names 1 twice"),
        (lambda: with_routes(capacity_bytes_per_s=np.array([GB, 0])), "link nic has no capacity"),
        (lambda: with_routes(coefficient=np.array([1.0])), "one coefficient per entry"),
        (lambda: with_routes(coefficient=np.array([1.0, -1.0])), "not positive"),
        (lambda: with_routes(coefficient=np.array([1.0, 1e9])), "nic is too slow"),
        (lambda: with_routes(link_names=("port",)), "links and names differ"),
    ],
)
def test_verify_names_what_is_broken(broken, message):
    """Each rule, broken alone, is reported with the op, link or column at fault."""
    with pytest.raises(ProgramError, match=message):
        verify(broken())


def test_verify_names_the_ops_of_a_cycle():
    """Ops that wait for each other are listed in the order in which they wait."""
    program = small()
    circular = replace(program, dependencies=Csr.of([2, 0], [1, 2], 4))
    with pytest.raises(ProgramError, match=r"op 0 gemm .* waits for op 2 gemm .* waits for op 0$"):
        verify(circular)
