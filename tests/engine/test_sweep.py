"""The sweep engine: when it is exact, when it refuses, and its batches."""

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
    """Both the structure and a run report ops that wait for each other."""
    build = ProgramBuilder()
    build.add_class("gpu")
    ops = build.add_ops(2)
    build.depend(ops, ops[::-1])
    for use in (sweep.run, sweep.Structure.of):
        with pytest.raises(ProgramError, match="wait for each other"):
            use(build.build())


def test_a_structure_serves_many_durations():
    """A chain of three takes the sum of its durations, in every row of a batch."""
    build = ProgramBuilder()
    gpu = build.add_class("gpu")
    build.place(build.add_stream("compute", gpu), build.add_ops(3)[::-1])
    structure = sweep.Structure.of(build.build())
    finish = sweep.run_batch(structure, np.array([[1, 2, 3], [10, 0, 5]]))
    assert finish.tolist() == [[6, 5, 3], [15, 5, 5]]


def test_an_empty_batch_and_an_empty_program_are_fine():
    """No rows or no ops give no numbers."""
    build = ProgramBuilder()
    build.add_class("gpu")
    empty = sweep.Structure.of(build.build())
    assert sweep.run_batch(empty, np.zeros((2, 0), dtype=np.int64)).shape == (2, 0)
    build.add_ops(3)
    assert sweep.run_batch(sweep.Structure.of(build.build()), np.zeros((0, 3), dtype=np.int64)).shape == (
        0,
        3,
    )
