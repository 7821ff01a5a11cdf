"""Loops of Python over packed documents."""

from __future__ import annotations

import pytest

from simpar.architectures.training import Training
from simpar.hardware.catalogue import load_cluster
from simpar.plan.plan import Plan
from simpar.program.blocks.block_view import RankBlock
from simpar.program.blocks.phases import Phase
from simpar.program.blocks.rank_view import RankView
from simpar.program.blocks.steps import block_steps
from simpar.simulation import make_job
from simpar.stacks.stack import load_stack

LAUNCH_S = load_stack("megatron").launch.host_time_per_kernel_s
PACKED = {"documents": {"lengths": [512]}}
"""Sixteen documents in 8,192 tokens."""


def passes(documents: dict[str, object] | None = None, **plan: object) -> tuple[Phase, Phase]:
    """Forward and backward of a layer of Llama 3 8B with two sequences a microbatch."""
    training = Training.model_validate(
        {"seq_len": 8192, "global_batch": 16, **(PACKED if documents is None else documents)}
    )
    job = make_job("llama-3-8b", load_cluster("dgx-h100", 1), Plan(micro_batch=2, **plan), training, "megatron")
    steps = block_steps(RankBlock.of(job.graph.blocks[job.graph.layers[0]], RankView.of(job)))
    return steps.forward, steps.backward


def issued_s(phase: Phase) -> float:
    """Seconds of the host in a pass, beside the device or in turn with it."""
    return float(phase.issue_s) + sum(float(step.duration_s) for step in phase.steps if step.kind == "host")


def in_turn(phase: Phase) -> bool:
    """Whether the device waits for the host."""
    return phase.issue_s == 0.0


def test_each_document_is_rotated_by_kernels_of_its_own() -> None:
    """2 x 16 documents: 24 launches each forward and 20 backward instead of 8 and 16; lengths are read in forwards."""
    eager = {"fused_kernels": "norm+activation"}
    loops, plain = passes(**eager, document_loops=True), passes(**eager)
    gained = [issued_s(a) - issued_s(b) for a, b in zip(loops, plain, strict=True)]
    assert gained == pytest.approx([(32 * 24 - 8) * LAUNCH_S, (32 * 20 - 16) * LAUNCH_S])
    assert [in_turn(phase) for phase in loops] == [True, False]
    assert not any(in_turn(phase) for phase in plain)


def test_exchanged_tensors_are_put_in_order_piece_by_piece() -> None:
    """Four tensors a pass, 2 x 16 documents in 2 x 4 pieces among 4 ranks, 7 launches each, whose ends are read."""
    shared = {"cp": 4, "cp_method": "ulysses"}
    loops, plain = passes(**shared, document_loops=True), passes(**shared)
    for phase, other in zip(loops, plain, strict=True):
        assert issued_s(phase) - issued_s(other) == pytest.approx(4 * 32 * 2 * 4 * 7 * LAUNCH_S)
        assert in_turn(phase)


@pytest.mark.parametrize("plan", [{}, {"cp": 4, "cp_method": "ring"}])
def test_kernels_for_all_documents_do_not_loop(plan: dict[str, object]) -> None:
    """A fused rotation, and rings, which exchange whole blocks."""
    assert [issued_s(each) for each in passes(**plan, document_loops=True)] == [
        issued_s(each) for each in passes(**plan)
    ]


@pytest.mark.parametrize("documents", [{}, {"documents": {"lengths": [512], "packing": "pad"}}])
def test_nothing_loops_where_a_sequence_is_one_text(documents: dict[str, object]) -> None:
    """Without documents, and where each is padded to a sequence of its own."""
    eager = {"fused_kernels": "norm+activation"}
    found = [[issued_s(each) for each in passes(documents, **eager, document_loops=on)] for on in (True, None)]
    assert found[0] == found[1]
