"""Encoders alone: published parameter counts, no mask, and simulated in every kind of parallelism."""

from __future__ import annotations

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.flops import attention_flop_per_token
from simpar.architectures.hf_config import read
from simpar.architectures.training import Training
from simpar.hardware.catalogue import load_cluster
from simpar.plan.plan import Plan
from simpar.simulation import simulate


@pytest.mark.parametrize(
    ("name", "count"), [("bert-base", 109_514_298), ("bert-large", 335_174_458), ("roberta-base", 124_697_433)]
)
def test_parameters_are_those_of_masked_language_models(name: str, count: int) -> None:
    """BertForMaskedLM and RobertaForMaskedLM of Hugging Face count as many."""
    assert load_model(name).num_parameters() == count


def test_logits_may_have_a_table_of_their_own() -> None:
    """A BERT whose output embeddings are untied holds the vocabulary twice: 96 x 32 more."""
    config = {
        "model_type": "bert", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 64,
    }  # fmt: skip
    tied, own = (read({**config, "tie_word_embeddings": flag}, "tiny") for flag in (True, False))
    assert own.num_parameters() - tied.num_parameters() == 96 * 32


def test_nothing_is_masked() -> None:
    """Half of the attention is not saved by a causal convention."""
    graph = load_model("bert-large")
    assert attention_flop_per_token(graph, 512, "causal") == attention_flop_per_token(graph, 512, "full")


@pytest.mark.parametrize(
    "plan",
    [
        Plan(micro_batch=8),
        Plan(tp=4, micro_batch=8, zero=1),
        Plan(tp=2, pp=4, micro_batch=8, zero=1),
        Plan(pp=2, micro_batch=8, zero=1, layers=(14, 10)),
        Plan(zero=3, micro_batch=8, recompute="full"),
    ],
)
def test_encoders_are_simulated(plan: Plan) -> None:
    """Time, memory and breakdown add up as for any model."""
    result = simulate("bert-large", load_cluster("dgx-a100-80gb"), plan, Training(seq_len=512, global_batch=256))
    assert result.fits
    assert 0.05 < result.mfu < 0.7
    assert sum(result.time_breakdown_s.model_dump().values()) == pytest.approx(result.step_time_s, rel=1e-6)
