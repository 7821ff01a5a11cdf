"""Context parallelism of state-space layers: tokens go to the ranks of their heads, and back behind the scan."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.families import DECLARED
from simpar.architectures.hf_config import read
from simpar.frameworks import losses

SEQ, LAYERS, INNER, STATE, HEADS = 4096, 64, 5120, 128, 80
"""Mamba-2 2.7B: heads of 64 features, one group of keys and queries."""
CLUSTER = simpar.Cluster("dgx-h100")


def step(model="mamba2-2.7b", cluster=CLUSTER, **plan):
    """A step of two microbatches on the ranks of a node."""
    training = simpar.Training(seq_len=SEQ, global_batch=max(1, 16 // plan.get("cp", 1)))
    return simpar.simulate(model, cluster, simpar.Plan(micro_batch=1, **plan), training, with_timeline=False)


@pytest.mark.parametrize("cp", [2, 4])
def test_bytes_are_those_of_the_closed_form(cp):
    """All that the first product made, a group for every rank; back come the scan's result and the gate of its norm."""
    there = 2 * INNER + 2 * STATE + HEADS + 2 * STATE * (cp - 1)
    moved = 2 * (there + 2 * INNER) * 2 * SEQ // cp * LAYERS  # in bf16, forward and backward
    assert step(zero=1, cp=cp).communication["cp"].bytes_per_rank == pytest.approx(2 * moved)


def test_ranks_share_work_and_memory():
    """Model FLOP are the sequence's; a rank keeps its tokens only, and every method exchanges the same heads."""
    alone, shared = step(zero=1), step(zero=1, cp=4)
    per_sequence = [each.speed.model_flops_per_step / count for each, count in ((alone, 16), (shared, 4))]
    assert per_sequence[0] == pytest.approx(per_sequence[1])
    kept = [each.memory.peak_memory_bytes - each.memory.static_memory_bytes for each in (alone, shared)]
    assert kept[1] < 0.4 * kept[0]
    heads = step(zero=1, cp=4, cp_method="ulysses").communication["cp"].bytes_per_rank
    assert heads == shared.communication["cp"].bytes_per_rank


@pytest.mark.parametrize(
    "plan",
    [
        {"cp": 2, "tp": 2, "sequence_parallel": True},
        {"cp": 2, "pp": 2, "recompute": "full"},
        {"cp": 2, "zero": 3, "cp_method": "all_gather"},
        {"cp": 2, "pp": 2, "recompute": "selective", "cp_method": "ulysses"},
    ],
)
def test_hybrids_with_attention_answer_under_every_plan(plan):
    """Their attention has the plan's method, beside the exchange of heads of the other layers."""
    training = simpar.Training(seq_len=512, global_batch=16)
    graph = read({**DECLARED["nemotron_h"].tiny, "model_type": "nemotron_h"}, "hybrid")
    result = simpar.simulate(graph, CLUSTER, simpar.Plan(micro_batch=1, **plan), training, with_timeline=False)
    assert result.communication["cp"].busy_s > 0


PARTED = {"model_type": "nemotron_h", **DECLARED["nemotron_h"].tiny, "mamba_num_heads": 12, "n_groups": 6}
"""Two heads in each of six groups."""


@pytest.mark.parametrize(
    ("model", "plan", "said"),
    [
        (read(PARTED, "parted"), {"cp": 4}, "12 heads, in 6 groups, of a rank.* allowed: 1, 2, 3, 6, 12$"),
        ("mamba2-2.7b", {"cp": 4, "ulysses": 2}, "whose heads all of cp = 4 exchange; allowed: 1, 4"),
        ("mamba2-2.7b", {"cp": 32}, "plan.cp = 32: so many ranks cannot share the 80 heads, in 1 groups"),
        ("qwen3-next-80b-a3b", {"cp": 2}, "carries states along the sequence; allowed: 1"),
    ],
)
def test_what_heads_do_not_allow_is_refused(model, plan, said):
    """With what is allowed; states of linear attention are whole on a rank."""
    with pytest.raises(simpar.UserError, match=said):
        step(model, simpar.Cluster("dgx-h100", nodes=4), **plan)


def test_searches_take_a_degree_that_is_asked_for():
    """Others leave models with states at 1."""
    training = simpar.Training(seq_len=512, global_batch=16)
    graph = read({**DECLARED["nemotron_h"].tiny, "model_type": "nemotron_h"}, "hybrid")
    asked = {"zero": (1,), "tp": (1,), "pp": (1,), "micro_batch": (1,), "recompute": ("none",)}
    best = simpar.search(graph, CLUSTER, training, constraints={**asked, "cp": (2,)})
    assert best.best.plan.mesh.cp == 2
    assert simpar.search(graph, CLUSTER, training, constraints=asked).best.plan.mesh.cp == 1


@pytest.mark.parametrize(("target", "said"), [("megatron", ""), ("accelerate", "passes no states of")])
def test_which_frameworks_run_it(target, said):
    """Megatron-Core exchanges heads, PyTorch's context parallelism knows attention alone."""
    training, graph = simpar.Training(seq_len=512, global_batch=16), simpar.Model("nemotron-h-8b")
    lost = [str(loss) for loss in losses(simpar.Plan(dp=4, cp=2, zero=2), graph, training, target)]
    assert any(said in each for each in lost) if said else all("states of" not in each for each in lost)
