"""The reference engine on programs whose times can be worked out by hand."""

import numpy as np
import pytest

from simpar.engine import reference
from simpar.engine.sharing import LinkChange
from simpar.program.ir.builder import ProgramBuilder
from simpar.program.ir.program import ProgramError
from simpar.units import GB, KB


def flows(work, routes, *, capacity=(GB, GB), **columns):
    """Independent flows of `work` bytes over lists of links."""
    build = ProgramBuilder()
    build.add_class("gpu")
    for index, each in enumerate(capacity):
        build.add_link(f"link {index}", each)
    ids = [build.add_route(links) if links else -1 for links in routes]
    build.add_ops(len(work), work_bytes=work, route=ids, **columns)
    return build.build()


def finishes(program, changes=()):
    """Finish of every op."""
    return reference.run(program, changes).finish_ns.tolist()


def test_two_flows_on_one_link_take_twice_as_long():
    """1 kB alone takes 1 us at 1 GB/s, in company 2 us."""
    assert finishes(flows([KB], [[0]])) == [1000]
    assert finishes(flows([KB, KB], [[0], [0]])) == [2000, 2000]


def test_a_flow_speeds_up_when_another_leaves():
    """1 kB and 3 kB share until 2 us; the rest of the longer runs alone: 4 us in all."""
    assert finishes(flows([KB, 3 * KB], [[0], [0]])) == [2000, 4000]


def test_two_hops_pay_for_the_slower():
    """A message over a fast and a slow link takes what the slow one takes."""
    assert finishes(flows([KB], [[0, 1]], capacity=(4 * GB, GB))) == [1000]


def test_unshared_links_do_not_feel_each_other():
    """Flows on different links are independent."""
    assert finishes(flows([KB, KB], [[0], [1]], capacity=(GB, 2 * GB))) == [1000, 500]


def test_what_a_bound_flow_leaves_goes_to_the_others():
    """A flow bound elsewhere to a third leaves two thirds of the shared link."""
    program = flows([KB, 2 * KB], [[0, 1], [0]], capacity=(3 * GB, GB))
    assert finishes(program) == [1000, 1000]


def test_a_cap_limits_a_flow_and_frees_its_share():
    """Capped at a quarter, one flow takes 4 us; the other has three quarters until it is done."""
    program = flows([KB, 3 * KB], [[0], [0]], rate_cap_bytes_per_s=[GB // 4, 0])
    assert finishes(program) == [4000, 4000]


def test_a_capped_flow_needs_no_link():
    """Its rate is its cap."""
    assert finishes(flows([KB], [[]], rate_cap_bytes_per_s=GB // 2)) == [2000]


def test_the_fixed_part_comes_before_the_flow_and_shares_nothing():
    """A flow that starts to drain 1 us later leaves the link to the other until then."""
    assert finishes(flows([KB, KB], [[0], [0]], fixed_ns=[0, 1000])) == [1000, 2000]


def test_flows_that_change_places_in_an_instant_never_share():
    """The finish of one and the start of the next are one instant, and sharing comes after both."""
    build = ProgramBuilder()
    gpu = build.add_class("gpu")
    route = build.add_route(build.add_link("nic", GB))
    ops = build.add_ops(3, work_bytes=[KB, 0, KB], route=[route, -1, route])
    build.depend(ops[1:], ops[:-1])
    build.place(build.add_stream("compute", gpu), ops[1])
    assert finishes(build.build()) == [1000, 1000, 2000]


def test_a_collective_waits_for_all_its_streams():
    """One op on two streams starts when the slower of them arrives, and both wait for its finish."""
    build = ProgramBuilder()
    gpu = build.add_class("gpu")
    streams = [build.add_stream(name, gpu) for name in "ab"]
    early, late, collective, after_a, after_b = build.add_ops(5, fixed_ns=[10, 30, 5, 1, 2])
    build.place([0, 1], [early, late])
    build.place(streams, collective)
    build.place([0, 1], [after_a, after_b])
    timing = reference.run(build.build())
    assert timing.start_ns.tolist() == [0, 0, 30, 35, 35]
    assert timing.makespan_ns == 37


def test_chains_without_duration_take_no_time():
    """Thousands of them neither advance the clock nor exhaust the stack."""
    build = ProgramBuilder()
    gpu = build.add_class("gpu")
    build.place(build.add_stream("compute", gpu), build.add_ops(5000))
    assert reference.run(build.build()).makespan_ns == 0


def test_a_link_that_slows_down_delays_what_is_left():
    """Half of 1 kB at 1 GB/s, the rest at a quarter of that: 500 + 2000 ns."""
    assert finishes(flows([KB], [[0]]), [LinkChange(500, 0, GB // 4)]) == [2500]


def test_a_link_that_fails_and_recovers_stops_its_flows_meanwhile():
    """A pause of 1 us is a delay of 1 us."""
    changes = [LinkChange(1500, 0, GB), LinkChange(500, 0, 0)]
    assert finishes(flows([KB], [[0]]), changes) == [2000]


def test_a_flow_on_a_dead_link_is_reported():
    """If nothing will ever bring it back, the message names the flow."""
    with pytest.raises(ProgramError, match="op 0 op of gpu uses a link without capacity"):
        reference.run(flows([KB], [[0]]), [LinkChange(500, 0, 0)])


def test_ops_that_wait_for_each_other_are_reported():
    """A deadlock names the ops on the cycle."""
    build = ProgramBuilder()
    gpu = build.add_class("gpu")
    ops = build.add_ops(3, fixed_ns=1)
    build.place(build.add_stream("compute", gpu), ops)
    build.depend(ops[1], ops[2])
    with pytest.raises(ProgramError, match="op 1 op of gpu waits for op 2 op of gpu waits for op 1"):
        reference.run(build.build())


def test_an_empty_program_takes_no_time():
    """No ops, no makespan."""
    timing = reference.run(ProgramBuilder().build())
    assert timing.makespan_ns == 0
    assert timing.start_ns.dtype == np.int64
