"""What the scripts around a Hugging Face model have in common: they compile, and the config is the plan's model."""

from __future__ import annotations

import json

from simpar.export import Exported
from simpar.models.catalogue import load_model


def check_model(exported: Exported) -> None:
    """The script compiles; transformers builds a model with the parameters that simpar counts."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    compile(exported.files["train.py"], "train.py", "exec")
    given = json.loads(exported.files["config.json"])
    config = AutoConfig.for_model(given.pop("model_type"), **given)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    counted = sum(parameter.numel() for parameter in set(model.parameters()))
    expected = load_model(json.loads(exported.files["plan.json"])["model"]).num_parameters()
    if counted != expected:
        raise ValueError(f"{counted} parameters instead of {expected}")
