"""What the scripts around a Hugging Face model have in common: they compile, and the config is the plan's model."""

from __future__ import annotations

import json

from simpar.architectures.catalogue import load_model
from simpar.frameworks import Exported


def check_model(exported: Exported) -> None:
    """The script compiles; transformers builds a model with the parameters that simpar counts."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    compile(exported.files["train.py"], "train.py", "exec")
    given = json.loads(exported.files["config.json"])
    config = AutoConfig.for_model(given.pop("model_type"), **given)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    named = dict(model.named_parameters(remove_duplicate=False))
    kept = [tensor for name, tensor in model.state_dict().items() if name not in named]  # biases of routers
    counted = sum(tensor.numel() for tensor in (*set(named.values()), *kept))
    expected = load_model(json.loads(exported.files["plan.json"])["model"]).num_parameters()
    if counted != expected:
        raise ValueError(f"{counted} parameters instead of {expected}")
