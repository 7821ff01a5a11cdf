"""transformers' own TrainingArguments read the JSON; the script compiles and the model config makes the model."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path

from export_checks.hugging_face import check_model
from simpar.frameworks import Exported

FSDP = (
    "version", "reshard_after_forward", "activation_checkpointing", "auto_wrap_policy", "cpu_offload",
    "state_dict_type", "cpu_ram_efficient_loading", "min_num_params", "transformer_layer_cls_to_wrap",
)  # fmt: skip
"""Keys of ``fsdp_config`` that ``TrainingArguments._process_fsdp_args`` reads."""


def check(exported: Exported) -> None:
    """Parse the arguments as the script does, on the CPU."""
    from transformers import HfArgumentParser, TrainingArguments

    given = {**json.loads(exported.files["training_args.json"]), "use_cpu": True}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "training_args.json")
        path.write_text(json.dumps({**given, "output_dir": folder}))
        (found,) = HfArgumentParser(TrainingArguments).parse_json_file(str(path))
    check_arguments(found, exported)
    check_model(exported)


def check_arguments(found: object, exported: Exported) -> None:
    """Microbatch and sharding are the plan's."""
    plan = json.loads(exported.files["plan.json"])
    given = vars(found)
    assert given["per_device_train_batch_size"] == plan["micro_batch"]
    assert given["gradient_accumulation_steps"] > 0
    assert bool(given["fsdp"]) == (plan["data_parallel"]["zero"] >= 2)


def names() -> list[str]:
    """Options of the Trainer, and those of FSDP by dotted name."""
    from transformers import TrainingArguments

    found = [field.name for field in dataclasses.fields(TrainingArguments) if not field.name.startswith("_")]
    return [*found, *(f"fsdp_config.{name}" for name in FSDP)]


def table() -> str:
    """Fields of TrainingArguments."""
    return written("transformers 5.23", names())


def written(version: str, options: list[str]) -> str:
    """A table of options that take any value."""
    head = f"# Options that the parser of {version} takes, read off its classes.\nversion: {version}\noptions:\n"
    return head + "".join(f"  {name}: value\n" for name in sorted(set(options)))
