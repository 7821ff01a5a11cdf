"""Megatron-LM's own argument parser and its validation, without a GPU."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import types
import typing
from functools import cache
from pathlib import Path
from typing import Any

import typing_extensions

from export_checks import core_fields
from simpar.architectures.catalogue import load_model
from simpar.frameworks import Exported


@cache
def arguments_module() -> Any:
    """``megatron.training.arguments`` of the unpacked wheels, with the device questions answered as on Hopper."""
    if not hasattr(typing, "override"):
        typing.override = typing_extensions.override
    folder = Path(os.environ["MEGATRON_WHEELS"])
    for wheel in sorted(folder.iterdir()):
        if (wheel / "megatron").is_dir():
            sys.path.insert(0, str(wheel))
    import megatron.training.arguments as module

    module.get_device_arch_version = lambda: 9
    module.torch.cuda.get_device_capability = lambda *_: (9, 0)
    module.torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=9, minor=0)
    module.torch.cuda.current_device = lambda: 0
    module.is_te_min_version = lambda *_, **__: True
    importlib.import_module("megatron.core.transformer.transformer_config").is_te_min_version = lambda *_, **__: True
    return module


def parser() -> argparse.ArgumentParser:
    """The parser with all its arguments."""
    found = argparse.ArgumentParser(allow_abbrev=False)
    arguments_module().add_megatron_arguments(found)
    return found


def check(exported: Exported) -> None:
    """Parse the arguments, validate them as Megatron does, build its config and compare it with the model."""
    from check_exports import arguments_of

    environment = [line for line in exported.files["command.sh"].splitlines() if line.startswith("export ")]
    settings = dict(line.removeprefix("export ").split("=") for line in environment)
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(settings)
    given = parser().parse_args(arguments_of(exported))
    given.rank, given.world_size = 1, 8
    arguments_module().validate_args(given)
    given.apply_rope_fusion = False  # asks for an installed Transformer Engine
    made = importlib.import_module("megatron.training.argument_utils")
    config, graph = made.core_transformer_config_from_args(given), load_model(exported.plan.model or "")
    core_fields.compare(graph, core_fields.said(config, given, latent="qk_dim" in graph.dims))


def table() -> str:
    """Names, choices and whether they take a value, as YAML."""
    lines = [
        "# Options of Megatron-LM by name: `flag` takes no value, `value` one or more, a list is the allowed values.",
        "version: megatron-core 0.19.2, megatron/training/arguments.py",
        "options:",
    ]
    for action in parser()._actions:
        for name in action.option_strings:
            kind = "flag" if action.nargs == 0 else "value"
            if action.choices is not None and all(isinstance(c, str | int) for c in action.choices):
                kind = "[" + ", ".join(f'"{choice}"' for choice in action.choices) + "]"
            lines.append(f"  {name}: {kind}")
    return "\n".join(lines) + "\n"
