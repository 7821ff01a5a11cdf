"""LLaMA-Factory: the YAML of ``llamafactory-cli train``, all parameters of a released model trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simpar.export import trainer_arguments
from simpar.export.deepspeed import nested
from simpar.export.hub import HUB
from simpar.export.launch import comment, launchers
from simpar.export.subject import Loss, Subject
from simpar.export.target import Options, Target
from simpar.export.yaml_text import lines

CONFIG = "train.yaml"


def losses(s: Subject) -> Iterator[Loss]:
    """What the Trainer cannot say, and models that are not on the hub."""
    yield from trainer_arguments.released(s)
    yield from trainer_arguments.losses(s)


def options(s: Subject) -> Options:
    """The Trainer's options, and LLaMA-Factory's own.

    Checkpointing is its own habit unless it is disabled; FSDP's is an option of FSDP.
    """
    found = trainer_arguments.arguments(s)
    is_own = bool(found.pop("gradient_checkpointing"))
    return {
        "model_name_or_path": HUB.get(s.graph.name, s.graph.name),
        "stage": "pt",
        "do_train": True,
        "finetuning_type": "full",
        "dataset": "c4_demo",
        "cutoff_len": s.training.seq_len,
        "packing": True,
        "disable_gradient_checkpointing": not is_own,
        **found,
    }


def files(s: Subject, given: Options) -> Mapping[str, str]:
    """The YAML and the launchers."""
    text = "\n".join([*comment(s), *lines(nested(given))]) + "\n"
    return {CONFIG: text, **launchers(s, ["-m llamafactory.launcher", CONFIG])}


LLAMA_FACTORY = Target(
    name="llama-factory",
    description="LLaMA-Factory: the YAML of llamafactory-cli train, full parameters",
    version="LLaMA-Factory 0.9.5 (hparams)",
    stack="fsdp",
    losses=losses,
    options=options,
    files=files,
    notes=trainer_arguments.notes,
    how="The data set `c4_demo` is in the folder `data` of its repository; name your own with `dataset_dir`.",
    features=("offload", "a part"),
)
