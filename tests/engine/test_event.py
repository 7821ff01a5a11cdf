"""The compiled engine: errors as the reference gives them, and a plain word when numba is missing."""

import sys

import numpy as np
import pytest

from simpar.engine import event, reference
from simpar.engine.sharing import LinkChange
from simpar.program.ir.builder import ProgramBuilder
from simpar.program.ir.program import ProgramError
from simpar.units import GB, KB


def one_flow():
    """1 kB over one link."""
    build = ProgramBuilder()
    build.add_class("gpu")
    build.add_ops(1, work_bytes=KB, route=build.add_route(build.add_link("nic", GB)))
    return build.build()


def test_without_numba_it_says_what_to_install(monkeypatch):
    """No ImportError from the depths: one line with the name of the extra."""
    monkeypatch.setitem(sys.modules, "simpar.engine.event_kernel", None)
    with pytest.raises(event.EngineUnavailableError, match=r"needs numba .* extra 'fast'"):
        event.run(one_flow())


def test_an_empty_program_takes_no_time():
    """No ops, no makespan."""
    pytest.importorskip("numba")
    assert event.run(ProgramBuilder().build()).makespan_ns == 0


def test_errors_are_those_of_the_reference():
    """Dead links and cycles are reported in the same words."""
    pytest.importorskip("numba")
    build = ProgramBuilder()
    build.add_class("gpu")
    ops = build.add_ops(2)
    build.depend(ops, ops[::-1])
    for program, changes in ((one_flow(), [LinkChange(10, 0, 0)]), (build.build(), [])):
        said = []
        for engine in (event, reference):
            with pytest.raises(ProgramError) as caught:
                engine.run(program, changes)
            said.append(str(caught.value))
        assert said[0] == said[1]


def test_a_run_leaves_the_program_as_it_was():
    """Changes of capacity happen to the run, not to the program."""
    pytest.importorskip("numba")
    program = one_flow()
    event.run(program, [LinkChange(500, 0, GB // 4)])
    assert event.run(program).finish_ns.tolist() == [1000]


def test_pairs_named_twice_count_once():
    """A dependency that a stream repeats is one pair, whatever stands between its two mentions."""
    order = pytest.importorskip("simpar.engine.event_order", exc_type=ImportError)
    waits = np.array([0, 0, 2, 3, 3]), np.array([0, 0, 1])
    streams = np.array([0, 3, 5]), np.array([0, 1, 2, 0, 3])
    pointer, waiting, follower = np.zeros(5, np.int64), np.zeros(4, np.int64), np.zeros(6, np.int64)
    assert order.follow(waits, streams, pointer, follower, waiting) == 3
    assert (pointer.tolist(), follower[:3].tolist(), waiting.tolist()) == ([0, 2, 3, 3, 3], [1, 3, 2], [0, 1, 1, 1])
