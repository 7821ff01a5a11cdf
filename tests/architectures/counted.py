"""Configs as transformers counts their parameters, to the parameter."""

from __future__ import annotations

from typing import Any

import pytest

from simpar.architectures.graph import ModelGraph
from simpar.architectures.hf_config import read


def counted_alike(family: str, config: dict[str, Any]) -> ModelGraph:
    """The graph of a config; it has as many parameters as the model that transformers makes of it."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **config))
    graph = read({"model_type": family, **config}, family)
    assert graph.num_parameters() == sum(each.numel() for each in theirs.parameters())
    return graph
