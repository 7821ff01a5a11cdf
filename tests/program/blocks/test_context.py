"""Steps of attention across ranks: how often what is sent, and what hides behind kernels."""

from __future__ import annotations

from functools import cache

import pytest

from simpar.architectures.training import Training
from simpar.engine import reference
from simpar.hardware.catalogue import load_cluster
from simpar.layout.action_table import schedule_of
from simpar.plan.plan import Plan
from simpar.program.blocks.block_view import RankBlock
from simpar.program.blocks.phases import Phase
from simpar.program.blocks.rank_view import RankView
from simpar.program.blocks.steps import BlockSteps, block_steps
from simpar.program.lower import Lowered, lower
from simpar.report.result import Result
from simpar.simulation import make_job, simulate

MODEL = "llama-3-8b"
SEQ = 32768


def steps(recompute: str = "none", **plan: object) -> BlockSteps:
    """Steps of a Llama 3 8B layer on one node."""
    job = make_job(MODEL, load_cluster("dgx-h100", 1), Plan(**plan), Training(seq_len=SEQ, global_batch=8))
    return block_steps(RankBlock.of(job.graph.blocks["layer"], RankView.of(job)), recompute=recompute)


def sent(phase: Phase, op: str) -> list[float]:
    """Bytes of every context-parallel collective of one kind."""
    uses = [step.collective for step in phase.steps if step.kind == "cp"]
    return [use.size_bytes for use in uses if use.op == op]


def key_value_bytes(cp: int, tp: int = 1) -> float:
    """bf16 keys and values of 8 heads of 128 of a rank's tokens."""
    return 2 * 2 * SEQ / cp * 8 * 128 / tp


@pytest.mark.parametrize(("cp", "tp"), [(2, 1), (8, 1), (4, 2)])
def test_ring_volumes(cp: int, tp: int) -> None:
    """Keys and values hop r - 1 times each pass, their gradients r times in backward."""
    found = steps(cp=cp, tp=tp)
    assert sent(found.forward, "permute") == [key_value_bytes(cp, tp)] * (cp - 1)
    assert sent(found.backward, "permute") == [key_value_bytes(cp, tp)] * (2 * cp - 1)


def test_all_gather_volumes() -> None:
    """Keys and values are gathered in both passes, gradients reduce-scattered in backward."""
    found = steps(cp=4, cp_method="all_gather")
    whole = key_value_bytes(4) * 4 / 2
    assert sent(found.forward, "all_gather") == sent(found.backward, "all_gather") == [whole, whole]
    assert sent(found.backward, "reduce_scatter") == [whole, whole]


def test_ulysses_volumes() -> None:
    """Four all-to-alls each way: queries, keys, values, output."""
    found = steps(cp=4, cp_method="ulysses")
    query, key = 2 * SEQ / 4 * 4096, key_value_bytes(4) / 2
    assert sent(found.forward, "all_to_all") == [query, key, key, query]
    assert sorted(sent(found.backward, "all_to_all")) == sorted([query, key, key, query])
    assert not sent(found.forward, "permute")


def test_hybrid_volumes() -> None:
    """The ring of a hybrid moves as many bytes a hop, in fewer hops."""
    found = steps(cp=8, cp_method="ring", ulysses=2)
    assert sent(found.forward, "permute") == [key_value_bytes(8)] * 3
    assert len(sent(found.forward, "all_to_all")) == 4


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputing_attention_repeats_its_exchange(recompute: str) -> None:
    """The forward's messages come again before the backward's."""
    found = steps(recompute, cp=4)
    assert len(sent(found.backward, "permute")) == 3 + 7


def test_all_kernels_of_the_ring_are_there() -> None:
    """Four blocks, four kernels each way."""
    found = steps(cp=4)
    for phase in (found.forward, found.backward):
        assert sum(step.name == "attention" for step in phase.steps) == 4


def lowered(**plan: object) -> Lowered:
    """One rank's program of a two-layer-like Llama on two nodes."""
    cluster, training = load_cluster("dgx-h100", 2), Training(seq_len=4096, global_batch=16)
    job = make_job("small-llama", cluster, Plan(**plan), training)
    return lower(job, cluster, schedule_of(job.layout, training))


def test_only_uneven_ranks_unfold() -> None:
    """Balanced context ranks are one class, contiguous ones a class each, and Ulysses needs no balance."""
    assert lowered(cp=4).quotient.num_classes == 1
    assert lowered(cp=4, cp_balance="contiguous").quotient.num_classes == 4
    assert lowered(cp=4, cp_balance="contiguous", cp_method="ulysses").quotient.num_classes == 1
    assert lowered(cp=4, pp=2, cp_balance="contiguous").quotient.num_classes == 8


def test_the_naive_ring_is_slower() -> None:
    """Contiguous chunks wait for the rank with the most keys."""
    spans = [
        reference.run(lowered(cp=8, cp_balance=balance).program).makespan_ns for balance in ("zigzag", "contiguous")
    ]
    assert spans[0] < spans[1]


@cache
def result(nodes: int = 1, seq_len: int = 131072, **plan: object) -> Result:
    """A simulated step of Llama 3 8B, one sequence a context-parallel group."""
    cluster, training = (load_cluster("dgx-h100", nodes), Training(seq_len=seq_len, global_batch=8 // plan["cp"]))
    return simulate(MODEL, cluster, Plan(recompute="full", zero=1, **plan), training, with_timeline=False)


def test_a_ring_hides_behind_long_sequences_and_shows_with_short_ones() -> None:
    """Kernels grow with the square of the sequence, messages linearly."""
    long, short = result(cp=8), result(cp=8, seq_len=4096)
    shares = [each.time_breakdown_s.exposed_cp / each.step_time_s for each in (long, short)]
    assert shares[0] < 0.01 < shares[1]
    assert long.communication["cp"].busy_s > 0
    assert long.time_breakdown_s.total_s == pytest.approx(long.step_time_s)


@pytest.mark.parametrize("method", ["ring", "ulysses", "all_gather"])
def test_reported_bytes_are_the_volumes(method: str) -> None:
    """Bytes of a step: 32 layers of forward, recomputed forward and backward."""
    found = result(cp=8, cp_method=method)
    key_value, query = 2 * 2 * 131072 / 8 * 8 * 128, 2 * 131072 / 8 * 4096
    expected = {
        "ring": key_value * (7 + 7 + 15),
        "ulysses": 3 * (2 * query + key_value),
        "all_gather": 8 * key_value * (1 + 1 + 2),
    }
    assert found.communication["cp"].bytes_per_rank == pytest.approx(32 * expected[method])
    assert found.time_breakdown_s.exposed_cp > 0 or method == "ring"


def test_context_ranks_share_gradients_and_activations() -> None:
    """Cp counts with dp: eight context ranks hold an eighth of the states and of the activations."""
    one, eight = result(cp=1, dp=8, seq_len=8192), result(cp=8, dp=1, seq_len=8192)
    assert one.memory.stages[0].optimizer_states_bytes == pytest.approx(eight.memory.stages[0].optimizer_states_bytes)
    assert eight.memory.stages[0].activations_bytes == pytest.approx(one.memory.stages[0].activations_bytes / 8)
    assert eight.communication["dp"].bytes_per_rank == one.communication["dp"].bytes_per_rank
