"""Chains of binding predecessors: compiled loops and numpy give the same, and what following each chain gives."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar.program.ir.builder import ProgramBuilder
from simpar.program.ir.program import Timing
from simpar.report import chains
from simpar.report.chains import binding_predecessors, chain_to, nearest_flagged, sum_along
from simpar.report.loops import TICKS_PER_NS, to_ticks
from tests.compilers import both_ways, needs_compiler

SEEDS = st.integers(0, 2**32 - 1)


both = partial(both_ways, chains)


def random_program(draw, count):
    """Ops on two streams that wait for some earlier ones, with finishes of which many are equal."""
    build = ProgramBuilder()
    build.add_class("gpu")
    streams = [build.add_stream(name, 0) for name in ("compute", "network")]
    ops = build.add_ops(count)
    for op in ops.tolist():
        for stream in range(2):
            if draw.random() < 0.6:
                build.place([streams[stream]], [op])
        if op:
            earlier = draw.integers(0, op, draw.integers(0, 4))
            build.depend(np.full(len(earlier), op), earlier)
    finish = np.sort(draw.integers(0, max(count // 3, 1), count)).astype(np.int64)
    return build.build(), Timing(np.zeros(count, np.int64), finish)


@needs_compiler
@given(seed=SEEDS, count=st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_what_an_op_waited_for_last(seed, count):
    """The predecessor that finishes last: dependencies before streams, and the first among equals."""
    program, timing = random_program(np.random.default_rng(seed), count)
    ours, compiled = both(lambda: binding_predecessors(program, timing))
    assert ours.tolist() == compiled.tolist()
    for op in range(count):
        behind = [
            int(row[row.tolist().index(op) - 1])
            for row in map(program.streams.row, range(len(program.streams)))
            if op in row[1:]
        ]
        known = [*program.dependencies.row(op).tolist(), *behind]
        latest = max((timing.finish_ns[one] for one in known), default=-1)
        assert ours[op] == next((one for one in known if timing.finish_ns[one] == latest), -1)


@needs_compiler
@given(seed=SEEDS, count=st.integers(1, 200), back=st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_sums_along_chains(seed, count, back):
    """To the last bit, in whatever order ops are numbered."""
    draw = np.random.default_rng(seed)
    number, values = draw.permutation(count), to_ticks(draw.uniform(0, 1e12, count))
    before = np.maximum(np.arange(count) - draw.integers(1, back + 1, count), -1)
    binding = np.empty(count, dtype=np.int32)
    binding[number] = np.where(before >= 0, number[before], -1)
    ours, compiled = both(lambda: sum_along(binding, values))
    assert ours.tolist() == compiled.tolist()

    def total(op):
        ticks = 0
        while op >= 0:
            ticks, op = ticks + int(values[op] * TICKS_PER_NS), int(binding[op])
        return ticks / TICKS_PER_NS

    assert ours.tolist() == [total(op) for op in range(count)]


@needs_compiler
def test_the_chain_to_an_op():
    """First to last, with the op itself at the end."""
    binding = np.array([-1, 0, 3, 1, 2, -1], dtype=np.int32)
    for op, chain in ((4, [0, 1, 3, 2, 4]), (0, [0]), (5, [5])):
        assert [each.tolist() for each in both(lambda op=op: chain_to(binding, op))] == [chain] * 2


@pytest.mark.parametrize("count", [40, 4000])
@pytest.mark.parametrize("back", [1, 30])
def test_the_nearest_flagged_op_of_a_chain(count: int, back: int) -> None:
    """As following each chain by itself, whether all ops are asked at once (few ops) or some step by step."""
    draw = np.random.default_rng(count + back)
    ops = np.arange(count)
    binding = np.maximum(ops - draw.integers(1, back + 1, count), -1).astype(np.int32)
    flagged, asked = draw.random(count) < 0.02, draw.integers(0, count, 30)

    def follow(op: int) -> int:
        while op >= 0 and not flagged[op]:
            op = int(binding[op])
        return op

    assert nearest_flagged(binding, flagged, asked).tolist() == [follow(op) for op in asked.tolist()]
    assert (nearest_flagged(binding, np.zeros(count, dtype=bool), asked) == -1).all()
