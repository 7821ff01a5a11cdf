"""Configs as transformers counts their parameters, to the parameter."""

from __future__ import annotations

from typing import Any

import pytest

from simpar.architectures.graph import ModelGraph
from simpar.architectures.hf_config import read


def counted_alike(family: str, config: dict[str, Any], made_by: str = "AutoModelForCausalLM") -> ModelGraph:
    """The graph of a config; it has as many parameters as the model that transformers makes of it.

    A bias that only chooses experts is a buffer there.
    """
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    with torch.device("meta"):
        theirs = getattr(transformers, made_by).from_config(transformers.AutoConfig.for_model(family, **config))
    graph = read({"model_type": family, **config}, family)
    biases = [
        each.numel()
        for name, each in theirs.named_buffers()
        if name.endswith(("e_score_correction_bias", "expert_bias"))
    ]
    assert graph.num_parameters() == sum(each.numel() for each in theirs.parameters()) + sum(biases)
    return graph
