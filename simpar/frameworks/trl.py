"""TRL: the YAML of ``trl sft``, supervised fine-tuning of a released model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simpar.frameworks import trainer_arguments
from simpar.frameworks.hub import HUB, QUANTISED
from simpar.frameworks.launch import launchers
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import Options, Target
from simpar.frameworks.yaml_text import yaml_file

CONFIG = "sft.yaml"


def losses(s: Subject) -> Iterator[Loss]:
    """Losses of the Trainer, and weights that ``trl sft`` loads as they are."""
    yield from trainer_arguments.released_losses(s)
    if s.graph.name in QUANTISED:
        yield Loss("model", s.graph.name, "its weights on the hub have 4 or 8 bits, which no option of it widens")


def options(s: Subject) -> Options:
    """The Trainer's options, and TRL's own."""
    return {
        "model_name_or_path": HUB.get(s.graph.name, s.graph.name),
        "dtype": "float32",
        "dataset_name": "roneneldan/TinyStories",  # plain text: base models have no chat template
        "max_length": s.training.seq_len,
        "packing": True,
        **trainer_arguments.arguments(s),
    }


def files(s: Subject, given: Options) -> Mapping[str, str]:
    """The YAML and the launchers."""
    return {CONFIG: yaml_file(s, given), **launchers(s, ["-m trl.scripts.sft", f"--config {CONFIG}"])}


TRL = Target(
    name="trl",
    description="TRL: the YAML of supervised fine-tuning (trl sft)",
    version="TRL 1.16.0 (SFTConfig, ScriptArguments, ModelConfig)",
    stacks=("fsdp",),
    losses=losses,
    options=options,
    files=files,
    notes=trainer_arguments.notes,
    features=("offload", "a part"),
    numerics=trainer_arguments.NUMERICS,
)
