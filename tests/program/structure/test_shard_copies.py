"""Shards of tensors that the host copies one by one: so many launches behind the gather of parameters."""

from __future__ import annotations

import pytest

import simpar
from simpar.engine import choose_engine
from simpar.hardware.catalogue import load_cluster
from simpar.simulation import lower_job, make_job
from simpar.stacks.stack import Stack, load_stack
from simpar.units import NS_PER_S, US

CLUSTER = load_cluster("dgx-h100", 4)
TRAINING = simpar.Training(seq_len=2048, global_batch=64)
LAUNCH_S = 5 * US
TENSORS = 24 * (4 * 2 + 2 * 2) + 2 + 2
"""Of GPT-2 medium: four products and two norms a layer with their biases, two tables, the last norm."""


def step_s(copy_s: float, *, stack: str = "nanotron", model: str = "gpt2-medium", **plan: object) -> float:
    """A step under a stack that takes so long for each copy."""
    known = load_stack(stack)
    launch = known.launch.model_copy(update={"shard_copy_s": copy_s})
    changed: Stack = known.model_copy(update={"launch": launch})
    job = make_job(model, CLUSTER, simpar.Plan(**{"micro_batch": 1, **plan}), TRAINING, changed)
    program = lower_job(job, CLUSTER).program
    return float(choose_engine("auto", program)(program).makespan_ns) / NS_PER_S


@pytest.mark.parametrize(("tp", "ranks"), [(1, 32), (2, 16), (8, 4)])
def test_each_rank_of_each_tensor_is_a_launch(tp: int, ranks: int) -> None:
    """What it adds to a step, whatever the tensors' sizes; tensor parallelism cuts tensors and leaves their number."""
    added_s = step_s(LAUNCH_S, zero=1, tp=tp) - step_s(0.0, zero=1, tp=tp)
    assert added_s == pytest.approx(LAUNCH_S * TENSORS * ranks, rel=0.03)


def test_stages_copy_what_they_hold() -> None:
    """A pipeline rank has its part of the tensors, and the ranks that share them."""
    took_s = [step_s(each_s, model="llama-3-8b", zero=1, pp=2, layers=[16, 16]) for each_s in (0.0, LAUNCH_S)]
    tensors = (32 * 6 + 3) / 2  # fused projections, two norms; embedding and head as one each
    assert took_s[1] - took_s[0] == pytest.approx(LAUNCH_S * tensors * 16, rel=0.03)


@pytest.mark.parametrize(("stack", "plan"), [("nanotron", {}), ("torchtitan", {"zero": 1, "kind": "ddp"})])
def test_nothing_is_copied_where_nothing_is_cut(stack: str, plan: dict[str, object]) -> None:
    """Without shards, and under a plan of another kind of data parallelism than the stack's own."""
    assert step_s(LAUNCH_S, stack=stack, **plan) == step_s(0.0, stack=stack, **plan)
