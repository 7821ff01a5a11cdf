"""A model as a config of Megatron-Core has it, and as simpar has it, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simpar.architectures.graph import ModelGraph
from simpar.frameworks.architecture import architecture

ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "quick_gelu": "quick_gelu", "relu2": "squared_relu"}


def expected(graph: ModelGraph) -> dict[str, Any]:
    """Fields of the model, by names of this table."""
    dims, style, details = graph.dims, architecture(graph), graph.details
    rope = details.positions.rope
    further = sum(kind in graph.auxiliary for kind in graph.layers)
    found: dict[str, Any] = {
        "hidden": dims["hidden"],
        "heads": dims["heads"],
        "norm": "LayerNorm" if style.norm == "layer" else "RMSNorm",
        "norm_eps": details.norm_eps,
        "init_std": details.init_std,
        "gated": style.gated,
        "activation": ACTIVATIONS[style.activation],
        "biases": "mlp" in style.biases,
        "window": next((window for window in style.windows if window is not None), None),
        "tied": graph.tied_embeddings,
        "vocab": dims["vocab"],
    }
    if dims["ffn"]:
        found["ffn"] = dims["ffn"]
    if not graph.has_state:
        found |= {"layers": len(graph.layers) - further, "qkv_biases": bool(style.biases & {"qkv", "mlp"})}
    if style.positions == "rope":
        found |= {"rope_theta": rope.theta, "rope_fraction": rope.fraction, "rope_kind": rope.kind}
    if rope.kind != "default":
        found["rope_factor"] = rope.scaling["factor"]
    if "qk_dim" in dims:
        ranks = ("q_rank", "kv_rank", "plain_dim", "rotary_dim", "value_dim")
        found |= {name: dims[name] or None for name in ranks}
    else:
        found |= {"kv_heads": dims["kv_heads"], "head_dim": dims["head_dim"], "qk_norm": bool(style.qk_norm)}
    if graph.is_mixture:
        found |= {
            "experts": dims["num_experts"], "topk": dims["topk"], "expert_ffn": dims["expert_ffn"],
            "score": details.gating.score, "factor": details.gating.factor,
            "shared_ffn": dims.get("shared_ffn") or None, "groups": dims.get("expert_groups") or None,
        }  # fmt: skip
    return found


def said(config: Any, beside: Any, *, latent: bool) -> dict[str, Any]:
    """The same fields as Megatron-LM has them: its config, and the arguments ``beside`` it."""
    window = config.window_size
    is_yarn = beside.position_embedding_type == "yarn" or (latent and config.rope_type == "yarn")
    linear = beside.rotary_seq_len_interpolation_factor
    kind = "yarn" if is_yarn else "llama3" if beside.use_rope_scaling else "linear" if linear else "default"
    yarn = config.rotary_scaling_factor if latent else getattr(config, "yarn_rotary_scaling_factor", None)
    factors = {"yarn": yarn, "llama3": beside.rope_scaling_factor, "linear": linear}
    tied = not beside.untie_embeddings_and_output_weights
    found = {
        "layers": config.num_layers, "hidden": config.hidden_size, "heads": config.num_attention_heads,
        "kv_heads": config.num_query_groups or config.num_attention_heads, "head_dim": config.kv_channels,
        "ffn": config.ffn_hidden_size, "norm": config.normalization, "norm_eps": config.layernorm_epsilon,
        "init_std": config.init_method_std, "gated": config.gated_linear_unit,
        "activation": config.activation_func.__name__, "biases": config.add_bias_linear,
        "qkv_biases": config.add_bias_linear or config.add_qkv_bias, "qk_norm": config.qk_layernorm,
        "window": window and window[0] + 1, "tied": tied, "vocab": beside.vocab_size, "rope_kind": kind,
        "rope_theta": float(beside.rotary_base), "rope_fraction": beside.rotary_percent,
        "rope_factor": factors.get(kind), "experts": config.num_moe_experts, "topk": config.moe_router_topk,
        "expert_ffn": config.moe_ffn_hidden_size,
        "score": config.moe_router_score_function, "factor": config.moe_router_topk_scaling_factor or 1.0,
        "shared_ffn": config.moe_shared_expert_intermediate_size, "groups": config.moe_router_num_groups,
    }  # fmt: skip
    if latent:
        names = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
        ours = ("q_rank", "kv_rank", "plain_dim", "rotary_dim", "value_dim")
        found |= {name: getattr(config, field) for name, field in zip(ours, names, strict=True)}
    return found


def compare(graph: ModelGraph, found: Mapping[str, Any]) -> None:
    """Raise AssertionError naming every field that the tool has otherwise."""
    wrong = {name: (found.get(name), value) for name, value in expected(graph).items() if found.get(name) != value}
    assert not wrong, "; ".join(f"{name} {here} for {there}" for name, (here, there) in wrong.items())
