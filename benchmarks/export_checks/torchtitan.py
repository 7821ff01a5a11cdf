"""torchtitan 0.3: its ConfigManager loads the module, its model is built on the meta device and counted."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from simpar.frameworks import Exported


def check(exported: Exported) -> None:
    """Load the config as ``torchtitan.train`` does; the model's parameters are those that simpar counts."""
    import torch
    from torchtitan.config.manager import ConfigManager

    from simpar.architectures.catalogue import load_model

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "simpar_recipe.py").write_text(exported.files["simpar_recipe.py"])
        sys.path.insert(0, folder)
        sys.modules.pop("simpar_recipe", None)
        try:
            config = ConfigManager().parse_args(["--module", "simpar_recipe", "--config", "plan"])
        finally:
            sys.path.remove(folder)
    with torch.device("meta"):
        model = config.model_spec.model.build()
    graph = load_model(json.loads(exported.files["plan.json"])["model"])
    main = model
    if graph.auxiliary:  # counted without the layers that predict further tokens
        registry = importlib.import_module(f"torchtitan.models.{config.model_spec.name}").model_registry
        with torch.device("meta"):
            main = registry(config.model_spec.flavor).model.build()
    counted, expected = sum(p.numel() for p in set(main.parameters())), graph.num_parameters()
    biases = sum(b.numel() for name, b in main.named_buffers() if name.endswith("expert_bias_E"))
    if expected not in (counted, counted + biases):  # a bias that chooses experts is a buffer there
        raise ValueError(f"{counted} parameters and {biases} biases of experts instead of {expected}")
    parallel = config.parallelism
    from torchtitan.distributed.parallel_dims import ParallelDims

    ParallelDims.from_config(parallel, 8) if hasattr(ParallelDims, "from_config") else None
    if parallel.pipeline_parallel_degree > 1:
        from torch.distributed.pipelining.schedules import get_schedule_class

        get_schedule_class(parallel.pipeline_parallel_schedule)
        built = {name for name, _ in model.named_children()} - {"layers"}
        named = [name for part in parallel.module_fqns_per_model_part for name in part]
        layers = {f"layers.{name}" for name, _ in model.layers.named_children()}
        if built & set(named) | layers != set(named) or len(named) != len(set(named)):
            raise ValueError(f"stages hold {sorted(set(named) ^ (built | layers))[:5]}")


def table() -> str:
    """Fields of the config classes with their allowed values."""
    configs = importlib.import_module("torchtitan.config.configs")
    sections = {"parallelism": "ParallelismConfig", "training": "TrainingConfig", "compile": "CompileConfig"}
    fields = [(f"{section}.{f.name}", f.type) for section, name in sections.items()
              for f in dataclasses.fields(getattr(configs, name))]  # fmt: skip
    return as_yaml("torchtitan 0.3.0, torchtitan/config/configs.py and trainer.py", fields) + (
        '  activation_checkpoint: ["none", "full", "selective"]\n'
    )


def as_yaml(version: str, fields: list[tuple[str, Any]]) -> str:
    """A table of names: a list where the type is a Literal, ``value`` otherwise."""
    from typing import get_args, get_origin

    lines = ["# Options by dotted name: a list is the allowed values.", f"version: {version}", "options:"]
    for name, kind in fields:
        literal = str(get_origin(kind)) == "typing.Literal"
        texts = ", ".join(f'"{choice}"' for choice in get_args(kind)) if literal else ""
        lines.append(f"  {name}: [{texts}]" if literal else f"  {name}: value")
    return "\n".join(lines) + "\n"
