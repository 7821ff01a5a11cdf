"""Latent attention with an indexer: parameters, keys that a query sees, and what is refused."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.catalogue import load_model
from simpar.architectures.flops import attention_flop_per_token
from simpar.architectures.graph import Selection
from simpar.architectures.hf_config import read

SPARSE, DENSE = load_model("deepseek-v3.2"), load_model("deepseek-v3")


def test_an_indexer_adds_its_own_weights_only() -> None:
    """Queries from the latent, one key, its norm, and weights of 64 heads, in each of 61 layers."""
    own = 1536 * 64 * 128 + 7168 * 128 + 2 * 128 + 7168 * 64
    assert SPARSE.num_parameters() - DENSE.num_parameters() == 61 * own


def test_a_query_sees_its_chosen_keys() -> None:
    """The mean over queries of min(keys before it, 2,048), and all keys where they are fewer."""
    pattern = Selection(2048)
    assert pattern.mean_keys(8192) == pytest.approx(sum(min(i, 2048) for i in range(8192)) / 8192, rel=1e-3)
    assert pattern.mean_keys(1024) == 512


def test_attention_grows_with_the_indexer_alone_at_length() -> None:
    """Beyond 2,048 keys, 62 layers (one predicts) add heads x (576 + 512), and 62 x 64 x 128 a further key."""
    per_key = (attention_flop_per_token(SPARSE, 65536) - attention_flop_per_token(SPARSE, 32768)) / 32768
    assert per_key == pytest.approx(2 * 62 * 64 * 128)
    core = attention_flop_per_token(SPARSE, 32768) - per_key * 32768
    assert core == pytest.approx(2 * 62 * 128 * (576 + 512) * 2048)


def test_layers_that_reuse_keys_have_no_indexer() -> None:
    """One in four layers chooses; a list that begins with a layer that has nothing to reuse is refused."""
    config = {**CONFIG, "indexer_types": ["full", "shared", "shared", "full"]}
    fewer, every = read(config), read(CONFIG)
    assert every.num_parameters() - fewer.num_parameters() == 2 * (24 * 32 + 32 * 8 + 16 + 32 * 4)
    with pytest.raises(simpar.UserError, match="first: full"):
        read({**CONFIG, "indexer_types": ["shared"] * 4})


def test_ranks_of_a_sequence_gather_what_is_shared() -> None:
    """Latents, rotary keys and the indexer's keys, of all ranks: gathered forward and backward, and reduced."""
    cluster, training = simpar.Cluster("dgx-h100", nodes=1), simpar.Training(seq_len=512, global_batch=16)
    graph = read(CONFIG)
    results = [simpar.simulate(graph, cluster, {"cp": cp, "ep": 4}, training) for cp in (1, 2)]
    assert len({result.speed.model_flops_per_step for result in results}) == 1
    per_token = 4 * (16 + 4 + 8) * 2
    assert results[1].communication["cp"].bytes_per_rank == 3 * per_token * 512 * 4  # of 4 microbatches of a rank


def test_a_ring_does_not_bring_chosen_keys_together() -> None:
    """Refused in one line."""
    with pytest.raises(simpar.UserError, match=r"plan.cp_method = ring: .* in the sequence; allowed: all_gather"):
        simpar.simulate(
            "deepseek-v3.2",
            simpar.Cluster("dgx-h100", nodes=32),
            simpar.Plan(cp=2, dp=128, cp_method="ring"),
            simpar.Training(seq_len=4096, global_batch=256),
        )


CONFIG = {
    "model_type": "glm_moe_dsa", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 8, "moe_intermediate_size": 16,
    "num_experts_per_tok": 2, "index_n_heads": 4, "index_head_dim": 8, "index_topk": 8,
}  # fmt: skip
