"""Kimi K3: parameters by hand and as published, and plans."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.catalogue import load_model
from simpar.architectures.families import DECLARED
from simpar.architectures.hf_config import read

K3 = load_model("kimi-k3")
H, INNER, HEADS = 7168, 96 * 128, 96
TINY = {**DECLARED["kimi_k3"].tiny["text_config"], "model_type": "kimi_linear"}


def test_parameters_are_those_of_the_released_tensors():
    """Shapes of the released model code and of its map to Megatron-Core (Megatron-Bridge, kimi_k3_bridge.py)."""
    delta = 5 * H * INNER + 3 * 4 * INNER + H * 128 + 128 * INNER + H * HEADS + HEADS + INNER + 128
    latent = (
        H * 1536 + 1536 + 1536 * HEADS * 192 + H * (512 + 64) + 512 + 512 * HEADS * 256 + 2 * H * INNER
    )  # fmt: skip
    experts = H * 896 + 896 + 2 * H * 3584 + 3584 + 896 * 3 * 3584 * 3072 + 3 * H * 2 * 3072
    dense = 3 * H * 33792
    text = 69 * delta + 24 * latent + 92 * experts + dense + 93 * 6 * H + 2 * 163840 * H + 3 * H
    vit = 27 * (4 * 1024 * 1536 + 2 * 1024 * 4096 + 2 * 1024)
    tower = 3 * 14 * 14 * 1024 + 64 * 64 * 1024 + vit + 1024 + 4096 * 4096 + 4096 * H + H
    assert K3.num_parameters() == text + tower
    assert K3.num_parameters() == pytest.approx(2.8e12, rel=0.01)
    assert K3.num_active_parameters() - 163840 * H == pytest.approx(104e9, rel=0.01)


def test_a_further_token_is_refused():
    """No release has such layers with attention residuals."""
    with pytest.raises(simpar.UserError, match="num_nextn_predict_layers = 1: allowed: 0"):
        read({**TINY, "num_nextn_predict_layers": 1})


def test_plans_do_the_same_work():
    """Expert, tensor and pipeline parallelism."""
    training = simpar.Training(seq_len=512, global_batch=16)
    plans = ({"ep": 4}, {"tp": 2, "sequence_parallel": True, "ep": 2}, {"pp": 2, "zero": 1})
    results = [simpar.simulate(read(TINY), "dgx-h100", plan, training) for plan in plans]
    assert len({result.speed.model_flops_per_step for result in results}) == 1
