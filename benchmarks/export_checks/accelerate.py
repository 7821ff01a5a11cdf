"""Accelerate reads the config as ``accelerate launch`` does, and builds its plugins from the environment that makes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from unittest import mock

from export_checks.hugging_face import check_model
from simpar.frameworks import Exported


def check(exported: Exported) -> None:
    """Parse the config, merge it into the launcher's arguments and build FSDP and parallelism plugins."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "accelerate.yaml")
        path.write_text(exported.files["accelerate.yaml"])
        arguments = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
        given, _, _ = _validate_launch_command(arguments)
    check_model(exported)
    if not given.use_fsdp:
        return
    with mock.patch.dict(os.environ, prepare_multi_gpu_env(given)):
        plugin = FullyShardedDataParallelPlugin()
        parallel = ParallelismConfig()
    assert plugin.fsdp_version == 2
    assert parallel.total_size == given.num_processes, f"{parallel.total_size} ranks of {given.num_processes}"


def table() -> str:
    """Fields of the cluster config and the launcher's flags for FSDP and parallelism."""
    import dataclasses

    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser

    names = [f.name for f in dataclasses.fields(ClusterConfig)]
    for action in launch_command_parser()._actions:
        for option in action.option_strings:
            name = option.removeprefix("--")
            if name.startswith("fsdp_"):
                names.append(f"fsdp_config.{name}")
            if name.startswith("parallelism_config_"):
                names.append(f"parallelism_config.{name}")
    lines = ["# Options by dotted name.", "version: Accelerate 1.15.0, ClusterConfig and accelerate launch", "options:"]
    return "\n".join([*lines, *(f"  {name}: value" for name in names)]) + "\n"
