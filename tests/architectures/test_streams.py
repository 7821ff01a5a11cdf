"""Residual streams wider than the hidden size: weights, bytes that are kept, recomputed and sent."""

from __future__ import annotations

import simpar
from simpar.architectures.catalogue import load_model
from simpar.architectures.families import DECLARED
from simpar.architectures.graph import evaluate
from simpar.architectures.hf_config import read
from simpar.architectures.streams import collapse, end
from simpar.cost.activations import block_activations
from simpar.layout.deciders import resolve
from simpar.layout.layout import Layout
from simpar.layout.sharding import rank_dims
from simpar.stacks.stack import load_stack

MODEL, HIDDEN, STREAMS, SEQ = load_model("deepseek-v4-flash"), 4096, 4, 4096
TRAINING = simpar.Training(seq_len=SEQ, global_batch=64)


def kept(policy: str, **plan: int | bool) -> float:
    """Bytes that a layer with the window alone keeps for a token."""
    stack = load_stack("megatron")
    decided = resolve(simpar.Plan(ep=8, **plan), stack)
    dims = rank_dims(MODEL, Layout.of(decided), TRAINING)
    block = MODEL.blocks["layer_hash_window"]
    return float(block_activations(block, dims, stack, decided.numerics, policy).saved_bytes) / SEQ


def test_maps_are_two_vectors_and_a_matrix() -> None:
    """(2 + 4) x 4 maps of 4 x 4,096 features, with as many biases and three factors; at the end 4 maps and one."""
    sizes = [sum(int(evaluate(w.size, MODEL.dims)) for op in ops for w in op.weights) for ops in (
        collapse("mlp", "input"), end("input")
    )]  # fmt: skip
    assert sizes == [24 * 4 * HIDDEN + 24 + 3, 4 * 4 * HIDDEN + 4 + 1]


def test_full_recomputation_keeps_every_stream() -> None:
    """Four times the hidden size, in 16 bits; a tensor-parallel rank keeps its rows."""
    assert kept("full", dp=8) == STREAMS * HIDDEN * 2
    assert kept("full", dp=4, tp=2, sequence_parallel=True) == STREAMS * HIDDEN


def test_a_recomputed_mix_drops_the_streams_between_attention_and_mlp() -> None:
    """Streams in the middle of the layer, and the inputs of both norms."""
    assert kept("none", dp=8) - kept("modules:mhc", dp=8) == (STREAMS + 2) * HIDDEN * 2


def test_stages_send_every_stream() -> None:
    """16 microbatches of two streams of 32 features and 512 tokens, in 16 bits."""
    tiny = read({**DECLARED["deepseek_v4"].tiny, "model_type": "deepseek_v4"}, "tiny")
    result = simpar.simulate(tiny, "dgx-h100", {"pp": 2}, simpar.Training(seq_len=512, global_batch=64))
    assert result.communication["pp"].bytes_per_rank == 16 * 2 * 32 * 512 * 2
