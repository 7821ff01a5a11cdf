"""Attention to compressed keys: FLOP of DeepSeek V4 Flash by hand, and what tensor parallelism divides."""

from __future__ import annotations

from dataclasses import replace

import pytest

import simpar
from simpar.architectures.catalogue import load_model
from simpar.architectures.flops import attention_flop_per_token, matmul_flop_per_token
from simpar.architectures.graph import evaluate, is_column_parallel, is_row_parallel

WHOLE = load_model("deepseek-v4-flash")
FLASH = replace(WHOLE, layers=tuple(name for name in WHOLE.layers if name not in WHOLE.auxiliary))
"""Without the layer that predicts a further token: 2 layers with a window alone, 21 sparse ones, 20 compressed."""
H, Q, A, D, SEQ = 4096, 1024, 64, 512, 65536
NODES, TRAINING = simpar.Cluster("dgx-h100", nodes=32), simpar.Training(seq_len=4096, global_batch=256)
WINDOW = 128 - 128**2 / (2 * SEQ)


def test_products() -> None:
    """Queries, one key, grouped outputs, 7 of 257 experts, maps of four streams, pieces of keys and the indexer."""
    attention = H * Q + Q * A * D + H * D + A * D * 1024 + 8 * 1024 * H
    experts = 7 * 3 * H * 2048 + H * 256
    maps = 2 * 4 * H * 24
    compressed = 2 * H * D
    sparse = 2 * H * 2 * D + 2 * H * 2 * 128 + Q * 64 * 128 + H * 64
    each = 43 * (attention + experts + maps) + 20 * compressed + 21 * sparse
    assert matmul_flop_per_token(FLASH, SEQ) == 2 * (each + 4 * H * 4 + 129280 * H)


def test_attention() -> None:
    """512 of a quarter of the tokens, or all of a 128th, beside the window; scores of all of the quarter."""
    pieces = SEQ / 4
    sparse, heavy = 512 - 512**2 / (2 * pieces), SEQ / 128 / 2
    keys = 43 * WINDOW + 21 * sparse + 20 * heavy
    scores = 21 * 2 * 64 * 128 * pieces / 2
    assert attention_flop_per_token(FLASH, SEQ, "causal") == pytest.approx(2 * A * 2 * D * keys + scores)
    most = 43 * 128 + 21 * 512 + 20 * SEQ / 128
    assert attention_flop_per_token(FLASH, SEQ) == pytest.approx(2 * A * 2 * D * most + 2 * scores)


def test_groups_of_the_output_are_divided() -> None:
    """The first product by its groups, the second along them; keys and their pieces are whole on every rank."""
    block = WHOLE.blocks["layer_sparse_4"]
    assert is_column_parallel(block.operator("o_group"))
    assert is_row_parallel(block.operator("o_proj"))
    whole = ("kv_down", "compressed_kv", "compressed_gate", "index_kv", "index_q", "attention_maps", "mlp_maps")
    assert {block.operator(name).region for name in whole} == {"sequence"}
    with pytest.raises(simpar.UserError, match="groups of the output projection 8; allowed: 1, 2, 4, 8"):
        simpar.simulate(WHOLE, NODES, {"tp": 16, "ep": 16}, TRAINING)


def test_ranks_of_a_sequence_gather_keys_and_pieces() -> None:
    """A key of 512 features, a quarter or a 128th of one, and a quarter of the indexer's 128."""
    names = ("layer_hash_window", "layer_compressed_128", "layer_sparse_4")
    masks = [WHOLE.blocks[name].operator("attention").attention for name in names]
    shared = [evaluate(mask.exchanged, WHOLE.dims) for mask in masks if mask and mask.exchanged]
    assert shared == [D, D + D // 128, D + D // 4 + 128 // 4]
    with pytest.raises(simpar.UserError, match=r"plan.cp_method = ulysses: .* in the sequence; allowed: all_gather"):
        simpar.simulate(WHOLE, NODES, {"cp": 2, "ep": 8, "cp_method": "ulysses"}, TRAINING)
