"""TRL's own parser reads the YAML, as ``trl sft`` does."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path

from export_checks.transformers import check_arguments, names, written
from simpar.frameworks import Exported


def check(exported: Exported) -> None:
    """Parse the config into its three dataclasses, on the CPU."""
    from trl import ModelConfig, ScriptArguments, SFTConfig, TrlParser

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sft.yaml")
        path.write_text(exported.files["sft.yaml"] + "use_cpu: true\n")
        parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))
        script, training, model = parser.parse_args_and_config(["--config", str(path)])
    assert script.dataset_name
    assert "/" in model.model_name_or_path
    assert training.max_length > 0
    tuning = json.loads(exported.files["plan.json"])["tuning"]
    assert model.use_peft == (tuning["lora_rank"] is not None)
    assert not model.use_peft or (model.lora_r, model.load_in_4bit) == (
        tuning["lora_rank"], tuning["frozen_dtype"] == "nf4",
    )  # fmt: skip
    check_arguments(training, exported)


def table() -> str:
    """Fields of the three dataclasses."""
    from trl import ModelConfig, ScriptArguments, SFTConfig

    own = [field.name for kind in (ScriptArguments, SFTConfig, ModelConfig) for field in dataclasses.fields(kind)]
    return written("TRL 1.16.0", [*names(), *own])
