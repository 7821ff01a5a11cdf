"""Experts in loops: classes of transformers that would ask for data run as grouped products, and are what they were."""

from __future__ import annotations

from typing import Any

import pytest

from simpar.architectures.flops import matmul_flop_per_token
from simpar.tracing.graph import trace_library

pytest.importorskip("torch")
pytest.importorskip("transformers")

SEQ = 16


@pytest.mark.filterwarnings("ignore")
def test_zero_experts_cost_nothing() -> None:
    """Of 3 choices among 8 experts and 4 zero experts, 2 are experts on balance: a token reads 2 of 8 stacks.

    Forward products by hand: an expert takes 2 x 3 x 32 x 16 FLOP of a token, and the router 2 x 32 for each of 12.
    """
    config = {
        "model_type": "longcat_flash", "vocab_size": 96, "hidden_size": 32, "num_attention_heads": 4, "num_layers": 1,
        "ffn_hidden_size": 48, "expert_ffn_hidden_size": 16, "moe_topk": 3, "n_routed_experts": 8, "zero_expert_num": 4,
        "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
        "head_dim": 4,
    }  # fmt: skip
    plain = trace_library({**config, "moe_topk": 1, "n_routed_experts": 1, "zero_expert_num": 0}, "", "a", SEQ, "")
    graph = trace_library(config, "", "b", SEQ, "")
    assert (graph.dims["experts"], graph.dims["topk"]) == (8, 2)
    one, router = 2 * 3 * 32 * 16, 2 * 32
    expected = matmul_flop_per_token(plain, SEQ) - one - router + 2 * one + 12 * router
    assert matmul_flop_per_token(graph, SEQ) == pytest.approx(expected)


def test_it_sums_up_what_the_loop_sums_up() -> None:
    """With weights, the grouped products give the numbers of the class's own loop."""
    import torch
    from transformers import DbrxConfig
    from transformers.models.dbrx.modeling_dbrx import DbrxExperts

    from simpar.tracing.expert_loops import grouped_experts

    torch.manual_seed(0)
    config = DbrxConfig(
        d_model=32, n_heads=4, ffn_config={"ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2}
    ).ffn_config
    config.hidden_size = 32
    experts = DbrxExperts(config).to(torch.bfloat16)
    for weight in experts.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    rows = torch.randn(1, SEQ, 32, dtype=torch.bfloat16)
    index = torch.stack([torch.randperm(4)[:2] for _ in range(SEQ)])
    weights = torch.rand(SEQ, 2, dtype=torch.bfloat16)
    looped = experts(rows, index, weights)
    with grouped_experts(experts):
        assert "forward" in vars(experts)
        grouped = experts(rows, index, weights)
    assert "forward" not in vars(experts)
    torch.testing.assert_close(grouped, looped, rtol=0.05, atol=0.02)


def test_what_it_does_not_know_stays(recwarn: Any) -> None:
    """A class with other arguments, or that leaves the choice to the library, keeps its own forward."""
    import torch
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    from simpar.tracing.expert_loops import grouped_experts

    class Other(torch.nn.Module):
        def forward(self, rows: Any) -> Any:
            """Rows as they are."""
            return rows

    module = torch.nn.ModuleList([Other(), MixtralExperts.__new__(MixtralExperts)])
    torch.nn.Module.__init__(module[1])
    with grouped_experts(module):
        assert all("forward" not in vars(each) for each in module)
