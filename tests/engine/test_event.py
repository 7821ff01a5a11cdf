"""The compiled engine: errors as the reference gives them, and a plain word where it cannot be compiled."""

import numpy as np
import pytest

from simpar.engine import choose_engine, event, reference
from simpar.engine.sharing import LinkChange
from simpar.errors import UserError
from simpar.native import NativeLibrary
from simpar.program.ir.builder import ProgramBuilder
from simpar.program.ir.program import ProgramError
from simpar.units import GB, KB
from tests.compilers import needs_compiler


def one_flow():
    """1 kB over one link."""
    build = ProgramBuilder()
    build.add_class("gpu")
    build.add_ops(1, work_bytes=KB, route=build.add_route(build.add_link("nic", GB)))
    return build.build()


def test_without_a_compiler_it_says_what_is_missing(monkeypatch):
    """No error from the depths: one line, and the engines that need none."""
    library = NativeLibrary(event.LIBRARY.source, event.MANY_OPS, {"FRACTION_BITS": 1})
    monkeypatch.setattr(event, "LIBRARY", library)
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(UserError, match=r"engine event: no C compiler is installed .*; allowed: auto, plain, sweep, "):
        choose_engine("event", one_flow())
    assert choose_engine("auto", one_flow(), more_ops=event.MANY_OPS)(one_flow()).finish_ns.tolist() == [1000]


@needs_compiler
def test_an_empty_program_takes_no_time():
    """No ops, no makespan."""
    assert event.run(ProgramBuilder().build()).makespan_ns == 0


@needs_compiler
def test_errors_are_those_of_the_reference():
    """Dead links and cycles are reported in the same words."""
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


@needs_compiler
def test_a_run_leaves_the_program_as_it_was():
    """Changes of capacity happen to the run, not to the program."""
    program = one_flow()
    event.run(program, [LinkChange(500, 0, GB // 4)])
    assert event.run(program).finish_ns.tolist() == [1000]


@needs_compiler
def test_pairs_named_twice_count_once():
    """A dependency that a stream repeats is one pair, whatever stands between its two mentions."""
    waits = np.array([0, 0, 2, 3, 3]), np.array([0, 0, 1])
    streams = np.array([0, 3, 5]), np.array([0, 1, 2, 0, 3])
    pointer, waiting, follower = event.follow(4, waits, streams, event.LIBRARY.load())
    assert (pointer.tolist(), follower[:3].tolist(), waiting.tolist()) == ([0, 2, 3, 3, 3], [1, 3, 2], [0, 1, 1, 1])
