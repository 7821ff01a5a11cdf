"""Megatron-Bridge's own config classes, with stand-ins for packages that need a GPU to install."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import types
import typing
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import typing_extensions

from simpar.frameworks import Exported
from simpar.frameworks.bridge_models import PROVIDERS
from simpar.frameworks.megatron_bridge import CLASSES

STAND_INS = (
    "transformer_engine", "flash_attn", "apex", "nvidia_resiliency_ext", "wandb", "mlflow", "comet_ml", "qwen_vl_utils",
    "timm", "open_clip", "datasets", "peft", "modelopt", "fla", "causal_conv1d", "mamba_ssm", "flashinfer", "diffusers",
    "hydra", "PIL", "torchvision", "soundfile", "librosa", "av", "decord", "webdataset", "triton",
)  # fmt: skip


PARTS = ("megatron.energon", "transformers.modeling_attn_mask_utils")
"""Modules of packages that are here which are not: one of their own, and one that transformers has given up."""


class _StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds packages that are not here and gives modules whose every name is a mock."""

    def find_spec(self, name: str, *_: Any) -> Any:
        """A spec for a stand-in's name."""
        if name.split(".")[0] in STAND_INS or name.startswith(PARTS):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        """An empty package that answers every attribute."""
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__version__ = "2.9.0"

        def missing(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return mock.MagicMock(name=name)

        module.__getattr__ = missing
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to execute."""


@cache
def configs() -> Any:
    """``megatron.bridge.training.config`` of the unpacked wheels."""
    import functorch.compile  # noqa: F401 - before there is a stand-in for triton, which torch would take for it
    import torch.utils.flop_counter  # noqa: F401

    if not hasattr(typing, "override"):
        typing.override = typing_extensions.override
    sys.meta_path.insert(0, _StandIn())
    folder = Path(os.environ["MEGATRON_WHEELS"])
    wheels = [str(wheel) for wheel in sorted(folder.iterdir()) if (wheel / "megatron").is_dir()]
    sys.path[:0] = [wheel for wheel in wheels if wheel not in sys.path]
    import megatron

    megatron.__path__ = [f"{wheel}/megatron" for wheel in wheels]
    return importlib.import_module("megatron.bridge.training.config")


def check(exported: Exported) -> None:
    """Execute the module and validate the container it returns, for 8 ranks."""
    configs()
    import megatron.core.utils as core
    import torch

    namespace: dict[str, Any] = {}
    hopper = mock.MagicMock(major=9, minor=0)
    device = mock.patch.object(torch.cuda, "get_device_properties", return_value=hopper)
    with device, mock.patch.object(core, "is_te_min_version", return_value=True):
        exec(compile(exported.files["simpar_recipe.py"], "simpar_recipe.py", "exec"), namespace)
        config = namespace["plan"]()
        config.model.apply_rope_fusion = False
        os.environ["WORLD_SIZE"] = "8"
        configs().runtime_config_update(config)
        config.validate()
    assert config.model.num_layers > 0


def table() -> str:
    """Fields of the config classes, and of all classes of models."""
    module = configs()
    models = [getattr(importlib.import_module(f"megatron.bridge.models.{p.module}"), p.name) for p in PROVIDERS]
    names = dict.fromkeys(field.name for model in models for field in dataclasses.fields(model))
    lines = ["# Options by dotted name.", "version: megatron-bridge 0.6.2 with megatron-core 0.19.2", "options:"]
    lines += [f"  model.{name}: value" for name in names]
    for section, name in CLASSES.items():
        lines += [f"  {section}.{field.name}: value" for field in dataclasses.fields(getattr(module, name))]
    lines += [f"  {field.name}: value" for field in dataclasses.fields(module.ConfigContainer)]
    return "\n".join(lines) + "\n"
