"""Limiting factors: the critical path and the sentences made of numbers."""

import re

import numpy as np
import pytest

import simpar
from simpar.program.ir.program import Timing
from simpar.report.chains import binding_predecessors
from simpar.report.explain import add_explanation, critical_path, critical_path_s, find_fullest_stage
from simpar.report.parts import TimeBreakdown
from simpar.report.result import Result
from simpar.report.waits import SlowRanks, Waited
from tests.gate import some


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
    time, memory = add_explanation(result).why.binds
    assert "pipeline bubble" in time
    assert f"stage {find_fullest_stage(result).stage}" in memory
    assert "activations" in memory
    assert "are left" in memory


def test_what_was_not_simulated_is_not_advised(result):
    """Without trials and slow ranks there are no hints, however large a loss is."""
    parts = TimeBreakdown(compute=0.6 * result.step_time_s, exposed_dp=0.4 * result.step_time_s)
    said = add_explanation(Result(**{**result.__dict__, "time_breakdown_s": parts})).why
    assert said.hints == ()
    assert "exposed data-parallel communication" in said.binds[0]


def test_whom_a_rank_waits_for_is_named(result):
    """Ranks with their factor, stages with more work, kinds of collectives; slow ranks with the step without them."""
    tenth_s = result.step_time_s / 10
    waiting = (
        Waited(cause="slow rank", seconds=3 * tenth_s, ranks=(5,), num_ranks=1, stage=1, factor=2.5),
        Waited(cause="unequal work", seconds=2 * tenth_s, ranks=(8, 9), num_ranks=2, stage=2),
        Waited(cause="other groups", seconds=tenth_s, kind="dp"),
    )
    slow = SlowRanks(factors={5: 2.5}, step_time_without_s=7 * tenth_s)
    why = result.why.model_copy(update={"waiting": waiting, "slow_ranks": slow})
    said = add_explanation(Result(**{**result.__dict__, "why": why})).why
    (sentence,) = (line for line in said.binds if line.startswith("waits"))
    assert "rank 5, 2.5 times slower" in sentence
    assert "ranks 8, 9 of stage 2, with more to do" in sentence
    assert "dp collectives of other groups" in sentence
    (hint,) = said.hints
    assert "rank 5 (2.5 times slower)" in hint
    assert "(-30.0%)" in hint
    assert said.waiting == waiting


def test_no_loss_is_said(result):
    """A step that only computes is praised."""
    parts = TimeBreakdown(compute=result.step_time_s)
    whole = add_explanation(Result(**{**result.__dict__, "time_breakdown_s": parts}))
    assert "nothing else" in whole.why.binds[0]


@pytest.mark.parametrize(
    ("hardware", "precision", "words"),
    some(
        [
            ("t4-4", "bf16", "t4 has no bf16 units.*with precision fp16"),
            ("dgx-v100", "fp16", None), ("dgx-v100", "fp32", None), ("dgx-h100", "bf16", None),
            ("dgx-v100", "bf16", "v100.* has no bf16 units: products run at the fp32 rate, 15.7 TFLOP/s, .* 125 "),
        ],
        2,
        tuples=True,
    ),
)  # fmt: skip
def test_a_precision_without_units_is_said(hardware, precision, words):
    """bf16 before Ampere: an answer that took the fp32 rate in silence would be eight times too slow."""
    plan = simpar.Plan(precision=precision)
    said = " ".join(
        simpar.simulate("gpt2", simpar.Cluster(hardware), plan, {"seq_len": 128, "global_batch": 8}).why.binds
    )
    assert re.search(words, said) if words else "units" not in said


def test_the_critical_path_has_the_communication_inside_passes():
    """Without a pipeline everything of the one rank is on the path: its parts are those of the breakdown."""
    plan = simpar.Plan(tp=8, zero=1)
    result = simpar.simulate("llama-3-8b", "dgx-h100", plan, simpar.Training(seq_len=8192, global_batch=8))
    path, parts = result.why.critical_path_s, result.time_breakdown_s
    assert parts.exposed_tp > 0.1 * result.step_time_s
    assert path["tp"] == pytest.approx(parts.exposed_tp, abs=1e-8)
    assert path["forward"] + path["backward"] == pytest.approx(parts.compute, abs=1e-8)
    assert sum(path.values()) == pytest.approx(result.step_time_s, rel=1e-6)
