"""The plain engine: times worked out by hand, errors as the reference gives them, and no clock for what needs none."""

import pytest

from simpar.engine import plain, reference
from simpar.engine.sharing import LinkChange
from simpar.program.ir.builder import ProgramBuilder
from simpar.program.ir.program import ProgramError
from simpar.units import GB, KB
from tests.engine.test_reference import flows


def finishes(program, changes=()):
    """Finish of every op."""
    return plain.run(program, changes).finish_ns.tolist()


def test_flows_that_meet_share_and_speed_up_when_one_leaves():
    """1 kB and 3 kB on 1 GB/s share until 2 us; the rest of the longer runs alone; the third has its own link."""
    assert finishes(flows([KB, 3 * KB, KB], [[0], [0], [1]])) == [2000, 4000, 1000]


def test_a_flow_that_comes_later_slows_the_one_that_was_alone():
    """3 kB alone for 1 us, then 2 kB left beside 1 kB: both at half a rate until 3 us, the last kB alone."""
    assert finishes(flows([3 * KB, KB], [[0], [0]], fixed_ns=[0, 1000])) == [4000, 3000]


def test_a_link_that_changes_while_one_flow_has_it():
    """Half of 1 kB at 1 GB/s, then nothing for 1 us, then the other half at a half of it."""
    changes = [LinkChange(500, 0, 0), LinkChange(1500, 0, GB // 2)]
    program = flows([KB], [[0]])
    assert finishes(program, changes) == [2500]
    assert finishes(program) == [1000]  # the program is as it was


def test_capped_flows_need_no_link():
    """Their rates are their caps; beside them, one whose fixed part ends later."""
    program = flows([KB] * 3, [[], [], [0]], fixed_ns=[0, 0, 50], rate_cap_bytes_per_s=[GB // 2, GB // 4, 0])
    assert finishes(program) == [2000, 4000, 1050]


def test_an_empty_program_takes_no_time():
    """No ops, no makespan."""
    assert plain.run(ProgramBuilder().build()).makespan_ns == 0


def test_errors_are_those_of_the_reference():
    """Dead links and cycles are reported in the same words."""
    build = ProgramBuilder()
    build.add_class("gpu")
    ops = build.add_ops(2)
    build.depend(ops, ops[::-1])
    for program, changes in ((flows([KB, KB], [[0], [1]]), [LinkChange(10, 0, 0)]), (build.build(), [])):
        with pytest.raises(ProgramError) as ours:
            plain.run(program, changes)
        with pytest.raises(ProgramError) as theirs:
            reference.run(program, changes)
        assert str(ours.value) == str(theirs.value)
