"""What binds: the critical path and the sentences made of numbers."""

import numpy as np
import pytest

from simpar.program.program import Timing
from simpar.report.attribution import binding_predecessors
from simpar.report.explain import critical_path, critical_path_s, explained, fullest_stage
from simpar.report.result import Result, TimeBreakdown


@pytest.fixture
def chain(program_of):
    """Forward 10 ns, then side by side a send of 30 ns and a kernel of 5 ns, then a kernel of 10 ns."""
    timing = Timing(np.array([0, 10, 10, 40]), np.array([10, 40, 15, 50]))
    ops = [(0, "forward"), (0, "pp"), (0, "forward"), (0, "backward")]
    return program_of(timing, ops, {"0:compute": [0, 2, 3], "0:send_F": [1]}, [(1, 0), (3, 1)]), timing


def test_the_critical_path_goes_through_whoever_finished_last(chain):
    """The message is on it, the shorter kernel beside it is not."""
    assert critical_path(binding_predecessors(*chain), chain[1]).tolist() == [0, 1, 3]


def test_the_critical_path_covers_the_step(chain):
    """Its kinds, with waiting, sum to the step, largest first."""
    spent = critical_path_s(*chain, binding_predecessors(*chain))
    assert list(spent) == ["pp", "forward", "backward"]
    assert sum(spent.values()) == pytest.approx(50e-9)


def test_an_empty_program_has_an_empty_path(program_of):
    """Nothing to do, nothing critical."""
    nothing = Timing(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    binding = binding_predecessors(program_of(nothing, [], {}, []), nothing)
    assert critical_path(binding, nothing).tolist() == []


def test_binds_names_the_largest_loss_and_the_memory_peak(result):
    """The first sentence is about time, the second about memory, with stage, moment, op and category."""
    time, memory = explained(result).why.binds
    assert "pipeline bubble" in time
    assert f"stage {fullest_stage(result).stage}" in memory
    assert "activations" in memory
    assert "are left" in memory


def hints(result: Result, **changes: object) -> str:
    """All hints for a result with some fields replaced."""
    return "\n".join(explained(Result(**{**result.__dict__, **changes})).why.hints)


def test_a_bubble_suggests_more_microbatches_or_chunks(result):
    """The advice follows from the plan: micro-batch 2 can be halved, one chunk can become two."""
    text = hints(result)
    assert "--micro-batch 1" in text
    assert "--vpp 2" in text


def test_a_layout_that_does_not_fit_suggests_how_to_make_it_fit(result):
    """Sharding, recompute and smaller microbatches, each with its bytes where known."""
    plan = {**result.setup.plan, "mesh": {"tp": 8, "pp": 4, "dp": 8}}
    memory = result.memory.model_copy(update={"fits": False, "capacity_bytes": 30e9})
    text = hints(result, memory=memory, setup=result.setup.model_copy(update={"plan": plan}))
    assert "--zero 1" in text
    assert "--recompute selective" in text
    assert "are unused" not in text


@pytest.mark.parametrize(
    ("part", "words"), [("exposed_tp", "--tp 4"), ("exposed_dp", "--global-batch"), ("host", "--micro-batch")]
)
def test_each_large_loss_gets_its_own_advice(result, part, words):
    """A part that dominates the step brings a suggestion that names a flag."""
    parts = TimeBreakdown(compute=0.6 * result.step_time_s, **{part: 0.4 * result.step_time_s})
    assert words in hints(result, time_breakdown_s=parts)


def test_no_loss_no_advice_about_time(result):
    """A step that only computes is praised, not advised."""
    parts = TimeBreakdown(compute=result.step_time_s)
    full = result.memory.model_copy(update={"capacity_bytes": result.memory.peak_reserved_bytes * 1.1})
    whole = explained(Result(**{**result.__dict__, "time_breakdown_s": parts, "memory": full}))
    assert whole.why.hints == ()
    assert "nothing else" in whole.why.binds[0]
