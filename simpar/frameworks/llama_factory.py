"""LLaMA-Factory: the YAML of ``llamafactory-cli train``, for full fine-tuning of a released model."""

from __future__ import annotations

from collections.abc import Mapping

from simpar.frameworks import trainer_arguments
from simpar.frameworks.hub import HUB
from simpar.frameworks.launch import launchers
from simpar.frameworks.subject import Subject
from simpar.frameworks.target import Options, Target
from simpar.frameworks.yaml_text import yaml_file

CONFIG = "train.yaml"


def options(s: Subject) -> Options:
    """The Trainer's options, and LLaMA-Factory's own.

    LLaMA-Factory checkpoints activations unless that is disabled; under FSDP, FSDP's own option is used.
    """
    arguments = trainer_arguments.arguments(s)
    is_own = bool(arguments.pop("gradient_checkpointing"))
    return {
        "model_name_or_path": HUB.get(s.graph.name, s.graph.name),
        "stage": "pt",
        "do_train": True,
        "finetuning_type": "full",
        "dataset": "c4_demo",
        "cutoff_len": s.training.seq_len,
        "packing": True,
        "disable_gradient_checkpointing": not is_own,
        **arguments,
    }


def files(s: Subject, given: Options) -> Mapping[str, str]:
    """The YAML and the launchers."""
    return {CONFIG: yaml_file(s, given), **launchers(s, ["-m llamafactory.launcher", CONFIG])}


LLAMA_FACTORY = Target(
    name="llama-factory",
    description="LLaMA-Factory: the YAML of llamafactory-cli train, full parameters",
    version="LLaMA-Factory 0.9.5 (hparams)",
    stacks=("fsdp",),
    losses=trainer_arguments.released_losses,
    options=options,
    files=files,
    notes=trainer_arguments.notes,
    how="The data set `c4_demo` is in the folder `data` of its repository; name your own with `dataset_dir`.",
    features=("offload", "a part"),
    numerics=trainer_arguments.NUMERICS,
)
