"""The sweep engine: when it is exact, and when it refuses."""

import numpy as np
import pytest

from simpar.engine import reference, sweep
from simpar.errors import UserError
from simpar.program.ir.builder import ProgramBuilder
from simpar.program.ir.program import ProgramError
from simpar.units import GB, KB


def two_flows(delay_ns):
    """Two flows of 1 us on one link, the second a delay after the first."""
    build = ProgramBuilder()
    build.add_class("gpu")
    route = build.add_route(build.add_link("nic", GB))
    build.add_ops(2, fixed_ns=[0, delay_ns], work_bytes=KB, route=route)
    return build.build()


def test_flows_that_never_meet_are_swept_exactly():
    """A link may be common as long as nobody drains on it at the same time."""
    program = two_flows(1000)
    assert np.array_equal(sweep.run(program).finish_ns, reference.run(program).finish_ns)


def test_flows_that_meet_are_refused():
    """One nanosecond of overlap is sharing; the message names engine, link and op, for the user who asked for it."""
    with pytest.raises(UserError, match=r"engine = sweep: link nic is shared: op 1 .*allowed: auto, event"):
        sweep.run(two_flows(999))


def test_a_lower_bound_has_to_be_asked_for():
    """Then each flow drains as if alone."""
    assert sweep.run(two_flows(0), lower_bound=True).finish_ns.tolist() == [1000, 1000]
    assert reference.run(two_flows(0)).finish_ns.tolist() == [2000, 2000]


def test_cycles_are_named():
    """A run reports ops that wait for each other."""
    build = ProgramBuilder()
    build.add_class("gpu")
    ops = build.add_ops(2)
    build.depend(ops, ops[::-1])
    with pytest.raises(ProgramError, match="wait for each other"):
        sweep.run(build.build())
