"""LLaMA-Factory's own parser reads the YAML, as ``llamafactory-cli train`` does.

0.9.5 wants transformers up to 5.6.0; with another one set DISABLE_VERSION_CHECK=1.
"""

from __future__ import annotations

import dataclasses
import json

from ruamel.yaml import YAML

from export_checks.transformers import check_arguments, names, written
from simpar.frameworks import Exported


def check(exported: Exported) -> None:
    """Parse the config into its five dataclasses, on the CPU; a name that none of them has is refused there."""
    from llamafactory.hparams.parser import _parse_train_args

    given = YAML(typ="safe", pure=True).load(exported.files["train.yaml"])
    model, _, training, tuning, _ = _parse_train_args({**given, "use_cpu": True})
    plan = json.loads(exported.files["plan.json"])
    check_arguments(training, exported)
    assert "/" in model.model_name_or_path
    rank = plan["tuning"]["lora_rank"]
    assert (tuning.finetuning_type, tuning.lora_rank) == (("full", 8) if rank is None else ("lora", rank))
    assert model.quantization_bit == {"nf4": 4, "int8": 8}.get(plan["tuning"]["frozen_dtype"])
    own = not model.disable_gradient_checkpointing
    assert own == (plan["memory"]["recompute"] == "full" and plan["data_parallel"]["zero"] < 2)


def table() -> str:
    """Fields of the dataclasses."""
    from llamafactory.hparams import DataArguments, FinetuningArguments, ModelArguments

    kinds = (DataArguments, FinetuningArguments, ModelArguments)
    own = [each.name for kind in kinds for each in dataclasses.fields(kind)]
    return written("LLaMA-Factory 0.9.5", [*names(), *own])
