"""The 60 decoder classes of transformers that are used most, by the models that people train and serve: all answer."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.families import DECLARED
from simpar.architectures.families.family import TINY
from simpar.errors import UserError
from tests.gate import some

pytest.importorskip("torch")
pytest.importorskip("transformers")

SEQ = 32
MOST_USED = (
    "llama", "mistral", "qwen2", "qwen3", "gpt2", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "opt", "bloom",
    "gpt_neox", "gptj", "gpt_neo", "gpt_bigcode", "falcon", "mpt", "stablelm", "starcoder2", "codegen", "xglm",
    "biogpt", "openai-gpt", "ctrl", "olmo", "olmo2", "olmo3", "cohere", "cohere2", "granite", "nemotron", "glm", "glm4",
    "smollm3", "exaone4", "seed_oss", "ernie4_5", "hunyuan_v1_dense", "ministral3", "nanochat", "persimmon",
    "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "phimoe", "gpt_oss", "glm4_moe", "minimax_m2", "granitemoe",
    "deepseek_v2", "deepseek_v3", "qwen3_next", "mamba", "mamba2", "falcon_mamba", "falcon_h1", "jamba", "nemotron_h",
)  # fmt: skip
MIXTURES = {
    "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "phimoe", "gpt_oss", "glm4_moe", "minimax_m2", "granitemoe",
    "deepseek_v2", "deepseek_v3", "qwen3_next", "jamba",
}  # fmt: skip
REPLICATED = {"mamba", "falcon_mamba", "jamba"}
"""Those with products that all tensor-parallel ranks repeat: the scan of Mamba-1 is not between plain products."""
GPT = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
MAMBA = {"vocab_size": 96, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2}
CONFIGS = {
    "codegen": {**GPT, "n_embd": 64, "n_ctx": 64, "rotary_dim": 8},
    "openai-gpt": GPT,
    "ctrl": {**GPT, "dff": 48},
    "xglm": {"vocab_size": 96, "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4},
    "biogpt": TINY,
    "nanochat": TINY,
    "mamba": MAMBA,
    "falcon_mamba": MAMBA,
    "jamba": {
        **TINY, "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
        "expert_layer_offset": 1, "num_experts": 4, "mamba_d_state": 8,
    },
}  # fmt: skip
"""Of those that no family declares."""


def test_there_are_sixty() -> None:
    """Each once, and each of the library's decoders."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

    assert len(MOST_USED) == len(set(MOST_USED)) == 60
    assert set(MOST_USED) <= set(CLASSES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", some(MOST_USED, ("qwen2", "gpt_oss", "mamba")))
def test_a_class_is_captured_with_its_roles(kind: str) -> None:
    """Layouts of every kind simulate; what every tensor-parallel rank repeats, and why, is said."""
    import torch
    import transformers

    from simpar.tracing.graph import trace_library

    config = {**CONFIGS.get(kind, DECLARED[kind].tiny if kind in DECLARED else {}), "model_type": kind}
    graph = trace_library(config, "", kind, SEQ, f"model = {kind}")
    with torch.device("meta"):
        made = transformers.AutoModelForCausalLM.from_config(transformers.CONFIG_MAPPING[kind].from_dict(config))
    assert graph.num_parameters() == made.num_parameters()
    notes = "; ".join(graph.facts["notes"])
    assert ("without a role" in notes) == (kind in REPLICATED)
    assert graph.is_mixture == (kind in MIXTURES)
    training, cluster = simpar.Training(seq_len=SEQ, global_batch=16), simpar.Cluster("dgx-h100")
    plans = [{"zero": 3}, {"pp": 2}, {"tp": 2, "sequence_parallel": True}, *([{"ep": 2}] if kind in MIXTURES else [])]
    for fields in plans:
        plan = simpar.Plan(micro_batch=1, **fields)
        if kind in REPLICATED and plan.tp > 1:
            with pytest.raises(UserError, match=r"plan\.tp = 2: .* state-space layer"):
                simpar.simulate(graph, cluster, plan, training)
            assert "no tensor parallelism" in notes
        else:
            result = simpar.simulate(graph, cluster, plan, training, with_timeline=False)
            assert result.speed.step_time_s > 0
